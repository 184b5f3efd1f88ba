package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/golden"
)

func segments(tb testing.TB, t *Tokenizer, segs ...Segment) []int32 {
	tb.Helper()
	ids, err := t.EncodeSegments(segs, EncodeOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return ids
}

// Ensure that the time to strip white space does not grow with the square of the text.
func TestWhiteSpaceTime(t *testing.T) {
	tok := mustBuild(t, map[string]string{
		"added_tokens": `[{"id":200,"content":"\n","rstrip":true},
			{"id":201,"content":"<t>","rstrip":true}]`,
		"post_processor": `{"type":"ByteLevel","trim_offsets":true}`,
	})
	const n = 1 << 20
	for _, text := range []string{
		strings.Repeat("\n", n), strings.Repeat("<t> ", n/4),
		"<t>" + strings.Repeat(" ", n) + "<t>",
	} {
		begin := time.Now()
		encode(t, tok, text, EncodeOptions{})
		if spent := time.Since(begin); spent > 10*time.Second {
			t.Errorf("%.8q…: took %v", text, spent)
		}
	}
}

// Ensure that a tokenizer.json gets the tokens that only its settings have, with the vocabulary's
// ids (transformers 5.24).
func TestAddedTokensOfSettings(t *testing.T) {
	const file = `{"added_tokens":[{"id":5,"content":"<t>"}],
		"model":{"type":"BPE","vocab":{"a":0,"b":1,"<":2,">":3,"t":4},"merges":[]}}`
	open := func(added string) (*Tokenizer, error) {
		return Open([]byte(file), []byte(`{"added_tokens_decoder":`+added+`}`))
	}
	for added, want := range map[string][]int32{
		`null`: {0, 5, 1, 2, 1, 3},
		`{"5":{"content":"<t>","lstrip":true},"10":{"content":"<b>","special":true}}`: {0, 5, 1, 10},
		`{"7":{"content":"b"}}`:                     {0, 5, 1, 2, 1, 3},
		`{"7":{"content":"<t>"}}`:                   {0, 5, 1, 2, 1, 3},
		`{"8":{"content":""},"6":{"content":"t>"}}`: {0, 5, 1, 2, 1, 3},
	} {
		tok, err := open(added)
		if err != nil {
			t.Fatal(err)
		}
		if got := encode(t, tok, "a<t>b<b>", EncodeOptions{}).IDs; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", added, got, want)
		}
	}
	for added, want := range map[string]string{
		`{"5":{"content":"<b>"}}`: `"<b>": id 5 is taken by "<t>"`,
		`{"x":{"content":"<b>"}}`: `"x" is not an id`,
		`[]`:                      "settings",
	} {
		if _, err := open(added); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want one with %q", added, err, want)
		}
	}
}

// Ensure that white space belongs to one token where several take it.
func TestAddedTokensOfWhiteSpace(t *testing.T) {
	tok := mustBuild(t, map[string]string{"added_tokens": `[{"id":200,"content":"<t>","rstrip":true},
		{"id":201,"content":"\n","lstrip":true,"rstrip":true},{"id":202,"content":"  ","lstrip":true}]`})
	for text, want := range map[string][]int32{
		"\n\n\n":    {201},
		"a \n \n b": {'a', 201, 'b'},
		"<t>\n\nb":  {200, 'b'},
		"<t>    b":  {200, 'b'},
		"<t> x  b":  {200, 'x', 202, 'b'},
	} {
		if got := encode(t, tok, text, EncodeOptions{}).IDs; !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

// Ensure that special tokens are recognised only in the template's text.
func TestEncodeSegments(t *testing.T) {
	qwen, edge := load(t, "qwen2"), load(t, "llama_edge")
	for _, c := range []struct {
		name string
		tok  *Tokenizer
		segs []Segment
		want []string // the special tokens, and added tokens, found in order
	}{
		{"typed by the user", qwen, []Segment{{"<|im_start|>", false}, {"a<|im_end|>b<|im_start|>", true}, {"<|im_end|>", false}}, []string{"<|im_start|>", "<|im_end|>"}},
		{"begun by the user", qwen, []Segment{{"<|im_st", true}, {"art|>", false}}, nil},
		{"finished by the user", qwen, []Segment{{"<|im_st", false}, {"art|>", true}}, nil},
		{"user in the middle", qwen, []Segment{{"<|im_", false}, {"end", true}, {"|>", false}}, nil},
		{"in two parts of the template", qwen, []Segment{{"<|im_", false}, {"", true}, {"end|>", false}}, []string{"<|im_end|>"}},
		{"user leans on the template", qwen, []Segment{{"<|im_end|", true}, {"><|im_end|>", false}}, []string{"<|im_end|>"}},
		{"not special", qwen, []Segment{{"<tool_call>", true}, {"<tool_call>", false}}, []string{"<tool_call>", "<tool_call>"}},
		{"longer token across the border", edge, []Segment{{"<image>", true}, {"<image>", false}}, []string{"<image>"}},
		{"longer token of the template", edge, []Segment{{"<image><image>", false}, {"x", true}}, []string{"<image><image>"}},
		{"stripping into the user's text", edge, []Segment{{"a ", true}, {"<both>", false}, {" b", true}}, []string{"<both>"}},
	} {
		var got []string
		for _, id := range segments(t, c.tok, c.segs...) {
			if _, added := c.tok.addedIDs[c.tok.tokens[id].text]; added {
				got = append(got, c.tok.tokens[id].text)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// Ensure that borders between segments have no effect: with one author, the ids equal the ids of
// the whole text.
func TestEncodeSegmentsBorders(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, name := range goldenNames {
		tok := load(t, name)
		var file goldenFile
		golden.JSON(t, "testdata/"+name+".cases.json", &file)
		for _, c := range file.Strings {
			var cuts []int
			for i := range c.Text {
				if rng.IntN(4) == 0 {
					cuts = append(cuts, i)
				}
			}
			cuts = append(cuts, len(c.Text))
			for _, user := range []bool{false, true} {
				var segs []Segment
				start := 0
				for _, cut := range cuts {
					segs = append(segs, Segment{c.Text[start:cut], user})
					start = cut
				}
				want := encode(t, tok, c.Text, EncodeOptions{SpecialsAsText: user}).IDs
				if got := segments(t, tok, segs...); !slices.Equal(got, want) {
					t.Errorf("%s %q user %v: got %v, want %v", name, c.Text, user, got, want)
				}
			}
		}
	}
}

// Ensure that a template with harmless text from the user gets the ids of the whole text.
func TestEncodeSegmentsWhole(t *testing.T) {
	for _, name := range goldenNames {
		tok := load(t, name)
		for _, user := range []string{"", "hello", " e", "\u0301x", "中", "\n\n", "  "} {
			segs := []Segment{{"USER: e", false}, {user, true}, {" ASSISTANT:</s>\n", false}}
			want := encode(t, tok, "USER: e"+user+" ASSISTANT:</s>\n", EncodeOptions{}).IDs
			if got := segments(t, tok, segs...); !slices.Equal(got, want) {
				t.Errorf("%s %q: got %v, want %v", name, user, got, want)
			}
		}
	}
}

// Ensure that any text survives its round trip and keeps the invariants of an encoding.
func FuzzEncodeDecode(f *testing.F) {
	toks := map[string]*Tokenizer{}
	for _, name := range goldenNames {
		toks[name] = load(f, name)
	}
	for _, s := range []string{
		"", " a", "Hello <image>\nworld</s>", "e\u0301\u0344", "<|im_start|>'S 12\r\n", "▁▁", "norm word", "\xff",
	} {
		f.Add(s, uint(1))
	}
	f.Fuzz(func(t *testing.T, text string, cut uint) {
		for name, tok := range toks {
			e, err := tok.Encode(text, EncodeOptions{})
			if err != nil {
				if utf8.ValidString(text) {
					t.Fatalf("%s %q: %v", name, text, err)
				}
				return
			}
			checkEncoding(t, tok, text, e)
			plain := encode(t, tok, text, EncodeOptions{SpecialsAsText: true})
			for _, id := range plain.IDs {
				if tok.IsSpecial(id) && tok.tokens[id].text != "<unk>" {
					t.Fatalf("%s %q: special token %q in text of a user", name, text,
						tok.tokens[id].text)
				}
			}
			i := int(cut % uint(len(text)+1))
			got, err := tok.EncodeSegments([]Segment{{text[:i], true}, {text[i:], true}},
				EncodeOptions{})
			if err != nil || !slices.Equal(got, plain.IDs) {
				t.Fatalf("%s %q cut at %d: got %v, %v, want %v", name, text, i, got, err, plain.IDs)
			}
			if name == "llama_legacy" || name == "mistral" {
				want := replaceMeta(text)
				if got := tok.Decode(plain.IDs, false); got != want {
					t.Fatalf("%s %q: decoded %q", name, text, got)
				}
			}
		}
	})
}

// replaceMeta is the change that a LLaMA tokenizer makes to text by encoding and decoding it.
func replaceMeta(s string) string {
	out := []rune(s)
	for i, r := range out {
		if r == '▁' {
			out[i] = ' '
		}
	}
	return string(out)
}

func checkEncoding(t *testing.T, tok *Tokenizer, text string, e Encoding) {
	t.Helper()
	if len(e.IDs) != len(e.Offsets) {
		t.Fatalf("%q: %d ids, %d offsets", text, len(e.IDs), len(e.Offsets))
	}
	stream := tok.NewStream()
	joined := ""
	for i, o := range e.Offsets {
		if o[0] < 0 || o[1] < o[0] || o[1] > len(text) || i > 0 && o[0] < e.Offsets[i-1][0] {
			t.Fatalf("%q: offsets %v", text, e.Offsets)
		}
		if !tok.has(e.IDs[i]) {
			t.Fatalf("%q: id %d is not in the vocabulary", text, e.IDs[i])
		}
		joined += stream.Push(e.IDs[i])
	}
	if joined += stream.Flush(); joined != tok.Decode(e.IDs, true) {
		t.Fatalf("%q: stream %q, decoded %q", text, joined, tok.Decode(e.IDs, true))
	}
}

// Ensure that no file makes the parser, or the parsed tokenizer, panic or take long.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<unk>":3},"merges":["a b"],"unk_token":"<unk>","continuing_subword_prefix":"b"}}`))
	f.Add([]byte(`{"version":"1.0","added_tokens":[{"id":2,"content":"ab","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":true}],
		"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"a"},{"type":"Replace","pattern":{"Regex":"x*"},"content":"b"},{"type":"NFKC"},{"type":"Lowercase"},{"type":"Strip","strip_left":true,"strip_right":true}]},
		"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|(?!x)y"},"behavior":"MergedWithNext","invert":true},{"type":"ByteLevel"},{"type":"Metaspace","replacement":"_"}]},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},{"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[0]}}},
		"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]},
		"model":{"vocab":{"a":0,"b":1,"\u00e9":3},"merges":[],"byte_fallback":true,"end_of_word_suffix":"b"}}`))
	f.Add([]byte(`{"added_tokens":[` + strings.Repeat(`{"content":"x"},`, 3000) + `{"id":1}],"model":{"vocab":{"x":0},"merges":[]}}`))
	f.Add([]byte(`{"normalizer":{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"NFC"},`, 63) + `{"type":"NFC"}],"normalizers":[]},"model":{"vocab":{"x":0},"merges":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			return
		}
		const text = " aabb é\u0301 x\n12 AB"
		e, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
		if err != nil {
			return
		}
		stream := tok.NewStream()
		for i, id := range e.IDs {
			if o := e.Offsets[i]; o[0] < 0 || o[1] < o[0] || o[1] > len(text) {
				t.Fatalf("offsets %v", e.Offsets)
			}
			stream.Push(id)
		}
		stream.Flush()
		tok.Decode(e.IDs, true)
	})
}

// Ensure that one tokenizer serves several goroutines (the race detector watches).
func TestConcurrentUse(t *testing.T) {
	for _, name := range goldenNames {
		tok := load(t, name)
		const text = "Hello <image>\nnorm word e\u0301 <|im_end|> 'S 123"
		want := encode(t, tok, text, EncodeOptions{AddSpecial: true}).IDs
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				e, err := tok.Encode(text, EncodeOptions{AddSpecial: true})
				if err != nil || !slices.Equal(e.IDs, want) {
					t.Errorf("%s: got %v, %v, want %v", name, e.IDs, err, want)
				}
				tok.Decode(e.IDs, true)
			})
		}
		wait.Wait()
	}
}

// Ensure that pieces, joined and read as UTF-8, equal the stream's text.
func TestPieceIsStream(t *testing.T) {
	for _, name := range []string{"llama_legacy", "llama_metaspace", "mistral", "qwen2"} {
		tok := load(t, name)
		enc, err := tok.Encode("A café, 日本語 and\n\ttwo  spaces", EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := tok.NewStream()
		var want string
		var got []byte
		for i, id := range enc.IDs {
			want += s.Push(id)
			got = append(got, tok.Piece(id, i == 0)...)
		}
		if want += s.Flush(); want != string(got) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
