package bench

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/pytext"
)

// choice is an option of a question: its letter and its text.
type choice struct{ letter, text string }

// letterOfEvalKit finds the letter that an answer names by VLMEvalKit's rules, on which the paper's
// circular score is based. It returns "" if there is none, and Z for a refusal.
func letterOfEvalKit(answer string, choices []choice) string {
	if strings.Contains(answer, "Failed to obtain answer via API") {
		return optionText(answer, choices, true)
	}
	for _, refusal := range []string{"Sorry, I can't help with images of people yet.",
		"I can't process this file.", "I'm sorry, but without the image provided",
		"Cannot determine the answer"} {
		if strings.Contains(answer, refusal) {
			return "Z"
		}
	}
	tokens := pytext.Fields(strings.Map(func(r rune) rune {
		if strings.ContainsRune(".()[],:;!*#{}", r) {
			return ' '
		}
		return r
	}, answer))
	var named []choice
	for _, c := range choices {
		if slices.Contains(tokens, c.letter) {
			named = append(named, c)
		}
	}
	switch {
	case len(named) == 1 && slices.Index(tokens, named[0].letter) > len(tokens)-5:
		return named[0].letter
	case len(named) == 0 && slices.Contains(tokens, "Z"):
		return "Z"
	}
	if m := answerIs.FindStringSubmatch(answer); m != nil {
		letter := strings.ToUpper(m[1])
		if slices.ContainsFunc(choices, func(c choice) bool { return c.letter == letter }) {
			return letter
		}
	}
	return optionText(answer, choices, true)
}

// answerIs matches "the answer is **B**", with Python's white space.
var answerIs = func() *regexp.Regexp {
	const space = `[\s\v\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}` +
		`\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+`
	return regexp.MustCompile(`(?i)(?:correct` + space + `)?answer` + space + `is` + space +
		`\**([ABCD])\**`)
}()

// optionText finds the one option whose text the answer contains, in lower case. It returns "" if
// there are none or several. short rejects answers longer than twice the options.
func optionText(answer string, choices []choice, short bool) string {
	answer = pytext.Lower(answer)
	length, found := 0, ""
	for _, c := range choices {
		length += utf8.RuneCountInString(c.text)
	}
	if short && utf8.RuneCountInString(answer) > 2*length {
		return ""
	}
	for _, c := range choices {
		if strings.Contains(answer, pytext.Lower(c.text)) {
			if found != "" {
				return ""
			}
			found = c.letter
		}
	}
	return found
}

// letterOfLMMS finds the letter that an answer names by the rules of lmms-eval's MMBench.
func letterOfLMMS(answer string, choices []choice) string {
	if letter := optionLetter(answer); letter != "" {
		return letter
	}
	return optionText(answer, choices, false)
}

// optionLetter looks for one of A to E as a word, then with each of twelve decorations. An A among
// more than three words may be an article, so it ends the search for bare letters.
func optionLetter(answer string) string {
	if strings.Contains(answer, "Failed to obtain answer via API") {
		return ""
	}
	tokens := pytext.Fields(answer)
	one := func(before, after string) string {
		found := ""
		for _, letter := range strings.Split("ABCDE", "") {
			if slices.Contains(tokens, before+letter+after) {
				if found != "" {
					return ""
				}
				found = letter
			}
		}
		return found
	}
	if letter := one("", ""); letter != "" && !(len(tokens) > 3 && slices.Contains(tokens, "A")) {
		return letter
	}
	for _, d := range [][2]string{
		{"", "."}, {"", ","}, {"", ":"}, {"", ")"}, {"", ")."}, {"(", ")"}, {"(", ")."},
		{":", ""}, {":", ","}, {":", "."}, {":", ")"}, {":", ")."}} {
		if letter := one(d[0], d[1]); letter != "" {
			return letter
		}
	}
	return ""
}

// answerPhrases are the phrases before a letter, in all languages.
var answerPhrases = []string{
	"the answer is",
	"answer is",
	"the correct answer is",
	"correct answer is",
	"the best answer is",
	"best answer is",
	"the correct option is",
	"correct option is",
	"the best option is",
	"best option is",
	"the choice is",
	"choice is",
	"the correct choice is",
	"correct choice is",
	"i choose",
	"i select",
	"i pick",
	"my answer is",
	"my choice is",
	"옵션",
	"정답은",
	"답은",
	"답:",
	"答案是",
	"答案为",
	"选",
	"答えは",
}

// letterAnywhere is the last resort of lmms-eval's MMBench without a judge. Of all occurrences of a
// letter, it takes the most reliable form, and of those the last.
func letterAnywhere(answer string, letters []string) string {
	text := pytext.Strip(answer)
	if text == "" {
		return ""
	}
	if len(letters) == 0 {
		letters = strings.Split("ABCDEFGH", "")
	}
	for _, mark := range []string{",", ".", "!", "?", ";", ":", "'", `"`} {
		text = strings.Trim(text, mark)
	}
	runes := []rune(" " + text + " ")
	inner := []rune(pytext.Strip(text))
	best, bestRank, bestAt := "", -1, -1
	// Of equal candidates, the first is kept.
	found := func(letter string, rank, at int) {
		if rank > bestRank || rank == bestRank && at > bestAt {
			best, bestRank, bestAt = letter, rank, at
		}
	}
	last := func(before, after string, rank int) {
		for _, l := range letters {
			if at := lastIndex(runes, []rune(before+l+after)); at >= 0 {
				found(l, rank, at)
			}
		}
	}
	last("(", ")", 6)
	last("", ".", 5)
	last("", ":", 4)
	last("", ")", 3)
	last("", " ", 2)
	lower := []rune(pytext.Lower(string(runes)))
	for _, phrase := range answerPhrases {
		p := []rune(phrase)
		at := index(lower, p, 0)
		if at < 0 {
			continue
		}
		for _, l := range letters {
			if i := index(runes, []rune(l), at+len(p)); i >= 0 {
				found(l, 7, i)
			}
		}
	}
	for _, l := range letters {
		r := []rune(l)[0]
		if len(inner) == 0 {
			break
		}
		if inner[0] == r && (len(inner) == 1 || !pytext.IsAlpha(inner[1])) {
			found(l, 10, 0)
		}
		if end := len(inner) - 1; inner[end] == r && (end == 0 || !pytext.IsAlpha(inner[end-1])) {
			found(l, 9, len(runes)-1)
		}
	}
	if best == "" {
		last("", "", 0)
	}
	return best
}

// index returns where part begins in s at or after from, or -1.
func index(s, part []rune, from int) int {
	for i := from; i+len(part) <= len(s); i++ {
		if slices.Equal(s[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}

// lastIndex returns where part last begins in s, or -1.
func lastIndex(s, part []rune) int {
	for i := len(s) - len(part); i >= 0; i-- {
		if slices.Equal(s[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}
