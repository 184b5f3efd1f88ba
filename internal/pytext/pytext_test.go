package pytext

import (
	"slices"
	"testing"
)

// Ensure the results of Python 3.11, which were printed by it.
func TestLikePython(t *testing.T) {
	for _, c := range []struct{ in, lower, capital string }{
		{"", "", ""},
		{"Red CAR", "red car", "Red car"},
		{"İstanbul", "i̇stanbul", "İstanbul"},
		{"ßa", "ßa", "Ssa"},
		{"ŉA", "ŉa", "ʼNa"},
		{"ǆA", "ǆa", "ǅa"},
		{"ΑΣ", "ας", "Ας"},
		{"ΑΣΑ", "ασα", "Ασα"},
		{"Σ", "σ", "Σ"},
		{"ΑΣ. b", "ας. b", "Ας. b"},
		{"ΑΣ.b", "ασ.b", "Ασ.b"},
		{"ñANDÚ", "ñandú", "Ñandú"},
	} {
		if got := Lower(c.in); got != c.lower {
			t.Errorf("Lower(%q) = %q, want %q", c.in, got, c.lower)
		}
		if got := Capitalize(c.in); got != c.capital {
			t.Errorf("Capitalize(%q) = %q, want %q", c.in, got, c.capital)
		}
	}
	if got := LowerEach("İA"); got != "i̇" {
		t.Errorf("LowerEach keeps two characters, got %q", got)
	}
	if got := Strip("\x1c\u3000 a b\u00a0\u0085\n"); got != "a b" {
		t.Errorf("Strip: %q", got)
	}
	if got := Fields("a\x1db\u2028 c\u200bd"); !slices.Equal(got, []string{"a", "b", "c\u200bd"}) {
		t.Errorf("Fields: %q", got)
	}
	for r, want := range map[rune][3]bool{
		'A': {true, true, false}, 'Ⓐ': {true, false, false}, 'ª': {false, true, false},
		'٣': {false, false, true}, '½': {false, false, false}, '3': {false, false, true}} {
		if got := [3]bool{IsUpper(r), IsAlpha(r), IsDigit(r)}; got != want {
			t.Errorf("%c: upper, letter, digit %v, want %v", r, got, want)
		}
	}
}
