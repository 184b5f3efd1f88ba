package clitest

import (
	"bytes"
	"os/exec"
	"testing"
)

// Finish runs a process to its end.
func Finish(t *testing.T, cmd *exec.Cmd) Result {
	t.Helper()
	var out, errOut bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errOut
	}
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return Result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}
