package gguf

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// vocabulary is the tokenizer of a decoder's file.
type vocabulary struct {
	pieces   []tokenizer.Piece
	ids      map[string]int // of pieces in the vocabulary; nil if there is none
	bos, eos int            // -1 if there is none
	file     []byte         // tokenizer.json or tokenizer.model; nil if there is none
	settings []byte         // tokenizer_config.json of a tokenizer.model
	specials []byte         // JSON object of the special tokens' texts
}

// addTo adds the ids of special tokens to a config.json.
func (v *vocabulary) addTo(config object) {
	for key, id := range map[string]int{"bos_token_id": v.bos, "eos_token_id": v.eos} {
		if id >= 0 {
			config[key] = id
		}
	}
}

// vocabulary reads the tokenizer of a decoder's file of a family with size rows of embeddings.
func (f *file) vocabulary(size int, g *checkpoint.GGUF) (*vocabulary, error) {
	if size > tokenizer.MaxPieces {
		return nil, fmt.Errorf("tensor %q: %d rows, want at most %d", "token_embd.weight", size,
			tokenizer.MaxPieces)
	}
	v := &vocabulary{bos: -1, eos: -1}
	model := f.Text("tokenizer.ggml.model", "none")
	if model == "none" || model == "no_vocab" {
		v.pieces = make([]tokenizer.Piece, size)
		return v, nil
	}
	v.ids = map[string]int{}
	if err := f.readPieces(v, size); err != nil {
		return nil, err
	}
	for _, text := range g.Special {
		if id, ok := v.ids[text]; ok {
			v.pieces[id].Kind = tokenizer.ControlPiece
		}
	}
	texts := object{}
	var other int
	for _, special := range []struct {
		name, key string
		id        *int
		def       int // default for a SentencePiece vocabulary
	}{
		{"bos_token", "bos_token_id", &v.bos, 1}, {"eos_token", "eos_token_id", &v.eos, 2},
		{"unk_token", "unknown_token_id", &other, 0}, {"pad_token", "padding_token_id", &other, -1},
	} {
		key := "tokenizer.ggml." + special.key
		if model != "llama" {
			special.def = -1
		}
		id := f.Number(key, special.def)
		switch {
		case id >= len(v.pieces) && f.has(key):
			return nil, fmt.Errorf("key %q: id %d, want one below %d", key, id, len(v.pieces))
		case id >= 0 && id < len(v.pieces):
			*special.id, texts[special.name] = id, v.pieces[id].Text
		}
	}
	var err error
	if v.specials, err = json.Marshal(texts); err != nil {
		return nil, err
	}
	switch model {
	case "llama":
		err = f.sentencePiece(v, texts)
	case "gpt2":
		v.file, err = f.bytePairs(v)
	default:
		err = fmt.Errorf("key %q: %q: %w, want llama or gpt2", "tokenizer.ggml.model", model,
			errs.ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return v, nil
}

// readPieces reads texts, scores and types of the tokens.
func (f *file) readPieces(v *vocabulary, size int) error {
	tokens, ok := f.key("tokenizer.ggml.tokens", strs)
	if !ok {
		return fmt.Errorf("key %q is missing", "tokenizer.ggml.tokens")
	}
	if tokens.count > size {
		return fmt.Errorf("key %q: %d tokens, want at most the %d rows of the embedding",
			"tokenizer.ggml.tokens", tokens.count, size)
	}
	list := func(name string, want kind) (value, error) {
		v, ok := f.key(name, want)
		if ok && v.count != tokens.count {
			return v, fmt.Errorf("key %q: %d numbers for %d tokens", name, v.count, tokens.count)
		}
		return v, nil
	}
	scores, err := list("tokenizer.ggml.scores", floats)
	if err != nil {
		return err
	}
	types, err := list("tokenizer.ggml.token_type", wholes)
	if err != nil {
		return err
	}
	v.pieces = make([]tokenizer.Piece, tokens.count)
	tokens.strings(func(i int, s []byte) {
		p := &v.pieces[i]
		p.Text, p.Kind = string(s), tokenizer.NormalPiece
		if scores.count > 0 {
			p.Score = float32(scores.float(i))
		}
		if types.count > 0 {
			p.Kind = tokenizer.PieceKind(min(types.int(i), math.MaxUint8))
		}
	})
	for i, p := range v.pieces {
		if p.Kind < tokenizer.NormalPiece || p.Kind > tokenizer.BytePiece {
			return fmt.Errorf("key %q: token %d: type %d, want 1 to 6", "tokenizer.ggml.token_type",
				i, p.Kind)
		}
		if p.Kind != tokenizer.UnusedPiece {
			v.ids[p.Text] = i
		}
	}
	return nil
}

// sentencePiece writes the tokenizer.model of a vocabulary with scores, and its settings.
func (f *file) sentencePiece(v *vocabulary, texts object) error {
	m := tokenizer.SentencePiece{
		Pieces: v.pieces, DummyPrefix: f.Flag("tokenizer.ggml.add_space_prefix", true),
		TrimSpaces: f.Flag("tokenizer.ggml.remove_extra_whitespaces", false),
	}
	unknown := f.Number("tokenizer.ggml.unknown_token_id", 0)
	added, bytes := object{}, 0
	for i := range m.Pieces {
		p := &m.Pieces[i]
		// Converters that do not read tokenizer.model mark the unknown token as a control token.
		switch {
		case i == unknown && p.Kind == tokenizer.ControlPiece:
			p.Kind = tokenizer.UnknownPiece
		case i != unknown && p.Kind == tokenizer.UnknownPiece:
			p.Kind = tokenizer.ControlPiece
		}
		switch p.Kind {
		case tokenizer.BytePiece:
			bytes++
		case tokenizer.ControlPiece, tokenizer.UnknownPiece, tokenizer.UserPiece:
			added[strconv.Itoa(i)] = checkpoint.AddedToken(p.Text, p.Kind != tokenizer.UserPiece)
		}
	}
	m.ByteFallback = bytes > 0
	settings := object{
		"tokenizer_class": "LlamaTokenizer", "legacy": true, "added_tokens_decoder": added,
		"add_bos_token": f.Flag("tokenizer.ggml.add_bos_token", true),
		"add_eos_token": f.Flag("tokenizer.ggml.add_eos_token", false),
	}
	if !m.DummyPrefix {
		settings["add_prefix_space"] = false // transformers' default is true
	}
	maps.Copy(settings, texts)
	var err error
	v.file = m.Marshal()
	v.settings, err = json.Marshal(settings)
	return err
}

// preTokenizers maps llama.cpp's names to the behaviour of the models' own tokenizers. Source: the
// tokenizer.json of the models.
var preTokenizers = map[string]*tokenizer.Words{
	"gpt-2":  {},
	"smollm": {Digits: true},
	"qwen2":  &tokenizer.Qwen2Words,
	"llama-bpe": {
		IgnoreMerges: true,
		Pattern:      `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	},
	"tekken": {
		IgnoreMerges: true,
		Pattern:      `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	},
}

// otherNames are synonyms. The tokenizer.json of Pixtral 12B splits as Llama 3's does.
var otherNames = map[string]string{"llama3": "llama-bpe", "llama-v3": "llama-bpe",
	"pixtral": "llama-bpe", "deepseek-r1-qwen": "qwen2"}

// bytePairs writes the tokenizer.json of a vocabulary of byte pairs.
func (f *file) bytePairs(v *vocabulary) ([]byte, error) {
	name := f.Text("tokenizer.ggml.pre", "")
	if other := otherNames[name]; other != "" {
		name = other
	}
	pre := preTokenizers[name]
	if pre == nil {
		return nil, fmt.Errorf("key %q: %q: %w, want qwen2, llama-bpe, tekken, smollm or gpt-2",
			"tokenizer.ggml.pre", name, errs.ErrUnsupported)
	}
	vocab, added := map[string]int{}, []any{}
	for i, p := range v.pieces {
		if p.Kind == tokenizer.UnusedPiece {
			continue
		}
		if p.Text == "" {
			return nil, fmt.Errorf("token %d: has no text", i)
		}
		if v.ids[p.Text] != i {
			return nil, fmt.Errorf("token %d: %.40q occurs twice", i, p.Text)
		}
		if p.Kind != tokenizer.NormalPiece {
			token := checkpoint.AddedToken(p.Text, p.Kind != tokenizer.UserPiece)
			token["id"] = i
			added = append(added, token)
		}
		vocab[p.Text] = i // other programs number an added token that is not here themselves
	}
	merges := f.strings("tokenizer.ggml.merges")
	if merges == nil {
		return nil, fmt.Errorf("key %q is missing", "tokenizer.ggml.merges")
	}
	pairs := tokenizer.BytePairs{Words: *pre, Vocab: vocab, Merges: merges, Added: added}
	begins := name == "llama-bpe" || name == "tekken" // unless the file says otherwise
	if f.Flag("tokenizer.ggml.add_bos_token", begins) && v.bos >= 0 {
		pairs.First, pairs.FirstID = v.pieces[v.bos].Text, v.bos
	}
	if key := "tokenizer.ggml.add_eos_token"; f.Flag(key, false) {
		return nil, fmt.Errorf("key %q: true of byte pairs: %w, want false", key,
			errs.ErrUnsupported)
	}
	return pairs.Marshal()
}
