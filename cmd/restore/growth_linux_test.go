package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
)

// Sizes of TestGrowth: with 100,000 lines, pictures of 10 GB.
const (
	growthPicture = 100_000     // bytes of a picture
	growthFile    = 512_000_000 // bytes of a file at most, which is --max-file-mb's default
	// growthMost is how much larger the process may be after its first quarter than in it: what
	// the garbage collector leaves differs from file to file.
	growthMost = 64 << 20
	// growthLeast is the fewest lines: the caches and the lines that are read ahead fill before the
	// first quarter ends.
	growthLeast = 4000
)

// Ensure that the memory of a server does not grow with the number of lines, files and pictures
// that it answers by API. RESTORE_GROWTH is the number of lines, none without it.
func TestGrowth(t *testing.T) {
	v := os.Getenv("RESTORE_GROWTH")
	if v == "" {
		t.Skip("takes minutes: make growth")
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < growthLeast {
		t.Fatalf("RESTORE_GROWTH: got %q, want a number of lines, %d or more", v, growthLeast)
	}
	s := startServer(t, "--batch-dir", filepath.Join(t.TempDir(), "batches"), "--n-vis", "64",
		"--kv-mb", "64", "--cache-mb", "16") // limits that the first lines reach
	w := &growthWatch{t: t, s: s, total: n, begun: time.Now()}
	for w.sent < n {
		first := w.sent
		file := w.upload()
		w.answer(file, first)
	}
	if code := s.stop(syscall.SIGTERM); code != cli.ExitOK {
		t.Errorf("exit %d, log %s", code, s.log)
	}
	t.Logf("%d lines, %.1f GB of pictures, %d files of %.1f GB\n\n| lines | files | seconds | "+
		"memory now, MB | at most, MB |\n|---|---|---|---|---|\n%s", n,
		float64(n)*growthPicture/1e9, w.files, float64(w.bytes)/1e9, w.table.String())
	if w.early == 0 || w.peak > w.early+growthMost {
		t.Errorf("the process took %d MB at most, in its first quarter %d MB, want at most %d more",
			w.peak/1e6, w.early/1e6, growthMost/1_000_000)
	}
}

// growthWatch sends lines to a server and watches its memory.
type growthWatch struct {
	t     *testing.T
	s     *serving
	total int // lines
	begun time.Time
	table strings.Builder

	sent, files, done int
	bytes             int64 // sent
	early, peak       int64 // memory in bytes, of the first quarter and of all
	told              int
}

// upload sends a file of lines, which is never whole in this process.
func (w *growthWatch) upload() (file string) {
	f := w.s.upload(w.t, w.write)
	w.files++
	w.bytes += f.Bytes
	w.look()
	return f.ID
}

// write writes lines until they are all there or the file is full.
func (w *growthWatch) write(to io.Writer) error {
	out := bufio.NewWriterSize(to, 1<<20)
	size := 0
	for ; w.sent < w.total; w.sent++ {
		line := growthLine(w.t, w.sent)
		if size += len(line); size > growthFile {
			break
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}

// growthLine is a line with a picture of its own, of about growthPicture bytes that do not
// compress.
func growthLine(t *testing.T, i int) []byte {
	const wide = 192
	m := image.NewNRGBA(image.Rect(0, 0, wide, growthPicture/wide/3))
	r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	r.Read(m.Pix)
	for at := 3; at < len(m.Pix); at += 4 {
		m.Pix[at] = 255
	}
	var pic bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&pic, m); err != nil {
		t.Error(err)
	}
	return fmt.Appendf(nil, `{"custom_id":"q%d","method":"POST","url":"/v1/chat/completions",`+
		`"body":{"max_tokens":2,"messages":[{"role":"user","content":[{"type":"image_url",`+
		`"image_url":{"url":"data:;base64,%s"}},{"type":"text","text":"Describe the image."}]}]}}`+
		"\n", i, base64.StdEncoding.EncodeToString(pic.Bytes()))
}

// answer has a file's lines answered, counts the results and deletes both files. The file's first
// line has number "first".
func (w *growthWatch) answer(file string, first int) {
	b := w.s.begin(w.t, file)
	for b.CompletedAt == nil {
		time.Sleep(time.Second)
		w.s.call(w.t, "/v1/batches/"+b.ID, "", nil, &b)
		if b.FailedAt != nil {
			w.t.Fatalf("got %+v %+v, log %s", b, b.Errors, w.s.log)
		}
		w.done = first + b.RequestCounts.Completed
		w.look()
	}
	resp, err := http.Get(w.s.url + "/v1/files/" + *b.OutputFileID + "/content")
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	got := map[string]bool{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var r struct {
			ID       string `json:"custom_id"`
			Response struct {
				Status int `json:"status_code"`
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Response.Status != 200 ||
			got[r.ID] {
			w.t.Errorf("got %s, %v, want one answer", lines.Bytes(), err)
		}
		got[r.ID] = true
	}
	for i := first; i < w.sent; i++ {
		if !got["q"+strconv.Itoa(i)] {
			w.t.Errorf("line %d has no answer", i)
		}
	}
	for _, id := range []string{file, *b.OutputFileID} {
		q, err := http.NewRequest(http.MethodDelete, w.s.url+"/v1/files/"+id, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(q)
		if err != nil || resp.StatusCode != 200 {
			w.t.Fatalf("delete: %v, %v", resp, err)
		}
		resp.Body.Close()
	}
}

var growthNow = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// look reads how much memory the process has now.
func (w *growthWatch) look() {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.s.cmd.Process.Pid))
	m := growthNow.FindSubmatch(data)
	if err != nil || m == nil {
		w.t.Fatalf("the server's memory: got %s, %v, log %s", data, err, w.s.log)
	}
	kib, _ := strconv.ParseInt(string(m[1]), 10, 64) // digits
	w.peak = max(w.peak, kib<<10)
	if 4*w.done <= w.total {
		w.early = w.peak
	}
	if part := w.done * 20 / w.total; part > w.told || w.done == w.total {
		w.told = part
		row := fmt.Sprintf("| %d | %d | %.0f | %d | %d |", w.done, w.files,
			time.Since(w.begun).Seconds(), kib<<10/1_000_000, w.peak/1_000_000)
		w.t.Log(row)
		w.table.WriteString(row + "\n")
	}
}
