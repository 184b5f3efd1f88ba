// Package smalldisk gives a process of a test a disk that gets full and has room again.
package smalldisk

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Disk is a file system of a few bytes that one process and its children see.
type Disk struct {
	t    testing.TB
	do   *os.File
	done *bufio.Reader
}

// script mounts the disk, and fills and frees it as it is told, next to the program.
const script = `set -e
mount -t tmpfs -o "size=$2" none "$1"
disk=$1 pipes=$3
shift 3
(while read -r x; do
	case $x in
	fill) cat /dev/zero >"$disk/ballast" || : ;;
	free) rm "$disk/ballast" ;;
	esac
	echo done >&4
done <"$pipes/do" 4<>"$pipes/done") >/dev/null 2>&1 </dev/null &
exec "$@"`

// Allowed returns why a command cannot have a disk in folder; nil if it can.
func Allowed(folder string) error {
	try := exec.Command("mount", "-t", "tmpfs", "none", folder)
	own(try)
	if text, err := try.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, text)
	}
	return nil
}

// Shared makes a disk that every process sees, in the folder that it returns.
func Shared(t testing.TB, size int) (folder string, d *Disk) {
	t.Helper()
	dir := t.TempDir()
	holder := exec.Command("sleep", "infinity")
	d = New(t, holder, dir, size)
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill() // it sleeps
		_ = holder.Wait()
	})
	d.Fill() // it answers once the disk is there
	d.Free()
	return fmt.Sprintf("/proc/%d/root%s", holder.Process.Pid, dir), d
}

// New makes a command, which has not begun, see a disk of size bytes in folder. The test is
// skipped where that is not allowed.
func New(t testing.TB, cmd *exec.Cmd, folder string, size int) *Disk {
	t.Helper()
	pipes := t.TempDir()
	d := &Disk{t: t}
	for _, p := range []string{"do", "done"} {
		f, err := pipe(filepath.Join(pipes, p))
		if err != nil {
			t.Skipf("no small disk here: %v", err)
		}
		t.Cleanup(func() { _ = f.Close() }) // ends the script
		if p == "do" {
			d.do = f
		} else {
			d.done = bufio.NewReader(f)
		}
	}
	if err := Allowed(folder); err != nil {
		t.Skipf("no small disk here: %v", err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = append([]string{"sh", "-c", script, "sh", folder, fmt.Sprint(size), pipes,
		cmd.Path}, cmd.Args[1:]...)
	cmd.Path = sh
	own(cmd)
	return d
}

// Fill takes all the room that is left.
func (d *Disk) Fill() { d.tell("fill") }

// Free gives it back.
func (d *Disk) Free() { d.tell("free") }

func (d *Disk) tell(what string) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.do, what); err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.done.ReadString('\n'); err != nil {
		d.t.Fatal(err)
	}
}
