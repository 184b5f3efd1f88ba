package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// Words tells how text is split into words before byte pairs are merged.
type Words struct {
	Pattern      string // "": ByteLevel's own, GPT-2's
	Digits       bool   // each digit is a word of its own
	NFC          bool   // text is normalised before
	IgnoreMerges bool   // a word that is a token is not made of pairs
}

// Qwen2Words is how Qwen2's and Qwen3's tokenizers split text.
var Qwen2Words = Words{
	NFC:     true,
	Pattern: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
}

// BytePairs is a vocabulary of byte pairs.
type BytePairs struct {
	Words
	Vocab   map[string]int
	Merges  []string // pairs of tokens with a space between them, the first to merge first
	Added   any      // list of tokenizer.json: tokens that are matched as a whole
	First   string   // token in front of every text; "": none
	FirstID int
}

// Marshal returns the tokenizer.json.
func (b *BytePairs) Marshal() ([]byte, error) {
	level := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
		"use_regex": b.Pattern == ""}
	words := any(level)
	if b.Pattern != "" {
		words = object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": b.Pattern}, "behavior": "Isolated",
				"invert": false}, level}}
	}
	if b.Digits {
		words = object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Digits", "individual_digits": true}, level}}
	}
	var normalizer, post any
	if b.NFC {
		normalizer = object{"type": "NFC"}
	}
	if b.First != "" {
		post = object{
			"type": "TemplateProcessing",
			"single": []any{object{"SpecialToken": object{"id": b.First, "type_id": 0}},
				object{"Sequence": object{"id": "A", "type_id": 0}}},
			"pair": []any{object{"Sequence": object{"id": "A", "type_id": 0}},
				object{"Sequence": object{"id": "B", "type_id": 1}}},
			"special_tokens": object{b.First: object{"id": b.First,
				"ids": []int{b.FirstID}, "tokens": []string{b.First}}},
		}
	}
	return files.JSON(object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": b.Added,
		"normalizer":    normalizer,
		"pre_tokenizer": words, "post_processor": post,
		"decoder": object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
			"use_regex": false},
		"model": object{"type": "BPE", "dropout": nil, "unk_token": nil,
			"continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": b.IgnoreMerges,
			"vocab":  b.Vocab,
			"merges": b.Merges},
	}, "")
}

// ConvertPairs returns a tokenizer.json that encodes like a vocab.json and a merges.txt with the
// settings of a tokenizer_config.json, whose class must be Qwen2's: others split text otherwise.
func ConvertPairs(vocab, merges, config []byte) ([]byte, error) {
	set := struct {
		llamaSettings
		Class string `json:"tokenizer_class"`
	}{}
	if err := json.Unmarshal(config, &set); err != nil {
		return nil, fmt.Errorf("tokenizer: settings: %w", err)
	}
	if class := strings.TrimSuffix(set.Class, "Fast"); class != "Qwen2Tokenizer" {
		return nil, fmt.Errorf("tokenizer: settings: tokenizer_class: got %.40q, want "+
			"Qwen2Tokenizer for a vocab.json without tokenizer.json", set.Class)
	}
	if set.Prefix != nil && *set.Prefix {
		return nil, errors.New("tokenizer: settings: add_prefix_space: got true, want false")
	}
	b := BytePairs{Words: Qwen2Words}
	if err := json.Unmarshal(vocab, &b.Vocab); err != nil {
		return nil, fmt.Errorf("tokenizer: vocab.json: %w", err)
	}
	added, err := set.addedTokens(func(text string) (int32, bool) {
		id, ok := b.Vocab[text]
		return int32(id), ok
	})
	if err != nil {
		return nil, fmt.Errorf("tokenizer: settings: %w", err)
	}
	b.Added = added
	for line := range strings.Lines(string(merges)) {
		line = strings.TrimSpace(line)
		if line != "" && (len(b.Merges) > 0 || !strings.HasPrefix(line, "#version:")) {
			b.Merges = append(b.Merges, line)
		}
	}
	return b.Marshal()
}
