package programtest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strings"
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
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
	time.Sleep(150 * time.Millisecond)
	for _, s := range signals {
		_ = cmd.Process.Signal(s) // an error says that it has ended
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	err := <-ended
	hung.Stop()
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%v, stderr %q", err, errOut.String())
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
	return true
}
