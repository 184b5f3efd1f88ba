package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
	"github.com/restore-vlm/restore/internal/smalldisk"
)

// Ensure that a file answered by workers has the results of one machine, that workers are listed,
// and that SIGTERM ends them cleanly.
func TestFleetBatch(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	url, _, stop := tested.Fleet(t, 2)
	dir := requests(t, 30)
	for out, more := range map[string][]string{"one": nil, "many": {"--nats", url}} {
		if r := commandLine(batchArgs(dir, out, more...)...); r.Code != cli.ExitOK {
			t.Fatalf("%s: exit %d, %s", out, r.Code, r.Err)
		}
	}
	one, many := settledResults(t,
		filepath.Join(dir, "one")), settledResults(t, filepath.Join(dir, "many"))
	if one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
	table := commandLine("workers", "--nats", url)
	for _, want := range []string{"machine", "fingerprint", "builtin", "a second", "s ago"} {
		if table.Code != cli.ExitOK || !strings.Contains(table.Out, want) {
			t.Errorf("the table lacks %q: %s%s", want, table.Out, table.Err)
		}
	}
	if r := commandLine(batchArgs(dir, "x", "--nats", url, "--quant",
		"q8")...); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, "'restore worker'") {
		t.Errorf("a worker's flag: exit %d, %s", r.Code, r.Err)
	}
	stop()
	if r := commandLine("workers", "--nats", url); r.Out != "no workers\n" {
		t.Errorf("after the end: %s%s", r.Out, r.Err)
	}
}

// Ensure that a result over NATS is found again for the same line alone, and that workers whose
// weights have other types do not share a file's requests.
func TestFleetBatchNames(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	url, _, stop := tested.Fleet(t, 1)
	ask := func(key batch.Key, question string) string {
		t.Helper()
		o := new(batchOptions)
		fs := pflag.NewFlagSet("batch", pflag.ContinueOnError)
		o.add(fs)
		if err := fs.Parse([]string{"--nats", url, "--journal", t.TempDir()}); err != nil {
			t.Fatal(err)
		}
		a := cli.NewApp(thisProgram, nil, t.Output(), t.Output(), os.Getenv)
		b, err := o.open(t.Context(), a, "journal")
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := b.close(); err != nil {
				t.Error(err)
			}
		}()
		var line struct{ Body json.RawMessage }
		if err := json.Unmarshal([]byte(chatLine("a", question)), &line); err != nil {
			t.Fatal(err)
		}
		r, err := b.asks.Do(t.Context(), &batch.Request{Line: 0, Key: key, Method: "POST",
			URL: "/v1/chat/completions", Body: line.Body})
		if err != nil || r.Status != http.StatusOK {
			t.Fatalf("%+v, %v", r, err)
		}
		var body struct{ Usage any }
		if err := json.Unmarshal(r.Body, &body); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(body.Usage)
	}
	first := ask(batch.Key{1}, "Hello")
	if again := ask(batch.Key{1}, "Hello"); again != first {
		t.Errorf("the same line: got %s, want %s", again, first)
	}
	if other := ask(batch.Key{2}, "What is the colour of the large square?"); other == first {
		t.Errorf("another line 1 got the answer of the first: %s", other)
	}
	cmd := process("worker", "--nats", url, "--threads", "1", "--quant", "q8")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if strings.Count(commandLine("workers", "--nats", url, "--json").Out, "\n") == 2 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	dir := inFolder(t, map[string]string{"in.jsonl": chatLine("a", "Hello")})
	if r := commandLine(batchArgs(dir, "out", "--nats", url)...); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "workers hold 2 models") ||
		!strings.Contains(r.Err, "quant stored") || !strings.Contains(r.Err, "quant q8") {
		t.Errorf("two types: exit %d, %s", r.Code, r.Err)
	}
	if names := clitest.Names(t, dir); len(names) != 1 {
		t.Errorf("left %v", names)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // Wait tells
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	stop()
}

// ownCache is a new cache folder. It has this machine's speed, if that is known: each server would
// measure it for seconds.
func ownCache(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cache, _ := os.UserCacheDir() // without one, nothing is known
	speeds, err := filepath.Glob(filepath.Join(cache, "restore", "speed-*.json"))
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "restore"), 0o700)
	}
	for _, file := range speeds {
		data, read := os.ReadFile(file)
		err = errors.Join(err, read,
			os.WriteFile(filepath.Join(dir, "restore", filepath.Base(file)), data, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Ensure that --nats embedded needs no second process, and leaves nothing in the journal's folder
// that would disturb a second run or that others can read.
func TestFleetEmbedded(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", ownCache(t))
	dir := requests(t, 5)
	for range 2 {
		r := commandLine(batchArgs(dir, "out", "--nats", "embedded:0")...)
		var sum batch.Summary
		if err := json.Unmarshal([]byte(r.Out), &sum); r.Code != cli.ExitOK || err != nil ||
			sum.Before+sum.Done() != 5 {
			t.Fatalf("exit %d, %v, %s%s", r.Code, err, r.Out, r.Err)
		}
		if !strings.Contains(r.Err, "workers may connect to nats://127.0.0.1:") {
			t.Errorf("stderr: %s", r.Err)
		}
	}
	private(t, filepath.Join(dir, "out.journal"))
	private(t, filepath.Join(dir, "out.journal", "nats"))
}

// private checks that a folder is readable for its user only.
func private(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("%s: got %v, want it readable for its user only", dir, info.Mode())
	}
}

// listed waits until a fleet has n workers.
func listed(t *testing.T, url string, n int) {
	t.Helper()
	var r clitest.Result
	for range 600 {
		r = commandLine("workers", "--nats", url, "--json")
		if r.Code == cli.ExitOK && strings.Count(r.Out, "\n") == n {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("got exit %d, %s%s, want %d workers", r.Code, r.Out, r.Err, n)
}

// Ensure that the NATS server inside a process admits only commands of the same user, which find
// its token without a flag, also after the process was killed and started again.
func TestFleetToken(t *testing.T) {
	home, port := ownCache(t), strconv.Itoa(fleettest.FreePort(t))
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", t.TempDir()) // a killed process leaves its streams there
	address := "127.0.0.1:" + port
	url := "nats://" + address
	start := func() *serving { return startServer(t, "--nats", "embedded:"+port) }
	s := start()
	var files []string
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "nats") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) != 1 {
		t.Fatalf("got %v, %v, want the token's file", files, err)
	}
	private(t, filepath.Dir(files[0]))
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: got %v, %v, want it readable for its user only", files[0], info, err)
	}
	worker := process("worker", "--nats", url, "--threads", "1")
	log := new(bytes.Buffer)
	worker.Stderr = log
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = worker.Process.Signal(syscall.SIGTERM)
		if err := worker.Wait(); err != nil {
			t.Errorf("worker: %v: %s", err, log)
		}
	}()
	for _, as := range []string{url, address, "nats://localhost:" + port} {
		listed(t, as, 2)
	}
	stranger := process("workers", "--nats", url, "--json")
	stranger.Env = append(stranger.Env, "XDG_CACHE_HOME="+t.TempDir(), "HOME="+t.TempDir())
	if r := clitest.Finish(t, stranger); r.Code != cli.ExitFailure || r.Out != "" ||
		!strings.Contains(r.Err, "admits its own user") {
		t.Errorf("a stranger: exit %d, %s%s", r.Code, r.Out, r.Err)
	}
	before, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	s.stop(syscall.SIGKILL)
	s = start()
	if after, err := os.ReadFile(files[0]); err != nil || bytes.Equal(after, before) {
		t.Errorf("after a restart: got %q, %v, want another token than %q", after, err, before)
	}
	listed(t, url, 2)
	if code := s.stop(syscall.SIGTERM); code != cli.ExitOK {
		t.Errorf("exit %d, %s", code, s.log)
	}
	if _, err := os.Stat(files[0]); err == nil {
		t.Error("the token is still there after the end")
	}
}

// Ensure that a NATS server inside a process takes a user and password instead of its token.
func TestFleetPassword(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", fleettest.FreePort(t))
	s := startServer(t, "--nats", "embedded://ann:secret@"+address)
	listed(t, "nats://ann:secret@"+address, 1)
	if r := commandLine("workers", "--nats", "nats://"+address); r.Code != cli.ExitFailure {
		t.Errorf("without the password: exit %d, %s", r.Code, r.Out)
	}
	if code := s.stop(syscall.SIGTERM); code != cli.ExitOK {
		t.Errorf("exit %d, %s", code, s.log)
	}
}

// Ensure that wrong options of a fleet cause an error of one line.
func TestFleetErrors(t *testing.T) {
	s, err := natsserver.Start(natsserver.Options{Folder: t.TempDir(), User: "ann",
		Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	creds := filepath.Join(t.TempDir(), "none.creds")
	if err := os.WriteFile(creds, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		"does not know this user or password": {cli.ExitFailure, []string{"worker", "--nats", s.URL()}},
		"nats://USER:PASS@HOST":               {cli.ExitFailure, []string{"workers", "--nats", strings.Replace(s.URL(), "://", "://ann:wrong@", 1)}},
		"cannot connect":                      {cli.ExitFailure, []string{"workers", "--nats", "nats://127.0.0.1:1"}},
		"--nats: missing":                     {cli.ExitUsage, []string{"worker"}},
		"--nats: got a URL that is none":      {cli.ExitUsage, []string{"worker", "--nats", "http://x"}},
		"which is for clients":                {cli.ExitUsage, []string{"worker", "--nats", "embedded"}},
		"got port":                            {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats", "embedded:x"}},
		"without a user":                      {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats", "embedded://0.0.0.0:4222"}},
		"without a password":                  {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats", "embedded://ann@127.0.0.1"}},
		"no use with --nats embedded":         {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats", "embedded", "--nats-creds", creds}},
		"no use without --nats":               {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats-ca", "y"}},
		"--budget-file: has no effect":        {cli.ExitUsage, []string{"batch", "--in", creds, "--out", "x", "--nats", "embedded:0", "--budget-file", creds}},
		"none.creds":                          {cli.ExitFailure, []string{"workers", "--nats", s.URL(), "--nats-creds", creds}},
	} {
		if r := commandLine(c.args...); r.Code != c.code || !strings.Contains(r.Err, want) ||
			strings.Contains(r.Err, "wrong") {
			t.Errorf("%v: exit %d, %s, want %d and %s", c.args, r.Code, r.Err, c.code, want)
		}
	}
	if r := commandLine("workers", "--nats", "embedded://ann:secret@127.0.0.1:4222"); r.Code !=
		cli.ExitUsage || !strings.Contains(r.Err, "which is for clients") ||
		strings.Contains(r.Err, "secret") {
		t.Errorf("workers of an embedded server: exit %d: %s", r.Code, r.Err)
	}
	if r := commandLine("workers", "--nats", strings.Replace(s.URL(), "://", "://ann:secret@", 1)); r.Code != cli.ExitOK {
		t.Errorf("with a password: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that a worker whose disk is full, for its cache and for its log, answers as before and
// reports it once.
func TestFleetWorkerDisk(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	s, err := natsserver.Start(natsserver.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cache := t.TempDir()
	cmd := process("worker", "--nats", s.URL(), "--threads", "1", "--cache-dir", cache)
	disk := smalldisk.New(t, cmd, cache, 1<<20)
	log := new(bytes.Buffer)
	cmd.Stderr = log
	mute := process("worker", "--nats", s.URL(), "--threads", "1")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	defer full.Close()
	mute.Stderr = full
	var started []*exec.Cmd
	end := sync.OnceFunc(func() {
		for _, c := range started {
			_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
			if err := c.Wait(); err != nil {
				t.Errorf("worker: %v: %s", err, log)
			}
		}
	})
	t.Cleanup(end)
	start := func(c *exec.Cmd) {
		t.Helper()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		started = append(started, c)
		for wait := 0; ; wait++ {
			workers := commandLine("workers", "--nats", s.URL(), "--json").Out
			if strings.Count(workers, "\n") == len(started) {
				break
			}
			if wait > 300 {
				t.Fatalf("the worker did not come: %s", log)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	start(cmd)
	disk.Fill()
	dir := requests(t, 12)
	// Alone, it answers everything: of two workers, chance says which answers about a picture.
	if r := commandLine(batchArgs(dir, "alone", "--nats", s.URL())...); r.Code != cli.ExitOK {
		t.Fatalf("exit %d, %s", r.Code, r.Err)
	}
	start(mute)
	for out, more := range map[string][]string{"one": nil, "many": {"--nats", s.URL()}} {
		if r := commandLine(batchArgs(dir, out, more...)...); r.Code != cli.ExitOK {
			t.Fatalf("%s: exit %d, %s", out, r.Code, r.Err)
		}
	}
	one := settledResults(t, filepath.Join(dir, "one"))
	if many := settledResults(t, filepath.Join(dir, "many")); one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
	end()
	if n := strings.Count(log.String(), "no space left on device"); n != 1 {
		t.Errorf("the full disk is reported %d times, want once: %s", n, log)
	}
}

// Ensure that a gateway answers and streams as the server that holds the model, names the worker,
// measures the fleet, and cancels a request whose client is gone.
func TestFleetGateway(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	url, _, stop := tested.Fleet(t, 1)
	s := startServer(t, "--nats", url)
	var worker struct {
		ID   string
		Busy int
	}
	list := func() {
		t.Helper()
		if err := json.Unmarshal([]byte(commandLine("workers", "--nats", url, "--json").Out),
			&worker); err != nil {
			t.Fatal(err)
		}
	}
	list()
	ask := func(ctx context.Context, stream bool, tokens int) (*http.Response, error) {
		body := fmt.Sprintf(`{"messages": [{"role": "user", "content": "What is there?"}],
			"stream": %v, "max_tokens": %d, "ignore_eos": true}`, stream, tokens)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		return http.DefaultClient.Do(r)
	}
	text := func(stream bool) string {
		t.Helper()
		resp, err := ask(t.Context(), stream, 4)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK ||
			!strings.Contains(string(data), `"worker":"`+worker.ID+`"`) {
			t.Fatalf("got %s, %v, want the worker %s: %s", resp.Status, err, worker.ID, data)
		}
		var all strings.Builder
		for line := range strings.Lines(string(data)) {
			line = strings.TrimPrefix(line, "data: ")
			var a struct {
				Choices []struct{ Message, Delta struct{ Content string } }
			}
			if json.Unmarshal([]byte(line), &a) == nil && len(a.Choices) > 0 {
				all.WriteString(a.Choices[0].Message.Content + a.Choices[0].Delta.Content)
			}
		}
		return all.String()
	}
	if whole, streamed := text(false), text(true); whole != streamed || whole == "" {
		t.Errorf("got %q, streamed %q", whole, streamed)
	}
	metrics := func() string {
		t.Helper()
		resp, err := http.Get(s.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, want := range []string{
		"\nrestore_workers{model=\"builtin\"} 1\n", "\nrestore_queue_depth{",
		"\nrestore_queue_oldest_seconds{",
	} {
		if m := metrics(); !strings.Contains(m, want) {
			t.Errorf("the metrics lack %q: %s", want, m)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := ask(ctx, true, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 10))
	cancel()
	resp.Body.Close()
	if err != nil || !strings.HasPrefix(string(data), "data: ") {
		t.Fatalf("got %q, %v", data, err)
	}
	for wait := 0; ; wait++ {
		if list(); worker.Busy == 0 {
			break
		}
		if wait > 100 {
			t.Fatal("the worker still answers for nobody")
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	resp, err = ask(t.Context(), false, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("without workers: got %s, Retry-After %q", resp.Status,
			resp.Header.Get("Retry-After"))
	}
}

// Ensure that the queue of a gateway alone limits requests: the model of a worker, also of one in
// the gateway's process, refuses none that the gateway has taken.
func TestFleetQueue(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	s := startServer(t, "--nats", "embedded:0", "--parallel", "1", "--queue", "0")
	models, err := http.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer models.Body.Close()
	if data, err := io.ReadAll(models.Body); err != nil ||
		!strings.Contains(string(data), `"parallel":1,"queue":0}`) {
		t.Errorf("limits: got %s, %v", data, err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			resp, err := http.Post(s.url+"/v1/chat/completions", "", strings.NewReader(`{"messages":
				[{"role":"user","content":"Hello"}], "max_tokens": 200, "ignore_eos": true}`))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	all.Wait()
	s.stop(syscall.SIGTERM)
	if log := s.log.String(); strings.Contains(log, "request failed") ||
		!strings.Contains(log, "status=200") {
		t.Errorf("the log: %s", log)
	}
	url, _, _ := tested.Fleet(t, 1, "--parallel", "1")
	s = startServer(t, "--nats", url)
	for i := range 40 {
		picture, err := os.ReadFile(clitest.Drawn(t, int64(100+i)))
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"messages": [{"role": "user", "content": [{"type": "image_url",
			"image_url": %q}]}]}`, base64.StdEncoding.EncodeToString(picture))
		all.Go(func() {
			resp, err := http.Post(s.url+"/tokenize", "", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("/tokenize: got %s", resp.Status)
			}
		})
	}
	all.Wait()
}
