package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/scene"
)

// Ensure that a worker answers probes, and that its log and the gateway's name a request alike.
func TestWorkerProbes(t *testing.T) {
	at := fmt.Sprintf("127.0.0.1:%d", fleettest.FreePort(t))
	url, logs, stop := tested.Fleet(t, 1, "--listen", at, "--log-format", "json")
	s := startServer(t, "--nats", url)
	q, err := http.NewRequest("POST", s.url+"/v1/chat/completions",
		strings.NewReader(`{"messages":[{"role":"user","content":"Hello"}],"max_tokens":3}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Request-Id", "asked-1")
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	for path, want := range map[string]string{
		"/health": "ok", "/ready": "ready",
		"/metrics": `restore_worker_requests_total{model="builtin",outcome="answered"} 1`,
	} {
		var code int
		var body []byte
		// A request is counted after its answer is written, so the counter may come later.
		for wait := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			resp, err := http.Get("http://" + at + path)
			if err != nil {
				t.Fatal(err)
			}
			code = resp.StatusCode
			body, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(body), want) || time.Now().After(wait) {
				break
			}
		}
		if code != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %d %s, want %s", path, code, body, want)
		}
	}
	s.stop(syscall.SIGTERM)
	stop()
	if log := logs[0].String(); !strings.Contains(log, `"id":"asked-1","outcome":"answered"`) {
		t.Errorf("the worker's log: %s", log)
	}
	if log := s.log.String(); !strings.Contains(log, "id=asked-1") ||
		!strings.Contains(log, " worker=") {
		t.Errorf("the gateway's log: %s", log)
	}
	if _, err := http.Get("http://" + at + "/health"); err == nil {
		t.Error("a worker that has ended answers")
	}
}

// Ensure that a worker's flags are checked before anything is opened.
func TestWorkerFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--listen=nowhere": "--listen", "--log-format=xml": "--log-format",
		"--drain-timeout=-1s": "--drain-timeout",
	} {
		r := commandLine("worker", "--nats", "nats://127.0.0.1:1", flag)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%s: exit %d, %s", flag, r.Code, r.Err)
		}
	}
}

// severalEach writes n pictures and a file with questions about each, those about one picture far
// apart.
func severalEach(t *testing.T, n, questions int) (dir string) {
	t.Helper()
	files := map[string]string{}
	var lines strings.Builder
	for q := range questions {
		for i := range n {
			name := fmt.Sprintf("%d.png", i)
			if q == 0 {
				files[name] = string(scene.New(int64(i)).PNG())
			}
			body := map[string]any{"max_tokens": 4, "messages": []any{map[string]any{
				"role": "user", "content": []any{
					map[string]any{"type": "image_url",
						"image_url": map[string]string{"url": "file://" + name}},
					map[string]string{"type": "text",
						"text": fmt.Sprintf("%d: what is the colour of the large square?", q)},
				}}}}
			line, err := json.Marshal(map[string]any{"custom_id": fmt.Sprintf("%d-%d", i, q),
				"url": "/v1/chat/completions", "body": body})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(line, '\n'))
		}
	}
	files["in.jsonl"] = lines.String()
	return inFolder(t, files)
}

// Ensure that workers that share reduced pictures encode each once, and answer as those that do
// not. RESTORE_CHAOS sets the number of pictures.
func TestFeatureStore(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	const workers, questions = 4, 8
	n := chaosSize(t, 6)
	dir := severalEach(t, n, questions)
	var want string
	for _, store := range []string{"off", "nats"} {
		url, _, stop := tested.Fleet(t, workers, "--feature-store", store)
		out, start := store+".jsonl", time.Now()
		if r := commandLine(batchArgs(dir, out, "--nats", url)...); r.Code != cli.ExitOK {
			t.Fatalf("exit %d: %s", r.Code, r.Err)
		}
		took := time.Since(start)
		stop()
		data, err := os.ReadFile(filepath.Join(dir, out))
		if err != nil {
			t.Fatal(err)
		}
		encoded := bytes.Count(data, []byte(`"cache":"none"`))
		t.Logf("%s: %.2f encodes a picture, %.0f answers a minute", store,
			float64(encoded)/float64(n), float64(n*questions)/took.Minutes())
		got := settledResults(t, filepath.Join(dir, out))
		if store == "off" {
			want = got
			continue
		}
		if got != want {
			t.Errorf("with shared pictures:\n%s\nwithout:\n%s", got, want)
		}
		if encoded > n+n/20 {
			t.Errorf("%d pictures were encoded %d times", n, encoded)
		}
	}
}
