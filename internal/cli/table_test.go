package cli

import "testing"

// Ensure that a line about tokens has both budgets if a method before the encoder left out some.
func TestTokensLine(t *testing.T) {
	for _, c := range []struct {
		before, encoded, kept, merged int
		want                          string
	}{
		{576, 576, 576, 0, "576, not reduced"},
		{576, 0, 576, 0, "576, not reduced"},
		{576, 576, 32, 32, "576 -> 32 kept + 32 merged"},
		{576, 200, 200, 0, "576 -> 200 encoded"},
		{576, 200, 32, 32, "576 -> 200 encoded -> 32 kept + 32 merged"},
	} {
		if got := TokensLine(c.before, c.encoded, c.kept, c.merged); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 files", 1: "1 file", 2: "2 files"} {
		if got := Count(n, "file"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
