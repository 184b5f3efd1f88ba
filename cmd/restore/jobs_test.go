package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/jobs"
)

// call sends a request to the server and decodes the reply; body nil is a GET.
func (s *serving) call(t *testing.T, path, kind string, body []byte, to any) {
	t.Helper()
	var resp *http.Response
	var err error
	if body == nil {
		resp, err = http.Get(s.url + path)
	} else {
		resp, err = http.Post(s.url+path, kind, bytes.NewReader(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == 200 {
		if raw, ok := to.(*[]byte); ok {
			*raw = data
			return
		}
		err = json.Unmarshal(data, to)
	}
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: got %d %s, %v", path, resp.StatusCode, data, err)
	}
}

// upload sends a file of lines, which write writes as they are sent.
func (s *serving) upload(t *testing.T, write func(to io.Writer) error) (f jobs.File) {
	t.Helper()
	from, to := io.Pipe()
	form := multipart.NewWriter(to)
	go func() {
		err := form.WriteField("purpose", jobs.Input)
		if err == nil {
			var part io.Writer
			if part, err = form.CreateFormFile("file", "in.jsonl"); err == nil {
				err = write(part)
			}
		}
		if err == nil {
			err = form.Close()
		}
		to.CloseWithError(err)
	}()
	resp, err := http.Post(s.url+"/v1/files", form.FormDataContentType(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&f)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("got %d, %v", resp.StatusCode, err)
	}
	return f
}

// begin begins a batch of an uploaded file.
func (s *serving) begin(t *testing.T, file string) (b jobs.Batch) {
	t.Helper()
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions",`+
		`"completion_window":"24h"}`, file)
	s.call(t, "/v1/batches", "application/json", []byte(body), &b)
	return b
}

// sorted are the lines of a text in order.
func sorted(text string) string {
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Ensure that a batch by API has the answers of `restore batch`, however often its server is
// killed, with a model in its process and with workers.
func TestBatchByAPI(t *testing.T) {
	n, kills := chaosSize(t, 20), 2
	if n > 20 {
		kills = 4
	}
	dir := requests(t, n)
	in, err := os.ReadFile(filepath.Join(dir, "in.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var good []byte // a line that is no request fails the batch
	for line := range bytes.Lines(in) {
		if json.Valid(line) {
			good = append(good, line...)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "in.jsonl"), good, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if r := commandLine(batchArgs(dir, "whole.jsonl")...); r.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	took := time.Since(begun)
	want := sorted(settledResults(t, filepath.Join(dir, "whole.jsonl")))
	url, _, stop := tested.Fleet(t, 2)
	defer stop()
	for name, more := range map[string][]string{
		"model": nil, "embedded": {"--nats", "embedded:0"}, "workers": {"--nats", url},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", ownCache(t))
			t.Setenv("TMPDIR", t.TempDir()) // a killed process leaves its streams there
			flags := append([]string{"--media-path", dir,
				"--batch-dir", filepath.Join(dir, name)}, more...)
			var id string
			var b jobs.Batch
			for i := range kills + 1 {
				s := startServer(t, flags...)
				if id == "" {
					f := s.upload(t, func(to io.Writer) error {
						_, err := to.Write(good)
						return err
					})
					id = s.begin(t, f.ID).ID
				}
				if i < kills {
					time.Sleep(time.Duration(rand.Int64N(int64(took / 3))))
					s.stop(syscall.SIGKILL)
					continue
				}
				for end := time.Now().Add(time.Minute); b.CompletedAt == nil; {
					s.call(t, "/v1/batches/"+id, "", nil, &b)
					if b.FailedAt != nil || time.Now().After(end) {
						t.Fatalf("got %+v %+v, log %s", b, b.Errors, s.log)
					}
					time.Sleep(10 * time.Millisecond)
				}
				var all []byte
				for _, file := range []*string{b.OutputFileID, b.ErrorFileID} {
					var part []byte
					s.call(t, "/v1/files/"+*file+"/content", "", nil, &part)
					all = append(all, part...)
				}
				out := filepath.Join(dir, name+".jsonl")
				if err := os.WriteFile(out, all, 0o600); err != nil {
					t.Fatal(err)
				}
				if got := sorted(settledResults(t, out)); got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
				s.stop(syscall.SIGTERM)
			}
			if lines := bytes.Count(good, []byte("\n")); b.RequestCounts.Total != lines ||
				b.RequestCounts.Completed+b.RequestCounts.Failed != lines {
				t.Errorf("got %+v, want %d lines", b.RequestCounts, lines)
			}
		})
	}
}

// Ensure that a server with workers in its own process does not finish the lines of a batch when it
// ends: the next start continues.
func TestBatchAtTheEnd(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	s := startServer(t, "--nats", "embedded:0", "--batch-dir", t.TempDir(), "--threads", "1",
		"--parallel", "16")
	b := s.begin(t, s.upload(t, func(to io.Writer) error {
		for i := range 16 {
			if _, err := fmt.Fprintf(to, `{"custom_id":"%d","method":"POST",`+
				`"url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"?"}],`+
				`"max_tokens":4000,"ignore_eos":true}}`+"\n", i); err != nil {
				return err
			}
		}
		return nil
	}).ID)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var metrics []byte
		s.call(t, "/metrics", "", nil, &metrics)
		if strings.Contains(string(metrics), "restore_running{model=\"builtin\"} 1") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the lines of batch %s do not begin: %s", b.ID, metrics)
		}
	}
	begun := time.Now()
	if code := s.stop(syscall.SIGTERM); code != cli.ExitOK {
		t.Errorf("exit %d, %s", code, s.log)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the server took %v to end", took)
	}
}
