package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/smalldisk"
)

// chaosSize is how many scenes the tests of killed runs use: few, unless the environment asks for
// all.
func chaosSize(t *testing.T, few int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("RESTORE_CHAOS"))
	if err != nil {
		return few
	}
	return n
}

// requests writes a file with n questions about scenes, and a picture of every third, about which
// the next two ask too. Some questions must be refused, and some lines are not requests.
func requests(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var in bytes.Buffer
	for i := range n {
		s := scene.New(scene.EvalSeed + int64(i))
		if i%3 == 0 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.png", i)), s.PNG(),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		qa := s.Questions()[i%len(s.Questions())]
		content := []any{
			map[string]any{
				"type":      "image_url",
				"image_url": map[string]any{"url": fmt.Sprintf("file://%d.png", i-i%3)},
			},
			map[string]any{"type": "text", "text": qa.Text}}
		body := map[string]any{
			"messages":   []any{map[string]any{"role": "user", "content": content}},
			"max_tokens": 1 + i%7,
		}
		if i%23 == 7 {
			body["temperature"] = 9
		}
		line, err := json.Marshal(
			map[string]any{
				"custom_id": "q" + strconv.Itoa(i),
				"method":    "POST",
				"url":       "/v1/chat/completions",
				"body":      body,
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		if i%29 == 11 {
			line = line[:len(line)/2]
		}
		in.Write(append(line, '\n'))
	}
	if err := os.WriteFile(filepath.Join(dir, "in.jsonl"), in.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// batchArgs are the arguments of a run in dir.
func batchArgs(dir, out string, more ...string) []string {
	return append(
		[]string{
			"batch",
			"--in",
			filepath.Join(dir, "in.jsonl"),
			"--out",
			filepath.Join(dir, out),
			"--media-path",
			dir,
		},
		more...)
}

// settledResults is the part of the results that must be equal in two runs of a file.
func settledResults(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		var r batch.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		id := "null"
		if r.CustomID != nil {
			id = *r.CustomID
		}
		fmt.Fprint(&out, id, " ")
		if r.Error != nil {
			fmt.Fprintln(&out, r.Error.Code, r.Error.Message)
			continue
		}
		var b struct {
			Choices []struct {
				Message any    `json:"message"`
				Finish  string `json:"finish_reason"`
			} `json:"choices"`
			Usage   any `json:"usage"`
			Error   any `json:"error"`
			Restore struct {
				Visual any `json:"visual_tokens"`
			} `json:"restore"`
		}
		if err := json.Unmarshal(r.Response.Body, &b); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		fmt.Fprintln(&out, r.Response.Status, b)
	}
	return out.String()
}

// Ensure that a file whose run was killed several times has the same results as an undisturbed run,
// and that no journalled request was asked again.
func TestBatchKilled(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	n, kills := chaosSize(t, 60), 10
	if testing.Short() {
		n, kills = 30, 3
	}
	dir := requests(t, n)
	begun := time.Now()
	whole := commandLine(batchArgs(dir, "whole.jsonl")...)
	took := time.Since(begun)
	if whole.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", whole.Code, whole.Err)
	}
	want := settledResults(t, filepath.Join(dir, "whole.jsonl"))
	if got := strings.Count(want, "\n"); got != n {
		t.Fatalf("got %d results, want %d", got, n)
	}
	seed := time.Now().UnixNano()
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	for range kills {
		cmd := process(batchArgs(dir, "killed.jsonl")...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300*time.Millisecond + time.Duration(rng.Int64N(int64(took/4))))
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}
	last := commandLine(batchArgs(dir, "killed.jsonl")...)
	var sum batch.Summary
	if err := json.Unmarshal([]byte(last.Out), &sum); last.Code != cli.ExitOK || err != nil ||
		sum.Before+sum.Done() != n {
		t.Fatalf("seed %d: exit %d, %v, %s%s", seed, last.Code, err, last.Out, last.Err)
	}
	if got := settledResults(t, filepath.Join(dir, "killed.jsonl")); got != want {
		t.Errorf("seed %d: killed\n%s\nundisturbed\n%s", seed, got, want)
	}
	t.Logf("%d lines, %d kills; the last run found %d answered", n, kills, sum.Before)
}

// Ensure that a second process on one journal is refused, and files that cannot be requests.
func TestBatchRefused(t *testing.T) {
	dir := requests(t, 3)
	cmd := process(batchArgs(dir, "out.jsonl")...)
	j, err := batch.OpenJournal(filepath.Join(dir, "out.jsonl.journal"),
		filepath.Join(dir, "out.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if r := clitest.Finish(t, cmd); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "another process uses it (--journal)") {
		t.Errorf("exit %d, %s", r.Code, r.Err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	in := filepath.Join(dir, "in.jsonl")
	for want, args := range map[string][]string{
		"--in: missing":        {"batch", "--out", "x"},
		"--out: missing":       {"batch", "--in", in},
		"which is --in":        {"batch", "--in", in, "--out", in},
		"which is no file":     {"batch", "--in", dir, "--out", filepath.Join(dir, "y")},
		"--parallel: out of":   batchArgs(dir, "y", "--parallel", "1000"),
		"--media-path: got":    batchArgs(dir, "y", "--media-path", in),
		"--n-vis: got -1":      batchArgs(dir, "y", "--n-vis", "-1"),
		"unknown flag: --what": batchArgs(dir, "y", "--what"),
	} {
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, %s, want %s", args, r.Code, r.Err, want)
		}
	}
	if r := commandLine(batchArgs(dir, "other.jsonl", "--in", filepath.Join(dir,
		"none"))...); r.Code != cli.ExitFailure {
		t.Errorf("no input: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that a strict run ends at a line that cannot be read, and says which.
func TestBatchStrict(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := commandLine(batchArgs(dir, "a", "--strict")...); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "line 1: custom_id: missing") {
		t.Errorf("exit %d, %s", r.Code, r.Err)
	}
	r := commandLine(batchArgs(dir, "b")...)
	var sum batch.Summary
	if err := json.Unmarshal([]byte(r.Out), &sum); r.Code != cli.ExitOK || err != nil ||
		sum.Unread["missing_required_parameter"] != 1 {
		t.Errorf("exit %d, %v, %s%s", r.Code, err, r.Out, r.Err)
	}
}

// Ensure that a run whose disk gets full ends with an error that says so, and that the same
// command continues when there is room, with the results of a run on a large disk.
func TestBatchFullDisk(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	dir, small := requests(t, 40), t.TempDir()
	if r := commandLine(batchArgs(dir, "whole")...); r.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	run := process(append(batchArgs(dir, "x"), "--out", filepath.Join(small, "out"))...)
	cmd := exec.Command("sh", append([]string{"-c", `cd "$1"
shift
dd if=/dev/zero of=ballast bs=1000 count=270 2>/dev/null
"$@"
echo "exit $?" >&2
rm ballast
"$@" >/dev/null && cat out`, "sh", small, run.Path}, run.Args[1:]...)...)
	cmd.Env = run.Env
	_ = smalldisk.New(t, cmd, small, 300_000)
	r := clitest.Finish(t, cmd)
	first, _, _ := strings.Cut(r.Err, "exit ")
	if !strings.Contains(r.Err, "exit 1\n") || !strings.Contains(first, "disk is full") &&
		!strings.Contains(first, "no space left on device") {
		t.Fatalf("on the full disk: %s", r.Err)
	}
	i := strings.Index(r.Out, `{"id":"batch_req_`)
	if r.Code != cli.ExitOK || i < 0 {
		t.Fatalf("with room again: exit %d, %s", r.Code, r.Err)
	}
	got := filepath.Join(dir, "got")
	if err := os.WriteFile(got, []byte(r.Out[i:]), 0o600); err != nil {
		t.Fatal(err)
	}
	want := settledResults(t, filepath.Join(dir, "whole"))
	if got := settledResults(t, got); got != want {
		t.Errorf("full disk:\n%s\nlarge disk:\n%s", got, want)
	}
}
