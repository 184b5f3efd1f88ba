package grammar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// randomPattern returns a regular expression over few characters.
func randomPattern(r *rand.Rand, depth int) string {
	leaf := []string{"a", "b", "é", "日", "[a-c]", "[^a]", ".", `\d`, `\w`, `\b`, `\\`, `"`, "^", "$",
		`\B`, "(?i:B)", `[\t\n]`, "1"}
	if depth == 0 {
		return leaf[r.IntN(len(leaf))]
	}
	sub := func() string { return randomPattern(r, depth-1) }
	switch r.IntN(7) {
	case 0:
		return "(?:" + sub() + "|" + sub() + ")"
	case 1:
		return "(?:" + sub() + ")" + []string{"*", "+", "?", "{2}", "{1,3}", "{2,}"}[r.IntN(6)]
	case 2:
		return "(" + sub() + ")" + sub()
	case 3:
		return "^" + sub() + "$"
	}
	return sub() + sub()
}

// Ensure that a pattern admits exactly the strings in which Go's regular expressions find it, of
// the right length, whatever their characters.
func TestPatternsAreExact(t *testing.T) {
	v := byteVocabulary(t)
	letters := []rune("aabbc1B_ é日\"\\\t\n.K")
	checked, admitted := 0, 0
	for seed := range uint64(250) {
		r := rand.New(rand.NewPCG(seed, 5))
		text := randomPattern(r, 1+r.IntN(4))
		re, err := regexp.Compile(text)
		if err != nil {
			continue
		}
		least, most := r.IntN(3), 2+r.IntN(6)
		data, err := json.Marshal(map[string]any{
			"type": "string", "pattern": text, "minLength": least, "maxLength": most,
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(data)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		g, err := Compile(context.Background(), s, v)
		var refused *Error
		if err != nil && (!errors.As(err, &refused) || refused.Keyword != "pattern") {
			t.Fatalf("%s: %v", data, err)
		}
		for range 60 {
			word := make([]rune, r.IntN(9))
			for i := range word {
				word[i] = letters[r.IntN(len(letters))]
			}
			want := len(word) >= least && len(word) <= most && re.MatchString(string(word))
			got := g != nil && whole(g, string(appendString(nil, string(word))))
			if got != want {
				t.Fatalf("%s: %q: admitted %t, want %t", data, string(word), got, want)
			}
			if checked++; got {
				admitted++
			}
		}
	}
	if checked < 5000 || admitted < 300 {
		t.Errorf("only %d strings were checked, and %d admitted", checked, admitted)
	}
}

// Ensure that bounds and multiples admit exactly the numbers without exponent that meet them.
func TestBoundsAreExact(t *testing.T) {
	v := byteVocabulary(t)
	number := func(r *rand.Rand) string {
		text := strconv.Itoa(r.IntN([]int{3, 30, 3000}[r.IntN(3)]))
		if r.IntN(2) == 0 {
			text += "." + strings.Repeat("0", r.IntN(2)) + strconv.Itoa(r.IntN(300))
		}
		if r.IntN(2) == 0 && strings.Trim(text, "0.") != "" {
			text = "-" + text
		}
		return text
	}
	rat := func(text string) *big.Rat {
		x, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatal(text)
		}
		return x
	}
	checked, admitted := 0, 0
	for seed := range uint64(250) {
		r := rand.New(rand.NewPCG(seed, 6))
		schema, meets := `{"type":"number"`, []func(x *big.Rat) bool{}
		for _, k := range []struct {
			name   string
			signs  [2]int // of x compared with the bound
			chance int
		}{
			{"minimum", [2]int{0, 1}, 2}, {"exclusiveMinimum", [2]int{1, 1}, 4},
			{"maximum", [2]int{0, -1}, 2}, {"exclusiveMaximum", [2]int{-1, -1}, 4},
		} {
			if r.IntN(k.chance) != 0 {
				continue
			}
			bound := number(r)
			schema += fmt.Sprintf(`,%q:%s`, k.name, bound)
			meets = append(meets, func(x *big.Rat) bool {
				c := x.Cmp(rat(bound))
				return c == k.signs[0] || c == k.signs[1]
			})
		}
		if r.IntN(3) == 0 || len(meets) == 0 {
			of := 1 + r.IntN(40)
			schema += fmt.Sprintf(`,"multipleOf":%d`, of)
			meets = append(meets, func(x *big.Rat) bool {
				return new(big.Rat).Quo(x, big.NewRat(int64(of), 1)).IsInt()
			})
		}
		schema += "}"
		s, err := Parse([]byte(schema))
		var g *Grammar
		if err == nil {
			g, err = Compile(context.Background(), s, v)
		}
		var refused *Error
		if err != nil && (!errors.As(err, &refused) || refused.Keyword != "minimum") {
			t.Fatalf("%s: %v", schema, err)
		}
		multiple := strings.Contains(schema, "multipleOf")
		for range 60 {
			text := number(r)
			want := !(multiple && strings.Contains(text, ".")) // multiples have no fraction
			for _, f := range meets {
				want = want && f(rat(text))
			}
			if got := g != nil && whole(g, text); got != want {
				t.Fatalf("%s: %s: admitted %t, want %t", schema, text, got, want)
			} else if checked++; got {
				admitted++
			}
		}
	}
	if checked < 5000 || admitted < 1000 {
		t.Errorf("only %d numbers were checked, and %d admitted", checked, admitted)
	}
}

// Ensure that uniqueItems admits exactly the arrays that another implementation of JSON Schema
// admits, of items some of which begin others.
func TestUniqueItemsAreExact(t *testing.T) {
	v := byteVocabulary(t)
	values := []string{"1", "12", `"a"`, `"ab"`, "null", "[1]", "true"}
	checked, admitted := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 1 + r.IntN(5)
		listed := make([]string, n)
		for i, k := range r.Perm(len(values))[:n] {
			listed[i] = values[k]
		}
		schema := `{"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/x"},"$defs":{"x":{"enum":[` +
			strings.Join(listed, ",") + `]}}`
		if r.IntN(2) == 0 {
			schema += fmt.Sprintf(`,"minItems":%d`, r.IntN(n+1))
		}
		if r.IntN(2) == 0 {
			schema += fmt.Sprintf(`,"maxItems":%d`, n+r.IntN(2))
		}
		schema += "}"
		s, err := Parse([]byte(schema))
		if err != nil {
			t.Fatalf("%s: %v", schema, err)
		}
		g, err := Compile(context.Background(), s, v)
		if err != nil {
			t.Fatalf("%s: %v", schema, err)
		}
		other := validator(t, []byte(schema))
		for range 60 {
			items := make([]string, r.IntN(5))
			for i := range items {
				if items[i] = listed[r.IntN(n)]; r.IntN(30) == 0 {
					items[i] = values[r.IntN(len(values))]
				}
			}
			text := "[" + strings.Join(items, ",") + "]"
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			want := other.Validate(value) == nil
			if got := whole(g, text); got != want {
				t.Fatalf("%s: %s: admitted %t, want %t", schema, text, got, want)
			} else if checked++; got {
				admitted++
			}
		}
	}
	if checked < 3000 || admitted < 500 {
		t.Errorf("only %d arrays were checked, and %d admitted", checked, admitted)
	}
	g := compileText(t, `{"uniqueItems":true,"items":{"enum":[`+
		`"a","b","c"]},"allOf":[{"minItems":2},{"items":{"enum":["b","c","d"]}}]}`)
	for text, want := range map[string]bool{`["b","c"]`: true, `["c","b"]`: true, `["b"]`: false,
		`["a","b"]`: false, `["b","b"]`: false, `["b","c","b"]`: false, `["b","c",`: false} {
		if whole(g, text) != want {
			t.Errorf("%s: want %t", text, want)
		}
	}
	g = compileText(t, `{"enum":[[1,1.0],[1,2]],"uniqueItems":true}`)
	if whole(g, "[1,1]") || !whole(g, "[1,2]") {
		t.Error("a value of enum with equal items is admitted, or one without is not")
	}
	compileText(t, `{"uniqueItems":true,"items":{"type":"string"},"maxItems":1}`)
}
