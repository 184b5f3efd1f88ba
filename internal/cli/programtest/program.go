// Package programtest has what must hold for every program, and runs command lines of a program
// under test, in process or in processes of their own.
package programtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// asCommand makes a test's binary act as its program.
const asCommand = "TEST_AS_COMMAND"

// Tested is a program under test. Command lines of the other program's commands run in a process of
// that program, which is built at the first of them.
type Tested struct {
	*cli.Program

	built sync.Once
	dir   string
	err   error
}

// Test runs the tests of a program, or the program in the process of one of its tests.
func (p *Tested) Test(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(p.Run())
	}
	state, err := os.MkdirTemp("", "state") // not the user's
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", state)
	code := m.Run()
	os.RemoveAll(state)
	if p.dir != "" {
		os.RemoveAll(p.dir)
	}
	os.Exit(code)
}

// execute runs a command line in process.
func (p *Tested) execute(
	ctx context.Context, env map[string]string, in string, args []string,
) clitest.Result {
	var out, errOut bytes.Buffer
	getenv := func(name string) string { return env[name] }
	a := cli.NewApp(p.Program, strings.NewReader(in), &out, &errOut, getenv)
	code := cli.Execute(ctx, a, args)
	return clitest.Result{Code: code, Out: out.String(), Err: errOut.String()}
}

// With runs a command line with an environment and an input, in process if its command is the
// program's own.
func (p *Tested) With(
	ctx context.Context, env map[string]string, in string, args ...string,
) clitest.Result {
	if len(args) == 0 || p.Elsewhere[args[0]] == "" {
		return p.execute(ctx, env, in, args)
	}
	cmd := p.Process(args...)
	cmd.Env = []string{"HOME=" + os.Getenv("HOME"),
		"XDG_STATE_HOME=" + os.Getenv("XDG_STATE_HOME")}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return clitest.Result{Code: -1, Err: err.Error()}
	}
	return clitest.Result{
		Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errOut.String(),
	}
}

// Command runs a command line with an empty environment and no input.
func (p *Tested) Command(args ...string) clitest.Result {
	return p.With(context.Background(), nil, "", args...)
}

// Process is a command line in a separate process.
func (p *Tested) Process(args ...string) *exec.Cmd {
	other := ""
	if len(args) > 0 {
		other = p.Elsewhere[args[0]]
	}
	if other == "" {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		return cmd
	}
	p.built.Do(func() { p.err = p.build(other) })
	cmd := exec.Command(filepath.Join(p.dir, other), args...)
	cmd.Err = errors.Join(cmd.Err, p.err)
	return cmd
}

// build builds another program of this module, next to the tested one.
func (p *Tested) build(other string) (err error) {
	if p.dir, err = os.MkdirTemp("", "restore-test-"); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", p.dir, filepath.Join("..", other))
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.New(string(out))
	}
	return nil
}
