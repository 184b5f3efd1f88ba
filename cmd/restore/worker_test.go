package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that a worker answers probes, and that its log and the gateway's name a request alike.
func TestWorkerProbes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
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
		resp, err := http.Get("http://" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: got %d %s, %v, want %s", path, resp.StatusCode, body, err, want)
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
