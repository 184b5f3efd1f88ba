package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
)

// asPairs returns the vocab.json, merges.txt and tokenizer_config.json of a tokenizer.json, as
// transformers' tokenizers that are not fast write them.
func asPairs(t testing.TB, data []byte) (vocab, merges, config []byte) {
	t.Helper()
	var file struct {
		Added []map[string]any `json:"added_tokens"`
		Model struct {
			Vocab  json.RawMessage
			Merges []json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	lines := []string{"#version: 0.2"}
	for _, raw := range file.Model.Merges {
		var line string
		var pair []string
		if json.Unmarshal(raw, &pair) == nil {
			line = strings.Join(pair, " ")
		} else if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	added := map[string]any{}
	for _, token := range file.Added {
		added[fmt.Sprint(token["id"])] = token
		delete(token, "id")
	}
	config, err := json.Marshal(map[string]any{
		"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added,
		"add_prefix_space": false, "eos_token": "<|im_end|>",
	})
	if err != nil {
		t.Fatal(err)
	}
	return file.Model.Vocab, []byte(strings.Join(lines, "\n") + "\n"), config
}

// Ensure that a vocab.json with its merges.txt encodes as the reference implementation does with
// the tokenizer.json.
func TestConvertPairs(t *testing.T) {
	data, err := ConvertPairs(asPairs(t, golden.ReadFile(t, "testdata/qwen2.json")))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	var file goldenFile
	golden.JSON(t, "testdata/qwen2.cases.json", &file)
	for _, c := range file.Strings {
		e := encode(t, tok, c.Text, EncodeOptions{AddSpecial: true})
		if !slices.Equal(e.IDs, c.IDsWithSpecial) || tok.Decode(c.IDs, true) != c.DecodedSkip {
			t.Errorf("%s %q: got %v, want %v", c.Kind, c.Text, e.IDs, c.IDsWithSpecial)
		}
	}
}

// Ensure that files which do not fit are refused with the name of the file or setting.
func TestConvertPairsRefused(t *testing.T) {
	const config = `{"tokenizer_class": "Qwen2Tokenizer"}`
	for want, c := range map[string][3]string{
		`tokenizer_class: got "GPT2Tokenizer"`: {`{}`, "", `{"tokenizer_class": "GPT2Tokenizer"}`},
		`tokenizer_class: got ""`:              {`{}`, "", `{}`},
		"add_prefix_space": {`{}`, "",
			`{"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": true}`},
		"settings: unexpected": {`{}`, "", ``}, "vocab.json: ": {`[]`, "", config},
		"added_tokens_decoder": {`{}`, "",
			`{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"x": {}}}`},
	} {
		_, err := ConvertPairs([]byte(c[0]), []byte(c[1]), []byte(c[2]))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", c, err, want)
		}
	}
	for _, merges := range []string{"a", "a b c", "a x"} {
		data, err := ConvertPairs([]byte(`{"a": 0, "b": 1, "ab": 2}`), []byte(merges), []byte(config))
		if err == nil {
			_, err = Parse(data)
		}
		if err == nil {
			t.Errorf("merges %q: got no error", merges)
		}
	}
}

// FuzzConvertPairs ensures that no files make the conversion panic, and that its result is read or
// refused.
func FuzzConvertPairs(f *testing.F) {
	f.Add([]byte(`{"a": 0, "b": 1, "ab": 2}`), []byte("#version: 0.2\na b\n"),
		[]byte(`{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "ab"}`))
	f.Fuzz(func(t *testing.T, vocab, merges, config []byte) {
		data, err := ConvertPairs(vocab, merges, config)
		if err != nil {
			return
		}
		if tok, err := Parse(data); err == nil {
			tok.Encode("ab aB", EncodeOptions{})
		}
	})
}
