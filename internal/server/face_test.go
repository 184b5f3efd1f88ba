package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
)

// Ensure that a worker's probes follow its life, and that its metrics count requests.
func TestFace(t *testing.T) {
	f := NewFace("v1", "go", nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	get := func(method, path string, status int, want ...string) {
		t.Helper()
		q, err := http.NewRequest(method, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status {
			t.Errorf("%s %s: got %d %s, %v, want %d", method, path, resp.StatusCode, body, err,
				status)
		}
		for _, w := range want {
			if !strings.Contains(string(body), w) {
				t.Errorf("%s: got %s, want %s", path, body, w)
			}
		}
	}
	get("GET", "/health", 200, `"ok"`)
	get("GET", "/ready", 503, "loading")
	get("GET", "/metrics", 503)
	get("GET", "/", 404, "/ready")
	get("POST", "/health", 405)
	var why error
	f.Done("answered", nil) // before it is ready: not counted
	f.Ready(Worker{Model: "m", Stats: func() restore.Stats { return restore.Stats{Running: 3} },
		Busy: func() int { return 2 }, Ready: func() error { return why },
		Outcomes: []string{"answered", "refused", "found"}})
	f.Done("answered", &restore.Answer{Usage: restore.Usage{Generated: 7}})
	f.Done("refused", nil)
	get("GET", "/ready", 200, "ready")
	get("HEAD", "/ready", 200)
	get("GET", "/metrics", 200, `restore_worker_busy{model="m"} 2`,
		`restore_worker_requests_total{model="m",outcome="answered"} 1`,
		`restore_worker_requests_total{model="m",outcome="refused"} 1`,
		`restore_worker_requests_total{model="m",outcome="found"} 0`,
		`restore_completion_tokens_total{model="m"} 7`, `restore_running{model="m"} 3`,
		`restore_build_info{`)
	why = errors.New("the worker ends")
	get("GET", "/ready", 503, "the worker ends")
	get("GET", "/health", 200)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
