package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/restore-vlm/restore/internal/jobs"
)

// withJobs gives a server a store of small files.
func withJobs(t *testing.T, o *Options) {
	o.Jobs = jobs.New(jobs.Options{Folder: filepath.Join(t.TempDir(), "jobs"), MaxFile: 80_000,
		MaxLine: 1000, Keep: 24 * time.Hour, Endpoints: []string{"/v1/chat/completions"}})
	t.Cleanup(func() {
		if err := o.Jobs.Close(); err != nil {
			t.Error(err)
		}
	})
}

// formOf is a form with fields "NAME=VALUE"; the field file is a file.
func formOf(t *testing.T, fields ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		create := w.CreateFormField
		if name == "file" {
			create = func(name string) (io.Writer, error) {
				return w.CreateFormFile(name, "in.jsonl")
			}
		}
		to, err := create(name)
		if err == nil {
			_, err = io.WriteString(to, value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), "Content-Type: " + w.FormDataContentType()
}

// idOf is the id in a reply.
func idOf(t *testing.T, body string) string {
	t.Helper()
	var v struct{ ID string }
	if err := json.Unmarshal([]byte(body), &v); err != nil || v.ID == "" {
		t.Fatalf("got %s, %v", body, err)
	}
	return v.ID
}

// Ensure that uploads are refused with the field at fault.
func TestUploads(t *testing.T) {
	r := serve(t, newFake(), func(o *Options) { withJobs(t, o) })
	for _, c := range []struct {
		fields []string
		status int
		code   string
	}{
		{[]string{"file=a", "purpose=batch"}, 200, ""},
		{[]string{"purpose=batch", "file="}, 200, ""},
		{[]string{"purpose=batch", "file=" + strings.Repeat("x", 80_000)}, 200, ""},
		{[]string{"file=a", "purpose=batch", "expires_after[anchor]=created_at",
			"expires_after[seconds]=3600"}, 200, ""},
		{[]string{"purpose=batch"}, 400, "missing_required_parameter"},
		{[]string{"file=a"}, 400, "missing_required_parameter"},
		{[]string{"file=a", "purpose=fine-tune"}, 400, "invalid_value"},
		{[]string{"file=a", "file=b", "purpose=batch"}, 400, "invalid_value"},
		{[]string{"file=a", "purpose=batch", "more=1"}, 400, "unknown_parameter"},
		{[]string{"file=a", "purpose=" + strings.Repeat("x", 2000)}, 400, "invalid_value"},
		{[]string{"file=a", "purpose=batch", "expires_after[seconds]=3600"}, 400, "invalid_value"},
		{[]string{"file=a", "purpose=batch", "expires_after[anchor]=created_at",
			"expires_after[seconds]=1"}, 400, "invalid_value"},
		{[]string{"purpose=batch", "file=" + strings.Repeat("x", 80_001)}, 413, "request_too_large"},
		{[]string{"purpose=batch", "file=" + strings.Repeat("x", 1<<20)}, 413, "request_too_large"},
	} {
		body, kind := formOf(t, c.fields...)
		status, _, reply := r.do(t, "POST", "/v1/files", body, kind)
		if status != c.status || code(reply) != c.code {
			t.Errorf("%.80q: got %d %s, want %d %s", c.fields, status, reply, c.status, c.code)
		}
	}
	for _, c := range []struct {
		kind, body string
		status     int
	}{
		{"Content-Type: application/json", `{}`, 415},
		{"", "", 415},
		{"Content-Type: multipart/form-data; boundary=x", "--x\r\n\r\nabc", 400},
		{"Content-Type: multipart/form-data; boundary=x", "--x--", 400},
		{"Content-Type: multipart/form-data; boundary=x", "--x\r\nContent-Disposition: " +
			`form-data; name="file"; filename="` + strings.Repeat("x", 2000) + "\"\r\n\r\na\r\n--x--", 400},
	} {
		if status, _, reply := r.do(t, "POST", "/v1/files", c.body, c.kind); status != c.status {
			t.Errorf("%s %q: got %d %s, want %d", c.kind, c.body, status, reply, c.status)
		}
	}
	_, _, list := r.do(t, "GET", "/v1/files", "")
	if n := strings.Count(list, `"object":"file"`); n != 4 {
		t.Errorf("got %d files, want the 4 that were accepted: %s", n, list)
	}
}

// Ensure that a key sees its own files and batches only, and that each route checks its input.
func TestFilesOfKeys(t *testing.T) {
	r := serve(t, newFake(), func(o *Options) { withJobs(t, o); o.Keys = []string{"a", "b"} })
	const a, b = "Authorization: Bearer a", "Authorization: Bearer b"
	body, kind := formOf(t, "purpose=batch",
		`file={"custom_id":"1","url":"/v1/chat/completions","body":{}}`)
	if status, _, reply := r.do(t, "POST", "/v1/files", body, kind); status != 401 {
		t.Errorf("without a key: got %d %s", status, reply)
	}
	_, _, reply := r.do(t, "POST", "/v1/files", body, kind, a)
	file := idOf(t, reply)
	begin := func(key, file, more string) (int, string) {
		status, _, reply := r.do(t, "POST", "/v1/batches", fmt.Sprintf(
			`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"%s}`,
			file, more), key)
		return status, reply
	}
	// as long as it may be
	_, reply = begin(a, file, fmt.Sprintf(`,"metadata":{%q:%q}`, strings.Repeat("é", 64),
		strings.Repeat("日", 512)))
	job := idOf(t, reply)
	for _, c := range []struct {
		method, path string
		mine, yours  int
	}{
		{"GET", "/v1/files/" + file, 200, 404},
		{"HEAD", "/v1/files/" + file, 200, 404},
		{"GET", "/v1/files/" + file + "/content", 200, 404},
		{"GET", "/v1/batches/" + job, 200, 404},
		{"POST", "/v1/batches/" + job + "/cancel", 200, 404},
		{"DELETE", "/v1/files/" + file, 200, 404},
		{"PUT", "/v1/files/" + file, 405, 405},
		{"GET", "/v1/files/x/y", 404, 404},
		{"GET", "/v1/files/../files", 404, 404},
		{"GET", "/v1/files/{id}", 404, 404},
		{"GET", "/v1/files?limit=0", 400, 400},
		{"GET", "/v1/files?order=up", 400, 400},
		{"GET", "/v1/files?after=file-x", 400, 400},
		{"GET", "/v1/batches?limit=101", 400, 400},
	} {
		if status, _, reply := r.do(t, c.method, c.path, "", b); status != c.yours {
			t.Errorf("b: %s %s: got %d %s, want %d", c.method, c.path, status, reply, c.yours)
		}
		if status, _, reply := r.do(t, c.method, c.path, "", a); status != c.mine {
			t.Errorf("a: %s %s: got %d %s, want %d", c.method, c.path, status, reply, c.mine)
		}
	}
	if status, reply := begin(b, file, ""); status != 404 {
		t.Errorf("a batch of b: got %d %s", status, reply)
	}
	_, _, reply = r.do(t, "GET", "/v1/batches", "", b)
	if strings.Contains(reply, job) {
		t.Errorf("b sees %s", reply)
	}
	_, _, reply = r.do(t, "POST", "/v1/files", body, kind, a)
	file = idOf(t, reply)
	for more, want := range map[string]string{
		`,"metadata":{"x":1}`: "invalid_type",
		`,"more":1`:           "unknown_parameter",
		`,"metadata":{"` + strings.Repeat("x", 65) + `":"y"}`:   "invalid_value",
		`,"metadata":{"x":"` + strings.Repeat("日", 513) + `"}`:  "invalid_value",
		`,"output_expires_after":{"anchor":"x","seconds":3600}`: "invalid_value",
		`,"output_expires_after":{"anchor":"created_at"}`:       "missing_required_parameter",
		`,"output_expires_after":{"anchor":"created_at","seconds":3600,"minutes":9}`: "unknown_" +
			"parameter",
		`,"endpoint":"/v1/embeddings"`: "",
	} {
		status, reply := begin(a, file, more)
		if status != 400 || want != "" && code(reply) != want {
			t.Errorf("%s: got %d %s, want 400 %s", more, status, reply, want)
		}
	}
}

// Ensure that ranges of a file are answered, and those that it does not have are refused with an
// error that OpenAI's clients read.
func TestContentRanges(t *testing.T) {
	r := serve(t, newFake(), func(o *Options) { withJobs(t, o) })
	body, kind := formOf(t, "purpose=batch", "file=0123456789")
	_, _, reply := r.do(t, "POST", "/v1/files", body, kind)
	path := "/v1/files/" + idOf(t, reply) + "/content"
	for _, c := range []struct {
		asked  string
		status int
		want   string
	}{
		{"", 200, "0123456789"}, {"Range: bytes=2-4", 206, "234"}, {"Range: bytes=-2", 206, "89"},
	} {
		status, _, got := r.do(t, "GET", path, "", c.asked)
		if status != c.status || got != c.want {
			t.Errorf("%s: got %d %q, want %d %q", c.asked, status, got, c.status, c.want)
		}
	}
	for asked, of := range map[string]string{"bytes=10-": "bytes */10", "lines=1-2": ""} {
		status, h, got := r.do(t, "GET", path, "", "Range: "+asked)
		want := `{"error":{"message":"Range: got \"` + asked + `\", want a part of the file's 10 ` +
			`bytes","type":"invalid_request_error","param":null,"code":"invalid_range"}}`
		if status != http.StatusRequestedRangeNotSatisfiable || got != want ||
			h.Get("Content-Type") != "application/json" || h.Get("Content-Range") != of {
			t.Errorf("%s: got %d %v %s, want %s", asked, status, h, got, want)
		}
	}
}

// Ensure that an upload may take longer than the time for other bodies, unless it stops or comes
// too slowly.
func TestSlowUpload(t *testing.T) {
	for _, c := range []struct {
		part  int // bytes
		every time.Duration
		want  int
	}{
		{1000, 240 * time.Millisecond, http.StatusOK},
		{1000, 1240 * time.Millisecond, http.StatusRequestTimeout},
		{400, 240 * time.Millisecond, http.StatusRequestTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := servePipes(t, func(o *Options) {
				withJobs(t, o)
				o.ReadTimeout = 3 * time.Second // a sixth: 1024 bytes in 500 ms
			})
			body, kind := formOf(t, "purpose=batch", "file="+strings.Repeat("x", 80_000))
			in, out := io.Pipe()
			var sender sync.WaitGroup
			defer sender.Wait()
			defer in.Close()
			sender.Go(func() {
				defer out.Close()
				for len(body) > 0 {
					n, err := io.WriteString(out, body[:min(len(body), c.part)])
					if err != nil {
						return // the request has ended
					}
					body = body[n:]
					time.Sleep(c.every)
				}
			})
			status, reply := p.post(t, "/v1/files", strings.TrimPrefix(kind, "Content-Type: "), in)
			if status != c.want {
				t.Errorf("%d bytes every %v: got %d %s, want %d",
					c.part, c.every, status, reply, c.want)
			}
		})
	}
}
