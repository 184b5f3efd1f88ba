package tokenizer

import (
	"encoding/json"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a piece in place.
type normalizer func(p *piece) error

// readNormalizers appends the normalizers of a section and flattens sequences.
func readNormalizers(raw json.RawMessage, dst []normalizer) ([]normalizer, error) {
	c, ok, err := readComponent("normalizer", raw, 0)
	if err != nil || !ok {
		return dst, err
	}
	return appendNormalizer(&c, dst)
}

func appendNormalizer(c *component, dst []normalizer) ([]normalizer, error) {
	switch c.Type {
	case "Sequence":
		return appendSequence(c, "normalizers", "normalizer", dst, appendNormalizer)
	case "Prepend":
		var f struct{ Prepend string }
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		return append(dst, func(p *piece) error { return p.prepend(f.Prepend) }), nil
	case "Replace":
		var f struct {
			Pattern patternField
			Content string
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		find, err := f.Pattern.compile(c)
		if err != nil {
			return nil, err
		}
		return append(dst, func(p *piece) error {
			m, err := find(p.text, nil)
			if err != nil {
				return err
			}
			return p.replace(m, f.Content)
		}), nil
	case "NFC":
		return append(dst, normalForm{norm.NFC, norm.NFD, true}.normalize), nil
	case "NFD":
		return append(dst, normalForm{norm.NFD, norm.NFD, false}.normalize), nil
	case "NFKC":
		return append(dst, normalForm{norm.NFKC, norm.NFKD, true}.normalize), nil
	case "NFKD":
		return append(dst, normalForm{norm.NFKD, norm.NFKD, false}.normalize), nil
	case "Lowercase":
		return append(dst, lowercase), nil
	case "Strip":
		var f struct {
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		if err := c.decode(&f); err != nil {
			return nil, err
		}
		return append(dst, func(p *piece) error { strip(p, f.Left, f.Right); return nil }), nil
	case "StripAccents":
		return append(dst, func(p *piece) error {
			return p.filter(func(r rune) bool { return !unicode.IsMark(r) })
		}), nil
	case "Nmt":
		return append(dst, nmt), nil
	case "ByteLevel":
		return append(dst, byteLevelChars), nil
	}
	return nil, c.unknown()
}

func lowercase(p *piece) error {
	if strings.IndexFunc(p.text, func(r rune) bool {
		return r == 0x130 || unicode.ToLower(r) != r
	}) < 0 {
		return nil
	}
	return p.expand(appendLower)
}

func strip(p *piece, left, right bool) {
	i, j := 0, len(p.text)
	if right {
		j = len(strings.TrimRightFunc(p.text, unicode.IsSpace))
	}
	if left {
		i = j - len(strings.TrimLeftFunc(p.text[:j], unicode.IsSpace))
	}
	*p = p.slice(i, j)
}

// nmt drops control characters and turns other breaks and invisible characters into spaces, like
// SentencePiece's nmt rules.
func nmt(p *piece) error {
	err := p.filter(func(r rune) bool {
		return !(r >= 0x01 && r <= 0x08 || r == 0x0b || r >= 0x0e && r <= 0x1f || r == 0x7f ||
			r == 0x8f || r == 0x9f)
	})
	if err != nil {
		return err
	}
	var spaces [][2]int
	for i, r := range p.text {
		switch {
		case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200b && r <= 0x200f,
			r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
			spaces = append(spaces, [2]int{i, i + len(string(r))})
		}
	}
	return p.replace(spaces, " ")
}
