package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fault is the way in which an operation of a file system fails.
type fault int

const (
	undone fault = iota // an error, and nothing was done
	half                // a write: an error, and the first half is there
	cutOff              // a write: the first half is there, and no error
	done                // an error, although everything was done
)

var errFault = errors.New("the disk fails")

// faulty is a file system whose operation number at fails, and from then on each one if it is dead.
// It knows what a crash of the machine leaves.
type faulty struct {
	at   int
	how  fault
	dead bool

	n        int   // operations so far
	writes   []int // the operations that write data
	hit      bool
	after    int               // operations that write after the one that failed
	now, old map[string]*inode // files by path: as the system sees them, and on disk
}

// inode is the content of a file on disk.
type inode struct {
	data  []byte
	dirty map[int64]bool // bytes written since the last sync
}

func newFaulty(at int, how fault, dead bool) *faulty {
	return &faulty{at: at, how: how, dead: dead, now: map[string]*inode{}, old: map[string]*inode{}}
}

// fails counts an operation and reports whether it fails.
func (d *faulty) fails() bool {
	d.n++
	if d.n == d.at {
		d.hit = true
	}
	return d.hit && (d.dead || d.n == d.at)
}

// writing notes an operation that adds to the disk.
func (d *faulty) writing() {
	if d.hit {
		d.after++
	}
}

// do does an operation, or fails it.
func (d *faulty) do(f func() error) error {
	if !d.fails() {
		return f()
	}
	if d.how == done {
		if err := f(); err != nil {
			return err
		}
	}
	return errFault
}

func (d *faulty) open(path string, flag int) (file, error) {
	if d.fails() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errFault}
	}
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	if d.now[path] == nil || flag&os.O_TRUNC != 0 {
		d.now[path] = &inode{dirty: map[int64]bool{}}
	}
	return &faultyFile{f, d, d.now[path]}, nil
}

func (d *faulty) rename(from, to string) error {
	d.writing()
	return d.do(func() error {
		d.now[to] = d.now[from]
		delete(d.now, from)
		return os.Rename(from, to)
	})
}

func (d *faulty) syncDir(path string) error {
	return d.do(func() error {
		in := func(name string, _ *inode) bool { return filepath.Dir(name) == path }
		maps.DeleteFunc(d.old, in)
		for name, i := range d.now {
			if in(name, i) {
				d.old[name] = i
			}
		}
		return nil
	})
}

// crash leaves what is on disk. With zeros, a file that has grown since has zeros there.
func (d *faulty) crash(t *testing.T, zeros bool) {
	t.Helper()
	for _, name := range slices.Collect(maps.Keys(d.now)) {
		if d.old[name] == nil {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	for name, i := range d.old {
		data := i.data
		if info, err := os.Stat(name); zeros && err == nil && d.now[name] == i {
			data = append(slices.Clone(data), make([]byte, max(0, int(info.Size())-len(data)))...)
		}
		// it may have been removed, which is not on disk either
		err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, data, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
}

type faultyFile struct {
	*os.File
	d *faulty
	i *inode
}

func (f *faultyFile) WriteAt(data []byte, at int64) (int, error) {
	f.d.writing()
	f.d.writes = append(f.d.writes, f.d.n+1)
	n, err := len(data), error(nil)
	if f.d.fails() {
		err = errFault
		switch f.d.how {
		case undone:
			n = 0
		case half:
			n /= 2
		case cutOff:
			n, err = n/2, nil
		}
	}
	if _, err := f.File.WriteAt(data[:n], at); err != nil {
		return 0, err
	}
	for k := range int64(n) {
		f.i.dirty[at+k] = true
	}
	return n, err
}

func (f *faultyFile) Truncate(size int64) error {
	return f.d.do(func() error {
		maps.DeleteFunc(f.i.dirty, func(at int64, _ bool) bool { return at >= size })
		return f.File.Truncate(size)
	})
}

// Sync forgets which bytes are not on disk if it fails, as systems do: a later one succeeds without
// them.
func (f *faultyFile) Sync() error {
	f.d.writing()
	err := f.d.do(func() error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		now := make([]byte, info.Size())
		if _, err := f.ReadAt(now, 0); err != nil && len(now) > 0 {
			return err
		}
		data := make([]byte, len(now))
		copy(data, f.i.data)
		for at := range f.i.dirty {
			data[at] = now[at]
		}
		f.i.data = data
		return nil
	})
	clear(f.i.dirty)
	return err
}

func (f *faultyFile) Close() error {
	closed := f.File.Close()
	if f.d.fails() {
		return errFault
	}
	return closed
}

// paced is a backend with the same answers each time. It waits until results are written out before
// every second answer.
type paced struct {
	tick, flushed chan struct{}
	asked         int
}

func (p *paced) Do(ctx context.Context, r *Request) (*Response, error) {
	if p.asked++; p.asked%2 == 0 {
		for _, ready := range []func() bool{
			func() bool {
				select {
				case p.tick <- struct{}{}:
					return true
				case <-ctx.Done():
					return false
				}
			},
			func() bool {
				select {
				case <-p.flushed:
					return true
				case <-ctx.Done():
					return false
				}
			},
		} {
			if !ready() {
				return nil, context.Cause(ctx)
			}
		}
	}
	return &Response{Status: 200, RequestID: "req_1",
		Body: []byte(fmt.Sprintf(`{"said":%q}`, r.CustomID))}, nil
}

// pause is for Options: it tells when results are written out.
func (p *paced) pause() func(context.Context, <-chan struct{}) bool {
	first := true
	return func(ctx context.Context, over <-chan struct{}) bool {
		if !first {
			select {
			case p.flushed <- struct{}{}:
			case <-over:
				return false
			case <-ctx.Done():
				return false
			}
		}
		first = false
		select {
		case <-p.tick:
			return true
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// runOn runs the requests in on a disk, and returns the first error of the journal or the run.
func runOn(d disk, dir, in string, most int64, unordered bool) (err error) {
	j, err := openJournal(d, filepath.Join(dir, "j"), filepath.Join(dir, "out"))
	if err != nil {
		return err
	}
	j.most = most
	defer func() {
		if closed := j.Close(); err == nil {
			err = closed
		}
	}()
	if err := j.Begin(Settings{"model": "m"}); err != nil {
		return err
	}
	p := &paced{tick: make(chan struct{}), flushed: make(chan struct{})}
	_, err = Run(context.Background(), strings.NewReader(in), j, p,
		Options{Parallel: 1, MaxLine: 1 << 20, Unordered: unordered, pause: p.pause()})
	return err
}

var batchID = regexp.MustCompile(`"batch_req_[a-z2-7]{24}"`)

// plainOutput is the output of a run with equal ids.
func plainOutput(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return batchID.ReplaceAllString(string(data), `"batch_req_"`)
}

// Ensure that a run on a disk that fails at any one operation ends with an error or with the whole
// output, writes no more and leaves whole results only, and that the next run completes the output,
// also after a crash of the machine: byte for byte that of an undisturbed run.
func TestDiskFails(t *testing.T) {
	in := fiveLines()
	for _, most := range []int64{rewriteFrom, 0} {
		dir, whole := t.TempDir(), newFaulty(0, undone, false)
		if err := runOn(whole, dir, in, most, false); err != nil {
			t.Fatal(err)
		}
		c := faultCase{in: in, want: plainOutput(t, dir), most: most}
		if whole.n < 30 || len(whole.writes) < 10 {
			t.Fatalf("a run has %d operations, %d of them writes", whole.n, len(whole.writes))
		}
		for at := 1; at <= whole.n; at++ {
			c.at = at
			for _, c.how = range []fault{undone, done, half, cutOff} {
				if c.how >= half && !slices.Contains(whole.writes, at) {
					continue // as undone
				}
				for _, c.crash = range []string{"", "cut", "zeros"} {
					for _, c.dead = range []bool{false, true} {
						some := c.dead == (c.crash == "")
						if some || !testing.Short() && !(c.dead && c.crash == "zeros") {
							c.run(t)
						}
					}
				}
			}
		}
	}
}

// fiveLines is an input.
func fiveLines() string {
	var in strings.Builder
	for i := range 5 {
		fmt.Fprintf(&in, `{"custom_id":"q%d","url":"/v1/chat/completions","body":{}}`+"\n", i)
	}
	return in.String()
}

// Ensure the same of a run that continues another one, which left half of a result in the output:
// the end of that is cut with any one operation failing, the cut itself too.
func TestDiskFailsAgain(t *testing.T) {
	in := fiveLines()
	whole := t.TempDir()
	probe := newFaulty(0, undone, false)
	if err := runOn(probe, whole, in, rewriteFrom, false); err != nil {
		t.Fatal(err)
	}
	want := plainOutput(t, whole)
	// The first write into the output that leaves a part of it on a dead disk.
	at := slices.IndexFunc(probe.writes, func(at int) bool {
		dir := t.TempDir()
		failed := runOn(newFaulty(at, half, true), dir, in, rewriteFrom, false)
		out, err := os.ReadFile(filepath.Join(dir, "out"))
		return failed != nil && err == nil && len(out) > 0 && out[len(out)-1] != '\n'
	})
	if at < 0 {
		t.Fatal("no write leaves half of a result")
	}
	for _, how := range []fault{undone, done, half, cutOff} {
		for n, hit := 1, true; hit; n++ {
			dir := t.TempDir()
			torn := newFaulty(probe.writes[at], half, true)
			if err := runOn(torn, dir, in, rewriteFrom, false); !errors.Is(err, errFault) {
				t.Fatalf("the dead disk: got %v", err)
			}
			d := newFaulty(n, how, n%2 == 0)
			err := runOn(d, dir, in, rewriteFrom, false)
			if hit = d.hit; err == nil && plainOutput(t, dir) != want || d.after > 0 && !d.dead {
				t.Fatalf("fault %d at operation %d: error %v, %d writes after it, output\n%s", how,
					n, err, d.after, plainOutput(t, dir))
			}
			err = runOn(newFaulty(0, undone, false), dir, in, rewriteFrom, false)
			if got := plainOutput(t, dir); err != nil || got != want {
				t.Fatalf("fault %d at operation %d: the next run: %v, got\n%s", how, n, err, got)
			}
		}
	}
}

// faultCase is one way in which a run is disturbed.
type faultCase struct {
	in, want string
	most     int64 // as in Journal
	at       int
	how      fault
	dead     bool
	crash    string // what a crash leaves of a file that has grown; "": no crash
}

func (c *faultCase) run(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("fault %d at operation %d, dead %v, crash %q", c.how, c.at, c.dead, c.crash)
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	d := newFaulty(c.at, c.how, c.dead)
	err = runOn(d, dir, c.in, c.most, c.at%2 == 0)
	switch {
	case !d.hit:
		t.Fatalf("%s: never happened", name)
	case err == nil && plainOutput(t, dir) != c.want:
		t.Fatalf("%s: no error, and the output is\n%s", name, plainOutput(t, dir))
	case d.after > 0:
		t.Fatalf("%s: %d operations after it", name, d.after)
	case !c.dead:
		c.checkWhole(t, name, dir)
	}
	if c.crash != "" {
		d.crash(t, c.crash == "zeros")
	}
	if err = runOn(newFaulty(0, undone, false), dir, c.in, c.most, false); err != nil {
		t.Fatalf("%s: the next run: %v", name, err)
	}
	if got := plainOutput(t, dir); got != c.want {
		t.Fatalf("%s: got\n%s\nwant\n%s", name, got, c.want)
	}
}

// checkWhole checks that no half of a result or a record is left.
func (c *faultCase) checkWhole(t *testing.T, name, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "out")); errors.Is(err, fs.ErrNotExist) {
		return // it never began
	}
	out := plainOutput(t, dir)
	if !strings.HasPrefix(c.want, out) || out != "" && !strings.HasSuffix(out, "\n") {
		t.Fatalf("%s: left %q", name, out)
	}
	log, err := os.Open(filepath.Join(dir, "j", "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for err == nil {
		_, err = readRecord(log)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("%s: the log: %v", name, err)
	}
}
