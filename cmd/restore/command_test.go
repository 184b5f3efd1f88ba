package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
)

var tested = &clitest.Tested{Main: main, Run: execute, Elsewhere: thisProgram.Elsewhere}

func TestMain(m *testing.M) {
	fleettest.Main(nil)
	if os.Getenv(withOwnMethod) != "" {
		registerOwn()
	}
	tested.Test(m)
}

// execute runs a command line in process.
func execute(
	ctx context.Context, in io.Reader, out, err io.Writer, getenv func(string) string,
	args []string,
) int {
	return cli.Execute(ctx, cli.NewApp(thisProgram, in, out, err, getenv), args)
}

// with runs a command line with an environment and an input.
func with(ctx context.Context, env map[string]string, in string, args ...string) clitest.Result {
	return tested.Command(ctx, env, strings.NewReader(in), args...)
}

// commandLine runs a command line with an empty environment and no input.
func commandLine(args ...string) clitest.Result {
	return with(context.Background(), nil, "", args...)
}

// process is a command line in a separate process.
func process(args ...string) *exec.Cmd { return tested.Process(args...) }

// Ensure that a command of the other program says where it is, and is there.
func TestElsewhere(t *testing.T) {
	for name, program := range thisProgram.Elsewhere {
		var errOut strings.Builder
		unset := func(string) string { return "" }
		code := execute(t.Context(), nil, io.Discard, &errOut, unset, []string{name, "--json"})
		want := thisProgram.Name + ": " + name + " is in " + program + " now\n"
		if code != cli.ExitUsage || !strings.HasPrefix(errOut.String(), want) {
			t.Errorf("exit %d, stderr %q, want %q", code, errOut.String(), want)
		}
		if r := commandLine(name, "--help"); r.Code != cli.ExitOK {
			t.Errorf("%s %s --help: exit %d, stderr %q", program, name, r.Code, r.Err)
		}
	}
}
