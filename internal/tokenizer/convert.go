package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/files"
)

// object is an object of tokenizer.json.
type object = map[string]any

// ConvertModel returns a tokenizer.json that encodes like a tokenizer.model with the settings of a
// tokenizer_config.json. ok is false if ordered merges cannot replace scores: two scores are equal,
// an unused piece merges, or spaces are trimmed. Without "legacy", a text that begins with a space
// or an added token gets no space in front. The fast tokenizers of transformers 4.x, and of
// 5.x with the same tokenizer.model, do the same, while the slow ones of 4.x, which Open follows,
// add a space. No tokenizer.json can do that.
func ConvertModel(model, config []byte) (tokenizerJSON []byte, ok bool, err error) {
	s, err := ReadSentencePiece(model)
	if err != nil {
		return nil, false, err
	}
	set, err := s.settings(config)
	if err != nil {
		return nil, false, err
	}
	vocab := make(map[string]int32, len(s.Pieces))
	for i, p := range s.Pieces {
		vocab[p.Text] = int32(i)
	}
	id := func(text string) (int32, bool) {
		n, ok := vocab[text]
		return n, ok
	}
	added, err := set.addedTokens(id)
	if err != nil {
		return nil, false, fmt.Errorf("tokenizer: settings: %w", err)
	}
	merges, ok := s.merges(vocab, added)
	if !ok || len(vocab) != len(s.Pieces) || s.TrimSpaces {
		return nil, false, nil
	}
	bpe := object{
		"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
		"end_of_word_suffix": nil, "fuse_unk": true, "byte_fallback": s.ByteFallback,
		"ignore_merges": false, "vocab": vocab, "merges": merges,
	}
	for _, p := range s.Pieces {
		if p.Kind == UnknownPiece {
			bpe["unk_token"] = p.Text
		}
	}
	slices.SortFunc(added, func(a, b addedToken) int { return cmp.Compare(a.ID, b.ID) })
	file := object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added,
		"normalizer": nil, "pre_tokenizer": nil, "model": bpe,
	}
	spaces := object{"type": "Replace", "pattern": object{"String": " "}, "content": blank}
	steps := []object{
		{"type": "Replace", "pattern": object{"String": blank}, "content": " "},
		{"type": "ByteFallback"}, {"type": "Fuse"},
	}
	switch {
	case s.DummyPrefix && set.everyRun():
		file["normalizer"] = object{"type": "Sequence", "normalizers": []object{
			{"type": "Prepend", "prepend": blank}, spaces,
		}}
	case s.DummyPrefix:
		file["pre_tokenizer"] = object{
			"type": "Metaspace", "replacement": blank, "prepend_scheme": "first", "split": false,
		}
	default:
		file["normalizer"] = spaces
	}
	if s.DummyPrefix {
		steps = append(steps, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	file["decoder"] = object{"type": "Sequence", "decoders": steps}
	file["post_processor"] = set.postProcessor(id)
	text, err := files.JSON(file, "")
	return text, err == nil, err
}

// postProcessor is the section that puts the first and the last token around a text.
func (set *llamaSettings) postProcessor(id func(text string) (int32, bool)) object {
	around, special := []object{}, object{}
	edge := func(raw json.RawMessage, want bool) {
		if n, ok := id(TokenText(raw)); ok && want {
			text := TokenText(raw)
			around = append(around, object{"SpecialToken": object{"id": text, "type_id": 0}})
			special[text] = object{"id": text, "ids": []int32{n}, "tokens": []string{text}}
		}
	}
	edge(set.BOS, set.AddBOS)
	around = append(around, object{"Sequence": object{"id": "A", "type_id": 0}})
	edge(set.EOS, set.AddEOS)
	pair := append(slices.Clone(around), object{"Sequence": object{"id": "B", "type_id": 1}})
	return object{
		"type": "TemplateProcessing", "single": around, "pair": pair, "special_tokens": special,
	}
}

// merges returns the pairs of pieces that form a piece, higher scores first. Pieces that are
// matched as a whole must be among the added tokens.
func (s *SentencePiece) merges(
	vocab map[string]int32,
	added []addedToken,
) (pairs [][2]string, ok bool) {
	normal := func(text string) bool {
		id, ok := vocab[text]
		return ok && s.Pieces[id].Kind == NormalPiece
	}
	parts := func(text string) (pairs [][2]string) {
		for at := range text {
			if at > 0 && normal(text[:at]) && normal(text[at:]) {
				pairs = append(pairs, [2]string{text[:at], text[at:]})
			}
		}
		return pairs
	}
	made, scores := []Piece{}, map[float32]bool{}
	for _, p := range s.Pieces {
		switch {
		case p.Kind == UnusedPiece && parts(p.Text) != nil,
			p.Kind == UserPiece && !slices.ContainsFunc(added, func(a addedToken) bool {
				return a.Content == p.Text
			}):
			return nil, false
		case p.Kind != NormalPiece || utf8.RuneCountInString(p.Text) < 2:
			continue
		case scores[p.Score]:
			return nil, false
		}
		scores[p.Score] = true
		made = append(made, p)
	}
	slices.SortFunc(made, func(a, b Piece) int { return cmp.Compare(b.Score, a.Score) })
	pairs = [][2]string{}
	for _, p := range made {
		pairs = append(pairs, parts(p.Text)...)
	}
	return pairs, true
}
