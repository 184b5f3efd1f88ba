package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// killedFolder names the folder of a store in a process of its own.
const killedFolder = "RESTORE_TEST_STORE"

// killedLines is how many lines the batch in such a process has.
const killedLines = 7

// TestStoreProcess is no test but the process that is killed: it stores a file, creates a batch of
// it, answers the batch, and deletes the file. After a kill it continues.
func TestStoreProcess(t *testing.T) {
	dir := os.Getenv(killedFolder)
	if dir == "" {
		t.Skip("is for TestKilledAtEveryChange")
	}
	runtime.GOMAXPROCS(1)
	s, e := newStore(t, dir), new(echo)
	files, _, err := s.Files("", Input, Page{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	batches, _, err := s.Batches("", Page{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 && len(batches) == 0 {
		uploaded(t, s, "", requests(killedLines))
		if files, _, err = s.Files("", Input, Page{Limit: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if len(batches) == 0 {
		created(t, s, "", files[0].ID)
		if batches, _, err = s.Batches("", Page{Limit: 10}); err != nil {
			t.Fatal(err)
		}
	}
	running(t, s, func(ctx context.Context, o, j string) (*Answering, error) {
		a, err := e.prepare(ctx, o, j)
		a.Parallel = 1
		return a, err
	})
	until(t, s, batches[0].ID, ended)
	for _, f := range files {
		if err := s.DeleteFile("", f.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that a server that is killed before any one change of its folder continues: every line of
// its batch has one result, and nothing is left over. Without RESTORE_CHAOS it tries every fourth.
func TestKilledAtEveryChange(t *testing.T) {
	step := 4
	switch {
	case os.Getenv("RESTORE_CHAOS") != "":
		step = 1
	case testing.Short():
		step = 16
	}
	for n := 1; ; n += step {
		dir := t.TempDir()
		killed := killedAt(t, dir, n)
		if killed {
			killedAt(t, dir, 0)
		}
		checkContinued(t, dir, n)
		if !killed {
			t.Logf("%d changes", n)
			return
		}
	}
}

// checkContinued checks the folder of a process that was killed at change n, and then continued.
func checkContinued(t *testing.T, dir string, n int) {
	t.Helper()
	s := newStore(t, dir)
	list, _, err := s.Batches("", Page{Limit: 10})
	if err != nil || len(list) != 1 {
		t.Fatalf("killed at %d: got %v, %v, want one batch", n, list, err)
	}
	b := &list[0]
	got := results(t, s, b.OutputFileID)
	maps.Copy(got, results(t, s, b.ErrorFileID))
	all, _, err := s.Files("", "", Page{Limit: 10})
	if err != nil || b.Status != Completed || len(got) != killedLines || len(all) != 2 ||
		b.RequestCounts != (Counts{killedLines, killedLines - 1, 1}) {
		t.Errorf("killed at %d: got %+v with %v, files %v, %v", n, b, got, all, err)
	}
	var left []string
	for _, dir := range []string{s.filesFolder(), s.batchFolder(b.ID)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			left = append(left, e.Name())
		}
	}
	if len(left) != 2*2+1 {
		t.Errorf("killed at %d: got %v, want two files with descriptions, and a batch's", n, left)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// killedAt runs TestStoreProcess on a folder and kills it before its n-th change of the folder, if
// it has as many; 0 is none.
func killedAt(t *testing.T, dir string, n int) (killed bool) {
	t.Helper()
	runtime.LockOSThread() // the thread that traces a process is one
	defer runtime.UnlockOSThread()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStoreProcess$")
	cmd.Env = append(os.Environ(), killedFolder+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Skipf("no process can be traced here: %v", err)
	}
	tr := tracer{pid: cmd.Process.Pid, dir: dir, left: n, inside: map[int]bool{}}
	state, err := tr.run()
	if err != nil {
		t.Fatalf("killed at %d: %v", n, err)
	}
	if !state.Signaled() && state.ExitStatus() != 0 {
		said, _ := os.ReadFile(out.Name())
		t.Fatalf("killed at %d: ended with %d: %s", n, state.ExitStatus(), said)
	}
	return state.Signaled()
}

// tracer follows the system calls of a process.
type tracer struct {
	pid    int
	dir    string
	left   int          // changes up to the one before which it is killed
	inside map[int]bool // threads inside of a system call
}

// run follows the process to its end.
func (tr *tracer) run() (state unix.WaitStatus, err error) {
	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if _, err := unix.Wait4(tr.pid, &state, 0, nil); err != nil {
		return state, err
	}
	if err := unix.PtraceSetOptions(tr.pid, options); err != nil {
		return state, err
	}
	if err := unix.PtraceSyscall(tr.pid, 0); err != nil {
		return state, err
	}
	for {
		tid, err := unix.Wait4(-tr.pid, &state, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return state, err
		case state.Exited() || state.Signaled():
			if tid == tr.pid {
				return state, nil
			}
			continue
		}
		signal := 0
		switch stop := state.StopSignal(); {
		case stop == unix.SIGTRAP|0x80:
			tr.inside[tid] = !tr.inside[tid]
			if tr.inside[tid] && tr.changing(tid) {
				if tr.left--; tr.left == 0 {
					if err := unix.Kill(tr.pid, unix.SIGKILL); err != nil {
						return state, err
					}
					continue
				}
			}
		case stop != unix.SIGTRAP && stop != unix.SIGSTOP: // those are the tracer's own
			signal = int(stop)
		}
		if err := unix.PtraceSyscall(tid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return state, err
		}
	}
}

// changing reports whether a thread is about to change a folder.
func (tr *tracer) changing(tid int) bool {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return false
	}
	switch regs.Orig_rax {
	case unix.SYS_OPENAT:
		return regs.Rdx&unix.O_CREAT != 0
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT:
		return true
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FSYNC:
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tr.pid, regs.Rdi))
		return err == nil && strings.HasPrefix(to, tr.dir)
	}
	return false
}
