package programtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Interrupt starts a command line, in whose arguments OUT is an output's path without suffix, sends
// it signals once it has begun to write, and checks that it ends with one line that says so, and
// leaves no file. It returns false if the command succeeded before.
func (p *Tested) Interrupt(t *testing.T, args []string, signals ...os.Signal) bool {
	t.Helper()
	for after := 150 * time.Millisecond; ; after *= 2 {
		if interrupted, early := p.interrupt(t, args, after, signals); !early {
			return interrupted
		}
	}
}

// interrupt is Interrupt with signals after so long a time. early says that a command that writes
// nothing did not yet listen for signals, as on a busy machine.
func (p *Tested) interrupt(
	t *testing.T, args []string, after time.Duration, signals []os.Signal,
) (interrupted, early bool) {
	t.Helper()
	if signal.Ignored(signals[0]) {
		t.Skipf("the tests run without %v (nohup)", signals[0])
	}
	dir, writes := t.TempDir(), false
	args = append([]string{}, args...)
	for i, arg := range args {
		writes = writes || strings.Contains(arg, "OUT")
		args[i] = strings.Replace(arg, "OUT", dir+"/out", 1)
	}
	cmd := p.Process(args...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for writes && len(clitest.Names(t, dir)) == 0 {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("ended before it wrote: %v, stderr %q", err, errOut.String())
			}
			return false, false
		case <-time.After(5 * time.Millisecond):
		}
	}
	time.Sleep(after)
	for _, s := range signals {
		_ = cmd.Process.Signal(s) // an error says that it has ended
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	err := <-ended
	hung.Stop()
	if err == nil {
		return false, false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%v, stderr %q", err, errOut.String())
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if os.Signal(status.Signal()) == signals[0] && !writes && after < 10*time.Second {
		return false, true
	}
	lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
	last := lines[len(lines)-1]
	if exit.ExitCode() != cli.ExitFailure || !strings.HasPrefix(last, p.Name+": ") ||
		!strings.Contains(last, "interrupted") {
		t.Errorf("exit %d, stderr %q", exit.ExitCode(), errOut.String())
	}
	if left := clitest.Names(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	return true, false
}
