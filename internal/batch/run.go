package batch

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/wire"
)

// Options are the options of a run.
type Options struct {
	Parallel  int           // requests asked at once, at least 1
	MaxLine   int           // largest line of the input in bytes
	Unordered bool          // write results in order of completion
	Strict    bool          // end the run at a line that cannot be read
	Progress  func(Summary) // called after each result, never concurrently; may be nil
}

// The window limits the part of the input that is read but not yet in the output.
const (
	windowLines = 1024
	windowBytes = 256 << 20
)

// flushEvery is how often results are synced and written out.
const flushEvery = 200 * time.Millisecond

// Run answers every line of in that has no result in j, and writes new results to the journal's
// output. Requests about the same pictures run next to each other, so that the backend still has
// the shared data in its caches. When ctx ends, the journal keeps the answered lines, and the error
// is ctx's cause.
func Run(ctx context.Context, in io.Reader, j *Journal, b Backend, o Options) (Summary, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{o: o, j: j, b: b, hash: sha256.New(), groups: map[[sha256.Size]byte]int{},
		over: make(chan struct{}),
		sum:  newSummary(), started: time.Now()}
	r.change = sync.NewCond(&r.mu)
	r.next, r.written = j.mark.Lines, j.mark.Lines
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
	if err := errors.Join(r.emit(), j.Sync()); err != nil && context.Cause(ctx) == nil {
		cancel(err)
	}
	return r.summary(), context.Cause(ctx)
}

// run is the state of one Run.
type run struct {
	o Options
	j *Journal
	b Backend

	mu      sync.Mutex
	change  *sync.Cond
	hash    hash.Hash // hash of the lines read so far
	sums    states
	next    int                       // first line without a result
	written int                       // first line that is not in the output
	lines   int                       // lines read so far
	bytes   int                       // of the requests in the window
	ready   []*Request                // requests to ask, in order
	groups  map[[sha256.Size]byte]int // number of unanswered requests, by pictures
	busy    int
	ended   bool          // the input is read to its end
	over    chan struct{} // closed when all requests are answered
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
		line, long, err := l.next()
		if errors.Is(err, io.EOF) {
			return r.checkInput(n)
		}
		if err != nil {
			return fmt.Errorf("batch: input: line %d: %w", n+1, err)
		}
		if err := r.take(ctx, n, line, long); err != nil {
			return err
		}
	}
}

// checkInput refuses an input whose first lines differ from the earlier run's.
func (r *run) checkInput(n int) error {
	if m := r.j.mark; n < m.Lines {
		return fmt.Errorf("batch: input: got %d lines, want at least the %d that the "+
			"journal has answers to: it belongs to another input", n, m.Lines)
	}
	return nil
}

// take puts one line into the window when there is room.
func (r *run) take(ctx context.Context, n int, line []byte, long bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for (n-r.written >= windowLines || r.bytes > windowBytes) && context.Cause(ctx) == nil {
		r.change.Wait()
	}
	var frame [9]byte
	binary.LittleEndian.PutUint64(frame[:], uint64(len(line)))
	if long {
		frame[8] = 1 // content that was not kept is not compared
	}
	r.hash.Write(frame[:])
	r.hash.Write(line)
	state, err := r.hash.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return err
	}
	r.lines = n + 1
	m := r.j.mark
	if n+1 == m.Lines && m.Input != nil && !bytes.Equal(state, m.Input) {
		return fmt.Errorf("batch: input: its first %d lines are not those that the journal "+
			"has answers to: it belongs to another input", m.Lines)
	}
	if n >= m.Lines {
		r.sums.put(n+1, state)
	}
	if r.j.Done(n) {
		r.sum.Before++
		r.advance()
		return nil
	}
	var q *Request
	if long {
		err = &lineError{
			n, "request_too_large",
			fmt.Sprintf("got more than %d bytes, want at most as many", r.o.MaxLine),
		}
	} else {
		q, err = parse(line, n)
	}
	if err != nil {
		var unread *lineError
		if !errors.As(err, &unread) || r.o.Strict {
			return fmt.Errorf("batch: input: %w", err)
		}
		return r.answered(n, &Result{Error: &Error{unread.code, err.Error()}})
	}
	r.bytes += len(q.Body)
	r.queue(q)
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
		if resp.Body, err = settled(resp.Body); err != nil {
			return err
		}
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
		case len(r.ready) > 0:
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
	return r.answered(q.Line, &Result{CustomID: &q.CustomID, Response: resp})
}

// answered keeps the result of a line.
func (r *run) answered(line int, result *Result) error {
	result.ID = newID("batch_req_")
	data, err := wire.Marshal(result)
	if err != nil {
		return err
	}
	if err := r.j.Add(line, data); err != nil {
		return fmt.Errorf("batch: journal: %w", err)
	}
	r.sum.add(result)
	r.advance()
	if r.o.Progress != nil {
		r.o.Progress(r.snapshot())
	}
	return nil
}

// advance moves next past the lines that have results.
func (r *run) advance() {
	for r.next < r.lines && r.j.Done(r.next) {
		r.next++
	}
}

// flush syncs and writes results periodically, until the run is over.
func (r *run) flush(ctx context.Context) error {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-r.over:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err := errors.Join(r.j.Sync(), r.emit()); err != nil {
			return err
		}
	}
}

// emit writes finished results to the output and makes room in the window.
func (r *run) emit() error {
	if err := r.j.Emit(!r.o.Unordered, r.sums.get); err != nil {
		return fmt.Errorf("batch: output: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written = r.j.written()
	r.sums.drop(r.written)
	r.change.Broadcast()
	return nil
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

// states are the input hash's states before each line of the window.
type states struct {
	mu   sync.Mutex
	data map[int][]byte
}

func (s *states) put(line int, state []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		s.data = map[int][]byte{}
	}
	s.data[line] = state
}

func (s *states) get(line int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data[line]
}

// drop removes the states before the lines below line.
func (s *states) drop(line int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.data {
		if n < line {
			delete(s.data, n)
		}
	}
}

// newID returns prefix and 24 random characters.
func newID(prefix string) string {
	var b [15]byte
	rand.Read(b[:])
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
