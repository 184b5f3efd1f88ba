package tokenizer

import (
	"encoding/json"
	"strings"
	"testing"
)

// Ensure that patterns split a text as the reference's engine does.
func TestSyntax(t *testing.T) {
	for _, c := range []struct{ pattern, text, want string }{
		{"a{,2}", "baaab", "b|aa|a|b"},
		{"a{,0}b", "ab", "a|b"},
		{"[a{,2}]+", "b{2,a}", "b|{2,a}"},
		{`\{,2}`, "a{,2}", "a|{,2}"},
		{"(?m:a.b)", "a\nb a.b", "a\nb| |a.b"},
		{"(?m)a.|b", "a\nb", "a\n|b"},
		{"(?im:A.)b", "a\nb", "a\nb"},
		{"(?i:A(?-i)B)", "aBab", "aB|ab"},
		{"x(?i)A|B", "xBxab", "xB|xa|b"},
		{"(?:y|(?i)A|B)c", "bcAcycYc", "bc|Ac|yc|Yc"},
		{`(?i:\p{Lu})+`, "aÉZß", "a|ÉZ|ß"},
		{`(?i)\P{Lu}+`, "aßÉZ", "aß|ÉZ"},
		{`(?i:A)|\p{Lu}`, "é-ÉB", "é-|É|B"},
		{`\w+`, "²a\u0488\u0903-x\u200dⒶ", "²a\u0488\u0903|-|x|\u200d|Ⓐ"},
		{`\W+`, "²a\u0488\u0903-x\u200dⒶ", "²a\u0488\u0903|-|x|\u200d|Ⓐ"},
		{`[\w-]+`, "²a\u0488\u0903-x\u200dⒶ", "²|a\u0488\u0903-x|\u200d|Ⓐ"},
		{`\b`, "²a\u0903-x\u200dⒶ b", "²a\u0903|-|x|\u200d|Ⓐ| |b"},
		{`\B`, "²a\u0903-x\u200dⒶ - b", "²|a|\u0903-x\u200dⒶ |-| b"},
		{"(?#[()b", "ab", "a|b"},
	} {
		pattern, err := json.Marshal(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		tok := mustBuild(t, map[string]string{"pre_tokenizer": `{"type":"Split","pattern":{"Regex":` +
			string(pattern) + `},"behavior":"Isolated","invert":false}`})
		pieces, err := tok.split(c.text, &guard{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range pieces {
			got = append(got, p.text)
		}
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("%s: %q: got %q, want %q", c.pattern, c.text, s, c.want)
		}
	}
}
