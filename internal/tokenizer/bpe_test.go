package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// randomModel returns a tokenizer with random merges over a, b and c.
func randomModel(t *testing.T, rng *rand.Rand) *Tokenizer {
	names := []string{"a", "b", "c"}
	vocab := map[string]int{"a": 0, "b": 1, "c": 2}
	var merges [][2]string
	for range 40 {
		l, r := names[rng.IntN(len(names))], names[rng.IntN(len(names))]
		if len(l+r) > 8 {
			continue
		}
		if _, ok := vocab[l+r]; !ok {
			vocab[l+r] = len(names)
			names = append(names, l+r)
		}
		merges = append(merges, [2]string{l, r})
	}
	data, err := json.Marshal(map[string]any{
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// naive is the definition: join the leftmost pair of the lowest rank until no pair has one.
func naive(m *bpe, word string) []int32 {
	var ids []int32
	for _, r := range word {
		ids = append(ids, m.vocab[string(r)])
	}
	for {
		best, at := merge{rank: -1}, -1
		for i := 0; i+1 < len(ids); i++ {
			if e := m.merges.find(pairOf(ids[i], ids[i+1])); e.rank >= 0 &&
				(at < 0 || e.rank < best.rank) {
				best, at = *e, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = best.id
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// Ensure that the queue merges in the order of the definition.
func TestMergeOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		tok := randomModel(t, rng)
		for range 20 {
			word := make([]byte, rng.IntN(60))
			for i := range word {
				word[i] = "abc"[rng.IntN(3)]
			}
			got := encode(t, tok, string(word), EncodeOptions{}).IDs
			if want := naive(&tok.model, string(word)); !slices.Equal(got, want) {
				t.Fatalf("%s: got %v, want %v", word, got, want)
			}
		}
	}
}

// Ensure that the options of the model have their documented effect.
func TestModelOptions(t *testing.T) {
	const vocab = `{"<unk>":0,"a":1,"b":2,"ab":3,"<0xC3>":4,"<0xA9>":5,"abb":6,"##b":7,"a##b":8,"b</w>":9}`
	for _, c := range []struct {
		options, text string
		ids           []int32
		offsets       [][2]int
	}{
		{`"merges":["a b"]`, "abab", []int32{3, 3}, [][2]int{{0, 2}, {2, 4}}},
		{`"merges":[["a","b"]]`, "abab", []int32{3, 3}, [][2]int{{0, 2}, {2, 4}}},
		{`"merges":["a b"]`, "abb", []int32{3, 2}, [][2]int{{0, 2}, {2, 3}}},
		{`"merges":["a b"],"ignore_merges":true`, "abb", []int32{6}, [][2]int{{0, 3}}},
		{`"merges":[],"byte_fallback":true,"unk_token":"<unk>"`, "aéb", []int32{1, 4, 5, 2}, [][2]int{{0, 1}, {1, 3}, {1, 3}, {3, 4}}},
		{`"merges":[],"byte_fallback":true,"unk_token":"<unk>"`, "ê", []int32{0}, [][2]int{{0, 2}}},
		{`"merges":[],"unk_token":"<unk>"`, "xéa", []int32{0, 0, 1}, [][2]int{{0, 1}, {1, 3}, {3, 4}}},
		{`"merges":[],"unk_token":"<unk>","fuse_unk":true`, "xéa", []int32{0, 1}, [][2]int{{0, 3}, {3, 4}}},
		// dropped, and offsets count the rest, as in the reference
		{`"merges":[]`, "xab", []int32{1, 2}, [][2]int{{0, 1}, {1, 2}}},
		{`"merges":[],"continuing_subword_prefix":"##"`, "ab", []int32{1, 7}, [][2]int{{0, 1}, {1, 2}}},
		{`"merges":["a ##b"],"continuing_subword_prefix":"##"`, "ab", []int32{3}, [][2]int{{0, 2}}},
		{`"merges":[],"end_of_word_suffix":"</w>"`, "ab", []int32{1, 9}, [][2]int{{0, 1}, {1, 2}}},
		{`"merges":["a b","a b"],"dropout":0.0`, "ab", []int32{3}, [][2]int{{0, 2}}},
	} {
		tok, err := Parse([]byte(`{"model":{"type":"BPE","vocab":` + vocab + `,` + c.options + `}}`))
		if err != nil {
			t.Errorf("%s: %v", c.options, err)
			continue
		}
		e := encode(t, tok, c.text, EncodeOptions{})
		if !slices.Equal(e.IDs, c.ids) || !slices.Equal(e.Offsets, c.offsets) {
			t.Errorf("%s %q: got %v %v, want %v %v", c.options, c.text, e.IDs, e.Offsets, c.ids,
				c.offsets)
		}
	}
}

// Ensure that an unsupported file is refused with an error that gives the reason.
func TestParseErrors(t *testing.T) {
	const model = `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 20) + `{"type":"NFC"}` + strings.Repeat(`]}`, 20)
	for _, c := range []struct{ file, want string }{
		{``, "invalid json"},
		{`[]`, "invalid json"},
		{`{}`, "model: missing"},
		{`{` + model, "invalid json"},
		{`{` + model + `} x`, "invalid json"},
		{`{"extra":[1,}],` + model + `}`, "invalid json"},
		{`{"version":"2.0",` + model + `}`, "version"},
		{`{"model":{"type":"Unigram","vocab":[["a",0.5]]}}`, "model Unigram: not a supported type"},
		{`{"model":{"type":"WordPiece","vocab":{"a":0}}}`, "WordPiece"},
		{`{"model":{"type":"BPE","vocab":{"a":0}}}`, "no merges"},
		{`{"model":{"type":"BPE","vocab":{"a":0,"b":0},"merges":[]}}`, "taken by"},
		{`{"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}}`, "twice"},
		{`{"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}}`, "limit is 1048575"},
		{`{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`, "got -1 at byte"},
		{`{"model":{"type":"BPE","vocab":{"a":1.5},"merges":[]}}`, "got 1.5 at byte"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`, `"b" is not in the vocabulary`},
		{`{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}`, `result "ab"`},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}}`, "two parts"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}}`, "has 1 parts"},
		{`{"model":{"type":"BPE","vocab":{"a":0,"aa":1},"merges":[["a","a","a"]]}}`, "more than two"},
		{`{"model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}}`, "dropout 0.1"},
		{`{"normalizer":{"type":"Precompiled"},` + model + `}`, "normalizer Precompiled: not a supported type"},
		{`{"normalizer":{"type":"Sequence","normalizers":[{"type":"Foo"}]},` + model + `}`, "normalizer Foo"},
		{`{"normalizer":{"type":"Sequence"},` + model + `}`, "no normalizers"},
		{`{"normalizer":{"content":"x"},` + model + `}`, "no type"},
		{`{"normalizer":` + deep + `,` + model + `}`, "nested"},
		{`{"normalizer":{"type":"Replace","pattern":{"String":""},"content":"x"},` + model + `}`, "empty"},
		{`{"pre_tokenizer":{"type":"UnicodeScripts"},` + model + `}`, "pre_tokenizer UnicodeScripts"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"},` + model + `}`, "pattern"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[[:alpha:]]"},"behavior":"Isolated"},` + model + `}`, "nested character class"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[\\[^a&&b]"},"behavior":"Isolated"},` + model + `}`, "nested character class"},
		{`{"pre_tokenizer":{"type":"Split","pattern":{"String":"a"},"behavior":"Sideways"},` + model + `}`, "Sideways"},
		{`{"pre_tokenizer":{"type":"Metaspace","replacement":"__"},` + model + `}`, "one character"},
		{`{"pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"often"},` + model + `}`, "often"},
		{`{"post_processor":{"type":"Foo"},` + model + `}`, "post_processor Foo"},
		{`{"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}]},` + model + `}`, `"x" is not defined`},
		{`{"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[7]}}},` + model + `}`, "id 7"},
		{`{"post_processor":{"type":"TemplateProcessing","single":[]},` + model + `}`, "want once"},
		{`{"post_processor":{"type":"Sequence","processors":[{"type":"BertProcessing","cls":["a",0],"sep":["b",1]},
			{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}]},` + model + `}`, "TemplateProcessing: the component before it"},
		{`{"decoder":{"type":"CTC"},` + model + `}`, "decoder CTC"},
		{`{"added_tokens":[{"id":0,"content":"x"}],` + model + `}`, "taken by"},
		{`{"added_tokens":[{"id":5,"content":"a"}],` + model + `}`, "vocabulary says 0"},
		{`{"added_tokens":[{"id":5000000,"content":"x"}],` + model + `}`, "out of range"},
		{`{"added_tokens":[{"id":-1,"content":"x"}],` + model + `}`, "out of range"},
		{`{"added_tokens":{},` + model + `}`, "added_tokens"},
		{`{"added_tokens":[{"id":5,"content":"` + strings.Repeat("x", 5000) + `"}],` + model + `}`, "5000 bytes long, limit is 4096"},
		{`{"added_tokens":[` + strings.Repeat(`{"id":5,"content":"`+strings.Repeat("x", 4000)+`"},`, 4200) + `{}],` + model + `}`, "16777216 bytes"},
		{`{"normalizer":{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"NFC"},`, 64) + `{"type":"NFC"}]},` + model + `}`, "normalizers: more than 64 members"},
		{`{"decoder":{"type":"Sequence","decoders":5},` + model + `}`, "decoders is no array"},
	} {
		_, err := Parse([]byte(c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.120s: got error %v, want one with %q", c.file, err, c.want)
		}
		if err != nil &&
			(!strings.HasPrefix(err.Error(), "tokenizer: ") ||
				strings.Contains(err.Error(), "\n")) {
			t.Errorf("%.120s: error %q is not one line with the package's name", c.file, err)
		}
	}
}

// Ensure that texts that cannot be encoded are refused.
func TestEncodeErrors(t *testing.T) {
	tok := load(t, "llama_legacy")
	for text, want := range map[string]string{
		"ab\xff":                       "not valid UTF-8 at byte 2",
		strings.Repeat("a", maxText+1): fmt.Sprint("limit is ", maxText),
	} {
		if _, err := tok.Encode(text, EncodeOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: got error %v, want one with %q", text, err, want)
		}
	}
	missing, err := Parse([]byte(`{"model":{"vocab":{"a":0},"merges":[],"unk_token":"<unk>"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := missing.Encode("x", EncodeOptions{}); err == nil ||
		!strings.Contains(err.Error(), "<unk>") {
		t.Errorf("unk_token outside the vocabulary: got error %v", err)
	}
}
