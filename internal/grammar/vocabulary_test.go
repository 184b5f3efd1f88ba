package grammar_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/restore-vlm/restore/internal/builtin"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// tokenizers returns the embedded model's tokenizer and two of the tokenizer's tests:
// byte fallback with a leading space, and bytes.
func tokenizers(tb testing.TB) map[string]*tokenizer.Tokenizer {
	tb.Helper()
	all := map[string][]byte{}
	data, err := fs.ReadFile(builtin.FS(), "tokenizer.json")
	if err != nil {
		tb.Fatal(err)
	}
	all["builtin"] = data
	for _, name := range []string{"llama_legacy", "qwen2"} {
		all[name] = golden.ReadFile(tb, "../tokenizer/testdata/"+name+".json")
	}
	toks := map[string]*tokenizer.Tokenizer{}
	for name, data := range all {
		if toks[name], err = tokenizer.Parse(data); err != nil {
			tb.Fatal(err)
		}
	}
	return toks
}

const person = `{"type":"object","properties":{"name":{"type":"string"},"code":{"type":"string","maxLength":6},
	"tags":{"type":"array","items":{"enum":["red","green","blue"]},"maxItems":3},"age":{"type":"integer"},
	"more":{"type":"object","additionalProperties":{"type":"number"},"properties":{"x":{"type":"null"}}}},"required":["name","tags"]}`

// Ensure that a mask has exactly the tokens whose bytes the grammar accepts, and that the tokens'
// text is the streamed text.
func TestMaskIsExact(t *testing.T) {
	for name, tok := range tokenizers(t) {
		n := tok.VocabSize()
		end := int32(2)
		v, err := grammar.NewVocabulary(n, tok.Piece, []int32{end})
		if err != nil {
			t.Fatal(name, err)
		}
		s, err := grammar.Parse([]byte(person))
		if err != nil {
			t.Fatal(err)
		}
		g, err := grammar.Compile(context.Background(), s, v)
		if err != nil {
			t.Fatal(err)
		}
		// The same automaton with one byte per token.
		plain, err := grammar.NewVocabulary(256,
			func(id int32, _ bool) []byte { return []byte{byte(id)} }, nil)
		if err != nil {
			t.Fatal(err)
		}
		bytewise, err := grammar.Compile(context.Background(), s, plain)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(3, 4))
		for range 4 {
			m, stream := g.NewMatcher(context.Background()), tok.NewStream()
			var text []byte
			var streamed string
			for step := range 40 {
				mask := m.Mask()
				var allowed []int32
				for id := range int32(n) {
					piece := tok.Piece(id, step == 0)
					want := len(piece) > 0 && id != end && reads(t, bytewise, text, piece)
					if id == end {
						want = m.Complete()
					}
					if got := grammar.Allowed(mask, id); got != want {
						t.Fatalf("%s: after %q, token %d %q: allowed is %t, want %t", name, text,
							id, piece, got, want)
					}
					if want && id != end {
						allowed = append(allowed, id)
					}
				}
				if len(allowed) == 0 {
					break
				}
				id := allowed[r.IntN(len(allowed))]
				if err := m.Accept(id); err != nil {
					t.Fatal(err)
				}
				text = append(text, tok.Piece(id, step == 0)...)
				streamed += stream.Push(id)
			}
			if !bytes.HasPrefix(text, []byte(streamed)) {
				t.Fatalf("%s: stream says %q, pieces %q", name, streamed, text)
			}
		}
	}
}

// reads reports whether text followed by piece is the beginning of a value.
func reads(tb testing.TB, g *grammar.Grammar, text, piece []byte) bool {
	tb.Helper()
	m := g.NewMatcher(context.Background())
	for _, b := range text {
		if err := m.Accept(int32(b)); err != nil {
			tb.Fatal(err)
		}
	}
	for _, b := range piece {
		if m.Accept(int32(b)) != nil {
			return false
		}
	}
	return true
}

// Ensure that a token outside of the mask is refused, and a vocabulary that cannot write every
// text.
func TestVocabularyRefusals(t *testing.T) {
	if _, err := grammar.NewVocabulary(3, func(id int32, _ bool) []byte {
		return []byte{byte('a' + id)}
	}, nil); err == nil {
		t.Error("a vocabulary of three letters is taken")
	}
	v, err := grammar.NewVocabulary(256, func(id int32, _ bool) []byte { return []byte{byte(id)} },
		[]int32{0})
	if err != nil {
		t.Fatal(err)
	}
	g, err := grammar.Compile(context.Background(), grammar.AnyObject(), v)
	if err != nil {
		t.Fatal(err)
	}
	m := g.NewMatcher(context.Background())
	if err := m.Accept('['); err == nil {
		t.Error("a list is taken for an object")
	}
	for _, b := range []byte(`{"a":[1]}`) {
		if m.Done() {
			t.Fatal("done before the end")
		}
		if err := m.Accept(int32(b)); err != nil {
			t.Fatal(err)
		}
	}
	if !m.Done() || !m.Complete() || m.Accept(0) != nil {
		t.Error("a whole object is not done")
	}
}

// words makes a vocabulary of n tokens like those of published models: bytes, and
// words with and without a leading space.
func words(n int) func(id int32, first bool) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	tokens := make([][]byte, n)
	seen := map[string]bool{}
	for i := range tokens {
		if i < 256 {
			tokens[i] = []byte{byte(i)}
			continue
		}
		for {
			var b []byte
			switch k := r.IntN(100); {
			case k < 55:
				b = append(b, ' ')
			case k < 60: // punctuation, as code has it
				for range 1 + r.IntN(4) {
					b = append(b, "\"\\{}[]:,;()'= \n\t"[r.IntN(16)])
				}
			case k < 70: // other scripts, some cut
				for range 1 + r.IntN(3) {
					b = append(b, string(rune(0x4e00+r.IntN(0x5000)))...)
				}
				b = b[:len(b)-r.IntN(2)]
			}
			for range 1 + r.IntN(10) {
				b = append(b, byte('a'+r.IntN(26)))
			}
			if !seen[string(b)] {
				seen[string(b)] = true
				tokens[i] = b
				break
			}
		}
	}
	return func(id int32, _ bool) []byte { return tokens[id] }
}

// BenchmarkMask measures a token's mask over a whole text, with a new grammar (cold) and with one
// that has seen the text (warm).
func BenchmarkMask(b *testing.B) {
	text := []byte(
		`{"name":"a cat on the old mat, \"quoted\"","code":"abc","tags":["red","blue"],"age":12,"more":{"x":null,"some":1.5}}`,
	)
	for _, n := range []int{32_000, 152_000} {
		v, err := grammar.NewVocabulary(n, words(n), []int32{0})
		if err != nil {
			b.Fatal(err)
		}
		s, err := grammar.Parse([]byte(person))
		if err != nil {
			b.Fatal(err)
		}
		for _, cold := range []bool{true, false} {
			b.Run(fmt.Sprintf("%d/cold=%t", n, cold), func(b *testing.B) {
				g, err := grammar.Compile(context.Background(), s, v)
				if err != nil {
					b.Fatal(err)
				}
				masks := 0
				for range b.N {
					if cold {
						if g, err = grammar.Compile(context.Background(), s, v); err != nil {
							b.Fatal(err)
						}
					}
					m := g.NewMatcher(context.Background())
					for _, c := range text {
						m.Mask()
						masks++
						if err := m.Accept(int32(c)); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(masks), "µs/mask")
			})
		}
		b.Run(fmt.Sprintf("%d/vocabulary", n), func(b *testing.B) {
			piece := words(n)
			for range b.N {
				if _, err := grammar.NewVocabulary(n, piece, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
