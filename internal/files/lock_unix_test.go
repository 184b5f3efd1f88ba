//go:build unix

package files

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Ensure that a closed file is not locked, though a process that is just being started still has
// it, as a second descriptor does here.
func TestLockOfStartingProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := OpenLocked(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Dup(int(first.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := OpenLocked(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}
