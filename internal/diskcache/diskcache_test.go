package diskcache

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

// ample is a limit that no test reaches.
const ample = 1 << 40

func open(tb testing.TB, dir string) *Cache {
	tb.Helper()
	c, err := Open(dir, ample, func(err error) { tb.Log(err) })
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
	if got := c.Stats(); got != want || got.Bytes != onDisk(t, dir) {
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
		"another key's": func(p string, _ []byte) error {
			c := open(t, filepath.Dir(p))
			c.Save(key("other"), []byte("features of another picture"))
			return os.Rename(c.path(key("other")), p)
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
		"README": true, "abc" + suffix: true, files.Unfinished + "1": false,
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
		if _, err := Open(bad, ample, nil); err == nil {
			t.Errorf("%s is taken for a folder", bad)
		}
	}
}

// Ensure that a folder that disappears causes a miss and a warning, not a failure.
func TestLostFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	warned := 0
	c, err := Open(dir, ample, func(error) { warned++ })
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

// onDisk returns the size of all files of the cache in a folder, also of temporary ones.
func onDisk(tb testing.TB, dir string) (bytes int64) {
	tb.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && info.Name() != lockName {
			bytes += info.Size()
		}
	}
	return bytes
}

// Ensure that the files never take more than the limit, that the least recently used leave first,
// and that files of an earlier program count.
func TestLimit(t *testing.T) {
	dir := t.TempDir()
	const size, most = 1000, 10
	limit := int64(most * (size + headerLen))
	limited := func(limit int64) *Cache {
		c, err := Open(dir, limit, func(err error) { t.Log(err) })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// age makes an entry look as if it was last used n minutes ago.
	age := func(c *Cache, name string, n int) {
		at := time.Now().Add(time.Duration(-n) * time.Minute)
		if err := os.Chtimes(c.path(key(name)), at, at); err != nil {
			t.Fatal(err)
		}
	}
	c := limited(limit)
	save := func(name string) {
		t.Helper()
		c.Save(key(name), bytes.Repeat([]byte(name), size))
		if n := onDisk(t, dir); n > limit {
			t.Fatalf("after %s: %d bytes on disk, want at most %d", name, n, limit)
		}
	}
	for i, name := range "abcdefghij" {
		save(string(name))
		age(c, string(name), 60-i) // a is the oldest
	}
	if _, ok := c.Load(key("a")); !ok {
		t.Fatal("the limit is not reached, and a is gone")
	}
	save("k")
	for name, want := range map[string]bool{
		"a": true, "b": false, "c": false, "d": true, "k": true,
	} {
		if _, ok := c.Load(key(name)); ok != want {
			t.Errorf("%s: kept is %t, want %t", name, ok, want)
		}
	}
	// 11 entries, and then room for a tenth of the limit more
	if s := c.Stats(); s.Evicted != 2 || s.Entries != 9 || s.Bytes != onDisk(t, dir) {
		t.Errorf("got %+v, want 2 evicted and 9 left in %d bytes", s, onDisk(t, dir))
	}
	c = limited(limit)
	for i := range 3 * most {
		save(string(rune('A' + i)))
	}
	c = limited(limit / 2)
	if s := c.Stats(); onDisk(t, dir) > limit/2 || s.Bytes != onDisk(t, dir) || s.Evicted == 0 {
		t.Errorf("opened with half the limit: got %+v, %d bytes on disk", s, onDisk(t, dir))
	}
	before := c.Stats()
	c.Save(key("large"), make([]byte, limit))
	if s := c.Stats(); s.Unsaved != 1 || s.Bytes != before.Bytes {
		t.Errorf("an entry above the limit: got %+v, before %+v", s, before)
	}
}

// Ensure that a file that cannot be opened is a miss that is reported, and stays.
func TestUnopened(t *testing.T) {
	dir := t.TempDir()
	warned := 0
	c, err := Open(dir, ample, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	path := c.path(key("loop"))
	if err := os.Symlink(path, path); err != nil {
		t.Skip("no symbolic links here")
	}
	for range 2 {
		if _, ok := c.Load(key("loop")); ok {
			t.Error("got a blob")
		}
	}
	if _, err := os.Lstat(path); err != nil || warned != 1 || c.Stats().Corrupt != 0 {
		t.Errorf("got %v, %d warnings, %+v, want the file and one warning", err, warned, c.Stats())
	}
}

// Ensure that a program that holds the folder's lock for ever holds up no other: a blob is not
// saved and counted, and later ones do not wait.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	warned := 0
	c, err := Open(dir, ample, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	c.Save(key("a"), []byte("a"))
	lock, err := lockFolder(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		c.Save(key("b"), []byte("b"))
	}
	if _, ok := c.Load(key("a")); !ok || warned != 1 || c.Stats().Unsaved != 50 {
		t.Errorf("kept is %t, %d warnings, %+v", ok, warned, c.Stats())
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	c.Save(key("b"), []byte("b"))
	if _, ok := c.Load(key("b")); !ok || c.Stats().Unsaved != 50 {
		t.Errorf("with the lock free: kept is %t, %+v", ok, c.Stats())
	}
}

// processLimit is the limit of the programs in TestProcesses.
const processLimit = 50 * 1000

// TestMain is also the program that TestProcesses starts: it writes to the folder in the variable.
func TestMain(m *testing.M) {
	if dir := os.Getenv("RESTORE_DISKCACHE"); dir != "" {
		c, err := Open(dir, processLimit, func(err error) { panic(err) })
		if err != nil {
			panic(err)
		}
		for n := 0; ; n++ {
			name := fmt.Sprint(os.Getpid(), n)
			c.Save(key(name), bytes.Repeat([]byte{1}, 500+n%1000))
			c.Load(key(name))
			if n == 20 {
				fmt.Println("writes")
			}
		}
	}
	os.Exit(m.Run())
}

// Ensure that several processes together keep the limit, also when they are killed, and that
// nothing is damaged then.
func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	above := func() {
		t.Helper()
		if n := onDisk(t, dir); n > processLimit {
			t.Fatalf("%d bytes on disk, want at most %d", n, processLimit)
		}
	}
	for round := range 4 {
		var list []*exec.Cmd
		for range 2 {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "RESTORE_DISKCACHE="+dir)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill() // again, if the test failed
				_ = cmd.Wait()
			}()
			list = append(list, cmd)
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			above()
		}
		for _, cmd := range list {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatalf("round %d: a process has ended by itself: %v", round, err)
			}
		}
		above()
	}
	c, err := Open(dir, processLimit, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for _, f := range files {
		if isOurs(f.Name()) {
			var k [sha256.Size]byte
			name := strings.TrimSuffix(f.Name(), suffix)
			if _, err := hex.Decode(k[:], []byte(name)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := read(filepath.Join(dir, f.Name()), k); err != nil {
				t.Errorf("%s: %v", f.Name(), err)
			}
			good++
		}
	}
	if s := c.Stats(); good == 0 || s.Entries != int64(good) || s.Bytes != onDisk(t, dir) {
		t.Errorf("%d entries in %d bytes, counted %+v", good, onDisk(t, dir), s)
	}
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
		if blob, _, err := read(path, key("k")); err == nil && len(blob) != len(data)-headerLen {
			t.Fatalf("%q: got %d bytes", data, len(blob))
		}
	})
}
