package jobs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/wire"
)

const endpoint = "/v1/chat/completions"

func newStore(t *testing.T, dir string) *Store {
	t.Helper()
	s := New(Options{Folder: dir, MaxFile: 1 << 20, MaxLine: 1 << 10, Keep: 24 * time.Hour,
		Endpoints: []string{endpoint}})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// uploaded stores a file of an owner and returns its id.
func uploaded(t *testing.T, s *Store, owner, content string) string {
	t.Helper()
	u, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer u.Discard()
	if _, err := io.Copy(u, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	f, err := u.Commit(owner, "in.jsonl", Input, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f.ID
}

// requests are n lines; every fifth is refused by echo.
func requests(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"r%d","method":"POST","url":%q,"body":{"n":%d}}`+"\n", i,
			endpoint, i)
	}
	return b.String()
}

// echo answers lines with their bodies, and counts how often each was asked.
type echo struct {
	mu    sync.Mutex
	asked map[string]int
	hold  chan struct{} // nil: none; each answer takes one
}

func (e *echo) Do(ctx context.Context, q *batch.Request) (*batch.Response, error) {
	if e.hold != nil {
		select {
		case <-e.hold:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.asked == nil {
		e.asked = map[string]int{}
	}
	e.asked[q.CustomID]++
	status := http.StatusOK
	if q.Line%5 == 4 {
		status = http.StatusBadRequest
	}
	return &batch.Response{Status: status, RequestID: "r", Body: q.Body}, nil
}

func (e *echo) prepare(context.Context, string, string) (*Answering, error) {
	return &Answering{Backend: e, Parallel: 4, Settings: batch.Settings{"model": "a"},
		Close: func(bool) error { return nil }}, nil
}

// running runs a store until the end of the test, or until end is called.
func running(t *testing.T, s *Store, p Prepare) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx, p); close(done) }()
	end = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(end)
	return end
}

func created(t *testing.T, s *Store, owner, file string) string {
	t.Helper()
	b, err := s.CreateBatch(owner, &NewBatch{InputFileID: file, Endpoint: endpoint, Window: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	return b.ID
}

// until waits until a batch satisfies a condition.
func until(t *testing.T, s *Store, id string, is func(*Batch) bool) *Batch {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		b, err := s.Batch("", id)
		if err != nil {
			t.Fatal(err)
		}
		if is(b) {
			return b
		}
		if time.Now().After(end) {
			t.Fatalf("after 20 s: %+v", b)
		}
	}
}

func ended(b *Batch) bool { return b.Status.final() }

// results reads the custom_ids and codes of errors of a file; nil is none.
func results(t *testing.T, s *Store, id *string) map[string]string {
	t.Helper()
	out := map[string]string{}
	if id == nil {
		return out
	}
	in, _, err := s.Content("", *id)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var r batch.Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if _, twice := out[*r.CustomID]; twice {
			t.Errorf("%s has two results", *r.CustomID)
		}
		out[*r.CustomID] = ""
		if r.Error != nil {
			out[*r.CustomID] = r.Error.Code
		}
	}
	return out
}

func codeOf(err error) string {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

// Ensure that a batch ends with a file of answers and one of errors.
func TestCompleted(t *testing.T) {
	s, e := newStore(t, t.TempDir()), new(echo)
	id := created(t, s, "", uploaded(t, s, "", requests(23)))
	running(t, s, e.prepare)
	b := until(t, s, id, ended)
	if want := (Counts{23, 19, 4}); b.Status != Completed || b.RequestCounts != want ||
		b.CompletedAt == nil || b.InProgressAt == nil || b.FinalizingAt == nil {
		t.Errorf("got %+v, want it completed with %+v", b, want)
	}
	good, bad := results(t, s, b.OutputFileID), results(t, s, b.ErrorFileID)
	if len(good) != 19 || len(bad) != 4 {
		t.Errorf("got %d answers and %d errors, want 19 and 4", len(good), len(bad))
	}
	for i := range 23 {
		_, found := good[fmt.Sprint("r", i)]
		if refused := i%5 == 4; found == refused {
			t.Errorf("line %d: answered %t, want %t", i, found, !refused)
		}
	}
	f, err := s.File("", *b.OutputFileID)
	if err != nil || f.Purpose != Output || f.Filename != id+"_output.jsonl" {
		t.Errorf("got %+v, %v", f, err)
	}
	if left, _ := os.ReadDir(s.batchFolder(id)); len(left) != 1 {
		t.Errorf("got %v in its folder, want its state alone", left)
	}
}

// Ensure that lines are checked as a whole before any is asked.
func TestValidation(t *testing.T) {
	line := func(id, url, more string) string {
		return fmt.Sprintf(`{"custom_id":%q,"url":%q,"body":{}%s}`, id, url, more)
	}
	good := line("a", endpoint, "")
	for _, c := range []struct {
		name, input string
		code        string
		line        int // 0: none
	}{
		{"empty", "", "empty_file", 0},
		{"blank", "\n \n", "empty_file", 0},
		{"no JSON", good + "\n{\n", "invalid_json", 2},
		{"no object", "[1]\n", "invalid_type", 1},
		{"no id", `{"url":"` + endpoint + `","body":{}}`, "missing_required_parameter", 1},
		{"same id", good + "\n\n" + line("b", endpoint, "") + "\n" + good,
			"duplicate_custom_id", 4},
		{"other url", good + "\n" + line("b", "/v1/completions", ""), "mismatched_endpoint", 2},
		{"GET", line("a", endpoint, `,"method":"GET"`), "invalid_method", 1},
		{"long", line("a", endpoint, `,"x":"`+strings.Repeat("x", 2000)+`"`),
			"request_too_large", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, e := newStore(t, t.TempDir()), new(echo)
			id := created(t, s, "", uploaded(t, s, "", c.input))
			running(t, s, e.prepare)
			b := until(t, s, id, ended)
			if b.Status != Failed || b.FailedAt == nil || b.Errors == nil ||
				len(b.Errors.Data) != 1 {
				t.Fatalf("got %+v", b)
			}
			f := b.Errors.Data[0]
			if f.Code != c.code || (f.Line == nil) != (c.line == 0) ||
				f.Line != nil && *f.Line != c.line {
				t.Errorf("got %+v, want %s at line %d", f, c.code, c.line)
			}
			if len(e.asked) > 0 {
				t.Errorf("got %v asked, want none", e.asked)
			}
		})
	}
}

// Ensure that a store that ends at any moment continues, and asks no line twice.
func TestContinued(t *testing.T) {
	dir := t.TempDir()
	e := &echo{hold: make(chan struct{})}
	const n = 40
	var id string
	for stop := range 6 {
		s := New(Options{Folder: dir, MaxFile: 1 << 20, MaxLine: 1 << 10, Keep: time.Hour,
			Endpoints: []string{endpoint}})
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		if id == "" {
			id = created(t, s, "", uploaded(t, s, "", requests(n)))
		}
		end := running(t, s, e.prepare)
		if stop == 5 {
			close(e.hold)
			b := until(t, s, id, ended)
			all := len(results(t, s, b.OutputFileID)) + len(results(t, s, b.ErrorFileID))
			if all != n || b.Status != Completed || b.RequestCounts != (Counts{n, 32, 8}) {
				t.Errorf("got %d results, %+v", all, b)
			}
		} else {
			for range 5 {
				e.hold <- struct{}{}
			}
		}
		end()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for id, times := range e.asked {
		if times != 1 {
			t.Errorf("%s was asked %d times", id, times)
		}
	}
}

// Ensure that a cancelled batch keeps the answers so far, and that one that waits ends at once.
func TestCancelled(t *testing.T) {
	s, e := newStore(t, t.TempDir()), &echo{hold: make(chan struct{})}
	file := uploaded(t, s, "", requests(40))
	first, second := created(t, s, "", file), created(t, s, "", file)
	running(t, s, e.prepare)
	for range 7 {
		e.hold <- struct{}{}
	}
	until(t, s, second, func(b *Batch) bool { return b.Status == InProgress })
	if b, err := s.CancelBatch("", second); err != nil || b.Status != Cancelled {
		t.Errorf("got %+v, %v, want it cancelled", b, err)
	}
	if err := s.DeleteFile("", file); codeOf(err) != "file_in_use" {
		t.Errorf("got %v, want file_in_use", err)
	}
	until(t, s, first, func(b *Batch) bool { return b.RequestCounts.Completed >= 5 })
	if b, err := s.CancelBatch("", first); err != nil || b.Status != Cancelling {
		t.Errorf("got %+v, %v, want it cancelling", b, err)
	}
	b := until(t, s, first, ended)
	good, bad := results(t, s, b.OutputFileID), results(t, s, b.ErrorFileID)
	if b.Status != Cancelled || b.CancelledAt == nil || len(good) != b.RequestCounts.Completed ||
		len(bad) != b.RequestCounts.Failed || len(good)+len(bad) != 7 {
		t.Errorf("got %+v with %d and %d results, want 7", b, len(good), len(bad))
	}
	if _, err := s.CancelBatch("", first); codeOf(err) != "batch_ended" {
		t.Errorf("got %v, want batch_ended", err)
	}
	if err := s.DeleteFile("", file); err != nil {
		t.Error(err)
	}
}

// Ensure that the lines of an expired batch that have no answer have an error.
func TestExpired(t *testing.T) {
	s, e := newStore(t, t.TempDir()), &echo{hold: make(chan struct{})}
	id := created(t, s, "", uploaded(t, s, "", requests(20)))
	s.mu.Lock()
	s.batches[id].ExpiresAt = time.Now().Unix() + 2
	s.mu.Unlock()
	running(t, s, e.prepare)
	for range 6 {
		e.hold <- struct{}{}
	}
	b := until(t, s, id, ended)
	bad := results(t, s, b.ErrorFileID)
	late := 0
	for _, code := range bad {
		if code == "batch_expired" {
			late++
		}
	}
	if good := results(t, s, b.OutputFileID); b.Status != Expired || len(good)+len(bad) != 20 ||
		late != 14 || b.RequestCounts != (Counts{20, len(good), len(bad)}) {
		t.Errorf("got %+v, %d answers, %d errors, %d late", b, len(good), len(bad), late)
	}
}

// Ensure that a batch whose window ends while it waits for another expires then.
func TestExpiredWhileItWaits(t *testing.T) {
	s, e := newStore(t, t.TempDir()), &echo{hold: make(chan struct{})}
	first := created(t, s, "", uploaded(t, s, "", requests(20)))
	second := created(t, s, "", uploaded(t, s, "", requests(3)))
	s.mu.Lock()
	s.batches[second].ExpiresAt = time.Now().Unix() + 2
	s.mu.Unlock()
	running(t, s, e.prepare)
	e.hold <- struct{}{}
	b := until(t, s, second, ended)
	if bad := results(t, s, b.ErrorFileID); b.Status != Expired || len(bad) != 3 ||
		b.RequestCounts != (Counts{3, 0, 3}) {
		t.Errorf("got %+v and the errors %v", b, bad)
	}
	if b, err := s.Batch("", first); err != nil || b.Status != InProgress {
		t.Errorf("the batch before it: got %+v, %v", b, err)
	}
	for range 19 {
		e.hold <- struct{}{}
	}
	if b := until(t, s, first, ended); b.Status != Completed {
		t.Errorf("the batch before it ended as %+v", b)
	}
}

// Ensure that a server with other settings fails the batch and keeps its answers. The log says
// which settings; the client reads neither them nor paths.
func TestSettingsChanged(t *testing.T) {
	dir, e := t.TempDir(), &echo{hold: make(chan struct{})}
	s := newStore(t, dir)
	id := created(t, s, "", uploaded(t, s, "", requests(20)))
	end := running(t, s, e.prepare)
	for range 6 {
		e.hold <- struct{}{}
	}
	end()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, dir)
	var log bytes.Buffer
	s.o.Log = slog.New(slog.NewJSONHandler(&log, nil))
	end = running(t, s, func(ctx context.Context, owner, journal string) (*Answering, error) {
		a, err := e.prepare(ctx, owner, journal)
		a.Settings["model"] = "b"
		return a, err
	})
	b := until(t, s, id, ended)
	end()
	if b.Status != Failed || b.Errors.Data[0].Code != "server_changed" ||
		strings.Contains(b.Errors.Data[0].Message, dir) ||
		strings.Contains(b.Errors.Data[0].Message, "model") ||
		!strings.Contains(log.String(), `model was \"a\", now \"b\"`) ||
		len(results(t, s, b.OutputFileID)) == 0 {
		t.Errorf("got %+v %+v, log %s", b, b.Errors, &log)
	}
}

// Ensure that a kill while the files of a batch are written writes them again.
func TestFinalizedAgain(t *testing.T) {
	dir, e := t.TempDir(), new(echo)
	s := newStore(t, dir)
	id := created(t, s, "", uploaded(t, s, "", requests(10)))
	b := s.batches[id]
	if err := s.validate(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := s.advance(t.Context(), b, e.prepare); err != nil || b.Status != Finalizing {
		t.Fatal(b.Status, err)
	}
	b.Output, b.Error = "file-AAAAAAAAAAAA", "file-BBBBBBBBBBBB"
	if err := s.save(b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.divide(b); err != nil { // and then it is killed
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, dir)
	running(t, s, e.prepare)
	got := until(t, s, id, ended)
	list, _, err := s.Files("", Output, Page{Limit: 10})
	if got.Status != Completed || err != nil || len(list) != 2 ||
		*got.OutputFileID != "file-AAAAAAAAAAAA" || len(results(t, s, got.OutputFileID)) != 8 {
		t.Errorf("got %+v, %+v, %v", got, list, err)
	}
}

// Ensure that owners see what is their own, that lists have pages, and that a store is there again
// after its end.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, dir)
	var ids []string
	for range 5 {
		ids = append(ids, uploaded(t, s, "a", "x"))
	}
	other := uploaded(t, s, "b", "other")
	slices.Reverse(ids) // the newest first
	check := func() {
		t.Helper()
		var got []string
		p := Page{Limit: 2}
		for {
			list, more, err := s.Files("a", "", p)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range list {
				got = append(got, f.ID)
			}
			if !more {
				break
			}
			p.After = got[len(got)-1]
		}
		if !slices.Equal(got, ids) {
			t.Errorf("got %v, want %v", got, ids)
		}
	}
	check()
	_, shown := s.File("a", other)
	_, _, opened := s.Content("a", other)
	_, begun := s.CreateBatch("a", &NewBatch{other, endpoint, "24h", nil, 0})
	for _, err := range []error{shown, opened, begun, s.DeleteFile("a", other)} {
		if codeOf(err) != "file_not_found" {
			t.Errorf("got %v, want file_not_found", err)
		}
	}
	if err := s.DeleteFile("a", ids[1]); err != nil {
		t.Error(err)
	}
	ids = slices.Delete(ids, 1, 2)
	for _, name := range []string{"file-CCCCCCCCCCCC", files.Unfinished + "1"} {
		if err := os.WriteFile(filepath.Join(s.filesFolder(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second := New(s.o)
	if err := second.Open(); !errors.Is(err, files.ErrInUse) {
		t.Errorf("a second store: got %v, want %v", err, files.ErrInUse)
	}
	if _, _, err := second.Files("a", "", Page{Limit: 9}); codeOf(err) != "files_in_use" {
		t.Errorf("files of a second store: got %v, want files_in_use", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, dir)
	check()
	left, err := os.ReadDir(s.filesFolder())
	if err != nil || len(left) != 2*5 {
		t.Errorf("got %v, %v, want 5 files with descriptions", left, err)
	}
	u, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	defer u.Discard()
	if _, err := u.Write(make([]byte, 1<<20+1)); codeOf(err) != "request_too_large" {
		t.Errorf("got %v, want request_too_large", err)
	}
	s.now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	s.expire()
	if list, _, err := s.Files("a", "", Page{Limit: 9}); err != nil || len(list) > 0 {
		t.Errorf("after their time: got %v, %v", list, err)
	}
}

// stopped is a store with a batch of 20 lines that ended after six answers.
func stopped(t *testing.T, dir string) (s *Store, id string) {
	t.Helper()
	e := &echo{hold: make(chan struct{})}
	s = newStore(t, dir)
	id = created(t, s, "", uploaded(t, s, "", requests(20)))
	end := running(t, s, e.prepare)
	for range 6 {
		e.hold <- struct{}{}
	}
	until(t, s, id, func(b *Batch) bool { return b.RequestCounts.Completed >= 4 })
	end()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return newStore(t, dir), id
}

// Ensure that a cancelled or expired batch keeps the answers that a killed server had in its
// journal, but not yet in its output.
func TestWaitingKept(t *testing.T) {
	for _, outcome := range []Status{Cancelled, Expired} {
		s, id := stopped(t, t.TempDir())
		j, err := batch.OpenJournal(s.journal(s.batches[id]), s.results(s.batches[id]))
		if err != nil {
			t.Fatal(err)
		}
		for line, status := range map[int]int{17: 200, 18: 400} {
			text := fmt.Sprintf(`{"id":"x","custom_id":"r%d","response":{"status_code":%d,`+
				`"request_id":"r","body":{}},"error":null}`, line, status)
			if err := cmp.Or(j.Begin(batch.Settings{"model": "a"}),
				j.Add(line, batch.Key{}, []byte(text))); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		want := 6 + 2
		if outcome == Cancelled {
			if _, err := s.CancelBatch("", id); err != nil {
				t.Fatal(err)
			}
		} else {
			want = 20
			s.batches[id].ExpiresAt = time.Now().Unix() - 1
		}
		running(t, s, new(echo).prepare)
		b := until(t, s, id, ended)
		good, bad := results(t, s, b.OutputFileID), results(t, s, b.ErrorFileID)
		_, answered := good["r17"]
		code, refused := bad["r18"]
		if b.Status != outcome || len(good)+len(bad) != want || !answered || !refused ||
			code != "" || b.RequestCounts.Completed != len(good) {
			t.Errorf("%s: got %+v with %v and %v, want %d results", outcome, b, good, bad, want)
		}
	}
}

// Ensure that a batch whose files somebody removed from the folder fails with what there is, and
// that the next one is answered.
func TestFilesGone(t *testing.T) {
	input := func(s *Store, b *batchEntry) string {
		return filepath.Join(s.filesFolder(), b.InputFileID)
	}
	for _, c := range []struct {
		name    string
		remove  func(s *Store, b *batchEntry) string
		state   Status
		code    string
		results int
	}{
		{"input before", input, Validating, "file_not_found", 0},
		{"input", input, InProgress, "file_not_found", 6},
		{"input at the end", input, Expired, "file_not_found", 6},
		{"results", (*Store).results, InProgress, "server_changed", 0},
		{"results at the end", (*Store).results, Expired, "server_changed", 0},
		{"journal", (*Store).journal, InProgress, "server_changed", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, id := stopped(t, t.TempDir())
			b := s.batches[id]
			if c.state == Validating {
				b = s.batches[created(t, s, "", b.InputFileID)]
			}
			if c.state == Expired {
				b.ExpiresAt = time.Now().Unix() - 1
			}
			if err := os.RemoveAll(c.remove(s, b)); err != nil {
				t.Fatal(err)
			}
			next := created(t, s, "", uploaded(t, s, "", requests(3)))
			running(t, s, new(echo).prepare)
			got := until(t, s, b.ID, ended)
			n := len(results(t, s, got.OutputFileID)) + len(results(t, s, got.ErrorFileID))
			if got.Status != Failed || got.Errors == nil || got.Errors.Data[0].Code != c.code ||
				n != c.results {
				t.Errorf("got %+v %+v with %d results, want %s and %d", got, got.Errors, n, c.code,
					c.results)
			}
			if b := until(t, s, next, ended); b.Status != Completed {
				t.Errorf("the next one: got %+v", b)
			}
		})
	}
}

// Ensure that a file that somebody changed in the folder is an error, not another content.
func TestContentChanged(t *testing.T) {
	s := newStore(t, t.TempDir())
	id := uploaded(t, s, "", requests(3))
	path := filepath.Join(s.filesFolder(), id)
	for what, change := range map[string]func() error{
		"cut": func() error { return os.Truncate(path, 5) },
		"a folder": func() error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Content("", id); err == nil {
			t.Errorf("%s: got no error", what)
		}
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that a batch that cannot be answered for now lets the next one be answered.
func TestErrorPasses(t *testing.T) {
	s, e := newStore(t, t.TempDir()), new(echo)
	first := created(t, s, "a", uploaded(t, s, "a", requests(3)))
	second := created(t, s, "", uploaded(t, s, "", requests(3)))
	running(t, s, func(ctx context.Context, owner, journal string) (*Answering, error) {
		if owner == "a" {
			return nil, errors.New("no worker")
		}
		return e.prepare(ctx, owner, journal)
	})
	until(t, s, second, ended)
	if b, err := s.Batch("a", first); err != nil || b.Status != InProgress {
		t.Errorf("got %+v, %v, want it in progress", b, err)
	}
	b, err := s.CancelBatch("a", first)
	if err != nil || b.Status.final() && b.Status != Cancelled {
		t.Errorf("got %+v, %v, want it cancelled", b, err)
	}
}
