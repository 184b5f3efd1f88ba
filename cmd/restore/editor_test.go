//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a command on a pseudo-terminal that a test controls.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	out    *os.File // stdout, which is not a terminal

	closed chan struct{} // the command has ended, and seen has all its output

	lock sync.Mutex
	seen strings.Builder
}

// newTerminal makes a pseudo-terminal: a program uses slave, and the test plays the user at master.
func newTerminal(t *testing.T) (master, slave *os.File) {
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

// sit starts a command with a terminal as stdin and stderr.
func sit(t *testing.T, args ...string) *terminal {
	t.Helper()
	master, slave := newTerminal(t)
	defer slave.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	s := &terminal{
		t: t, cmd: process(args...), master: master, out: out, closed: make(chan struct{}),
	}
	s.cmd.Env = append(s.cmd.Env, "TERM=xterm")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, out, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.watch()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it has ended, unless the test failed
		master.Close()
		out.Close()
	})
	return s
}

// watch collects the screen's text until no program uses the terminal.
func (s *terminal) watch() {
	defer close(s.closed)
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.lock.Lock()
		s.seen.Write(buf[:n])
		s.lock.Unlock()
		if err != nil {
			return
		}
	}
}

// screen is everything shown so far.
func (s *terminal) screen() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.seen.String()
}

// until waits until text has been shown n times.
func (s *terminal) until(text string, n int) {
	s.t.Helper()
	for end := time.Now().Add(60 * time.Second); strings.Count(s.screen(), text) < n; time.Sleep(
		5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("never shown: %q %d times, but %q", text, n, s.screen())
		}
	}
}

// prompts waits for the n-th prompt.
func (s *terminal) prompts(n int) {
	s.t.Helper()
	s.until("\x1b[?2004h", n)
	time.Sleep(20 * time.Millisecond)
}

// answered waits until stdout has n bytes.
func (s *terminal) answered(n int64) {
	s.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		info, err := s.out.Stat()
		if err != nil || time.Now().After(end) {
			s.t.Fatalf("no answer: %v, %q", err, s.screen())
		}
		if info.Size() >= n {
			return
		}
	}
}

func (s *terminal) send(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the command, and returns its exit code and stdout.
func (s *terminal) end() (int, string) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		s.t.Fatalf("did not end: %q", s.screen())
	}
	out, err := os.ReadFile(s.out.Name())
	if err != nil {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode(), string(out)
}

// Ensure that lines on a terminal can be edited, recalled and of any length, and that a pasted text
// is one question.
func TestEditor(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "talk.txt")
	s := sit(t, "run", "--image", drawn(t, numberSeed), "-n", "8")
	s.prompts(1)
	s.send("hat number is written?\x01W\x05\r") // to the beginning, a letter, to the end
	s.prompts(2)
	s.send("\x1b[A\r") // the line before
	s.prompts(3)
	long := strings.Repeat("x", 6000)
	s.send("/set " + long + "\r")
	s.prompts(4)
	if !strings.Contains(s.screen(), `unknown, got "`+long+`"`) {
		t.Error("a long line was cut")
	}
	s.send("\x1b[200~pasted\rlines\r\nthree\x1b[201~ and typed\r")
	s.prompts(5)
	s.send("not asked\x03/sa\t" + saved + "\r") // Ctrl-C clears the line, Tab completes
	s.prompts(6)
	s.send("\x03")
	code, out := s.end()
	if code != exitOK || !strings.HasPrefix(out, numberAnswer+"\n"+numberAnswer+"\n") {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	data, err := os.ReadFile(saved)
	if err != nil {
		t.Fatalf("%v: %q", err, s.screen())
	}
	for _, want := range []string{"> " + number + "\n", "> pasted\n> lines\n> three and typed\n"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("not asked: %.60q…, but %.200q", want, data)
		}
	}
	if strings.Contains(string(data), "not asked") {
		t.Error("a line that was cleared was asked")
	}
}

// Ensure that a conversation on a terminal refuses a picture from the terminal, by any of its
// names, and then answers the next line.
func TestTerminalIsNoPicture(t *testing.T) {
	s := sit(t, "run", "--image", drawn(t, numberSeed))
	for i, path := range []string{"-", "/dev/stdin", "/dev/tty"} {
		s.prompts(i + 1)
		s.send("/image " + path + "\r")
		s.until("restore: /image: "+path+": is ", 1)
	}
	s.prompts(4)
	s.send(number + "\r")
	s.prompts(5)
	s.send("\x04")
	if code, out := s.end(); code != exitOK || out != numberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, screen %q", code, out, s.screen())
	}
	s = sit(t, "run", "--image", "-", "-p", number)
	s.until("stdin: is a terminal, want a picture from a file or a pipe", 1)
	if code, _ := s.end(); code != exitFailure {
		t.Errorf("picture from a terminal: exit %d", code)
	}
}

// Ensure that a flag that names the pipe of stdin is refused like -, where stdin is read already.
func TestStdinByName(t *testing.T) {
	for want, args := range map[string][]string{
		"--image: got /dev/stdin, but the questions": {"--image", "/dev/stdin"},
		"--fitprune-recipe: got /dev/fd/0, but":      {"--base", "fitprune", "--fitprune-recipe", "/dev/fd/0"},
		"stdin: - is given 2 times":                  {"-p", "@/dev/stdin", "--image", "-"},
	} {
		cmd := process(append([]string{"run"}, args...)...)
		cmd.Stdin = io.MultiReader() // a pipe
		if r := finish(t, cmd); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
}

// Ensure that Ctrl-C during an answer stops only that answer, that the conversation has what was
// shown of it, and that the next one leaves.
func TestEditorInterrupted(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "talk.txt")
	s := sit(
		t,
		"run",
		"--image",
		drawn(t, 12),
		"-n",
		"3900",
		"--temp",
		"9",
		"--top-k",
		"0",
		"--top-p",
		"1",
		"--min-p",
		"0",
		"--seed", // whose answer is a long one, 243 tokens
		"1",
	)
	s.prompts(1)
	s.send("Describe the image.\r")
	s.answered(1)
	s.send("\x03")
	s.until("interrupted, the answer is not complete", 1)
	s.prompts(2)
	s.send("/save " + saved + "\r")
	s.prompts(3)
	s.send("\x04") // the end of the input
	code, out := s.end()
	if code != exitOK {
		t.Errorf("exit %d: %q", code, s.screen())
	}
	data, err := os.ReadFile(saved)
	if _, said, _ := strings.Cut(string(data), "> Describe the image.\n\n"); err != nil ||
		strings.TrimSpace(said) == "" || strings.TrimSpace(said) != strings.TrimSpace(out) {
		t.Errorf("saved %q, %v, want the answer %q", data, err, out)
	}
}

// sentMessage is a message that a server receives.
type sentMessage struct {
	Role    string
	Content any
}

// Ensure that a question which a server refuses, whose answer breaks off, or which is cancelled
// before its answer begins, is not part of the conversation, and that its picture waits for the
// next question; that the answer of one that is cancelled later is kept as far as it was shown.
func TestServerFails(t *testing.T) {
	const (
		piece = `data: {"choices":[{"delta":{"content":"said"}}]}` + "\n\n"
		end   = `data: {"model":"m","choices":[],"timings":{},"restore":{"images":[` +
			`{"tokens":1},{"tokens":576,"kept":5}]}}` + "\n\ndata: [DONE]\n\n"
		wait = "wait for the end of the connection"
	)
	replies := [][2]string{{`{"error":{"message":"loading","code":"loading"}}`}, {piece},
		{piece, `data: {"error":{"message":"lost"}}` + "\n\n"}, {"", wait}, {piece, wait},
		{piece, end}, {piece, end}}
	asked := make(chan []sentMessage, len(replies)) // questions whose reply has begun
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Messages []sentMessage }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/tokenize" {
			fmt.Fprint(w, `{"restore":{"images":[{"width":2,"height":3,"tokens":9,"kept":4}]}}`)
			return
		}
		reply := replies[n.Add(1)-1]
		if strings.HasPrefix(reply[0], "{") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, reply[0])
		_ = http.NewResponseController(w).Flush()
		asked <- body.Messages
		if reply[1] == wait {
			<-r.Context().Done()
		} else {
			fmt.Fprint(w, reply[1])
		}
	}))
	defer server.Close()
	s := sit(t, "run", "--image", drawn(t, numberSeed), "--server", server.URL)
	var last []sentMessage
	for i, want := range []string{
		": 2x3 pixels, 9 visual tokens, reduced to 4", server.URL + ": loading",
		"the answer ended too early", server.URL + ": lost",
		"interrupted, the answer is not complete", "interrupted, the answer is not complete",
		"model   m",
	} {
		s.prompts(i + 1)
		if !strings.Contains(s.screen(), want) {
			t.Errorf("question %d: %q, want %q", i, s.screen(), want)
		}
		s.send(fmt.Sprintf("question %d\r", i+1))
		last = <-asked
		if replies[i][1] == wait {
			if replies[i][0] != "" {
				s.answered(int64(len("said\nsaid\nsaid")))
			}
			s.send("\x03")
		}
	}
	s.prompts(len(replies) + 1)
	s.send("\x04")
	if code, out := s.end(); code != exitOK || out != strings.Repeat("said\n", 5) {
		t.Errorf("exit %d, stdout %q, screen %q", code, out, s.screen())
	}
	got := ""
	for _, m := range last {
		got += m.Role + ":"
		if parts, ok := m.Content.([]any); ok {
			got += fmt.Sprint(len(parts), parts[len(parts)-1])
		} else {
			got += fmt.Sprint(m.Content)
		}
		got += "\n"
	}
	if want := "user:2 map[text:question 5 type:text]\nassistant:said\n" +
		"user:1 map[text:question 6 type:text]\nassistant:said\n" +
		"user:1 map[text:question 7 type:text]\n"; got != want {
		t.Errorf("the last question was sent with %q, want %q", got, want)
	}
}
