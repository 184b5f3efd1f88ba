package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const megabyte = 1 << 20

// longTexts are megabytes that make careless tokenizers quadratic.
func longTexts() map[string]string {
	rng := rand.New(rand.NewPCG(1, 2))
	var random, words strings.Builder
	for random.Len() < megabyte {
		random.WriteRune(rune(rng.IntN(0xd000)))
	}
	for words.Len() < megabyte {
		words.WriteString("The quick brown fox, it's said, jumped over 12 lazy dogs.\n\n")
	}
	return map[string]string{
		"letter":     strings.Repeat("a", megabyte),
		"spaces":     strings.Repeat(" ", megabyte),
		"pairs":      strings.Repeat("th", megabyte/2),
		"newlines":   strings.Repeat("\n", megabyte),
		"spaced":     strings.Repeat(strings.Repeat(" ", 1023)+"x", megabyte/1024),
		"marks":      "e" + strings.Repeat("\u0301\u0323", megabyte/4),
		"apostrophe": strings.Repeat("'", megabyte),
		"brackets":   strings.Repeat("<", megabyte),
		"specials":   strings.Repeat("<s", megabyte/2),
		"random":     random.String(),
		"words":      words.String(),
	}
}

// Ensure that no long text takes much longer than others: a quadratic step would take minutes.
func TestEncodeLongText(t *testing.T) {
	const limit = time.Minute // measured: up to 0.9 s
	whole := map[string]bool{"letter": true, "spaces": true, "random": true}
	for _, name := range []string{"llama_legacy", "qwen2"} {
		tok := load(t, name)
		for kind, text := range longTexts() {
			if !whole[kind] { // an eighth is enough
				n := len(text) / 8
				for !utf8.RuneStart(text[n]) {
					n++
				}
				text = text[:n]
			}
			start := time.Now()
			e := encode(t, tok, text, EncodeOptions{})
			took := time.Since(start)
			t.Logf("%s %s: %d ids, %v", name, kind, len(e.IDs), took.Round(time.Millisecond))
			if took > limit {
				t.Errorf("%s %s: %v for %d bytes, limit is %v", name, kind, took, len(text), limit)
			}
			if last := e.Offsets[len(e.Offsets)-1][1]; last < len(text)/2 {
				t.Errorf("%s %s: last offset is %d of %d", name, kind, last, len(text))
			}
		}
	}
}

func BenchmarkEncodeMegabyte(b *testing.B) {
	texts := longTexts()
	for _, name := range []string{"llama_legacy", "qwen2"} {
		tok := load(b, name)
		for _, kind := range []string{"letter", "spaces", "random", "words"} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(texts[kind])))
				for b.Loop() {
					if _, err := tok.Encode(texts[kind], EncodeOptions{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// largeFile is a tokenizer.json of LLaMA's size: 32,000 tokens, 61,249 merges written as arrays,
// indented like published files.
func largeFile(tb testing.TB) []byte {
	const tokens, merges = 32000, 61249
	tb.Helper()
	vocab := make(map[string]int, tokens)
	names := []string{"<unk>", "<s>", "</s>"}
	for b := range 256 {
		names = append(names, fmt.Sprintf("<0x%02X>", b))
	}
	const letters = "▁abcdefghijklmnopqrstuvwxyz"
	alphabet := []rune(letters)
	for _, r := range alphabet {
		names = append(names, string(r))
	}
	first := len(names) - len(alphabet)
	for i, n := range names {
		vocab[n] = i
	}
	for left := first; len(names) < tokens; left++ {
		for _, r := range alphabet {
			if whole := names[left] + string(r); len(names) < tokens {
				vocab[whole] = len(names)
				names = append(names, whole)
			}
		}
	}
	var pairs [][2]string
	for _, n := range names[first:] {
		for i := range n {
			_, left := vocab[n[:i]]
			_, right := vocab[n[i:]]
			if left && right && len(pairs) < merges {
				pairs = append(pairs, [2]string{n[:i], n[i:]})
			}
		}
	}
	data, err := json.MarshalIndent(map[string]any{
		"version": "1.0", "added_tokens": []any{},
		"model": map[string]any{"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": pairs},
	}, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	return bytes.TrimSpace(data)
}

func BenchmarkParse(b *testing.B) {
	data := largeFile(b)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
