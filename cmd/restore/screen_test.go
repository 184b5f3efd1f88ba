//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/hub/hubtest"
)

// slowServer answers each question with "said" after the test released its first token.
type slowServer struct {
	*httptest.Server
	asked   chan struct{} // gets a question that arrived
	release chan struct{}
}

// listModels answers the first question of a client: which model there is.
func listModels(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/v1/models" {
		return false
	}
	fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	return true
}

func newSlowServer(t *testing.T) *slowServer {
	t.Helper()
	s := &slowServer{asked: make(chan struct{}), release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if listModels(w, r) {
			return
		}
		if err := json.NewDecoder(r.Body).Decode(new(any)); err != nil {
			t.Error(err)
		}
		s.asked <- struct{}{}
		<-s.release
		for _, piece := range []string{"sa", "id"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		fmt.Fprint(w, `data: {"model":"m","choices":[],"timings":{},"restore":{"images":[]}}`+
			"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s
}

// Ensure that the progress of a slow question is gone when the answer begins, and stays gone at the
// next prompt.
func TestProgressLeavesThePrompt(t *testing.T) {
	t.Parallel()
	server := newSlowServer(t)
	s := sit(t, "run", "--server", server.URL)
	s.Prompts(1)
	s.Send("slow\r")
	<-server.asked
	s.Until("reading the prompt", 1)
	server.release <- struct{}{}
	s.Prompts(2)
	before := s.Screen()
	time.Sleep(5 * cli.ProgressEvery / 2)
	s.Send("typed")
	s.Until("typed", 1)
	if drawn := strings.TrimPrefix(s.Screen(), before); !strings.HasSuffix(before, "\x1b[2C") ||
		drawn != "typed" {
		t.Errorf("after the prompt was shown: %q", drawn)
	}
	s.Send("\x03\x04")
	if code, out := s.End(); code != cli.ExitOK || out != "said\n" {
		t.Errorf("exit %d, stdout %q, screen %q", code, out, s.Screen())
	}
}

// desk is a command in this process on a pseudo-terminal, with a clock that the test turns.
type desk struct {
	*clitest.Terminal
	*clitest.Clock
	code chan int
}

// newDesk starts a command whose three streams are the terminal.
func newDesk(t *testing.T, env map[string]string, args ...string) *desk {
	t.Helper()
	master, slave := clitest.NewTerminal(t)
	s := &clitest.Terminal{T: t, Master: master, Closed: make(chan struct{})}
	go s.Watch()
	a := cli.NewApp(thisProgram, slave, slave, slave, func(name string) string { return env[name] })
	d := &desk{s, &clitest.Clock{At: time.Unix(1e9, 0)}, make(chan int, 1)}
	a.Screen.Clock = cli.Clock{Now: d.Now, After: d.After}
	go func() { d.code <- cli.Execute(context.Background(), a, args) }()
	t.Cleanup(func() {
		slave.Close()
		master.Close()
		<-s.Closed
	})
	return d
}

// shows turns the clock until text has been shown n times.
func (d *desk) shows(text string, n int) {
	d.T.Helper()
	for end := time.Now().Add(time.Minute); strings.Count(d.Screen(), text) < n; {
		if time.Now().After(end) {
			d.T.Fatalf("never shown: %q %d times, but %q", text, n, d.Screen())
		}
		d.Turn(cli.ProgressEvery)
		time.Sleep(time.Millisecond)
	}
}

// lines are the lines that are left on the terminal.
func (d *desk) lines() string {
	p := new(clitest.Display)
	p.Write([]byte(d.Screen()))
	return p.Shown()
}

// Ensure that on one terminal prompts, answers and progress do not mix, and that a turn leaves no
// goroutine and draws nothing later.
func TestProgressOfTurns(t *testing.T) {
	server := newSlowServer(t)
	d := newDesk(t, nil, "run", "--server", server.URL)
	var most int
	for turn := 1; turn <= 4; turn++ {
		d.Prompts(turn)
		if turn == 2 {
			most = runtime.NumGoroutine()
		}
		for end := time.Now().Add(time.Minute); turn > 2 && runtime.NumGoroutine() > most; {
			if time.Now().After(end) {
				t.Fatalf("turn %d: %d goroutines, %d before", turn, runtime.NumGoroutine(), most)
			}
			time.Sleep(time.Millisecond)
		}
		for range 3 {
			d.Turn(time.Hour)
		}
		if n := d.Waits(); n != 0 {
			t.Errorf("turn %d: %d goroutines wait to draw", turn, n)
		}
		if turn == 4 {
			break
		}
		d.Send(fmt.Sprintf("question %d\r", turn))
		<-server.asked
		d.shows(fmt.Sprintf("reading the prompt, %ds so far", turn), 1)
		server.release <- struct{}{}
	}
	d.Send("\x04")
	if code := <-d.code; code != cli.ExitOK {
		t.Errorf("exit %d, screen %q", code, d.Screen())
	}
	lines := d.lines()
	note := "restore: note: no picture is shown (/image FILE): " +
		"the answer depends only on the text\n" // of the first turn
	for turn := 1; turn <= 3; turn++ {
		want := fmt.Sprintf("> question %d\n%ssaid\n>", turn, note)
		if note = ""; !strings.Contains(lines, want) {
			t.Errorf("no %q in %q", want, lines)
		}
	}
	if strings.Contains(lines, "reading") {
		t.Errorf("progress is left: %q", lines)
	}
}

// Ensure that the progress of a download is gone at its end, and that its notes are whole lines.
func TestProgressOfPull(t *testing.T) {
	h := hubtest.New(map[string]*hubtest.Repo{"me/scenes": embeddedRepo(t)})
	defer h.Close()
	var d *desk
	shown := make(chan struct{})
	h.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".safetensors") {
			<-shown
		}
		return false
	}
	home := t.TempDir()
	d = newDesk(t, map[string]string{"HOME": home, "HF_ENDPOINT": h.URL}, "pull", "me/scenes")
	d.shows("me/scenes, ", 1)
	close(shown)
	if code := <-d.code; code != cli.ExitOK {
		t.Fatalf("exit %d, screen %q", code, d.Screen())
	}
	d.Turn(time.Hour)
	if n := d.Waits(); n != 0 {
		t.Errorf("%d goroutines wait to draw after the end", n)
	}
	d.Until(hubCommit+"\r\n", 1)
	lines := strings.Split(d.lines(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "restore: note: me/scenes: ") ||
		!strings.HasPrefix(lines[1], home+string(os.PathSeparator)) || lines[2] != "" {
		t.Errorf("left on the terminal: %q", lines)
	}
}

// Ensure that a command shows its progress, and that an interrupt removes the line before the
// command says why it ended.
func TestMeterInterrupted(t *testing.T) {
	stalled := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer stalled.Close()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("HF_ENDPOINT", stalled.URL)
	s := sit(t, "pull", "me/scenes")
	s.Until("me/scenes, ", 1)
	s.Send("\x03")
	code, out := s.End()
	<-s.Closed
	shown, message, _ := strings.Cut(s.Screen(), "restore: ")
	want := "me/scenes: interrupted, the next pull continues from here\r\n"
	if code != cli.ExitFailure || out != "" || message != want {
		t.Errorf("exit %d, stdout %q, screen %q, then %q, want %q", code, out, shown, message, want)
	}
	if left := strings.ReplaceAll(clitest.LastLine(shown), "^C", ""); left != "" {
		t.Errorf("left on the screen: %q", left)
	}
}

// Ensure that a packed model does not go to a terminal.
func TestPackNotToATerminal(t *testing.T) {
	master, slave := clitest.NewTerminal(t)
	defer master.Close()
	defer slave.Close()
	cmd := process("pack", "-o", "-")
	cmd.Stdout = slave
	r := clitest.Finish(t, cmd)
	const want = "--output: got -, but stdout is a terminal, want a file or a pipe"
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
		t.Errorf("exit %d, stderr %q, want %q", r.Code, r.Err, want)
	}
}
