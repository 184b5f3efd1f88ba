package atomicfile

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Ensure that a file is replaced as a whole, and that nothing is left where that fails.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b")
	for _, want := range []string{"first", "2"} {
		if err := Write(path, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := Write(filepath.Join(dir, "a"), nil, 0o666); err == nil {
		t.Error("a folder in its place: replaced")
	}
	if err := Write(filepath.Join(path, "c"), nil, 0o666); err == nil {
		t.Error("below a file: written")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Errorf("left %v, %v", files, err)
	}
}

// Ensure that a file for its owner alone is in a folder for its owner alone.
func TestPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes of this kind")
	}
	path := filepath.Join(t.TempDir(), "a", "b")
	if err := Write(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got %v, %v, want %v", p, info, err, want)
		}
	}
}
