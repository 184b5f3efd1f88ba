//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// sit starts a command with a terminal as stdin and stderr.
func sit(t *testing.T, args ...string) *clitest.Terminal {
	t.Helper()
	master, slave := clitest.NewTerminal(t)
	defer slave.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	s := &clitest.Terminal{
		T: t, Cmd: process(args...), Master: master, Out: out, Closed: make(chan struct{}),
	}
	s.Cmd.Env = append(s.Cmd.Env, "TERM=xterm")
	s.Cmd.Stdin, s.Cmd.Stdout, s.Cmd.Stderr = slave, out, slave
	s.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.Watch()
	t.Cleanup(func() {
		_ = s.Cmd.Process.Kill() // it has ended, unless the test failed
		master.Close()
		out.Close()
	})
	return s
}

// Ensure that lines on a terminal can be edited, recalled and of any length, and that a pasted text
// is one question.
func TestEditor(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "talk.txt")
	s := sit(t, "run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-n", "8")
	s.Prompts(1)
	s.Send("hat number is written?\x01W\x05\r") // to the beginning, a letter, to the end
	s.Prompts(2)
	s.Send("\x1b[A\r") // the line before
	s.Prompts(3)
	long := strings.Repeat("x", 6000)
	s.Send("/set " + long + "\r")
	s.Prompts(4)
	s.Until(`unknown, got "`+long+`"`, 1)
	s.Send("\x1b[200~pasted\rlines\r\nthree\x1b[201~ and typed\r")
	s.Prompts(5)
	s.Send("not asked\x03/sa\t" + saved + "\r") // Ctrl-C clears the line, Tab completes
	s.Prompts(6)
	s.Send("\x03")
	s.Until("Ctrl-C once more, Ctrl-D or /exit leaves", 1)
	s.Prompts(7)
	s.Send("x\x03\x03") // which is not once more at once
	s.Until("Ctrl-C once more, Ctrl-D or /exit leaves", 2)
	s.Prompts(8)
	s.Send("\x03")
	code, out := s.End()
	if code != cli.ExitOK ||
		!strings.HasPrefix(out, clitest.NumberAnswer+"\n"+clitest.NumberAnswer+"\n") {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	data, err := os.ReadFile(saved)
	if err != nil {
		t.Fatalf("%v: %q", err, s.Screen())
	}
	for _, want := range []string{"> " + clitest.Number + "\n",
		"> pasted\n> lines\n> three and typed\n"} {
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
	s := sit(t, "run", "--image", clitest.Drawn(t, clitest.NumberSeed))
	for i, path := range []string{"-", "/dev/stdin", "/dev/tty"} {
		s.Prompts(i + 1)
		s.Send("/image " + path + "\r")
		s.Until("restore: /image: "+path+": is ", 1)
	}
	s.Prompts(4)
	s.Send(clitest.Number + "\r")
	s.Prompts(5)
	s.Send("\x04")
	if code, out := s.End(); code != cli.ExitOK || out != clitest.NumberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, screen %q", code, out, s.Screen())
	}
	s = sit(t, "run", "--image", "-", "-p", clitest.Number)
	s.Until("stdin: is a terminal, want a picture from a file or a pipe", 1)
	if code, _ := s.End(); code != cli.ExitFailure {
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
		if r := clitest.Finish(t, cmd); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that Ctrl-C during an answer stops only that answer, that the conversation has what was
// shown of it, and that the next one leaves.
func TestEditorInterrupted(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "talk.txt")
	// All tokens are almost equally likely; with this seed the end comes after 1505 to 2908.
	s := sit(t, "run", "--image", clitest.Drawn(t, 12), "-n", "3900", "--temp", "1000",
		"--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "4")
	s.Prompts(1)
	s.Send("Describe the image.\r")
	s.Answered(1)
	s.Send("\x03")
	s.Until("interrupted, the answer is not complete", 1)
	s.Prompts(2)
	s.Send("/save " + saved + "\r")
	s.Prompts(3)
	s.Send("\x04") // the end of the input
	code, out := s.End()
	if code != cli.ExitOK {
		t.Errorf("exit %d: %q", code, s.Screen())
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
		if listModels(w, r) {
			return
		}
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
	s := sit(t, "run", "--image", clitest.Drawn(t, clitest.NumberSeed), "--server", server.URL,
		"-v")
	var last []sentMessage
	for i, want := range []string{
		": 2x3 pixels, 9 visual tokens, reduced to 4", server.URL + ": loading",
		"the answer ended too early", server.URL + ": lost",
		"interrupted, the answer is not complete", "interrupted, the answer is not complete",
		"model   m",
	} {
		s.Prompts(i + 1)
		if !strings.Contains(s.Screen(), want) {
			t.Errorf("question %d: %q, want %q", i, s.Screen(), want)
		}
		s.Send(fmt.Sprintf("question %d\r", i+1))
		last = <-asked
		if replies[i][1] == wait {
			if replies[i][0] != "" {
				s.Answered(int64(len("said\nsaid\nsaid")))
			}
			s.Send("\x03")
		}
	}
	s.Prompts(len(replies) + 1)
	s.Send("\x04")
	if code, out := s.End(); code != cli.ExitOK || out != strings.Repeat("said\n", 5) {
		t.Errorf("exit %d, stdout %q, screen %q", code, out, s.Screen())
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
	if want := "user:2 map[text:question 5 type:text]\nassistant:1 map[text:said type:text]\n" +
		"user:1 map[text:question 6 type:text]\nassistant:1 map[text:said type:text]\n" +
		"user:1 map[text:question 7 type:text]\n"; got != want {
		t.Errorf("the last question was sent with %q, want %q", got, want)
	}
}
