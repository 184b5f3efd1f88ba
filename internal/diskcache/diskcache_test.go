package diskcache

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(tb testing.TB, dir string) *Cache {
	tb.Helper()
	c, err := Open(dir, func(err error) { tb.Log(err) })
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func key(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// Ensure that a saved blob can be loaded, also by another program, and that other keys are misses.
func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	c := open(t, dir)
	if _, ok := c.Load(key("x")); ok {
		t.Error("an empty folder has a blob")
	}
	for _, blob := range []string{"", "one", strings.Repeat("two", 10000)} {
		c.Save(key(blob), []byte(blob))
		c.Save(key(blob), []byte(blob))
		for _, reader := range []*Cache{c, open(t, dir)} {
			if got, ok := reader.Load(key(blob)); !ok || string(got) != blob {
				t.Errorf("got %.20q, %t, want %.20q", got, ok, blob)
			}
		}
	}
	want := Stats{Hits: 3, Entries: 3, Bytes: int64(3*headerLen + 3 + 30000)}
	if got := c.Stats(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want.Hits = 0
	if got := open(t, dir).Stats(); got != want {
		t.Errorf("another program: got %+v, want %+v", got, want)
	}
}

// Ensure that invalid files are counted, removed, and a miss, and that other files stay.
func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(path string, data []byte) error{
		"one bit":         func(p string, d []byte) error { d[len(d)-3] ^= 1; return os.WriteFile(p, d, 0o644) },
		"a version":       func(p string, d []byte) error { d[7]++; return os.WriteFile(p, d, 0o644) },
		"the hash":        func(p string, d []byte) error { d[20] ^= 8; return os.WriteFile(p, d, 0o644) },
		"cut short":       func(p string, d []byte) error { return os.WriteFile(p, d[:len(d)-1], 0o644) },
		"cut in the head": func(p string, d []byte) error { return os.WriteFile(p, d[:10], 0o644) },
		"longer":          func(p string, d []byte) error { return os.WriteFile(p, append(d, 0), 0o644) },
		"empty":           func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o644) },
		"foreign":         func(p string, _ []byte) error { return os.WriteFile(p, []byte(strings.Repeat("GIF89a", 40)), 0o644) },
		"a huge length": func(p string, d []byte) error {
			copy(d[8:], "\xff\xff\xff\xff\xff\xff\xff\x7f")
			return os.WriteFile(p, d, 0o644)
		},
		"a folder": func(p string, _ []byte) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Mkdir(p, 0o755)
		},
	} {
		damaged(t, name, damage)
	}
}

// damaged checks what becomes of a saved blob whose file is changed.
func damaged(t *testing.T, name string, damage func(path string, data []byte) error) {
	t.Helper()
	blob := []byte("features of a picture")
	dir := t.TempDir()
	c := open(t, dir)
	c.Save(key("k"), blob)
	path := c.path(key("k"))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := damage(path, data); err != nil {
		t.Fatal(err)
	}
	c = open(t, dir)
	if got, ok := c.Load(key("k")); ok {
		t.Errorf("%s: got %q", name, got)
	}
	if s := c.Stats(); s.Corrupt != 1 || s.Hits != 0 {
		t.Errorf("%s: got %+v", name, s)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Errorf("%s: the file is still there", name)
	}
	c.Save(key("k"), blob)
	if got, ok := c.Load(key("k")); !ok || !bytes.Equal(got, blob) {
		t.Errorf("%s: a new blob is not kept", name)
	}
}

// Ensure that foreign files in the folder stay, and that leftovers of a kill are removed.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for name, keep := range map[string]bool{
		"README": true, "abc" + suffix: true, temporary + "1": false,
	} {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, old, old); err != nil {
			t.Fatal(err)
		}
		open(t, dir)
		if _, err := os.Stat(p); (err == nil) != keep {
			t.Errorf("%s: kept is %t, want %t", name, err == nil, keep)
		}
	}
	file := filepath.Join(dir, "README")
	for _, bad := range []string{file, filepath.Join(file, "x"), "/proc/none"} {
		if _, err := Open(bad, nil); err == nil {
			t.Errorf("%s is taken for a folder", bad)
		}
	}
}

// Ensure that a folder that disappears causes a miss and a warning, not a failure.
func TestLostFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	warned := 0
	c, err := Open(dir, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.Save(key("a"), []byte("a"))
	c.Save(key("b"), []byte("b"))
	if _, ok := c.Load(key("a")); ok || warned != 1 {
		t.Errorf("got a blob %t, %d warnings, want none and one", ok, warned)
	}
}

// Ensure that programs that share a folder read only complete blobs.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	for i := range 4 {
		c := open(t, dir)
		wait.Go(func() {
			for n := range 50 {
				k := key(string(rune('a' + n%5)))
				blob := bytes.Repeat(k[:], 200)
				c.Save(k, blob)
				if got, ok := c.Load(k); ok && !bytes.Equal(got, blob) {
					t.Errorf("program %d: got another blob", i)
				}
			}
			if s := c.Stats(); s.Corrupt > 0 {
				t.Errorf("program %d: got %+v", i, s)
			}
		})
	}
	wait.Wait()
}

// FuzzRead reads any file.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	c := open(f, dir)
	c.Save(key("k"), []byte("features"))
	data, err := os.ReadFile(c.path(key("k")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if blob, _, err := read(path); err == nil && len(blob) != len(data)-headerLen {
			t.Fatalf("%q: got %d bytes", data, len(blob))
		}
	})
}
