package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Ensure that a tokenizer.model written as a tokenizer.json encodes and decodes as before.
func TestConvertModel(t *testing.T) {
	var cases map[string][]struct{ Text string }
	if err := json.Unmarshal(readModel(t, "sentencepiece.cases.json"), &cases); err != nil {
		t.Fatal(err)
	}
	const name = "sentencepiece.model"
	model := readModel(t, name)
	var texts []string
	for _, c := range cases[name] {
		texts = append(texts, c.Text, c.Text+"</s>"+c.Text, "<image>"+c.Text, c.Text+" <image> x")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := make([]rune, r.IntN(12))
		for i := range b {
			b[i] = []rune("  aethnsoU▁<>/s0x4é🙂\n")[r.IntN(21)]
		}
		texts = append(texts, string(b))
	}
	for _, settings := range []string{
		`{}`, `{"legacy":false}`, `{"legacy":true,"add_eos_token":true,"add_bos_token":false}`,
		`{"add_prefix_space":false}`,
		`{"added_tokens_decoder":{"9000":{"content":"<image>","special":true}}}`,
		`{"legacy":false,"added_tokens_decoder":{"9000":{"content":"<image>","special":true}}}`,
	} {
		want, err := ParseModel(model, []byte(settings))
		if err != nil {
			t.Fatal(err)
		}
		data, ok, err := ConvertModel(model, []byte(settings))
		if err != nil || !ok {
			t.Fatalf("%s: %v %v", settings, ok, err)
		}
		got, err := Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !want.everyRun && strings.ContainsAny(text[:min(3, len(text))], " ▁<") {
				continue // Metaspace puts no space before a space or a token
			}
			a, err1 := got.Encode(text, EncodeOptions{AddSpecial: true})
			b, err2 := want.Encode(text, EncodeOptions{AddSpecial: true})
			if err1 != nil || err2 != nil || !slices.Equal(a.IDs, b.IDs) {
				t.Errorf("%s: %q: got %v %v, want %v %v", settings, text, a.IDs, err1, b.IDs, err2)
			}
			if x, y := got.Decode(a.IDs, true), want.Decode(b.IDs, true); x != y {
				t.Errorf("%s: %q: decoded %q, want %q", settings, text, x, y)
			}
		}
	}
	s, err := ReadSentencePiece(model)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(s *SentencePiece){
		"trimmed": func(s *SentencePiece) { s.TrimSpaces = true },
		"scores": func(s *SentencePiece) {
			for i := range s.Pieces {
				s.Pieces[i].Score = -1000
			}
		},
		"user": func(s *SentencePiece) { s.Pieces[len(s.Pieces)-1].Kind = UserPiece },
	} {
		c := *s
		c.Pieces = slices.Clone(s.Pieces)
		change(&c)
		if _, ok, err := ConvertModel(c.Marshal(), []byte(`{}`)); ok || err != nil {
			t.Errorf("%s: got %v %v, want no tokenizer.json", name, ok, err)
		}
	}
}
