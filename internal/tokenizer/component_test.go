package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"golang.org/x/text/unicode/norm"
)

// build returns a tokenizer of printable ASCII characters with the given sections.
func build(tb testing.TB, sections map[string]string) (*Tokenizer, error) {
	tb.Helper()
	vocab := map[string]int{"<unk>": 0}
	for c := rune(' '); c < 0x7f; c++ {
		vocab[string(c)] = int(c)
	}
	v, err := json.Marshal(vocab)
	if err != nil {
		tb.Fatal(err)
	}
	file := map[string]json.RawMessage{
		"model": json.RawMessage(`{"type":"BPE","unk_token":"<unk>","vocab":` + string(v) + `,"merges":[]}`),
	}
	for name, raw := range sections {
		file[name] = json.RawMessage(raw)
	}
	data, err := json.Marshal(file)
	if err != nil {
		tb.Fatal(err)
	}
	return Parse(data)
}

func mustBuild(tb testing.TB, sections map[string]string) *Tokenizer {
	tb.Helper()
	tok, err := build(tb, sections)
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

// Ensure that each pre-tokenizer splits as documented, and that the pieces' offsets match the text.
func TestPreTokenizers(t *testing.T) {
	dash := func(behavior string) string {
		return `{"type":"Split","pattern":{"String":"-"},"behavior":"` + behavior + `","invert":false}`
	}
	for _, c := range []struct{ section, text, want string }{
		{dash("Removed"), "the-final--countdown", "the|final|countdown"},
		{dash("Isolated"), "the-final--countdown", "the|-|final|-|-|countdown"},
		{dash("MergedWithPrevious"), "the-final--countdown", "the-|final-|-|countdown"},
		{dash("MergedWithNext"), "the-final--countdown", "the|-final|-|-countdown"},
		{dash("Contiguous"), "the-final--countdown", "the|-|final|--|countdown"},
		{dash("MergedWithPrevious"), "-a-", "-|a-"},
		{dash("MergedWithNext"), "-a-", "-a|-"},
		{`{"type":"Split","pattern":{"Regex":"[a-z]+"},"behavior":"Removed","invert":true}`, "ab, cd", "ab|cd"},
		{`{"type":"Split","pattern":{"Regex":"x*"},"behavior":"Isolated","invert":false}`, "axxb", "a|xx|b"},
		{`{"type":"Digits","individual_digits":false}`, "Hey 123 friend!", "Hey |123| friend!"},
		{`{"type":"Digits","individual_digits":true}`, "a12²", "a|1|2|²"},
		{`{"type":"Punctuation"}`, "Hey, you!?", "Hey|,| you|!|?"},
		{`{"type":"Whitespace"}`, "Hey man!? x_1", "Hey|man|!?|x_1"},
		{`{"type":"Whitespace"}`, "a\U0002ebf0\U00010d40 \u0897-\U00010d8e", "a\U0002ebf0\U00010d40|\u0897|-\U00010d8e"},
		{`{"type":"WhitespaceSplit"}`, " Hey  man! ", "Hey|man!"},
		{`{"type":"BertPreTokenizer"}`, "Hey man!", "Hey|man|!"},
		{`{"type":"CharDelimiterSplit","delimiter":"="}`, "a=b==c", "a|b|c"},
		{`{"type":"FixedLength","length":3}`, "abcdéfg", "abc|déf|g"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}`, "Hey   friend!", "▁Hey|▁|▁|▁friend!"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":false}`, "Hey you", "▁Hey▁you"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`, " Hey", "▁Hey"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"}`, "Hey you", "Hey|▁you"},
		{`{"type":"Metaspace","replacement":"▁","add_prefix_space":false}`, "Hey you", "Hey|▁you"},
		{`{"type":"ByteLevel","add_prefix_space":true}`, "Hey you're  12é", "ĠHey|Ġyou|'re|Ġ|Ġ12|Ã©"},
		{`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, "a b", "aĠb"},
		{`{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Digits","individual_digits":true}]}`, "a 12", "a|1|2"},
	} {
		tok := mustBuild(t, map[string]string{"pre_tokenizer": c.section})
		pieces, err := tok.split(c.text, &guard{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range pieces {
			got = append(got, p.text)
			s := p.spanOf(0, len(p.text))
			of := c.text[s.start:s.end]
			if !strings.HasSuffix(strings.ReplaceAll(p.text, "▁", " "), of) &&
				!strings.ContainsAny(p.text, "ĠÃ") {
				t.Errorf("%s %q: piece %q has the offsets of %q", c.section, c.text, p.text, of)
			}
		}
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("%s %q: got %q, want %q", c.section, c.text, s, c.want)
		}
	}
}

// Ensure that each normalizer gives the right text and keeps the offsets of the characters after
// it.
func TestNormalizers(t *testing.T) {
	for _, c := range []struct {
		section, text, want string
		spans               [][2]int32 // of each character of want
	}{
		{`{"type":"Prepend","prepend":"▁"}`, "ab", "▁ab", [][2]int32{{0, 1}, {0, 1}, {1, 2}}},
		{`{"type":"Replace","pattern":{"String":"ab"},"content":"xyz"}`, "éab", "éxyz", [][2]int32{{0, 2}, {3, 4}, {3, 4}, {3, 4}}},
		{`{"type":"Replace","pattern":{"Regex":" {2,}"},"content":"_"}`, "a   b", "a_b", [][2]int32{{0, 1}, {3, 4}, {4, 5}}},
		{`{"type":"NFC"}`, "e\u0301x", "éx", [][2]int32{{0, 1}, {3, 4}}},
		{`{"type":"NFD"}`, "éx", "e\u0301x", [][2]int32{{0, 2}, {0, 2}, {2, 3}}},
		{`{"type":"NFKC"}`, "ﬁ", "fi", [][2]int32{{0, 3}, {0, 3}}},
		{`{"type":"NFKD"}`, "①é", "1e\u0301", [][2]int32{{0, 3}, {3, 5}, {3, 5}}},
		{`{"type":"Lowercase"}`, "AİΣ", "ai\u0307σ", [][2]int32{{0, 1}, {1, 3}, {1, 3}, {3, 5}}},
		{`{"type":"Strip","strip_left":true,"strip_right":true}`, " \u3000a ", "a", [][2]int32{{4, 5}}},
		{`{"type":"Strip","strip_left":false,"strip_right":true}`, " a ", " a", [][2]int32{{0, 1}, {1, 2}}},
		{`{"type":"StripAccents"}`, "e\u0301x", "ex", [][2]int32{{0, 1}, {3, 4}}},
		{`{"type":"Nmt"}`, "a\x01\tb\u200b", "a b ", [][2]int32{{0, 1}, {2, 3}, {3, 4}, {4, 7}}},
		{`{"type":"ByteLevel"}`, "é ", "Ã©Ġ", [][2]int32{{0, 2}, {0, 2}, {2, 3}}},
		{`{"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"},{"type":"Lowercase"}]}`, "ÀB", "ab", [][2]int32{{0, 2}, {2, 3}}},
	} {
		tok := mustBuild(t, map[string]string{"normalizer": c.section})
		p := piece{text: c.text, id: noToken}
		if err := tok.normalize(&p); err != nil {
			t.Fatal(err)
		}
		if p.text != c.want {
			t.Errorf("%s %q: got %q, want %q", c.section, c.text, p.text, c.want)
			continue
		}
		var got [][2]int32
		for i, r := range p.text {
			s := p.spanOf(i, i+utf8.RuneLen(r))
			got = append(got, [2]int32{s.start, s.end})
		}
		if !slices.Equal(got, c.spans) {
			t.Errorf("%s %q: spans %v, want %v", c.section, c.text, got, c.spans)
		}
	}
}

// Ensure that decoders work on single tokens or on the whole text, as specified, and that a stream
// agrees.
func TestDecoders(t *testing.T) {
	for _, c := range []struct {
		section string
		tokens  []string
		want    string
	}{
		{`null`, []string{"a", "b"}, "a b"},
		{`{"type":"Fuse"}`, []string{"a", "b"}, "ab"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"always"}`, []string{"▁Hey", "▁you"}, "Hey you"},
		{`{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"}`, []string{"▁Hey", "▁you"}, " Hey you"},
		{`{"type":"Strip","content":"x","start":2,"stop":0}`, []string{"xxxa", "xa"}, "xaa"},
		{`{"type":"Strip","content":"x","start":0,"stop":1}`, []string{"axx", "x"}, "ax"},
		{`{"type":"Replace","pattern":{"Regex":"[0-9]+"},"content":"#"}`, []string{"a12", "3"}, "a##"},
		{`{"type":"ByteFallback"}`, []string{"<0xC3>", "<0xa9>", "<0xGG>"}, "é<0xGG>"},
		{`{"type":"ByteLevel"}`, []string{"Ã", "©Ġ", "日"}, "é 日"},
		{`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":2,"stop":0}]}`, []string{" ", "  a"}, " a"},
	} {
		dec, err := readDecoder(json.RawMessage(c.section))
		if err != nil {
			t.Fatal(err)
		}
		tok := &Tokenizer{decoder: dec}
		ids := []int32{}
		for i, s := range c.tokens {
			tok.setToken(int32(i), s)
			ids = append(ids, int32(i))
		}
		if got := tok.Decode(ids, true); got != c.want {
			t.Errorf("%s %q: got %q, want %q", c.section, c.tokens, got, c.want)
		}
		s := tok.NewStream()
		got := ""
		for _, id := range ids {
			got += s.Push(id)
		}
		if got += s.Flush(); got != c.want {
			t.Errorf("%s %q: stream %q, want %q", c.section, c.tokens, got, c.want)
		}
	}
}

// Ensure that post-processors add their tokens and trim offsets.
func TestProcessors(t *testing.T) {
	byteLevel := `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true}`
	template := `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"A","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
		{"SpecialToken":{"id":"B","type_id":0}}],"pair":[],"special_tokens":{"A":{"id":"A","ids":[65,66],"tokens":["A","B"]},"B":{"id":"B","ids":[90],"tokens":["Z"]}}}`
	for _, c := range []struct {
		section string
		ids     []int32
		offsets [][2]int
	}{
		{template, []int32{65, 66, 'x', ' ', 90}, [][2]int{{0, 0}, {0, 0}, {0, 1}, {1, 2}, {0, 0}}},
		{byteLevel, []int32{'x', ' '}, [][2]int{{0, 1}, {2, 2}}},
		{`{"type":"Sequence","processors":[` + byteLevel + `,` + template + `]}`, []int32{65, 66, 'x', ' ', 90}, [][2]int{{0, 0}, {0, 0}, {0, 1}, {2, 2}, {0, 0}}},
		{`{"type":"RobertaProcessing","sep":["b",98],"cls":["a",97],"trim_offsets":false}`, []int32{97, 'x', ' ', 98}, [][2]int{{0, 0}, {0, 1}, {1, 2}, {0, 0}}},
		{`{"type":"BertProcessing","sep":["b",98],"cls":["a",97]}`, []int32{97, 'x', ' ', 98}, [][2]int{{0, 0}, {0, 1}, {1, 2}, {0, 0}}},
	} {
		tok := mustBuild(t, map[string]string{"post_processor": c.section})
		e := encode(t, tok, "x ", EncodeOptions{AddSpecial: true})
		if !slices.Equal(e.IDs, c.ids) || !slices.Equal(e.Offsets, c.offsets) {
			t.Errorf("%s: got %v %v, want %v %v", c.section, e.IDs, e.Offsets, c.ids, c.offsets)
		}
	}
	tok := mustBuild(t, map[string]string{
		"post_processor": `{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}}]}`,
	})
	if e := encode(t, tok, "", EncodeOptions{AddSpecial: true}); e.IDs == nil || e.Offsets == nil {
		t.Errorf("an empty text: got %v, want lists that are not nil", e)
	}
}

// Ensure that the matchers of the published patterns find the same matches as the patterns.
func TestPublishedPatterns(t *testing.T) {
	alphabet := []rune("aZéЖ中1٣² \t\n\r\u00a0\u3000!'’-_<ſstdmrevlSTLVE\u0301😀")
	rng := rand.New(rand.NewPCG(3, 4))
	for _, pattern := range []string{gpt2Pattern, qwenPattern, llamaPattern} {
		find, err := compileRegexp(pattern)
		if err != nil {
			t.Fatal(err)
		}
		// The engine does not fold ſ to s as the reference does, so the pattern includes it.
		re := regexp2.MustCompile(strings.Replace(pattern, "(?i:'s|", "(?i:'s|'ſ|", 1),
			regexp2.None)
		for range 3000 {
			text := make([]rune, rng.IntN(14))
			for i := range text {
				text[i] = alphabet[rng.IntN(len(alphabet))]
			}
			got, err := find(string(text), nil)
			if err != nil {
				t.Fatal(err)
			}
			want, err := findRegexp(re, string(text), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%.20s… %q: got %v, want %v", pattern, string(text), got, want)
			}
		}
	}
}

// Ensure that a pattern that backtracks forever is an error, not a hang.
func TestRegexpTimeout(t *testing.T) {
	tok := mustBuild(t, map[string]string{
		"pre_tokenizer": `{"type":"Split","pattern":{"Regex":"(a+)+b"},"behavior":"Isolated","invert":false}`,
	})
	_, err := tok.Encode(strings.Repeat("a\n", 16)+strings.Repeat("a", 64), EncodeOptions{})
	if err == nil || !strings.Contains(err.Error(), "(a+)+b") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("got error %v, want one line that names the pattern", err)
	}
}

// Ensure that the normal forms follow the standard. The comparison uses at most 20 marks in a row,
// because the other implementation inserts characters from 30 on.
func TestNormalForms(t *testing.T) {
	alphabet := []rune("aeoAEO éÅ\u0301\u0302\u0323\u0307\u0308\u0344\u0340\u0338\u0345\u0327=" +
		"ẛ\u1e69ộ각\u1100\u1161\u11a8한ﬁ①" +
		"\u0958\u0915\u093c\u1025\u102e\u212b\u2126\U0002f800\u0f43\u09c7\u09be\u30ab\u3099")
	rng := rand.New(rand.NewPCG(5, 6))
	for name, form := range map[string]norm.Form{
		"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD,
	} {
		tok := mustBuild(t, map[string]string{"normalizer": `{"type":"` + name + `"}`})
		for range 5000 {
			text := make([]rune, rng.IntN(20))
			for i := range text {
				text[i] = alphabet[rng.IntN(len(alphabet))]
			}
			p := piece{text: string(text), id: noToken}
			if err := tok.normalize(&p); err != nil {
				t.Fatal(err)
			}
			if want := form.String(string(text)); p.text != want {
				t.Fatalf("%s of %+q: got %+q, want %+q", name, string(text), p.text, want)
			}
			if p.align != nil && len(p.align) != len(p.text) {
				t.Fatalf("%s of %+q: %d alignments for %d bytes", name, string(text), len(p.align),
					len(p.text))
			}
		}
	}
	long := "a" + strings.Repeat("\u0301", 100)
	p := piece{text: long, id: noToken}
	if err := (normalForm{norm.NFC, norm.NFD, true}).normalize(&p); err != nil {
		t.Fatal(err)
	}
	if want := "á" + strings.Repeat("\u0301", 99); p.text != want {
		t.Errorf("100 marks: got %+q, want %+q", p.text, want)
	}
}

// Ensure that the normal forms leave characters of later versions of Unicode as the reference does.
func TestNormalFormsOfNewCharacters(t *testing.T) {
	for _, c := range []struct{ form, text, want string }{
		{"NFC", "a\u0eba\u0323", "a\u0eba\u0323"},
		{"NFC", "e\u0301\u1df6\u0323", "é\u1df6\u0323"},
		{"NFC", "\u0334\u0898\u0301\u0323", "\u0334\u0898\u0323\u0301"},
		{"NFC", "\U00011935\U00011930", "\U00011935\U00011930"},
		{"NFD", "\U00011938", "\U00011938"},
		{"NFD", "é\U00010efd\u0323", "e\u0301\U00010efd\u0323"},
		{"NFKC", "\u32ffﬁ", "\u32fffi"},
		{"NFKD", "\U0001e030\U0001fbf0\U0001d7f2", "\U0001e030\U0001fbf06"},
	} {
		tok := mustBuild(t, map[string]string{"normalizer": `{"type":"` + c.form + `"}`})
		p := piece{text: c.text, id: noToken}
		if err := tok.normalize(&p); err != nil || p.text != c.want {
			t.Errorf("%s of %+q: got %+q, %v, want %+q", c.form, c.text, p.text, err, c.want)
		}
	}
}

// Ensure that characters of later versions of Unicode get the ids of the reference.
func TestNewCharacters(t *testing.T) {
	tok := load(t, "qwen2")
	for text, want := range map[string][]int32{
		"\U0002ebf0's":          {172, 106, 107, 108, 673},
		"\u1c89's \U000116d0's": {157, 110, 231, 673, 220, 172, 239, 249, 238, 673},
		"a\u0eba\u0323":         {64, 156, 118, 118, 136, 96},
	} {
		if got := encode(t, tok, text, EncodeOptions{}).IDs; !slices.Equal(got, want) {
			t.Errorf("%+q: got %v, want %v", text, got, want)
		}
	}
}
