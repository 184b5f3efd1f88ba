package spell

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		most int
		want int
	}{
		{"holov", "holov", 9, 0},
		{"holo", "holov", 9, 1},   // a letter missing
		{"hollov", "holov", 9, 1}, // one too many
		{"halov", "holov", 9, 1},  // another
		{"hloov", "holov", 9, 1},  // two swapped
		{"grün", "grun", 9, 1},    // letters, not bytes
		{"", "abc", 9, 3},
		{"abc", "xyz", 2, 2},
		{strings.Repeat("a", 65), "a", 7, 7},
	} {
		if got := Distance(c.a, c.b, c.most); got != c.want {
			t.Errorf("%q to %q, at most %d: got %d, want %d", c.a, c.b, c.most, got, c.want)
		}
		if got := Distance(c.b, c.a, c.most); got != c.want {
			t.Errorf("%q to %q, at most %d: got %d, want %d", c.b, c.a, c.most, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"holv", "holov"}, // a letter missing
		{"HOLOV", "holov"},
		{"temperature", "temp"}, // an extension of one name
		{"vis", "vispruner"},    // the beginning of one name
		{"pru", ""},             // the beginning of two
		{"fastest", ""},
		{"", ""},
	} {
		names := []string{"holov", "temp", "vispruner", "prumerge", "prune"}
		if got := Nearest(c.word, names); got != c.want {
			t.Errorf("%q: got %q, want %q", c.word, got, c.want)
		}
	}
}
