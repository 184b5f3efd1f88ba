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

// Ensure that a process without free file descriptors loses no entry.
func TestNoDescriptors(t *testing.T) {
	c := open(t, t.TempDir())
	c.Save(key("a"), []byte("a"))
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, ok := c.Load(key("a"))
	c.Save(key("b"), []byte("b"))
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); ok || s.Unsaved != 1 || s.Corrupt != 0 {
		t.Errorf("without descriptors: got a blob %t, %+v", ok, s)
	}
	if got, ok := c.Load(key("a")); !ok || string(got) != "a" {
		t.Errorf("with descriptors again: got %q, %t", got, ok)
	}
}
