package bench

import (
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/pytext"
)

// The answer normaliser of the VQA challenge in the variants of its users, and the accuracy against
// ten human answers. Antol et al. 2015, https://visualqa.org/evaluation.html.

// normalVQA is the complete normaliser, as in EvalAI and in LLaVA's converter.
func normalVQA(s string) string {
	s = strings.NewReplacer(",", "", "?", "").Replace(pytext.Lower(s))
	s = pytext.Strip(strings.ReplaceAll(s, "'s", " 's"))
	return words(punctuation(oneLine(s), true))
}

// oneLine replaces line ends and tabs by spaces and trims spaces at both ends.
func oneLine(s string) string {
	return pytext.Strip(strings.NewReplacer("\n", " ", "\t", " ").Replace(s))
}

// vqaMarks are the characters that are replaced by a space or deleted.
const vqaMarks = ";/[]\"{}()=+\\_-><@`,?!"

// maxStops is how many full stops are deleted: the reference passes a flag of its regular
// expression as the count.
const maxStops = 32

// punctuation deletes each mark that stands next to a space anywhere in s, or all marks if s has a
// comma between digits, and replaces the others by a space. Then it deletes full stops that no
// digit follows. manyCommas allows several commas between the digits.
func punctuation(s string, manyCommas bool) string {
	out := s
	thousands := commaInNumber(s, manyCommas)
	for _, mark := range strings.Split(vqaMarks, "") {
		with := " "
		if thousands || strings.Contains(s, mark+" ") || strings.Contains(s, " "+mark) {
			with = ""
		}
		out = strings.ReplaceAll(out, mark, with)
	}
	parts := strings.Split(out, ".")
	var b strings.Builder
	for i, stops := 0, 0; i < len(parts); i++ {
		b.WriteString(parts[i])
		if i+1 == len(parts) {
			break
		}
		if next, _ := utf8.DecodeRuneInString(parts[i+1]); !pytext.IsDigit(next) &&
			stops < maxStops {
			stops++
		} else {
			b.WriteByte('.')
		}
	}
	return b.String()
}

// commaInNumber reports whether a comma, or several, stands between two digits.
func commaInNumber(s string, many bool) bool {
	digit, commas := false, 0
	for _, r := range s {
		switch {
		case r == ',' && digit:
			commas++
		case pytext.IsDigit(r):
			if commas == 1 || commas > 1 && many {
				return true
			}
			digit, commas = true, 0
		default:
			digit, commas = false, 0
		}
	}
	return false
}

// words converts s to lower case, writes numbers up to ten as digits, removes articles, and adds
// missing apostrophes to contractions.
func words(s string) string {
	var out []string
	for _, w := range pytext.Fields(pytext.Lower(s)) {
		if n := slices.Index(numberWords, w); n >= 0 {
			w = []string{"0", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}[n]
		}
		if w == "a" || w == "an" || w == "the" {
			continue
		}
		if c, ok := contractions[w]; ok {
			w = c
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

var numberWords = strings.Fields("none zero one two three four five six seven eight nine ten")

// contractions maps a word to itself with its apostrophe. The table has gaps ("shed") and surprises
// ("somebody'd"), which are part of the rule.
var contractions = func() map[string]string {
	m := map[string]string{}
	suffix := func(without, with, stems string) {
		for _, stem := range strings.Fields(stems) {
			m[stem+without] = stem + with
		}
	}
	suffix("nt", "n't",
		"ai are ca could did does do had has have is might must need ought sha should was "+
			"were wo would")
	suffix("ve", "'ve", "could might must not should they we what where who would you")
	suffix("d", "'d", "he how it there they where who you someone something")
	suffix("ll", "'ll", "how it somebody someone something they what who why you")
	suffix("s", "'s", "he how somebody someone that there what when where who why")
	suffix("re", "'re", "there they what why you")
	suffix("nt've", "n't've", "could had might should would")
	suffix("n'tve", "n't've", "could had might should would")
	suffix("d've", "'d've", "he it she somebody someone something there they we who you")
	suffix("'dve", "'d've", "he it she somebody someone something there they we who you")
	for from, to := range map[string]string{
		"maam": "ma'am", "oclock": "o'clock", "twas": "'twas", "yall": "y'all",
		"yall'll": "y'all'll", "y'allll": "y'all'll", "yall'd've": "y'all'd've",
		"y'alld've": "y'all'd've", "y'all'dve": "y'all'd've", "ow's'at": "'ow's'at",
		"'ows'at": "'ow's'at", "'ow'sat": "'ow's'at", "somebody'd": "somebodyd",
	} {
		m[from] = to
	}
	return m
}()

// human is one of ten answers to a question.
type human struct {
	answer string
	rest   string // all other data; humans that are equal in everything count as one
}

// agreement returns each human's score of an answer: a third for each other human who gave the same
// answer, at most 1.
func agreement(humans []human, answer string) []float64 {
	out := make([]float64, len(humans))
	for i, h := range humans {
		n := 0
		for _, other := range humans {
			if other != h && other.answer == answer {
				n++
			}
		}
		out[i] = min(1, float64(n)/3)
	}
	return out
}

// sumMean is the mean of a sum of floats in order.
func sumMean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// exactMean is the mean of the exact numbers, rounded once.
func exactMean(v []float64) float64 {
	sum := new(big.Rat)
	for _, x := range v {
		sum.Add(sum, new(big.Rat).SetFloat64(x))
	}
	mean, _ := sum.Quo(sum, big.NewRat(int64(len(v)), 1)).Float64()
	return mean
}
