package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that every command has a manual page with its flags, and that two runs write the same.
func TestMan(t *testing.T) {
	pages := func() map[string]string {
		dir := t.TempDir()
		var errOut bytes.Buffer
		a := NewApp(thisProgram, nil, new(bytes.Buffer), &errOut, func(string) string { return "" })
		if code := Execute(context.Background(), a, []string{"man", dir}); code != ExitOK {
			t.Fatalf("got exit %d, stderr %q", code, errOut.String())
		}
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Base(name)] = string(text)
		}
		return out
	}
	first, second := pages(), pages()
	if len(first) != 3 || len(second) != 3 {
		t.Fatalf("got %d pages, then %d, want restore.1, restore-version.1 and "+
			"restore-completion.1", len(first), len(second))
	}
	for name, text := range first {
		if text != second[name] {
			t.Errorf("%s: two runs differ", name)
		}
	}
	for name, wants := range map[string][]string{
		"restore.1": {".TH RESTORE 1 ", ".BR restore\\-version (1)\n", ".B restore\n.I COMMAND\n"},
		"restore-version.1": {
			".TH RESTORE-VERSION 1 ", "restore\\-version \\- Print the version",
			".TP\n.B \\-\\-tiny\nprint tiny\\-letters",
			".SH SEE ALSO\n.BR restore (1)\n",
		},
	} {
		for _, want := range wants {
			if !strings.Contains(first[name], want) {
				t.Errorf("%s: want %q, got:\n%s", name, want, first[name])
			}
		}
	}
}

// Ensure that text cannot become a request of roff.
func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		".so /etc/passwd":  `\&.so /etc/passwd`,
		"a\n'b":            "a\n\\&'b",
		`--x \n`:           `\-\-x \en`,
		"in the middle. x": "in the middle. x",
	} {
		if got := roff(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
