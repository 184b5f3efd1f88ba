package batch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// waiting runs an input whose first line is not answered before all others are, and stops then: the
// others' results wait in the journal.
func waiting(t *testing.T, dir, in string, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := strings.Count(in, "\n")
	e := newEcho()
	o.Parallel = n
	o.Progress = func(s Summary) {
		if s.Done() == n-1 {
			cancel()
		}
	}
	_, err := answer(t, ctx, dir, in, stuck{e}, o)
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// stuck never answers the line q0.
type stuck struct{ *echo }

func (s stuck) Do(ctx context.Context, r *Request) (*Response, error) {
	if r.CustomID == "q0" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.echo.Do(ctx, r)
}

// asking is an input of one question a line about a picture.
func asking(questions ...string) string {
	var b strings.Builder
	for i, q := range questions {
		fmt.Fprintf(&b, `{"custom_id":"q%d","url":"/v1/chat/completions","body":{"messages":`+
			`[{"role":"user","content":[{"image_url":"file:p"},{"text":%q}]}]}}`+"\n", i, q)
	}
	return b.String()
}

// Ensure that a result that waits in the journal is used for its own line alone: one whose line has
// another text, or whose picture has another content, is asked again.
func TestWaitingOfOtherLine(t *testing.T) {
	for _, unordered := range []bool{false, true} {
		content := "a"
		o := Options{Unordered: unordered, File: func(url string) ([sha256.Size]byte, bool) {
			return sha256.Sum256([]byte(content)), strings.HasPrefix(url, "file:")
		}}
		before := asking("0", "1", "2", "3")
		for name, c := range map[string]struct {
			in, content string
			asked       []string
			changed     int
		}{
			"same":     {before, "a", []string{"q0"}, 0},
			"a line":   {asking("0", "1", "other", "3"), "a", []string{"q0", "q2"}, 1},
			"the file": {before, "b", []string{"q0", "q1", "q2", "q3"}, 3},
			"longer":   {asking("0", "1", "2", "3", "4"), "a", []string{"q0", "q4"}, 0},
			"shorter":  {asking("0", "1"), "a", []string{"q0"}, 0},
			"a blank":  {"\n" + before + "\n \n", "a", []string{"q0"}, 0},
		} {
			dir := t.TempDir()
			content = "a"
			waiting(t, dir, before, o)
			if unordered && (name == "a line" || name == "the file" || name == "shorter") {
				// the other lines' results are in the output
				content = c.content
				if _, err := answer(t, t.Context(), dir, c.in, newEcho(), o); err == nil ||
					!strings.Contains(err.Error(), "belongs to another input") {
					t.Errorf("%s, unordered: got %v, want an error about the input", name, err)
				}
				continue
			}
			e := newEcho()
			content = c.content
			s, err := answer(t, t.Context(), dir, c.in, e, o)
			if err != nil || s.Changed != c.changed || len(e.asked) != len(c.asked) {
				t.Fatalf("%s: got %+v after %v, error %v, want %d changed and %v asked", name, s,
					e.asked, err, c.changed, c.asked)
			}
			for _, id := range c.asked {
				if e.asked[id] != 1 {
					t.Errorf("%s: %s was asked %d times, want once", name, id, e.asked[id])
				}
			}
			got := free(t, filepath.Join(dir, "out"))
			if n := strings.Count(got, "\n"); n != s.Lines {
				t.Errorf("%s: got %d results, want %d:\n%s", name, n, s.Lines, got)
			}
		}
	}
}

// Ensure that a picture that has changed since its answer was written is noticed, and that one that
// has not is not.
func TestChangedFile(t *testing.T) {
	dir, content := t.TempDir(), "a"
	o := Options{File: func(url string) ([sha256.Size]byte, bool) {
		return sha256.Sum256([]byte(content)), strings.HasPrefix(url, "file:")
	}}
	if _, err := answer(t, t.Context(), dir, asking("0", "1"), newEcho(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := answer(t, t.Context(), dir, asking("0", "1", "2"), newEcho(), o); err != nil {
		t.Fatal(err)
	}
	content = "b"
	_, err := answer(t, t.Context(), dir, asking("0", "1", "2", "3"), newEcho(), o)
	if err == nil || !strings.Contains(err.Error(), "the pictures of its first 3 lines") {
		t.Errorf("another picture: got %v, want an error", err)
	}
}

// Ensure that an ordered run continues an unordered one, and the other way round.
func TestOtherOrder(t *testing.T) {
	for _, first := range []bool{false, true} {
		dir, in := t.TempDir(), asking("0", "1", "2", "3", "4")
		waiting(t, dir, in, Options{Unordered: first})
		if _, err := answer(t, t.Context(), dir, in, newEcho(),
			Options{Unordered: !first}); err != nil {
			t.Fatal(err)
		}
		got := free(t, filepath.Join(dir, "out"))
		for i := range 5 {
			if n := strings.Count(got, fmt.Sprintf(`"custom_id":"q%d"`, i)); n != 1 {
				t.Errorf("unordered first %v: %d results of line %d, want 1", first, n, i+1)
			}
		}
	}
}

// Ensure that no file is changed that the journal did not write, and that the error names both.
func TestOtherFiles(t *testing.T) {
	in := asking("0", "1", "2")
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
		kept    string // the file that must stay as it is
	}{
		"another output": {func(t *testing.T, dir string) {
			move(t, filepath.Join(dir, "out"), filepath.Join(dir, "was"))
			write(t, filepath.Join(dir, "out"), strings.Repeat("letters\n", 1000))
		}, "are not those that journal", "out"},
		"no output": {func(t *testing.T, dir string) {
			move(t, filepath.Join(dir, "out"), filepath.Join(dir, "was"))
		}, "out: is gone", "was"},
		"lines at the end": {func(t *testing.T, dir string) {
			grow(t, filepath.Join(dir, "out"), `{"id":"mine"}`+"\n")
		}, "what follows is not the journal's", "out"},
		"half a line at the end": {func(t *testing.T, dir string) {
			grow(t, filepath.Join(dir, "out"), `{"id":"mi`)
		}, "what follows is not the journal's", "out"},
		"a changed end": {func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "out"))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "out"), string(data[:len(data)-3])+"x}\n")
		}, "are not those that journal", "out"},
		"a log of another program": {func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "j", "log"), "Jan 1 00:00:00 started\n")
		}, "is no log of a journal", filepath.Join("j", "log")},
	} {
		dir := t.TempDir()
		if _, err := answer(t, t.Context(), dir, in, newEcho(), Options{}); err != nil {
			t.Fatal(err)
		}
		c.prepare(t, dir)
		before, err := os.ReadFile(filepath.Join(dir, c.kept))
		if err != nil {
			t.Fatal(err)
		}
		_, err = begun(dir, "settings")
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), filepath.Join(dir, "j")) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if now, err := os.ReadFile(filepath.Join(dir, c.kept)); err != nil ||
			string(now) != string(before) {
			t.Errorf("%s: %s has changed, %v", name, c.kept, err)
		}
	}
}

// Ensure that a journal is refused for another output than its own, also before there are results.
func TestOutputOfJournal(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		other := filepath.Join(dir, "other")
		write(t, other, "")
		j, err := begun(dir, "settings")
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenJournal(filepath.Join(dir, "j"), other); err == nil ||
			!strings.Contains(err.Error(), filepath.Join(dir, "out")) ||
			!strings.Contains(err.Error(), other) {
			t.Errorf("got %v, want an error with both names", err)
		}
		if _, err := answer(t, t.Context(), dir, asking("0"), newEcho(), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	moved := filepath.Join(t.TempDir(), "moved")
	move(t, dir, moved)
	j, err := begun(moved, "settings")
	if err != nil {
		t.Fatalf("moved together: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// Ensure that a journal that never began leaves nothing, and removes nothing that was there.
func TestNothingLeft(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b")
	j, err := OpenJournal(filepath.Join(deep, "j"), filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", filepath.Join("none", "out"), filepath.Join("k", "log")} {
		j, err := OpenJournal(filepath.Join(dir, "k"), filepath.Join(dir, bad))
		if err == nil {
			err = errors.Join(j.Begin(Settings{}), j.Close())
		}
		if err == nil {
			t.Errorf("output %s: accepted", bad)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	for range 2 { // one that has begun stays, whatever fails later
		j, err := begun(dir, "settings")
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := begun(dir, "others"); err == nil {
			t.Error("other settings: accepted")
		}
	}
}

// Ensure that a run whose output is removed or written by others ends with an error, and that it
// leaves the others' bytes.
func TestOutputTaken(t *testing.T) {
	for want, take := range map[string]func(path string) error{
		"removed or replaced": os.Remove,
		"another process writes to it": func(path string) error {
			return os.WriteFile(path, []byte("theirs"), 0o600)
		},
	} {
		dir := t.TempDir()
		out := filepath.Join(dir, "out")
		j, err := begun(dir, "settings")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Run(t.Context(), strings.NewReader(asking("0", "1")), j, asker(func(*Request) {
			if err := take(out); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}), Options{Parallel: 1, MaxLine: 1 << 20})
		var failed *WriteError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if err := j.Add(7, Key{}, []byte("{}")); !errors.As(err, &failed) {
			t.Errorf("a result after that: %v, want an error", err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(out); err == nil && string(data) != "theirs" {
			t.Errorf("the output has %q", data)
		}
	}
}

// Ensure that equal custom_ids are found in any number of passes, with the numbers of their lines
// in the file, and that bad lines have none.
func TestScan(t *testing.T) {
	var b strings.Builder
	b.WriteString("\xef\xbb\xbf\n")
	for i := range 100 {
		fmt.Fprintf(&b, "{\"custom_id\":\"q%d\"}\n\r\n", i)
	}
	b.WriteString("{\"custom_id\":\"q3\"\n{\"custom_id\":null}\n{\"custom_id\":null}\n[]")
	for _, room := range []int{1, 3, 64, 1000} {
		for tail, want := range map[string]string{
			"": "",
			"\n{\"custom_id\":\"q7\"}\n{\"custom_id\":\"q5\"}": "lines",
			"\n{\"a\":[1],\"custom_id\":\"q\\u0037\"}":         "lines 16 and 206 have",
		} {
			in := strings.NewReader(b.String() + tail)
			s := &scan{in: in, maxLine: 100, room: room, passes: 1}
			n, err := s.run(t.Context())
			switch {
			case want == "" && (err != nil || n != 104):
				t.Errorf("room %d: got %d lines, %v, want 104", room, n, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("room %d, %q: got %v, want %s", room, tail, err, want)
			}
			if room == 1 && s.passes < 64 {
				t.Errorf("got %d passes of one id each", s.passes)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, strings.NewReader("{}"), 100); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
