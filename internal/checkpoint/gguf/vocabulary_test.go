package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/builtin"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// Ensure that scores give the same tokens as the merges from which they were made. The file's
// vocabulary is the embedded model's.
func TestScores(t *testing.T) {
	dir, _ := unpackHeaders(t)
	s, err := Open(filepath.Join(dir, "scenes", "scenes-f16.gguf"), "", families.Files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := tokenizer.Open(s.Docs.Tokenizer.Data, s.Docs.Settings.Data)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := fs.ReadFile(builtin.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := tokenizer.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{"", " ", "  two  spaces ",
		"USER: <image>\nWhere is the blue circle? ASSISTANT:", "</s>a<s>", "\t\r\n", "é漢🙂\x00"}
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var b strings.Builder
		for range r.IntN(30) {
			if id := int32(r.IntN(want.VocabSize())); r.IntN(8) > 0 {
				text, _ := want.Token(id)
				b.WriteString(strings.ReplaceAll(text, "\u2581", " "))
			} else {
				b.WriteRune(rune(32 + r.IntN(600)))
			}
		}
		texts = append(texts, b.String())
	}
	for _, text := range texts {
		for _, special := range []bool{false, true} {
			o := tokenizer.EncodeOptions{AddSpecial: special}
			a, err1 := got.Encode(text, o)
			b, err2 := want.Encode(text, o)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(a.IDs, b.IDs) {
				t.Errorf("%q: got %v, want %v", text, a.IDs, b.IDs)
			}
			if x, y := got.Decode(a.IDs, special), want.Decode(b.IDs, special); x != y {
				t.Errorf("%q: decoded to %q, want %q", text, x, y)
			}
		}
	}
}

// Ensure that scores may be whole numbers, as in files that llama.cpp's converter makes of the form
// of Mistral's authors.
func TestWholeScores(t *testing.T) {
	dir, _ := unpackHeaders(t)
	path := filepath.Join(dir, "scenes", "scenes-f16.gguf")
	const key, floats, whole = "tokenizer.ggml.scores\x09\x00\x00\x00", "\x06", "\x05"
	edit(t, path, key+floats, key+whole)
	s, err := Open(path, "", families.Files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		v    value
		want float64
	}{
		{value{typ: typeInt32, data: []byte{0xfe, 0xff, 0xff, 0xff}}, -2},
		{value{typ: typeUint8, data: []byte{200}}, 200},
		{value{typ: typeInt64, data: []byte{1, 0, 0, 0, 0, 0, 0, 0x80}}, math.MinInt64 + 1},
	} {
		if got := c.v.float(0); got != c.want {
			t.Errorf("%v: got %v, want %v", c.v, got, c.want)
		}
	}
}

// Ensure that a byte-pair vocabulary is split into words as its name says, and that it recognises
// only the special tokens.
func TestBytePairs(t *testing.T) {
	dir, _ := unpackHeaders(t)
	s, err := Open(filepath.Join(dir, "qwen25vl-tiny", "qwen25vl-tiny-f32.gguf"), "",
		families.Files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got, want map[string]any
	golden.JSON(t, filepath.Join("..", "..", "tokenizer", "testdata", "qwen2.json"), &want)
	if err := json.Unmarshal(s.Docs.Tokenizer.Data, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"normalizer", "pre_tokenizer", "decoder"} {
		if fmt.Sprint(got[key]) != fmt.Sprint(want[key]) {
			t.Errorf("%s: got %v, want %v", key, got[key], want[key])
		}
	}
	// tokenizers numbers an added token by the vocabulary, whatever its id says
	vocab := got["model"].(map[string]any)["vocab"].(map[string]any)
	for _, a := range got["added_tokens"].([]any) {
		token := a.(map[string]any)
		if id := vocab[token["content"].(string)]; id != token["id"] {
			t.Errorf("%v: id %v in the vocabulary", token, id)
		}
	}
	tok, err := tokenizer.Open(s.Docs.Tokenizer.Data, s.Docs.Settings.Data)
	if err != nil {
		t.Fatal(err)
	}
	e, err := tok.Encode("<|im_start|>the [PAD338]<|image_pad|>",
		tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.IDs); e.IDs[0] != 331 || e.IDs[n-1] != 336 || slices.Contains(e.IDs, 338) {
		t.Errorf("got %v, want im_start first, image_pad last, and no padding", e.IDs)
	}
}

// Ensure that an answer ends with the tokens that the file names and those that end every
// vocabulary's, unless they are normal text.
func TestEnds(t *testing.T) {
	const qwen, llava = "qwen25vl-tiny/qwen25vl-tiny-f32.gguf", "scenes/scenes-f16.gguf"
	const key, endOfText = "tokenizer.ggml.token_type", 330
	for want, change := range map[string]func(dir string){
		`{"eos_token_id":[332,330]}`: func(string) {},
		`{"eos_token_id":[332]}`: func(dir string) {
			path := filepath.Join(dir, qwen)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			types := strings.Index(string(b), key) + len(key) + 4 + 4 + 8
			b[types+4*endOfText] = byte(tokenizer.NormalPiece)
			if err := os.WriteFile(path, b, 0o666); err != nil {
				t.Fatal(err)
			}
		},
		`{"eos_token_id":[2,1]}`: func(dir string) {
			edit(t, filepath.Join(dir, llava), "ggml.bos_token_id", "ggml.eom_token_id")
		},
	} {
		dir, _ := unpackHeaders(t)
		change(dir)
		var got []string
		for _, path := range []string{qwen, llava} {
			s, err := Open(filepath.Join(dir, path), "", families.Files)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got = append(got, string(s.Docs.Generation.Data))
		}
		if !slices.Contains(got, want) {
			t.Errorf("got %v, want %s among them", got, want)
		}
	}
}

// Ensure that a file without a vocabulary opens, and that the name of the missing part, which
// errors about questions repeat, is the key's.
func TestNoVocabulary(t *testing.T) {
	dir, _ := unpackHeaders(t)
	path := filepath.Join(dir, "scenes", "scenes-f16.gguf")
	edit(t, path, "tokenizer.ggml.model", "tokenizer.ggml.other")
	s, err := Open(path, "", families.Files)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const want = "tokenizer.ggml.model in the metadata"
	if got := s.Docs.Tokenizer; got.Data != nil || got.From != want {
		t.Errorf("got %q of %d bytes, want no %q", got.From, len(got.Data), want)
	}
}

// Ensure that a vocabulary without a space in front of texts says so in its settings, where
// transformers' default is the opposite, and that a llama.cpp file of one with a space does not.
func TestSpaceInFront(t *testing.T) {
	dir, _ := unpackHeaders(t)
	files := golden.Unzip(t, "../../engine/testdata/gguf/gemma3-six-tiny.zip")
	without := filepath.Join(t.TempDir(), "x.gguf")
	if err := os.WriteFile(without, files["gemma3-six-tiny.gguf"], 0o666); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		without: true, filepath.Join(dir, "scenes", "scenes-f16.gguf"): false,
	} {
		s, err := Open(path, "", families.Files)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		got := strings.Contains(string(s.Docs.Settings.Data), `"add_prefix_space":false`)
		if got != want {
			t.Errorf("%s: settings %.200s", path, s.Docs.Settings.Data)
		}
	}
}
