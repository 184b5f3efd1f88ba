//go:build linux

package clitest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a command on a pseudo-terminal that a test controls.
type Terminal struct {
	T      *testing.T
	Cmd    *exec.Cmd
	Master *os.File
	Out    *os.File // stdout, which is not a terminal

	Closed chan struct{} // the command has ended, and seen has all its output

	lock sync.Mutex
	seen strings.Builder
}

// NewTerminal makes a pseudo-terminal: a program uses slave, and the test plays the user at master.
func NewTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	fd := int(master.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{
		Row: 40, Col: 100,
	}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// Watch collects the screen's text until no program uses the terminal.
func (s *Terminal) Watch() {
	defer close(s.Closed)
	buf := make([]byte, 4096)
	for {
		n, err := s.Master.Read(buf)
		s.lock.Lock()
		s.seen.Write(buf[:n])
		s.lock.Unlock()
		if err != nil {
			return
		}
	}
}

// Screen is everything shown so far.
func (s *Terminal) Screen() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.seen.String()
}

// Until waits until text has been shown n times.
func (s *Terminal) Until(text string, n int) {
	s.T.Helper()
	for end := time.Now().Add(60 * time.Second); strings.Count(s.Screen(), text) < n; time.Sleep(
		5 * time.Millisecond) {
		if time.Now().After(end) {
			s.T.Fatalf("never shown: %q %d times, but %q", text, n, s.Screen())
		}
	}
}

// Prompts waits for the n-th prompt.
func (s *Terminal) Prompts(n int) {
	s.T.Helper()
	s.Until("\x1b[?2004h", n)
	time.Sleep(20 * time.Millisecond)
}

// Answered waits until stdout has n bytes.
func (s *Terminal) Answered(n int64) {
	s.T.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		info, err := s.Out.Stat()
		if err != nil || time.Now().After(end) {
			s.T.Fatalf("no answer: %v, %q", err, s.Screen())
		}
		if info.Size() >= n {
			return
		}
	}
}

// Send types text.
func (s *Terminal) Send(text string) {
	s.T.Helper()
	if _, err := s.Master.WriteString(text); err != nil {
		s.T.Fatal(err)
	}
}

// End waits for the command, and returns its exit code and stdout.
func (s *Terminal) End() (int, string) {
	s.T.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		s.T.Fatalf("did not end: %q", s.Screen())
	}
	out, err := os.ReadFile(s.Out.Name())
	if err != nil {
		s.T.Fatal(err)
	}
	return s.Cmd.ProcessState.ExitCode(), string(out)
}

// LastLine is what the last line of a screen shows, without spaces around it.
func LastLine(screen string) string {
	lines := strings.Split(strings.TrimRight(screen, "\r"), "\r")
	return strings.TrimSpace(lines[len(lines)-1])
}
