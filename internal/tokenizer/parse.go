package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/restore-vlm/restore/internal/files"
)

const (
	// maxFile is the most bytes of a tokenizer.json; the largest published ones have about 35 MB.
	maxFile = 256 << 20
	// maxID is the largest id, which limits the table of tokens; published vocabularies end below
	// 270,000.
	maxID = 1<<20 - 1
)

// Parse reads a tokenizer.json and does not keep its bytes. Errors name the section and the
// component.
func Parse(tokenizerJSON []byte) (*Tokenizer, error) { return parse(tokenizerJSON, nil) }

// parse is Parse with more added tokens, of which the file may have some.
func parse(tokenizerJSON []byte, more []addedToken) (*Tokenizer, error) {
	if len(tokenizerJSON) > maxFile {
		return nil, fmt.Errorf("tokenizer: file: %d bytes, limit is %d", len(tokenizerJSON),
			maxFile)
	}
	text, err := files.Text(tokenizerJSON)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: file: %w", err)
	}
	sections := map[string]json.RawMessage{}
	s := scanner{data: text}
	err = s.object(func(key []byte) error {
		name := string(key)
		raw, err := s.raw()
		switch name {
		case "version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder":
			sections[name] = append(json.RawMessage(nil), raw...)
		case "model":
			sections[name] = raw
		default:
			if err == nil && !json.Valid(raw) {
				err = s.fail()
			}
		}
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: file: %w", err)
	}
	if v, ok := sections["version"]; ok && string(v) != `"1.0"` {
		return nil, fmt.Errorf(`tokenizer: version: %.40s, want "1.0"`, v)
	}

	t := &Tokenizer{display: map[int32]string{}, addedIDs: map[string]int32{}}
	if err := t.readModel(sections["model"]); err != nil {
		return nil, err
	}
	if t.normalizers, err = readNormalizers(sections["normalizer"], nil); err != nil {
		return nil, err
	}
	if t.preTokenizers, err = readPreTokenizers(sections["pre_tokenizer"], nil); err != nil {
		return nil, err
	}
	if err := t.addTokens(sections["added_tokens"], more); err != nil {
		return nil, err
	}
	if t.processors, err = readProcessors(sections["post_processor"], t); err != nil {
		return nil, err
	}
	if t.decoder, err = readDecoder(sections["decoder"]); err != nil {
		return nil, err
	}
	return t, nil
}

// readModel reads the model section. It reads vocabulary and merges in place.
func (t *Tokenizer) readModel(raw json.RawMessage) error {
	if len(raw) == 0 {
		return fmt.Errorf("tokenizer: model: missing")
	}
	fields := map[string]json.RawMessage{}
	s := scanner{data: raw}
	err := s.object(func(key []byte) error {
		name := string(key)
		value, err := s.raw()
		fields[name] = value
		return err
	})
	if err != nil {
		return fmt.Errorf("tokenizer: model: %w", err)
	}
	var f struct {
		Type         *string
		Dropout      *float64
		Unk          *string `json:"unk_token"`
		Prefix       *string `json:"continuing_subword_prefix"`
		Suffix       *string `json:"end_of_word_suffix"`
		FuseUnk      bool    `json:"fuse_unk"`
		ByteFallback bool    `json:"byte_fallback"`
		IgnoreMerges bool    `json:"ignore_merges"`
	}
	for name, v := range map[string]any{
		"type": &f.Type, "dropout": &f.Dropout, "unk_token": &f.Unk,
		"continuing_subword_prefix": &f.Prefix,
		"end_of_word_suffix":        &f.Suffix, "fuse_unk": &f.FuseUnk,
		"byte_fallback": &f.ByteFallback,
		"ignore_merges": &f.IgnoreMerges,
	} {
		if raw, ok := fields[name]; ok {
			if err := json.Unmarshal(raw, v); err != nil {
				return fmt.Errorf("tokenizer: model: %s: %w", name, err)
			}
		}
	}
	if f.Type != nil && *f.Type != "BPE" {
		return fmt.Errorf("tokenizer: model %s: not a supported type, want BPE", *f.Type)
	}
	if f.Dropout != nil && *f.Dropout != 0 {
		return fmt.Errorf("tokenizer: model: dropout %v, want none (encoding would be random)",
			*f.Dropout)
	}
	for _, name := range [...]string{"vocab", "merges"} {
		if fields[name] == nil {
			return fmt.Errorf("tokenizer: model: no %s", name)
		}
	}
	m := &t.model
	m.unk, m.fuseUnk, m.byteFallback, m.ignoreMerges = f.Unk, f.FuseUnk, f.ByteFallback,
		f.IgnoreMerges
	if f.Prefix != nil {
		m.prefix = *f.Prefix
	}
	if f.Suffix != nil {
		m.suffix = *f.Suffix
	}
	if err := t.readVocab(fields["vocab"]); err != nil {
		return err
	}
	m.index()
	return m.readMerges(fields["merges"])
}

func (t *Tokenizer) readVocab(raw json.RawMessage) error {
	// An entry takes about 16 bytes: a short string, its quotes, a colon, an id and a comma.
	t.model.vocab = make(map[string]int32, len(raw)/16)
	s := scanner{data: raw}
	err := s.object(func(key []byte) error {
		text := string(key)
		n, err := s.integer()
		if err != nil {
			return err
		}
		id := int32(n)
		switch {
		case n > maxID:
			return fmt.Errorf("%.80q: id %d, limit is %d", text, n, maxID)
		case t.has(id):
			return fmt.Errorf("%.80q: id %d is taken by %.80q", text, n, t.tokens[id].text)
		}
		if _, ok := t.model.vocab[text]; ok {
			return fmt.Errorf("%.80q occurs twice", text)
		}
		t.model.vocab[text] = id
		t.setToken(id, text)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return fmt.Errorf("tokenizer: model: vocab: %w", err)
	}
	return nil
}

// readMerges reads merges written as "left right" or as ["left", "right"].
func (m *bpe) readMerges(raw json.RawMessage) error {
	var buf, left []byte
	var list []merge
	add := func(left, right []byte, rank int) error {
		found, err := m.resolve(left, right, rank, &buf)
		list = append(list, found)
		return err
	}
	s := scanner{data: raw}
	err := s.array(func(rank int) error {
		if s.peek() != '"' {
			n := 0
			err := s.array(func(i int) error {
				part, err := s.str()
				if err != nil {
					return err
				}
				if n = i + 1; i == 0 {
					left = append(left[:0], part...)
					return nil
				}
				if i > 1 {
					return fmt.Errorf("merge %d has more than two parts", rank)
				}
				return add(left, part, rank)
			})
			if err == nil && n != 2 {
				err = fmt.Errorf("merge %d has %d parts, want 2", rank, n)
			}
			return err
		}
		line, err := s.str()
		if err != nil || bytes.HasPrefix(line, []byte("#version")) {
			return err
		}
		l, r, ok := bytes.Cut(line, []byte(" "))
		if !ok || bytes.IndexByte(r, ' ') >= 0 {
			return fmt.Errorf("merge %d is %.80q, want two parts with a space between", rank, line)
		}
		return add(l, r, rank)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return fmt.Errorf("tokenizer: model: merges: %w", err)
	}
	m.merges = newMergeTable(list)
	return nil
}
