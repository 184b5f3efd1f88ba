package files

import (
	"errors"
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

// Ensure that a file has no name before Commit, and that nothing is left after Discard.
func TestNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, c := range []struct {
		end  func(*New) error
		want int // files in dir
	}{
		{(*New).Discard, 0},
		{func(n *New) error { return n.Commit(path) }, 1},
		{func(n *New) error { return n.Rename(path) }, 1},
	} {
		f, err := Create(dir, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.end(f), f.Discard()); err != nil {
			t.Error(err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != c.want {
			t.Errorf("got %v, %v, want %d files", list, err, c.want)
		}
	}
	f, err := Create(dir, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(filepath.Join(path, "b")); err == nil {
		t.Error("below a file: committed")
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
}

// Ensure that an unfinished file is removed when its writer is dead, not before.
func TestRemoveAbandoned(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(dir, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{Unfinished + "1", "theirs"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	RemoveAbandoned(dir)
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 2 || list[0].Name() != filepath.Base(f.Name()) {
		t.Errorf("left %v, %v", list, err)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
}
