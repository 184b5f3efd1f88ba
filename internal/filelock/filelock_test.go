package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Ensure that a lock is held by one at a time, until its file is closed, also after the file was
// removed.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Open(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a second time: got %v, want ErrInUse", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := os.Remove(path); err != nil {
		t.Skip("an open file cannot be removed here")
	}
	third, err := Open(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if _, err := Open(path, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a removed file's successor: got %v, want ErrInUse", err)
	}
	if _, err := Open(filepath.Join(path, "x"), 0o600); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("below a file: got %v, want another error", err)
	}
}
