//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"
)

// makePipe puts a named pipe in place of a file.
func makePipe(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("no named pipes here: %v", err)
	}
}
