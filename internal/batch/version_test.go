package batch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false,
	"write testdata/version* if this version of the journal has none yet")

// Ensure that the journal which the first program of this version wrote is continued without
// asking its lines again, and that a journal of an earlier version is refused with what to do. The
// files are never written again: who changes the journal raises journalVersion.
func TestVersion(t *testing.T) {
	from := filepath.Join("testdata", fmt.Sprintf("version%d", journalVersion))
	if _, err := os.Stat(from); *update && err != nil {
		if err := os.MkdirAll(from, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := answer(t, t.Context(), from, input(12), newEcho(), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	before := free(t, filepath.Join(dir, "out"))
	if got := strings.Count(before, "\n"); got != 12 {
		t.Fatalf("got %d results in the files, want 12", got)
	}
	e := newEcho()
	s, err := answer(t, t.Context(), dir, input(20), e, Options{})
	if err != nil {
		t.Fatal(err)
	}
	after := free(t, filepath.Join(dir, "out"))
	if s.Lines != 20 || !strings.HasPrefix(after, before) || strings.Count(after, "\n") != 20 {
		t.Errorf("got summary %+v and\n%s, want the 12 results and 8 more", s, after)
	}
	for i := range 12 {
		if n := e.asked[fmt.Sprintf("q%d", i)]; n != 0 {
			t.Errorf("line %d was asked %d times again", i, n)
		}
	}

	dir = t.TempDir()
	head, err := record(fmt.Appendf(nil, `H{"version":%d,"id":"x","output":"../out","settings":{}}`,
		journalVersion-1))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "j"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "j", logName), head, 0o600); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("got version %d, want %d: remove it and its output", journalVersion-1,
		journalVersion)
	if _, err := begun(dir, "settings"); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("an earlier version: got %v, want %q and the folder", err, want)
	}
}
