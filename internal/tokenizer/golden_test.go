package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
)

// goldenNames are small tokenizers with the structure of published ones, with the results of the
// reference implementation (tokenizers 0.23.3).
var goldenNames = []string{"llama_legacy", "llama_metaspace", "mistral", "llama_edge", "qwen2"}

type goldenCase struct {
	Kind               string   `json:"kind"`
	Text               string   `json:"text"`
	IDs                []int32  `json:"ids"`
	Offsets            [][2]int `json:"offsets"`
	IDsWithSpecial     []int32  `json:"ids_with_special"`
	IDsSpecialsAsText  []int32  `json:"ids_specials_as_text"`
	Decoded            string   `json:"decoded"`
	DecodedSkip        string   `json:"decoded_skip"`
	DecodedWithSpecial string   `json:"decoded_with_special"`
	Stream             []string `json:"stream"`
	StreamFlush        string   `json:"stream_flush"`
	StreamDiffers      bool     `json:"stream_differs_from_decoded_skip"`
}

type goldenFile struct {
	Strings   []goldenCase `json:"strings"`
	RandomIDs []goldenCase `json:"random_ids"`
}

func load(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	t, err := Parse(golden.ReadFile(tb, "testdata/"+name+".json"))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

func encode(tb testing.TB, t *Tokenizer, text string, o EncodeOptions) Encoding {
	tb.Helper()
	e, err := t.Encode(text, o)
	if err != nil {
		tb.Fatalf("%q: %v", text, err)
	}
	return e
}

// Ensure that every string is encoded, aligned, decoded and streamed as by the reference
// implementation.
func TestGoldenStrings(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			var file goldenFile
			golden.JSON(t, "testdata/"+name+".cases.json", &file)
			texts := make([]string, len(file.Strings))
			for i, c := range file.Strings {
				texts[i] = c.Text
			}
			got, err := Inspect(tok, texts)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range file.Strings {
				g := got[i]
				if !slices.Equal(g.IDs, c.IDs) {
					t.Errorf("%s %q: ids\n got %v\nwant %v", c.Kind, c.Text, g.IDs, c.IDs)
					continue
				}
				if !slices.Equal(g.Offsets, c.Offsets) {
					t.Errorf("%s %q: offsets\n got %v\nwant %v", c.Kind, c.Text, g.Offsets,
						c.Offsets)
				}
				if !slices.Equal(g.IDsWithSpecial, c.IDsWithSpecial) {
					t.Errorf("%s %q: with special\n got %v\nwant %v", c.Kind, c.Text,
						g.IDsWithSpecial, c.IDsWithSpecial)
				}
				asText := c.IDsSpecialsAsText
				if asText == nil {
					asText = c.IDs
				}
				if e := encode(t, tok, c.Text, EncodeOptions{
					SpecialsAsText: true,
				}); !slices.Equal(e.IDs, asText) {
					t.Errorf("%s %q: specials as text\n got %v\nwant %v", c.Kind, c.Text, e.IDs,
						asText)
				}
				withSpecial := tok.Decode(c.IDsWithSpecial, false)
				for _, d := range [][3]string{
					{"decoded", g.Decoded, c.Decoded}, {"decoded_skip", g.DecodedSkip, c.DecodedSkip},
					{"decoded_with_special", withSpecial, c.DecodedWithSpecial}, {"stream_flush", g.StreamFlush, c.StreamFlush},
				} {
					if d[1] != d[2] {
						t.Errorf("%s %q: %s\n got %q\nwant %q", c.Kind, c.Text, d[0], d[1], d[2])
					}
				}
				if !slices.Equal(g.Stream, c.Stream) {
					t.Errorf("%s %q: stream\n got %q\nwant %q", c.Kind, c.Text, g.Stream, c.Stream)
				}
			}
		})
	}
}

// Ensure that any sequence of ids is decoded and streamed as by the reference implementation,
// broken UTF-8 included.
func TestGoldenRandomIDs(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			var file goldenFile
			golden.JSON(t, "testdata/"+name+".cases.json", &file)
			for _, c := range file.RandomIDs {
				if d := tok.Decode(c.IDs, false); d != c.Decoded {
					t.Errorf("%v: decoded\n got %q\nwant %q", c.IDs, d, c.Decoded)
				}
				skip := tok.Decode(c.IDs, true)
				if skip != c.DecodedSkip {
					t.Errorf("%v: decoded_skip\n got %q\nwant %q", c.IDs, skip, c.DecodedSkip)
				}
				stream := tok.NewStream()
				texts := []string{}
				for _, id := range c.IDs {
					texts = append(texts, stream.Push(id))
				}
				if !slices.Equal(texts, c.Stream) {
					t.Errorf("%v: stream\n got %q\nwant %q", c.IDs, texts, c.Stream)
				}
				flush := stream.Flush()
				if flush != c.StreamFlush {
					t.Errorf("%v: flush got %q, want %q", c.IDs, flush, c.StreamFlush)
				}
				if differs := strings.Join(texts, "")+flush != skip; differs != c.StreamDiffers {
					t.Errorf("%v: stream differs from decoded_skip: got %v, want %v", c.IDs,
						differs, c.StreamDiffers)
				}
			}
		})
	}
}

// Ensure that prompts with placeholders get the ids of the reference implementations, both when the
// text is split at the placeholder and when the placeholder is repeated.
func TestGoldenPrompts(t *testing.T) {
	var file struct {
		Chunks map[string][]struct {
			Prompt string  `json:"prompt"`
			IDs    []int32 `json:"ids"`
		} `json:"llava_tokenizer_image_token"`
		Repeated map[string][]struct {
			Prompt string  `json:"prompt"`
			Repeat int     `json:"repeat"`
			IDs    []int32 `json:"ids"`
		} `json:"placeholder_expansion"`
	}
	golden.JSON(t, "testdata/generate_time.json", &file)
	for name, cases := range file.Chunks {
		tok := load(t, name)
		for _, c := range cases {
			ids := []int32{1} // <s> of the first chunk; the <s> of the others is dropped
			for i, chunk := range strings.Split(c.Prompt, "<image>") {
				if i > 0 {
					ids = append(ids, -200)
				}
				ids = append(ids, encode(t, tok, chunk, EncodeOptions{AddSpecial: true}).IDs[1:]...)
			}
			if !slices.Equal(ids, c.IDs) {
				t.Errorf("%s %q: chunks\n got %v\nwant %v", name, c.Prompt, ids, c.IDs)
			}
		}
	}
	for name, cases := range file.Repeated {
		tok := load(t, name)
		holder := "<image>"
		if name == "qwen2" {
			holder = "<|image_pad|>"
		}
		for _, c := range cases {
			text := strings.ReplaceAll(c.Prompt, holder, strings.Repeat(holder, c.Repeat))
			if e := encode(t, tok, text, EncodeOptions{
				AddSpecial: true,
			}); !slices.Equal(e.IDs, c.IDs) {
				t.Errorf("%s %q: repeated\n got %v\nwant %v", name, c.Prompt, e.IDs, c.IDs)
			}
		}
	}
}
