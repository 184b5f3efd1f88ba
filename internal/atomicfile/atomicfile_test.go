package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// Ensure that a file is replaced as a whole, and that nothing is left where that fails.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b")
	for _, want := range []string{"first", "2"} {
		if err := Write(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := Write(filepath.Join(dir, "a"), nil); err == nil {
		t.Error("a folder in its place: replaced")
	}
	if err := Write(filepath.Join(path, "c"), nil); err == nil {
		t.Error("below a file: written")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Errorf("left %v, %v", files, err)
	}
}
