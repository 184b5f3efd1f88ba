package batch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/wire"
)

// Options are the options of a run.
type Options struct {
	Parallel  int           // most requests asked at once, at least 1
	Places    func() int    // how many may be asked at once now, at least 1; nil: Parallel
	MaxLine   int           // largest line of the input in bytes
	Window    int           // most bytes of lines that are read and not answered; 0: 256 MiB
	Unordered bool          // write results in order of completion
	Strict    bool          // end the run at a line that cannot be read
	Progress  func(Summary) // called after each result, never concurrently; may be nil
	// File returns the SHA-256 of the file that a picture's URL names, zeros if it cannot be read,
	// and false if the URL names no file. nil: no URL does.
	File func(url string) (content [sha256.Size]byte, file bool)

	// pause waits until results are to be written out, and returns false at the end of the run.
	// Tests set it; nil waits for flushEvery.
	pause func(ctx context.Context, over <-chan struct{}) bool
}

// The window limits the part of the input that is read but not yet in the output.
const (
	windowLines = 1024
	windowBytes = 256 << 20
)

// flushEvery is how often results are synced and written out.
const flushEvery = 200 * time.Millisecond

// Run answers every line of in that has no result in j, which has begun, and writes new results to
// the journal's output. Requests about the same pictures run next to each other, so that the
// backend still has the shared data in its caches. When ctx ends, the journal keeps the answered
// lines, and the error is ctx's cause. A [WriteError] comes first.
func Run(ctx context.Context, in io.Reader, j *Journal, b Backend, o Options) (Summary, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{o: o, j: j, b: b, before: &j.before, groups: map[[sha256.Size]byte]int{},
		written: j.before.Lines, over: make(chan struct{}),
		sum: newSummary(), started: time.Now()}
	if r.o.Window == 0 {
		r.o.Window = windowBytes
	}
	r.change = sync.NewCond(&r.mu)
	r.places = r.allowed()
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.change.Broadcast()
	})
	defer stop()

	var workers sync.WaitGroup
	for range max(1, o.Parallel) {
		workers.Go(func() {
			if err := r.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		if err := r.flush(ctx); err != nil {
			cancel(err)
		}
	}()
	if err := r.read(ctx, in); err != nil {
		cancel(err)
	}
	workers.Wait()
	close(r.over)
	<-flushed
	if err := cmp.Or(r.emit(), j.Sync()); err != nil {
		return r.summary(), err
	}
	return r.summary(), context.Cause(ctx)
}

// run is the state of one Run.
type run struct {
	o Options
	j *Journal
	b Backend

	before *mark  // the output's content at the start
	states states // sums before each line of the window

	mu      sync.Mutex
	change  *sync.Cond
	sums    sums                      // of the lines read so far
	written int                       // first line that is not in the output
	lines   int                       // lines read so far
	bytes   int                       // of the requests in the window
	ready   []*Request                // requests to ask, in order
	groups  map[[sha256.Size]byte]int // number of unanswered requests, by pictures
	busy    int                       // requests that are asked
	places  int                       // most of them now
	ended   bool                      // the input is read to its end
	over    chan struct{}             // closed when all requests are answered
	sum     Summary
	started time.Time
}

// read reads the input into the window.
func (r *run) read(ctx context.Context, in io.Reader) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = true
		r.change.Broadcast()
	}()
	l := newLines(in, r.o.MaxLine)
	for n := 0; ; n++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		text, long, err := l.next()
		if errors.Is(err, io.EOF) {
			return r.checkEnd(n)
		}
		if err != nil {
			return fmt.Errorf("batch: input: line %d: %w", l.at+1, err)
		}
		line := r.parse(n, l.at, text, long)
		if err := r.take(ctx, line); err != nil {
			return err
		}
	}
}

// checkEnd refuses an input with fewer lines than there are results in the output.
func (r *run) checkEnd(n int) error {
	least := r.before.Lines
	if k := len(r.before.Extra); k > 0 {
		least = r.before.Extra[k-1].Line + 1
	}
	if n < least {
		return mismatch("input: got %d lines, want at least the %d that journal %s has "+
			"answers to: it belongs to another input", n, least, r.j.dir)
	}
	return nil
}

// parse reads line n of the input, whose number in the file is number.
func (r *run) parse(n, number int, text []byte, long bool) *line {
	out := &line{n: n}
	switch {
	case long:
		text = nil // what was not kept is not compared
		out.bad = tooLong(number, r.o.MaxLine)
	case n >= r.before.Lines || namesFile(text):
		out.q, out.bad = parse(text, number)
	}
	out.text = sha256.Sum256(text)
	if out.q != nil {
		out.q.Line = n
		out.files = r.files(out.q.urls)
		out.q.Key = out.key()
		out.q.urls = nil
	}
	return out
}

// files returns the sum over the files that URLs name; zeros without one.
func (r *run) files(urls []string) (sum [sha256.Size]byte) {
	h, found := sha256.New(), false
	for _, u := range urls {
		if r.o.File == nil {
			break
		}
		if content, file := r.o.File(u); file {
			found = true
			fmt.Fprintf(h, "%d %s %x\n", len(u), u, content)
		}
	}
	if found {
		h.Sum(sum[:0])
	}
	return sum
}

// take puts one line into the window when there is room.
func (r *run) take(ctx context.Context, l *line) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for (l.n-r.written >= windowLines || r.bytes > r.o.Window) && context.Cause(ctx) == nil {
		r.change.Wait()
	}
	r.sums.add(l)
	r.lines = l.n + 1
	if err := r.checkBefore(); err != nil {
		return err
	}
	if l.n >= r.before.Lines {
		r.states.put(l.n+1, r.sums)
	}
	known, changed, err := r.j.has(l.n, l.key())
	if err != nil {
		return err
	}
	if changed {
		r.sum.Changed++
	}
	if known {
		r.sum.Before++
		return nil
	}
	if l.bad != nil {
		if r.o.Strict {
			return fmt.Errorf("batch: input: %w", l.bad)
		}
		return r.answered(l.n, l.key(), &Result{Error: &Error{l.bad.Code, l.bad.Error()}})
	}
	r.bytes += len(l.q.Body)
	r.queue(l.q)
	return nil
}

// checkBefore refuses an input whose lines before the output's end differ from the earlier runs'.
func (r *run) checkBefore() error {
	m := r.before
	switch {
	case r.lines != m.Lines:
		return nil
	case !bytes.Equal(r.sums.text[:], m.Text):
		return mismatch("input: its first %d lines are not those that journal %s has "+
			"answers to: it belongs to another input", m.Lines, r.j.dir)
	case !bytes.Equal(r.sums.files[:], m.Files):
		return mismatch("input: the pictures of its first %d lines are not those that "+
			"journal %s has answers about: a file has changed, or is gone", m.Lines, r.j.dir)
	}
	return nil
}

// queue adds q to the requests to ask: next to unanswered ones about the same pictures.
func (r *run) queue(q *Request) {
	at := len(r.ready)
	if q.Pictures != ([sha256.Size]byte{}) {
		if r.groups[q.Pictures] > 0 {
			at = 0
		}
		for i, other := range r.ready {
			if other.Pictures == q.Pictures {
				at = i + 1
			}
		}
		r.groups[q.Pictures]++
	}
	r.ready = slices.Insert(r.ready, at, q)
	r.change.Broadcast()
}

// work asks requests until none are left.
func (r *run) work(ctx context.Context) error {
	for {
		q := r.pop(ctx)
		if q == nil {
			return nil
		}
		resp, err := r.b.Do(ctx, q)
		if err != nil {
			return err
		}
		resp.Body = settled(resp.Body)
		if err := r.done(q, resp); err != nil {
			return err
		}
	}
}

func (r *run) pop(ctx context.Context) *Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case context.Cause(ctx) != nil:
			return nil
		case len(r.ready) > 0 && r.busy < r.places:
			q := r.ready[0]
			r.ready = r.ready[1:]
			r.busy++
			return q
		case r.ended && r.busy == 0:
			return nil
		}
		r.change.Wait()
	}
}

// done records the response to q.
func (r *run) done(q *Request, resp *Response) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy--
	r.bytes -= len(q.Body)
	if r.groups[q.Pictures]--; r.groups[q.Pictures] <= 0 {
		delete(r.groups, q.Pictures)
	}
	r.change.Broadcast()
	return r.answered(q.Line, q.Key, &Result{CustomID: &q.CustomID, Response: resp})
}

// answered keeps the result of a line.
func (r *run) answered(line int, key Key, result *Result) error {
	result.ID = newID("batch_req_")
	data, err := wire.Marshal(result)
	if err != nil {
		return err
	}
	if err := r.j.Add(line, key, data); err != nil {
		return err
	}
	r.sum.add(result)
	if r.o.Progress != nil {
		r.o.Progress(r.snapshot())
	}
	return nil
}

// flush syncs and writes results periodically, until the run is over.
func (r *run) flush(ctx context.Context) error {
	pause := r.o.pause
	if pause == nil {
		t := time.NewTicker(flushEvery)
		defer t.Stop()
		pause = func(ctx context.Context, over <-chan struct{}) bool {
			select {
			case <-t.C:
				return true
			case <-over:
			case <-ctx.Done():
			}
			return false
		}
	}
	for pause(ctx, r.over) {
		if err := cmp.Or(r.j.Sync(), r.emit()); err != nil {
			return err
		}
	}
	return nil
}

// emit writes finished results to the output and makes room in the window.
func (r *run) emit() error {
	if err := r.j.Emit(!r.o.Unordered, r.states.get); err != nil {
		return err
	}
	written, places := r.j.written(), r.allowed()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places = places
	r.states.drop(r.written, written)
	r.written = written
	r.change.Broadcast()
	return nil
}

// allowed is how many requests may be asked at once now.
func (r *run) allowed() int {
	if r.o.Places == nil {
		return max(1, r.o.Parallel)
	}
	return max(1, r.o.Places())
}

func (r *run) summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot()
}

func (r *run) snapshot() Summary {
	s := r.sum.clone()
	s.Lines, s.Seconds = r.lines, time.Since(r.started).Seconds()
	return s
}

// states are sums by line. They have a lock of their own, because the journal reads them.
type states struct {
	mu   sync.Mutex
	data map[int]sums
}

func (s *states) put(line int, at sums) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		s.data = map[int]sums{}
	}
	s.data[line] = at
}

func (s *states) get(line int) (at sums, read bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, read = s.data[line]
	return at, read
}

// drop removes the sums of the lines from one to before another.
func (s *states) drop(from, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; from < to; from++ {
		delete(s.data, from)
	}
}

// newID returns prefix and 24 random characters.
func newID(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:24])
}
