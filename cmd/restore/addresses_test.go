package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// shelf is a server of files, which loses its first connection for each method in the middle.
type shelf struct {
	mu    sync.Mutex
	files map[string][]byte
	cut   map[string]bool
	asked map[string]int
}

// ServeHTTP implements http.Handler.
func (s *shelf) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[q.Method]++
	first := !s.cut[q.Method]
	s.cut[q.Method] = true
	switch q.Method {
	case http.MethodPost:
		_, _ = io.WriteString(w, "<CompleteMultipartUploadResult/>")
		return
	case http.MethodPut:
		w.Header().Set("Etag", `"1"`)
		data, err := io.ReadAll(q.Body)
		if first {
			panic(http.ErrAbortHandler)
		}
		if err == nil {
			s.files[q.URL.Path] = data
		}
		return
	}
	data, ok := s.files[q.URL.Path]
	if !ok {
		http.NotFound(w, q)
		return
	}
	w.Header().Set("Etag", `"1"`)
	if first {
		_, _ = w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
}

// Ensure that a file of requests is answered by address as in place, that a run whose results
// could not be sent sends them later, and that it needs the requests' address only once.
func TestBatchAddresses(t *testing.T) {
	dir := requests(t, 4)
	if r := commandLine(batchArgs(dir, "out.jsonl")...); r.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	in, err := os.ReadFile(filepath.Join(dir, "in.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{files: map[string][]byte{"/in": in}, cut: map[string]bool{},
		asked: map[string]int{}}
	server := httptest.NewServer(s)
	defer server.Close()
	args := []string{"batch", "--in", server.URL + "/in?secret", "--out",
		server.URL + "/out?secret", "--media-path", dir}
	r := commandLine(args...)
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, "--journal") {
		t.Errorf("without a journal: exit %d: %s", r.Code, r.Err)
	}
	args = append(args, "--journal", filepath.Join(dir, "journal"))
	if r := commandLine(args...); r.Code != cli.ExitOK || strings.Contains(r.Err, "secret") {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	sent := filepath.Join(dir, "sent.jsonl")
	if err := os.WriteFile(sent, s.files["/out"], 0o600); err != nil {
		t.Fatal(err)
	}
	want := settledResults(t, filepath.Join(dir, "out.jsonl"))
	if got := settledResults(t, sent); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	gets := s.asked[http.MethodGet]
	if gets != 2 {
		t.Errorf("%d requests for a file with one cut connection, want 2", gets)
	}
	before := s.files["/out"]
	// The same results again, in parts.
	parts := func(first, last string) string {
		return "@" + clitest.Written(t, "parts.json", fmt.Sprintf(
			`{"parts": [%q], "complete": %q}`, server.URL+first, server.URL+last))
	}
	for out, want := range map[string]string{
		"@" + filepath.Join(dir, "none.json"):              "--out: ",
		"@" + clitest.Written(t, "parts.json", "{}"):       "got 0 addresses",
		parts("/part?uploadId=secret", "/out?uploadId=no"): "another uploadId",
	} {
		args[4] = out
		if r := commandLine(args...); r.Code == cli.ExitOK || !strings.Contains(r.Err, want) ||
			strings.Contains(r.Err, "secret") {
			t.Errorf("%s: exit %d: %s, want %q", out, r.Code, r.Err, want)
		}
	}
	delete(s.files, "/in")
	args[4] = parts("/part?secret", "/out?other")
	if r := commandLine(args...); r.Code != cli.ExitOK || !bytes.Equal(s.files["/part"], before) ||
		s.asked[http.MethodGet] != gets || s.asked[http.MethodPost] != 1 {
		t.Errorf("in parts: exit %d: %s", r.Code, r.Err)
	}
	args[2] = server.URL + "/other"
	if r := commandLine(args...); r.Code == cli.ExitOK || !strings.Contains(r.Err, "/other") {
		t.Errorf("a missing file: exit %d: %s", r.Code, r.Err)
	}
}
