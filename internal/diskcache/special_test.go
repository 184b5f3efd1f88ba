//go:build unix

package diskcache

import (
	"os"
	"syscall"
	"testing"
)

// Ensure that special files in place of a blob are removed like invalid ones, and not read.
func TestSpecialFiles(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"a FIFO":   func(p string) error { return syscall.Mkfifo(p, 0o644) },
		"a device": func(p string) error { return os.Symlink("/dev/zero", p) },
	} {
		damaged(t, name, func(p string, _ []byte) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return create(p)
		})
	}
}
