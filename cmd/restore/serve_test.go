package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/methods"
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
	picture := clitest.Drawn(t, 1)
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
		here := commandLine(append([]string{"run"}, more...)...)
		there := commandLine(append([]string{"run", "--server", s.url}, more...)...)
		if here.Code != cli.ExitOK || there.Code != cli.ExitOK || here.Out != there.Out ||
			!strings.Contains(there.Err, "first token ") {
			t.Errorf("%v: got exit %d %q %s, want %q", more, there.Code, there.Out, there.Err,
				here.Out)
		}
	}
	var a, b answerJSON
	args := []string{"-p", "What number is written?", "--image", picture, "--json"}
	if err := json.Unmarshal([]byte(commandLine(append([]string{"run"}, args...)...).Out),
		&a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(commandLine(append([]string{"run", "--server", s.url},
		args...)...).Out), &b); err != nil {
		t.Fatal(err)
	}
	if a.Answer != b.Answer || a.Method != b.Method || a.VisualTokens != b.VisualTokens ||
		a.PromptTokens != b.PromptTokens {
		t.Errorf("got %+v, want %+v", b, a)
	}
	r := commandLine("load", "--server", s.url, "--clients", "3", "--n-vis", "64", "--requests",
		"20",
		"--pictures", "2", "--tokens", "8",
		"--follow-up", "0.3", "--cancel", "0.1", "--bad", "0.1", "--whole", "0.3")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "answers/min") {
		t.Errorf("load: exit %d, %s %s", r.Code, r.Out, r.Err)
	}
	if code := s.stop(syscall.SIGTERM); code != cli.ExitOK ||
		!strings.Contains(s.log.String(), "shutting down") {
		t.Errorf("exit %d, %s", code, s.log)
	}
	if r := commandLine("run", "--server", s.url, "-p", "?"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "--server: ") {
		t.Errorf("a server that is gone: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that a conversation through a server has the answers and the counts of one with a model
// in this process, also after questions that were taken back, and that it says what the server
// refuses.
func TestServeTalk(t *testing.T) {
	first, second := clitest.Drawn(t, clitest.NumberSeed), clitest.Drawn(t, 8)
	s := startServer(t, "--max-images", "8")
	talk := func(in string, args ...string) clitest.Result {
		return with(t.Context(), nil, in, append([]string{"run"}, args...)...)
	}
	in := strings.Join([]string{
		clitest.Number, "Describe the image.", "/image " + second, "How many objects are there?",
		"/undo",
		"/image " + second, "Is there a red square in the image?", "Describe the image.",
	}, "\n")
	for _, args := range [][]string{
		{"--image", first, "--json", "-n", "24"},
		{"--image", first, "--image", second, "--json", "-n", "9", "--system-prompt", "Be brief.",
			"--base", "divprune", "--n-vis", "32"},
		{"--image", first, "--json", "--base", "none", "--temp", "1.5", "--seed", "3"},
	} {
		here, there := talk(in, args...), talk(in, append(args, "--server", s.url)...)
		want, got := strings.Split(here.Out, "\n"), strings.Split(there.Out, "\n")
		if here.Code != cli.ExitOK || there.Code != cli.ExitOK || len(want) != 6 ||
			len(got) != len(want) {
			t.Fatalf("%v: exit %d %s, want %s, stderr %q", args, there.Code, there.Out, here.Out,
				there.Err)
		}
		for i := range 5 {
			var a, b answerJSON
			if err := errors.Join(json.Unmarshal([]byte(want[i]), &a),
				json.Unmarshal([]byte(got[i]), &b)); err != nil {
				t.Fatal(err)
			}
			if a.Answer != b.Answer || a.Finish != b.Finish || a.VisualTokens != b.VisualTokens ||
				!slices.Equal(a.Images, b.Images) || a.PromptTokens != b.PromptTokens {
				t.Errorf("%v: turn %d: got %s, want %s", args, i, got[i], want[i])
			}
			if i > 0 && b.CachedTokens < 50 {
				t.Errorf("%v: turn %d: %d tokens are cached", args, i, b.CachedTokens)
			}
		}
	}
	cut, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	broken := clitest.Written(t, "cut.png", string(cut[:len(cut)/2]))
	recipe := filepath.Join(t.TempDir(), "recipe.json")
	clitest.Filled(t, recipe, (&methods.Recipe{
		Layers: 2, Tokens: 4, Schedules: []methods.RecipeSchedule{{Cut: 0.5, Drop: []int{1, 1}}},
	}).Write)
	show := "/image " + first + "\n"
	for name, c := range map[string]struct {
		in   string
		args []string
		want []string
	}{
		"broken picture": {"/image " + broken + "\n", nil, []string{broken + ": ", "truncated"}},
		"full":           {strings.Repeat(show, 8) + clitest.Number, nil, []string{"the conversation is full: it would take ", " of 4096 positions; /drop takes away " + first + ", /clear everything"}},
		"pictures":       {strings.Repeat(show, 9) + clitest.Number, nil, []string{"got 9 pictures, want at most 8 (--max-images)"}},
		"budget":         {show, []string{"--n-vis", "600"}, []string{"restore.n_vis: got 600, want at most 576"}},
		"file":           {"/set fitprune-recipe " + recipe, []string{"--base", "fitprune"}, []string{"--fitprune-recipe: has no effect with --server"}},
	} {
		r := talk(c.in, append(c.args, "--server", s.url)...)
		for _, want := range c.want {
			if r.Code == cli.ExitOK || r.Out != "" || !strings.Contains(r.Err, want) {
				t.Errorf("%s: exit %d, stdout %q, stderr %q, want %q", name, r.Code, r.Out, r.Err,
					want)
			}
		}
	}
	for _, prompt := range []string{"<image> What is this?", "What is <image>?"} {
		r := talk(show+prompt, "--server", s.url)
		noted := strings.Contains(r.Err, "the chat template places pictures")
		if r.Code != cli.ExitOK || noted == strings.HasPrefix(prompt, "<") {
			t.Errorf("%s: exit %d, stderr %q", prompt, r.Code, r.Err)
		}
	}
}

// Ensure that flags that cannot be honoured are refused before a model is loaded.
func TestServeFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--api-key none":                    {"serve", "--host", "0.0.0.0"},
		"--api-key @FILE":                   {"serve", "--host", "::"},
		"got none together with other keys": {"serve", "--api-key", "none,a"},
		`--disable: got "pages"`:            {"serve", "--disable", "page,pages"},
		"--api-key: empty, want keys":       {"serve", "--api-key", ""},
		"--tls: empty, want":                {"serve", "--tls", ""},
		"--allowed-hosts: empty, want":      {"serve", "--allowed-hosts", ""},
		"separates nothing without":         {"serve", "--cache-isolation", "key"},
		"--temp: got NaN, want":             {"serve", "--temp", "nan"},
		"--top-k: got -1, want":             {"serve", "--top-k", "-1"},
		"--min-p: got 1.5, want":            {"serve", "--min-p", "1.5"},
		`--host: got "[::1"`:                {"serve", "--port", "0", "--host", "[::1"},
		"--port: out of range":              {"serve", "--port", "70000"},
		"--parallel: out of":                {"serve", "--parallel", "257"},
		"--queue: out of":                   {"serve", "--queue", "-1"},
		"--cache-isolation":                 {"serve", "--cache-isolation", "salt"},
		"--log-format":                      {"serve", "--log-format", "xml"},
		"--top-p":                           {"serve", "--top-p", "0"},
		"--media-path":                      {"serve", "--media-path", "/nowhere/at/all"},
		"--allowed-media":                   {"serve", "--allowed-media-domains", "http://a/"},
		"--drain-timeout":                   {"serve", "--drain-timeout", "-1s"},
		"--cors-origins: got":               {"serve", "--cors-origins", "http://a,app.example"},
		"want https://a":                    {"serve", "--cors-origins", "https://a:443"},
		"--allowed-hosts: got":              {"serve", "--allowed-hosts", "https://api.example.com"},
		`--tls: got "key.pem"`:              {"serve", "--tls", "key.pem"},
		"--tls: /nowhere: no such file":     {"serve", "--tls", "/nowhere,/nowhere"},
		"--cache-dir":                       {"serve", "--port", "0", "--cache-dir", "/dev/null/cache"},
		"--batch-dir":                       {"serve", "--port", "0", "--batch-dir", "/proc/batches"},
		"--cache-dir-mb: out":               {"serve", "--cache-dir", t.TempDir(), "--cache-dir-mb", "0"},
		"--cache-dir-mb: has":               {"serve", "--cache-dir-mb", "5"},
		"--memory: got \"12\"":              {"serve", "--memory", "12"},
		"--memory: got \"lots\"":            {"serve", "--memory", "lots"},
		"--gamma":                           {"serve", "--gamma", "2"},
		`--server: got "a"`:                 {"run", "--server", "a", "-p", "?"},
		"--quant: has no":                   {"run", "--server", "http://a", "-p", "?", "--quant", "q4"},
		"without --server":                  {"run", "--api-key", "a", "-p", "?"},
	} {
		if args[0] == "serve" { // a model that is missing is found later
			args = append(args, "-m", filepath.Join(t.TempDir(), "missing"))
		}
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) ||
			r.Out != "" {
			t.Errorf("%v: exit %d, %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that a server ends with an error if its packed file turns out to be damaged, and that no
// batch begins with one.
func TestServeDamaged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.rst")
	if r := commandLine("pack", "-o", file); r.Code != cli.ExitOK {
		t.Fatal(r.Err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "-m", file)
	_ = s.cmd.Wait()
	if code := s.cmd.ProcessState.ExitCode(); code != cli.ExitFailure ||
		!strings.Contains(s.log.String(), `.weight\": damaged: got checksum`) &&
			!strings.Contains(s.log.String(), `.weight": damaged: got checksum`) {
		t.Errorf("serve: exit %d, %s", code, s.log)
	}
	in := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(in, []byte(`{"custom_id":"a","method":"POST",`+
		`"url":"/v1/chat/completions","body":{"model":"builtin","messages":[{"role":"user",`+
		`"content":"?"}]}}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := commandLine("batch", "-m", file, "--in", in, "--out",
		in+".out"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "damaged: got checksum") {
		t.Errorf("batch: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that the pictures on disk take no more than --cache-dir-mb.
func TestCacheDirLimit(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	// 5 pictures, of 0.3 MB without a reduction
	r := commandLine(batchArgs(requests(t, 15), "out", "--base", "none", "--cache-dir", cache,
		"--cache-dir-mb", "1")...)
	if r.Code != cli.ExitOK {
		t.Fatalf("exit %d, %s", r.Code, r.Err)
	}
	private(t, cache)
	files, err := filepath.Glob(filepath.Join(cache, "*.features"))
	if err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 1e6 || len(files) < 2 {
		t.Errorf("%d files of %d bytes, want at least 2 and at most 1000000 bytes", len(files),
			size)
	}
}
