package tokenizer

import (
	"encoding/json"
	"unicode"
	"unicode/utf8"
)

// maxTemplate is the most tokens that a template adds.
const maxTemplate = 1024

// encoded is an encoding between post-processors.
type encoded struct {
	Encoding
	text   string // the original text
	tokens func(id int32) string
	added  []bool // which ids are added tokens found in the text
}

// processor is one post-processor.
type processor func(e *encoded)

func readProcessors(raw json.RawMessage, t *Tokenizer) ([]processor, error) {
	c, ok, err := readComponent("post_processor", raw, 0)
	if err != nil || !ok {
		return nil, err
	}
	return appendProcessor(&c, t, nil)
}

func appendProcessor(c *component, t *Tokenizer, dst []processor) ([]processor, error) {
	switch c.Type {
	case "Sequence":
		member := func(c *component, dst []processor) ([]processor, error) {
			return appendProcessor(c, t, dst)
		}
		return appendSequence(c, "processors", "post_processor", dst, member)
	case "TemplateProcessing":
		around, err := readTemplate(c, t)
		if err != nil {
			return nil, err
		}
		return dst, t.surround(c, around)
	case "ByteLevel":
		f := struct {
			AddPrefixSpace bool `json:"add_prefix_space"`
			TrimOffsets    bool `json:"trim_offsets"`
		}{true, true}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		if f.TrimOffsets {
			dst = append(dst, trimOffsets(f.AddPrefixSpace))
		}
		return dst, nil
	case "BertProcessing", "RobertaProcessing":
		f := struct {
			Cls, Sep       [2]any
			AddPrefixSpace bool `json:"add_prefix_space"`
			TrimOffsets    bool `json:"trim_offsets"`
		}{AddPrefixSpace: true, TrimOffsets: true}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		if c.Type == "RobertaProcessing" && f.TrimOffsets {
			dst = append(dst, trimOffsets(f.AddPrefixSpace))
		}
		var ids [2]int32
		for i, pair := range [2][2]any{f.Cls, f.Sep} {
			v, ok := pair[1].(float64)
			if !ok || v < 0 || v > maxID || !t.has(int32(v)) {
				return nil, c.errorf("cls or sep is %v, want a token and its id", pair)
			}
			ids[i] = int32(v)
		}
		return dst, t.surround(c, template{{ids: ids[:1]}, {sequence: true}, {ids: ids[1:]}})
	}
	return nil, c.unknown()
}

// surround sets the special ids around a text. A second component that adds some is refused: the
// reference's result then has parts of them twice.
func (t *Tokenizer) surround(c *component, around template) error {
	if t.around != nil {
		return c.errorf("the component before it adds special tokens, too, want one that does")
	}
	t.around = around
	return nil
}

// template is the order of the text's ids and special ids.
type template []templatePart

type templatePart struct {
	sequence bool // true: the text's ids
	ids      []int32
}

func readTemplate(c *component, t *Tokenizer) (template, error) {
	type part struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	var f struct {
		Single  []part
		Special map[string]struct{ IDs []int32 } `json:"special_tokens"`
	}
	if err := c.decode(&f); err != nil {
		return nil, err
	}
	var out template
	total := 0
	for _, p := range f.Single {
		switch {
		case p.Sequence != nil && p.Sequence.ID == "A":
			out = append(out, templatePart{sequence: true})
		case p.SpecialToken != nil:
			s, ok := f.Special[p.SpecialToken.ID]
			if !ok {
				return nil, c.errorf("special token %q is not defined", p.SpecialToken.ID)
			}
			for _, id := range s.IDs {
				if !t.has(id) {
					return nil, c.errorf("special token %q: id %d is not in the vocabulary",
						p.SpecialToken.ID, id)
				}
			}
			if total += len(s.IDs); total > maxTemplate {
				return nil, c.errorf("more than %d special tokens", maxTemplate)
			}
			out = append(out, templatePart{ids: s.IDs})
		default:
			return nil, c.errorf(
				"single holds a part that is neither a special token nor sequence A")
		}
	}
	n := 0
	for _, p := range out {
		if p.sequence {
			n++
		}
	}
	if n != 1 {
		return nil, c.errorf("single holds sequence A %d times, want once", n)
	}
	return out, nil
}

// add adds the special ids; their offsets are 0, 0.
func (t template) add(e Encoding) Encoding {
	out := Encoding{IDs: []int32{}, Offsets: [][2]int{}}
	for _, p := range t {
		if p.sequence {
			out.IDs = append(out.IDs, e.IDs...)
			out.Offsets = append(out.Offsets, e.Offsets...)
			continue
		}
		for _, id := range p.ids {
			out.IDs = append(out.IDs, id)
			out.Offsets = append(out.Offsets, [2]int{})
		}
	}
	return out
}

// trimOffsets removes white space at the ends of tokens from their offsets.
func trimOffsets(prefixSpace bool) processor {
	blank := func(r rune) bool { return r == byteRune[' '] || unicode.IsSpace(r) }
	return func(e *encoded) {
		var white [2]int // of the text: added tokens may share a long run of it
		for i, id := range e.IDs {
			o := &e.Offsets[i]
			s := e.tokens(id)
			if e.added[i] {
				s = e.text[o[0]:o[1]]
				if len(s) > utf8.UTFMax && white[0] <= o[0] && o[1] <= white[1] {
					o[0] = o[1]
					continue
				}
			}
			leading, trailing := 0, 0
			for _, r := range s {
				if !blank(r) {
					break
				}
				leading++
			}
			for rest := s; rest != ""; trailing++ {
				r, n := utf8.DecodeLastRuneInString(rest)
				if !blank(r) {
					break
				}
				rest = rest[:len(rest)-n]
			}
			if e.added[i] && leading == utf8.RuneCountInString(s) {
				white = *o
			}
			// The pre-tokenizer may have added a single space at the start.
			if leading == 1 && prefixSpace && (i == 0 || o[0] == 0) {
				leading = 0
			}
			for ; leading > 0 && o[0] < o[1]; leading-- {
				_, n := utf8.DecodeRuneInString(e.text[o[0]:o[1]])
				o[0] += n
			}
			for ; trailing > 0 && o[0] < o[1]; trailing-- {
				_, n := utf8.DecodeLastRuneInString(e.text[o[0]:o[1]])
				o[1] -= n
			}
		}
	}
}
