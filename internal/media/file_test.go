//go:build unix

package media

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Ensure that files are read below the folder and nowhere else.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(dir, "secret")
	folder := filepath.Join(dir, "pictures")
	for name, text := range map[string]string{
		"a.png": "A", "sub/b c.png": "B", "empty": "", "big": strings.Repeat("x", 1001), "l%41": "percent",
	} {
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(outside, []byte("SECRET"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		"in": "a.png", "out": "../secret", "abs": outside, "outdir": "..",
	} {
		if err := os.Symlink(to, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(folder, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := loader(t, Options{Folder: folder})
	for u, text := range map[string]string{
		"file://a.png": "A", "file:///a.png": "A", "FILE:///sub/b%20c.png": "B", "file://sub/b c.png": "B", "file://in": "A",
		"file://" + folder + "/a.png": "A", "file:a.png": "A", "file:///l%2541": "percent",
	} {
		want(t, l, u, text, "")
	}
	for u, code := range map[string]Code{
		"file:///none": NotFound, "file:///etc/passwd": NotFound, "file://" + outside: NotFound, "file://a.png/x": NotFound, "file://": NotFound,
		"file://../secret": NotAllowed, "file://sub/../a.png": NotAllowed, "file://%2e%2e/secret": NotAllowed, "file:///sub/%2e%2e%2f%2e%2e/secret": NotAllowed,
		"file://out": NotAllowed, "file://abs": NotAllowed, "file://outdir/secret": NotAllowed, "file://sub": NotAllowed, "file://fifo": NotAllowed,
		"file://a%00.png": InvalidURL, "file://%zz": InvalidURL, "file://empty": Empty, "file://big": TooLarge,
	} {
		want(t, l, u, "", code)
	}
}
