// Package fleettest has what tests of fleets share: NATS servers as processes, networks that can be
// cut, and processes that are killed and stopped.
package fleettest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	nats "github.com/nats-io/nats-server/v2/server"
)

// roleEnv says what a test's binary is when it runs as a process of a test.
const roleEnv = "RESTORE_FLEET_ROLE"

// Main must be called first in TestMain. A process that [Command] started becomes what its role
// says and does not return.
func Main(roles map[string]func()) {
	role := os.Getenv(roleEnv)
	switch be := roles[role]; {
	case role == "":
		return
	case role == "nats":
		beNATS()
	case be == nil:
		fmt.Fprintf(os.Stderr, "got role %q, want one that this binary has\n", role)
		os.Exit(1)
	default:
		be()
	}
	os.Exit(0)
}

// beNATS acts as nats-server.
func beNATS() {
	fs := flag.NewFlagSet("nats", flag.ExitOnError)
	o, err := nats.ConfigureOptions(fs, os.Args[1:], nil, nil, nil)
	if err == nil {
		var s *nats.Server
		if s, err = nats.NewServer(o); err == nil {
			if err = nats.Run(s); err == nil {
				s.WaitForShutdown()
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Command is the test's binary in a role.
func Command(role string, env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), roleEnv+"="+role), env...)
	return cmd
}

// Child is a process of a test.
type Child struct {
	Cmd  *exec.Cmd
	Done chan struct{} // closed when it has ended
}

// Begin starts a process that is killed at the end of the test.
func Begin(t testing.TB, cmd *exec.Cmd) *Child {
	t.Helper()
	if cmd.Stderr == nil && testing.Verbose() && os.Getenv("RESTORE_FLEET_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Child{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // however it ends
		close(c.Done)
	}()
	t.Cleanup(c.Kill)
	return c
}

// Signal sends a signal; a process that has ended does not get it.
func (c *Child) Signal(s syscall.Signal) { _ = c.Cmd.Process.Signal(s) }

// Kill is kill -9, also of a process that is stopped. It returns when the process has ended.
func (c *Child) Kill() {
	_ = c.Cmd.Process.Kill() // it may have ended
	<-c.Done
}
