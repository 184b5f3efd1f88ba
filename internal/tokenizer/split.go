package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// preTokenizer appends the parts of p. It is not called for added tokens.
type preTokenizer func(p piece, dst []piece) ([]piece, error)

// behavior is the treatment of a delimiter.
type behavior uint8

const (
	isolated behavior = iota // becomes a separate piece
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous // becomes one piece with adjacent delimiters
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

// split splits p at the matches. With invert, the matches are the words and the rest are
// delimiters.
func (p *piece) split(matches [][2]int, invert bool, b behavior, dst []piece) []piece {
	type part struct {
		start, end int
		delim      bool
	}
	parts := make([]part, 0, 2*len(matches)+1)
	last := 0
	for _, m := range matches {
		if last < m[0] {
			parts = append(parts, part{last, m[0], invert})
		}
		parts = append(parts, part{m[0], m[1], !invert})
		last = m[1]
	}
	if last < len(p.text) {
		parts = append(parts, part{last, len(p.text), invert})
	}
	start, end := 0, 0 // the current piece
	emit := func() {
		if start < end {
			dst = append(dst, p.slice(start, end))
		}
	}
	for i, q := range parts {
		join := false
		switch b {
		case removed:
			if q.delim {
				continue
			}
		case contiguous:
			join = i > 0 && parts[i-1].delim == q.delim
		case mergedWithPrevious:
			join = i > 0 && q.delim && !parts[i-1].delim
		case mergedWithNext:
			join = i > 0 && parts[i-1].delim && !q.delim
		}
		if !join {
			emit()
			start = q.start
		}
		end = q.end
	}
	emit()
	return dst
}

// splitter is a pre-tokenizer that only splits.
func splitter(find finder, invert bool, b behavior) preTokenizer {
	return func(p piece, dst []piece) ([]piece, error) {
		m, err := find(p.text, nil)
		if err != nil {
			return nil, err
		}
		return p.split(m, invert, b, dst), nil
	}
}

// readPreTokenizers appends the pre-tokenizers of a section and flattens sequences.
func readPreTokenizers(raw json.RawMessage, dst []preTokenizer) ([]preTokenizer, error) {
	c, ok, err := readComponent("pre_tokenizer", raw, 0)
	if err != nil || !ok {
		return dst, err
	}
	return appendPreTokenizer(&c, dst)
}

func appendPreTokenizer(c *component, dst []preTokenizer) ([]preTokenizer, error) {
	switch c.Type {
	case "Sequence":
		return appendSequence(c, "pretokenizers", "pre_tokenizer", dst, appendPreTokenizer)
	case "Metaspace":
		m, err := readMetaspace(c)
		return append(dst, m.preTokenize), err
	case "Split":
		var f struct {
			Pattern  patternField
			Behavior string
			Invert   bool
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		b, ok := behaviors[f.Behavior]
		if !ok {
			return nil, c.errorf("behavior %q is not known", f.Behavior)
		}
		find, err := f.Pattern.compile(c)
		return append(dst, splitter(find, f.Invert, b)), err
	case "ByteLevel":
		f := struct {
			AddPrefixSpace bool `json:"add_prefix_space"`
			UseRegex       bool `json:"use_regex"`
		}{true, true}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		return append(dst, byteLevel(f.AddPrefixSpace, f.UseRegex)), nil
	case "Digits":
		var f struct {
			Individual bool `json:"individual_digits"`
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		b := contiguous
		if f.Individual {
			b = isolated
		}
		return append(dst, splitter(each(isNumber), false, b)), nil
	case "Punctuation":
		f := struct{ Behavior string }{"Isolated"}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		b, ok := behaviors[f.Behavior]
		if !ok {
			return nil, c.errorf("behavior %q is not known", f.Behavior)
		}
		return append(dst, splitter(each(isPunct), false, b)), nil
	case "Whitespace":
		return append(dst, splitter(runs(wordClass), true, removed)), nil
	case "WhitespaceSplit":
		return append(dst, splitter(each(unicode.IsSpace), false, removed)), nil
	case "BertPreTokenizer":
		return append(dst, splitter(each(unicode.IsSpace), false, removed),
			splitter(each(isPunct), false, isolated)), nil
	case "CharDelimiterSplit":
		var f struct{ Delimiter string }
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		return append(dst, splitter(literal(f.Delimiter), false, removed)),
			c.char("delimiter", f.Delimiter)
	case "FixedLength":
		f := struct{ Length int }{5}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		if f.Length < 1 {
			return nil, c.errorf("length is %d, want at least 1", f.Length)
		}
		return append(dst, splitter(fixedLength(f.Length), false, isolated)), nil
	}
	return nil, c.unknown()
}

// wordClass returns the classes for the runs of \w+|[^\w\s]+.
func wordClass(r rune) int {
	switch {
	case isWord(r):
		return 1
	case unicode.IsSpace(r):
		return 0
	}
	return 2
}

func fixedLength(n int) finder {
	return func(s string, dst [][2]int) ([][2]int, error) {
		start, count := 0, 0
		for i := range s {
			if count == n {
				dst = append(dst, [2]int{start, i})
				start, count = i, 0
			}
			count++
		}
		return append(dst, [2]int{start, len(s)}), nil
	}
}

// byteLevel is GPT-2's pre-tokenizer: each byte becomes one printable character.
func byteLevel(prefixSpace, split bool) preTokenizer {
	find := tiling(gpt2Next)
	return func(p piece, dst []piece) ([]piece, error) {
		if prefixSpace && !strings.HasPrefix(p.text, " ") {
			if err := p.prepend(" "); err != nil {
				return nil, err
			}
		}
		n := len(dst)
		if split {
			m, err := find(p.text, nil)
			if err != nil {
				return nil, err
			}
			dst = p.split(m, false, isolated, dst)
		} else {
			dst = append(dst, p)
		}
		for i := n; i < len(dst); i++ {
			if err := byteLevelChars(&dst[i]); err != nil {
				return nil, err
			}
		}
		return dst, nil
	}
}

// metaspace replaces spaces by another character, like SentencePiece.
type metaspace struct {
	replacement string
	prepend     prependScheme
	split       bool
}

// prependScheme tells which pieces get a replacement character in front if they lack one.
type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependFirst                // only the piece at the start of the text
	prependNever
)

var prependSchemes = map[string]prependScheme{
	"always": prependAlways, "first": prependFirst, "never": prependNever,
}

// readMetaspace reads a Metaspace component, which is a pre-tokenizer or a decoder.
func readMetaspace(c *component) (metaspace, error) {
	f := struct {
		Replacement    string
		PrependScheme  *string `json:"prepend_scheme"`
		AddPrefixSpace *bool   `json:"add_prefix_space"`
		Split          *bool
	}{}
	if err := c.decode(&f); err != nil {
		return metaspace{}, err
	}
	m := metaspace{replacement: f.Replacement, split: f.Split == nil || *f.Split}
	if err := c.char("replacement", f.Replacement); err != nil {
		return m, err
	}
	if f.PrependScheme != nil {
		scheme, ok := prependSchemes[*f.PrependScheme]
		if !ok {
			return m, c.errorf("prepend_scheme %q is not known", *f.PrependScheme)
		}
		m.prepend = scheme
	}
	// Older files have add_prefix_space instead of prepend_scheme.
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace {
		if f.PrependScheme != nil && m.prepend != prependNever {
			return m, c.errorf("add_prefix_space false contradicts prepend_scheme %q",
				*f.PrependScheme)
		}
		m.prepend = prependNever
	}
	return m, nil
}

func (m metaspace) preTokenize(p piece, dst []piece) ([]piece, error) {
	base := p.base
	var spaces [][2]int
	for i := range len(p.text) {
		if p.text[i] == ' ' {
			spaces = append(spaces, [2]int{i, i + 1})
		}
	}
	if err := p.replace(spaces, m.replacement); err != nil {
		return nil, err
	}
	wanted := m.prepend == prependAlways || m.prepend == prependFirst && base == 0
	if wanted && !strings.HasPrefix(p.text, m.replacement) {
		if err := p.prepend(m.replacement); err != nil {
			return nil, err
		}
	}
	if !m.split {
		return append(dst, p), nil
	}
	r, _ := utf8.DecodeRuneInString(m.replacement)
	found, err := each(func(c rune) bool { return c == r })(p.text, nil)
	return p.split(found, false, mergedWithNext, dst), err
}
