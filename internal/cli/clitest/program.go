// Package clitest has what tests of the programs share: command lines in processes, a terminal, a
// clock, and pictures with known answers.
package clitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// asCommand makes a test's binary act as its program.
const asCommand = "TEST_AS_COMMAND"

// Tested is a program under test. Command lines of the other program's commands run in a process of
// that program, which is built at the first of them.
type Tested struct {
	Main func()
	Run  func(ctx context.Context, in io.Reader, out, err io.Writer,
		getenv func(string) string, args []string) int
	Elsewhere map[string]string // commands of other programs, with their program

	built sync.Once
	dir   string
	err   error
}

// Test runs the tests of a program, or the program in the process of one of its tests.
func (p *Tested) Test(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		p.Main()
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

// Command runs a command line, in process if its command is the program's own.
func (p *Tested) Command(
	ctx context.Context, env map[string]string, in io.Reader, args ...string,
) Result {
	var out, errOut bytes.Buffer
	if len(args) == 0 || p.Elsewhere[args[0]] == "" {
		code := p.Run(ctx, in, &out, &errOut, func(name string) string { return env[name] }, args)
		return Result{code, out.String(), errOut.String()}
	}
	cmd := p.Process(args...)
	cmd.Env = []string{"HOME=" + os.Getenv("HOME"),
		"XDG_STATE_HOME=" + os.Getenv("XDG_STATE_HOME")}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return Result{-1, "", err.Error()}
	}
	return Result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
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
	cmd := exec.Command("go", "build", "-o", p.dir, filepath.Join("..", other))
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.New(string(out))
	}
	return nil
}
