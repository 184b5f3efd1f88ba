package tokenizer

import (
	"encoding/json"
	"fmt"
)

// maxNesting is how deep Sequence components may nest.
const maxNesting = 8

// component is one normalizer, pre-tokenizer, post-processor or decoder of the file, not decoded
// yet.
type component struct {
	Type string `json:"type"`
	raw  json.RawMessage
	// where names the section and the type, for errors.
	where string
	depth int
}

// readComponent reads the type of a component; ok is false for null or an absent section.
func readComponent(
	section string, raw json.RawMessage, depth int,
) (c component, ok bool, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return c, false, nil
	}
	if depth > maxNesting {
		return c, false, fmt.Errorf("tokenizer: %s: sequences nested more than %d deep", section,
			maxNesting)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, false, fmt.Errorf("tokenizer: %s: %w", section, err)
	}
	c.raw, c.depth = raw, depth
	c.where = section + " " + c.Type
	if c.Type == "" {
		return c, false, fmt.Errorf("tokenizer: %s: no type", section)
	}
	return c, true, nil
}

// decode reads the component's fields into v.
func (c *component) decode(v any) error {
	if err := json.Unmarshal(c.raw, v); err != nil {
		return fmt.Errorf("tokenizer: %s: %w", c.where, err)
	}
	return nil
}

func (c *component) errorf(format string, args ...any) error {
	return fmt.Errorf("tokenizer: %s: "+format, append([]any{c.where}, args...)...)
}

func (c *component) unknown() error { return c.errorf("not a supported type") }

// char reads a field that must hold exactly one character.
func (c *component) char(name, s string) (rune, error) {
	r := []rune(s)
	if len(r) != 1 {
		return 0, c.errorf("%s is %q, want one character", name, s)
	}
	return r[0], nil
}

// readSequence reads the member components under key of a Sequence.
func readSequence(c *component, key, section string) ([]component, error) {
	var fields map[string]json.RawMessage
	if err := c.decode(&fields); err != nil {
		return nil, err
	}
	var members []json.RawMessage
	if raw, ok := fields[key]; !ok {
		return nil, c.errorf("no %s", key)
	} else if err := json.Unmarshal(raw, &members); err != nil {
		return nil, c.errorf("%w", err)
	}
	out := make([]component, 0, len(members))
	for _, raw := range members {
		m, ok, err := readComponent(section, raw, c.depth+1)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, c.errorf("%s holds null", key)
		}
		out = append(out, m)
	}
	return out, nil
}

// appendSequence adds the member components under key of a Sequence to dst, each with add.
func appendSequence[Steps any](
	c *component, key, section string, dst Steps, add func(*component, Steps) (Steps, error),
) (Steps, error) {
	members, err := readSequence(c, key, section)
	for i := range members {
		if dst, err = add(&members[i], dst); err != nil {
			break
		}
	}
	return dst, err
}
