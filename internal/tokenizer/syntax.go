package tokenizer

import (
	"fmt"
	"regexp"
	"strings"
)

// syntaxTokens splits a pattern into its characters and the constructs that [translate] looks at.
var syntaxTokens = regexp.MustCompile(
	`(?s)\\[pP]\{[^}]*\}|\\.|\(\?#[^)]*\)|\(\?[imx-]*[:)]|\{,\d+\}|\[\^|&&|.`)

// wordSet is \w of the reference within brackets. Outside them word is.
const (
	wordSet = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\p{Other_Alphabetic}`
	word    = "[¹²³¼-¾" + wordSet + "]"
)

// syntaxGroup is an open group of a pattern.
type syntaxGroup struct {
	fold bool // its rest ignores case
	open int  // groups of the translation that end with it
}

// translate returns a pattern of the reference, Oniguruma's syntax for Ruby, in regexp2's:
//
//   - {,n} is {0,n}, and the option m is s;
//   - options in the middle, a(?i)b|c, are for a group, a(?i:b|c);
//   - \p{…} outside brackets has its case, whatever the options;
//   - \w and \W have the reference's characters, except \W within brackets, and so have the
//     characters that \b and \B look at.
//
// Classes within classes, with their set operations and [:alpha:], are an error.
func translate(pattern string) (string, error) {
	var out strings.Builder
	groups := []syntaxGroup{{}}
	inside := false // brackets
	folds := false  // somewhere
	for _, at := range syntaxTokens.FindAllStringIndex(pattern, -1) {
		t := pattern[at[0]:at[1]]
		top := &groups[len(groups)-1]
		switch {
		case inside && (t[0] == '[' || t == "&&"):
			return "", fmt.Errorf("nested character class at byte %d is not supported", at[0])
		case inside && t == `\w`:
			t = wordSet
		case inside:
			inside = t != "]"
		case t[0] == '[':
			inside = true
		case t == `\w`:
			t = word
		case t == `\W`:
			t = "[^" + word[1:]
		case t == `\b`:
			t = "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"
		case t == `\B`:
			t = "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))"
		case top.fold && strings.HasPrefix(strings.ToLower(t), `\p{`):
			t = "(?-i:" + t + ")"
		case strings.HasPrefix(t, "{,"):
			t = "{0" + t[1:]
		case strings.HasPrefix(t, "(?#"):
		case strings.HasPrefix(t, "(?"):
			t = strings.Replace(t, "m", "s", 1)
			on, off, _ := strings.Cut(t, "-")
			fold := (top.fold || strings.Contains(on, "i")) && !strings.Contains(off, "i")
			folds = folds || fold
			if body, alone := strings.CutSuffix(t, ")"); alone {
				t = body + ":"
				top.fold = fold
				top.open++
			} else {
				groups = append(groups, syntaxGroup{fold: fold})
			}
		case t == "(":
			groups = append(groups, syntaxGroup{fold: top.fold})
		case t == ")" && len(groups) > 1:
			t += strings.Repeat(")", top.open)
			groups = groups[:len(groups)-1]
		}
		out.WriteString(t)
	}
	out.WriteString(strings.Repeat(")", groups[0].open))
	if folds {
		// regexp2 seeks the first character of a match by its lower case if any part of the
		// pattern ignores case. It does not if there is an alternative without characters.
		return "(?!)|" + out.String(), nil
	}
	return out.String(), nil
}
