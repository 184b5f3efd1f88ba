package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func readModel(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Ensure that a tokenizer.model without settings gives the ids of the sentencepiece library, and
// that it is written as it was read.
func TestSentencePiece(t *testing.T) {
	var cases map[string][]struct {
		Text    string
		IDs     []int32
		Decoded string
	}
	if err := json.Unmarshal(readModel(t, "sentencepiece.cases.json"), &cases); err != nil {
		t.Fatal(err)
	}
	for name, cases := range cases {
		model := readModel(t, name)
		tok, err := ParseModel(model, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			got, err := tok.Encode(c.Text, EncodeOptions{})
			if err != nil || !slices.Equal(got.IDs, c.IDs) {
				t.Errorf("%s: %q: got %v %v, want %v", name, c.Text, got.IDs, err, c.IDs)
			}
			for i, o := range got.Offsets {
				if o[0] < 0 || o[1] < o[0] || o[1] > len(c.Text) {
					t.Errorf("%s: %q: token %d is at %v", name, c.Text, i, o)
				}
			}
			if text := tok.Decode(c.IDs, false); text != c.Decoded {
				t.Errorf("%s: %v: got %q, want %q", name, c.IDs, text, c.Decoded)
			}
		}
		s, err := ReadSentencePiece(model)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadSentencePiece(s.Marshal())
		if err != nil || !slices.Equal(again.Pieces, s.Pieces) ||
			again.ByteFallback != s.ByteFallback ||
			again.DummyPrefix != s.DummyPrefix ||
			again.TrimSpaces != s.TrimSpaces {
			t.Errorf("%s: written and read again: %v", name, err)
		}
	}
}

// Ensure that an ambiguous vocabulary is refused in one line.
func TestSentencePieceErrors(t *testing.T) {
	good := &SentencePiece{Pieces: []Piece{{"<unk>", 0, UnknownPiece}, {"a", -1, NormalPiece}}}
	if _, err := ReadSentencePiece(good.Marshal()); err != nil {
		t.Fatal(err)
	}
	for want, pieces := range map[string][]Piece{
		"got 0 pieces": {}, "occurs twice": {{"a", 0, UnknownPiece}, {"a", 0, NormalPiece}}, "for the unknown": {{"a", 0, NormalPiece}},
		"want text": {{"a", 0, UnknownPiece}, {"\xff", 0, NormalPiece}}, "kind 7": {{"a", 0, UnknownPiece}, {"b", 0, 7}},
		"for a byte": {{"a", 0, UnknownPiece}, {"<0x1>", 0, BytePiece}},
	} {
		_, err := ReadSentencePiece((&SentencePiece{Pieces: pieces}).Marshal())
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: got %v, want %q", pieces, err, want)
		}
	}
	if _, err := ReadSentencePiece((&SentencePiece{Pieces: good.Pieces,
		ByteFallback: true}).Marshal()); err == nil {
		t.Error("byte fallback without bytes is accepted")
	}
	unigram := append(good.Marshal(), modelTrainer<<3|wireBytes, 2, trainerType<<3, typeUnigram)
	if _, err := ReadSentencePiece(unigram); err == nil ||
		!strings.Contains(err.Error(), "unigram") {
		t.Errorf("unigram: %v", err)
	}
	for _, bad := range []string{
		"", "\x0a", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "\x08\x01", "\x0b", strings.Repeat("\x80", 20),
	} {
		if _, err := ReadSentencePiece([]byte(bad)); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

// Ensure that special and added tokens are recognised as by transformers' LlamaTokenizer, with and
// without the space before every run, and that a picture's place splits the text.
func TestParseModelSettings(t *testing.T) {
	var cases []struct {
		Config json.RawMessage
		Dummy  *bool `json:"dummy_prefix"` // the model's, if it is not the default
		Trim   bool  `json:"trim_spaces"`
		Texts  []struct {
			Text string
			IDs  []int32
		}
	}
	if err := json.Unmarshal(readModel(t, "sentencepiece.settings.json"), &cases); err != nil {
		t.Fatal(err)
	}
	model := readModel(t, "sentencepiece.model")
	for _, c := range cases {
		model := model
		if c.Dummy != nil {
			s, err := ReadSentencePiece(model)
			if err != nil {
				t.Fatal(err)
			}
			s.DummyPrefix, s.TrimSpaces = *c.Dummy, c.Trim
			model = s.Marshal()
		}
		tok, err := ParseModel(model, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range c.Texts {
			got, err := tok.Encode(text.Text, EncodeOptions{AddSpecial: true})
			if err != nil || !slices.Equal(got.IDs, text.IDs) {
				t.Errorf("%s, trim %v: %q: got %v %v, want %v", c.Config, c.Trim, text.Text,
					got.IDs, err, text.IDs)
			}
		}
	}
	tok, err := ParseModel(model, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	tok.Place("<image>", -200)
	parts := []Segment{
		{Text: "USER: <image>\n"},
		{Text: "a </s> <image>", User: true},
		{Text: "</s>"},
	}
	got, err := tok.EncodeSegments(parts, EncodeOptions{AddSpecial: true})
	want := []int32{1}
	for i, chunk := range []string{"USER: ", "\na </s> <image>"} {
		e, err := tok.Encode(chunk, EncodeOptions{SpecialsAsText: true})
		if err != nil {
			t.Fatal(err)
		}
		if want = append(want, e.IDs...); i == 0 {
			want = append(want, -200)
		}
	}
	if want = append(want, 2); err != nil || !slices.Equal(got, want) {
		t.Errorf("a picture's place: got %v %v, want %v", got, err, want)
	}
	if text, ok := tok.Token(-200); !ok || text != "<image>" {
		t.Errorf("the place is called %q", text)
	}
}

// FuzzSentencePiece: any model is either refused or encodes any text.
func FuzzSentencePiece(f *testing.F) {
	f.Add(readModel(f, "sentencepiece.model"), "hello  <image> ▁猫")
	f.Add(
		(&SentencePiece{
			Pieces: []Piece{
				{"<unk>", 0, UnknownPiece}, {"ab", 1, UnusedPiece}, {"abc", 2, UserPiece}, {"a", 0, NormalPiece},
			}, TrimSpaces: true,
		}).Marshal(),
		" ab  abc ",
	)
	f.Fuzz(func(t *testing.T, model []byte, text string) {
		tok, err := ParseModel(model, nil)
		if err != nil {
			return
		}
		e, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
		if err != nil {
			return
		}
		for _, id := range e.IDs {
			if int(id) >= tok.VocabSize() || id < 0 {
				t.Fatalf("%q: id %d", text, id)
			}
		}
		tok.Decode(e.IDs, true)
	})
}
