package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// maxNesting is how deep Sequence components may nest, maxMembers how many components one has.
// Every text passes all of them.
const (
	maxNesting = 8
	maxMembers = 64
)

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

// char refuses a field that does not hold exactly one character.
func (c *component) char(name, s string) error {
	if utf8.RuneCountInString(s) != 1 {
		return c.errorf("%s is %q, want one character", name, s)
	}
	return nil
}

// readSequence reads the member components under key of a Sequence.
func readSequence(c *component, key, section string) ([]component, error) {
	var out []component
	found := false
	s := scanner{data: c.raw}
	member := func(i int) error {
		raw, err := s.raw()
		if err != nil {
			return c.errorf("%w", err)
		}
		if i >= maxMembers {
			return c.errorf("%s: more than %d members", key, maxMembers)
		}
		m, ok, err := readComponent(section, raw, c.depth+1)
		if err == nil && !ok {
			err = c.errorf("%s holds null", key)
		}
		out = append(out, m)
		return err
	}
	err := s.object(func(name []byte) error {
		if string(name) != key {
			_, err := s.raw()
			return err
		}
		out, found = nil, true
		if s.peek() != '[' {
			return c.errorf("%s is no array", key)
		}
		return s.array(member)
	})
	if err == nil && !found {
		err = c.errorf("no %s", key)
	}
	if err != nil {
		return nil, err
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
