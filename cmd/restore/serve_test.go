package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serving is a server in a separate process.
type serving struct {
	cmd *exec.Cmd
	url string
	log *bytes.Buffer
}

// startServer starts a server and waits until it answers.
func startServer(t *testing.T, flags ...string) *serving {
	t.Helper()
	s := &serving{
		cmd: process(append([]string{"serve", "--port", "0"}, flags...)...), log: new(bytes.Buffer),
	}
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // if the test did not end it
		_ = s.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		_ = s.cmd.Wait()
		t.Fatalf("got %q, %v, stderr %q", line, err, s.log)
	}
	go io.Copy(io.Discard, out)
	s.url = url
	return s
}

// stop sends a signal and returns the exit code.
func (s *serving) stop(sig syscall.Signal) int {
	_ = s.cmd.Process.Signal(sig) // a process that has ended has an exit code too
	_ = s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// Ensure that a server answers like the command, that a load with checked answers works, and that
// the server ends on a signal.
func TestServe(t *testing.T) {
	picture := drawn(t, 1)
	s := startServer(t, "--cache-dir", filepath.Join(t.TempDir(), "cache"))
	var models struct {
		Data []struct {
			Restore struct {
				Predict struct {
					Encode float64 `json:"encode_ms"`
					Row    float64 `json:"token_ms"`
				}
			}
		}
	}
	reply, err := http.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	if err := json.NewDecoder(reply.Body).Decode(&models); err != nil || len(models.Data) != 1 ||
		!(models.Data[0].Restore.Predict.Encode > 0 && models.Data[0].Restore.Predict.Row > 0) {
		t.Errorf("before the first question: %v, %+v", err, models)
	}
	for _, more := range [][]string{
		{"-p", "What number is written?", "--image", picture},
		{"-p", "Describe <image> this.", "--image", picture, "--n-vis", "32", "--temp", "1.2", "--seed", "7"},
		{"-p", "Hello", "--system-prompt", "Be brief.", "-n", "3"},
		{"-p", "What number is written?", "--image", picture, "--base", "random", "--seed", "5"},
	} {
		here := cli(append([]string{"run"}, more...)...)
		there := cli(append([]string{"run", "--server", s.url}, more...)...)
		if here.code != exitOK || there.code != exitOK || here.out != there.out ||
			!strings.Contains(there.err, "model ") {
			t.Errorf("%v: got exit %d %q %s, want %q", more, there.code, there.out, there.err,
				here.out)
		}
	}
	var a, b answerJSON
	args := []string{"-p", "What number is written?", "--image", picture, "--json"}
	if err := json.Unmarshal([]byte(cli(append([]string{"run"}, args...)...).out), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(
		[]byte(cli(append([]string{"run", "--server", s.url}, args...)...).out), &b); err != nil {
		t.Fatal(err)
	}
	if a.Answer != b.Answer || a.Method != b.Method || a.VisualTokens != b.VisualTokens ||
		a.PromptTokens != b.PromptTokens {
		t.Errorf("got %+v, want %+v", b, a)
	}
	r := cli("load", "--server", s.url, "--clients", "3", "--n-vis", "64", "--requests", "20",
		"--pictures", "2", "--tokens", "8",
		"--follow-up", "0.3", "--cancel", "0.1", "--bad", "0.1", "--whole", "0.3")
	if r.code != exitOK || !strings.Contains(r.out, "answers/min") {
		t.Errorf("load: exit %d, %s %s", r.code, r.out, r.err)
	}
	if code := s.stop(syscall.SIGTERM); code != exitOK ||
		!strings.Contains(s.log.String(), "shutting down") {
		t.Errorf("exit %d, %s", code, s.log)
	}
	if r := cli("run", "--server", s.url, "-p", "?"); r.code != exitFailure ||
		!strings.Contains(r.err, "--server: ") {
		t.Errorf("a server that is gone: exit %d, %s", r.code, r.err)
	}
}

// Ensure that flags that cannot be honoured are refused before a model is loaded.
func TestServeFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--allow-no-key":        {"serve", "--host", "0.0.0.0"},
		"--api-key-file":        {"serve", "--host", "::"},
		"--api-key: got no key": {"serve", "--api-key", ""},
		"--port: out of range":  {"serve", "--port", "70000"},
		"--parallel: out of":    {"serve", "--parallel", "257"},
		"--queue: out of":       {"serve", "--queue", "-1"},
		"--cache-isolation":     {"serve", "--cache-isolation", "salt"},
		"--log-format":          {"serve", "--log-format", "xml"},
		"--top-p":               {"serve", "--top-p", "0"},
		"--media-path":          {"serve", "--media-path", "/nowhere/at/all"},
		"--allowed-media":       {"serve", "--allowed-media-domains", "http://a/"},
		"--drain-timeout":       {"serve", "--drain-timeout", "-1s"},
		"--cache-dir":           {"serve", "--cache-dir", "/dev/null/cache"},
		"--gamma":               {"serve", "--gamma", "2"},
		"--clients: out of":     {"load", "--clients", "0"},
		"--cancel: out of":      {"load", "--cancel", "2"},
		"--server: got":         {"load", "--server", "http://a", "--shape", "llava-1.5-7b"},
		`--server: got "a"`:     {"run", "--server", "a", "-p", "?"},
		"want --prompt":         {"run", "--server", "http://a"},
		"--quant: has no":       {"run", "--server", "http://a", "-p", "?", "--quant", "q4"},
		"without --server":      {"run", "--api-key", "a", "-p", "?"},
	} {
		start := time.Now()
		if r := cli(args...); r.code != exitUsage || !strings.Contains(r.err, want) ||
			r.out != "" || time.Since(start) > 5*time.Second {
			t.Errorf("%v: exit %d, %q, want %q", args, r.code, r.err, want)
		}
	}
}
