package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// asCommand makes the test's binary act as the command.
const asCommand = "RESTORE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(withOwnMethod) != "" {
		registerOwn()
	}
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// process is a command line in a separate process.
func process(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}

// finish runs a process to its end.
func finish(t *testing.T, cmd *exec.Cmd) result {
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
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}
