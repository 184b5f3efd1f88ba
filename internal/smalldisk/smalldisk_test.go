package smalldisk

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Ensure that a shared disk is full and has room for a process that it was not made for.
func TestShared(t *testing.T) {
	folder, d := Shared(t, 100_000)
	write := func() error {
		return os.WriteFile(filepath.Join(folder, "file"), make([]byte, 20_000), 0o600)
	}
	if err := write(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(folder, "file")); err != nil {
		t.Error(err)
	}
	d.Fill()
	if err := write(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want a full disk", err)
	}
	d.Free()
	if err := write(); err != nil {
		t.Error(err)
	}
}

// Ensure that the disk is full and has room again when it should.
func TestDisk(t *testing.T) {
	cmd := exec.Command("sh", "-c", `cd "$1"
while read -r x; do
	says=full
	if head -c 20000 /dev/zero >file 2>/dev/null; then says=room; fi
	rm -f file
	echo "$x $says"
done`, "sh", t.TempDir())
	d := New(t, cmd, cmd.Args[4], 100_000)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	for _, c := range []struct {
		change func()
		want   string
	}{{func() {}, "a room\n"}, {d.Fill, "a full\n"}, {d.Free, "a room\n"}} {
		c.change()
		if _, err := in.Write([]byte("a\n")); err != nil {
			t.Fatal(err)
		}
		n, err := out.Read(line)
		if err != nil || !bytes.Equal(line[:n], []byte(c.want)) {
			t.Errorf("got %q, %v, want %q", line[:n], err, c.want)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
