package files

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Ensure that a lock is held by one at a time, until its file is closed, also after the file was
// removed.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := OpenLocked(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLocked(path, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a second time: got %v, want ErrInUse", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := OpenLocked(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := os.Remove(path); err != nil {
		t.Skip("an open file cannot be removed here")
	}
	third, err := OpenLocked(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if _, err := OpenLocked(path, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a removed file's successor: got %v, want ErrInUse", err)
	}
	_, err = OpenLocked(filepath.Join(path, "x"), 0o600)
	if err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("below a file: got %v, want another error", err)
	}
}
