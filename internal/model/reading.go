package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/nn"
)

// Reading checks the weights of a checkpoint.Checked while the model already runs, in the order in
// which they were bound, which is the order of their use. The first use of a weight waits for its
// check, or makes it if it has not begun. A nil Reading has nothing to check.
type Reading struct {
	ck     checkpoint.Checked
	memory *nn.Memory
	list   []*unread
	named  map[string]*unread

	start  time.Time
	copied atomic.Int64 // bytes
	spent  atomic.Int64 // nanoseconds that all threads took for them

	next    atomic.Int64 // in list
	left    atomic.Int64 // weights
	ended   atomic.Bool
	threads sync.WaitGroup
	over    sync.Once
	done    chan struct{} // closed when all weights are checked, or when err is set
	err     error         // the first
}

// unread is a weight that must be checked before its first use.
type unread struct {
	name     string
	often    bool // every token reads the whole weight
	matrices []*nn.Matrix
	gate     *nn.Gate
	taken    atomic.Bool
	checked  chan struct{} // closed when err is set and the matrices have their final data
	err      error
}

// Decoding from a copy in huge pages is faster than from a mapped file, whose pages are small
// unless the system read the file through the mapping. But the memory must be allocated first,
// which at worst takes as long as reading a disk. So weights that every token reads are copied only
// for copyTime, and after the first copyTrial bytes only while a thread copies copyRate bytes per
// second.
const (
	copyTime  = 2 * time.Second
	copyTrial = 64 << 20
	copyRate  = 0.75e9
)

func newReading(ck checkpoint.Checked, memory *nn.Memory) *Reading {
	return &Reading{ck: ck, memory: memory, named: map[string]*unread{}, done: make(chan struct{})}
}

// add puts a gate before w, a matrix of the weight called name. often says whether every token
// reads all of w.
func (r *Reading) add(name string, w *nn.Matrix, often bool) *nn.Gate {
	u := r.named[name]
	if u == nil {
		u = &unread{name: name, checked: make(chan struct{})}
		u.gate = nn.NewGate(func() error { return r.need(u) })
		r.list, r.named[name] = append(r.list, u), u
	}
	u.often = u.often || often
	u.matrices = append(u.matrices, w)
	return u.gate
}

// Names returns the names of the weights, in the order of their checks.
func (r *Reading) Names() []string {
	names := make([]string, len(r.list))
	for i, u := range r.list {
		names[i] = u.name
	}
	return names
}

// Start checks all weights, with half of the given number of threads: the others compute.
func (r *Reading) Start(threads int) {
	if r == nil {
		return
	}
	r.start = time.Now()
	r.left.Store(int64(len(r.list)))
	if len(r.list) == 0 {
		r.finish(nil)
	}
	for range max(1, threads/2) {
		r.threads.Go(func() {
			for !r.ended.Load() {
				i := r.next.Add(1) - 1
				if i >= int64(len(r.list)) {
					return
				}
				if u := r.list[i]; u.taken.CompareAndSwap(false, true) {
					r.check(u)
				}
			}
		})
	}
}

// Stop ends the checks. Weights that are not checked stay unusable.
func (r *Reading) Stop() {
	if r == nil {
		return
	}
	r.finish(fmt.Errorf("model: %w", errs.ErrClosed))
	r.threads.Wait()
}

// Err returns the error of the first weight that was not as it should be, or nil so far.
func (r *Reading) Err() error {
	if r == nil {
		return nil
	}
	select {
	case <-r.done:
		return r.err
	default:
		return nil
	}
}

// Wait returns when all weights are checked, with the first error, or when ctx ends, with its
// cause.
func (r *Reading) Wait(ctx context.Context) error {
	if r == nil {
		return nil
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// need returns when u is checked.
func (r *Reading) need(u *unread) error {
	if u.taken.CompareAndSwap(false, true) {
		r.check(u)
	}
	<-u.checked
	return u.err
}

// check checks u, which the caller has taken.
func (r *Reading) check(u *unread) {
	defer close(u.checked)
	var alloc func(n int) []byte
	if u.often && r.copying() {
		alloc = r.memory.Bytes
	}
	start := time.Now()
	data, err := r.ck.Check(u.name, alloc, r.ended.Load)
	if errors.Is(err, checkpoint.ErrEnded) {
		u.err = r.Err()
		return
	}
	if err != nil {
		u.err = err
		r.finish(err)
		return
	}
	if alloc != nil {
		r.copied.Add(int64(len(data)))
		r.spent.Add(int64(time.Since(start)))
	}
	for _, w := range u.matrices {
		w.Data = data
	}
	if r.left.Add(-1) == 0 {
		r.finish(nil)
	}
}

// copying reports whether copies are still worth their time.
func (r *Reading) copying() bool {
	n := r.copied.Load()
	return time.Since(r.start) < copyTime &&
		(n < copyTrial || float64(n) >= copyRate*time.Duration(r.spent.Load()).Seconds())
}

// finish records the end of all checks.
func (r *Reading) finish(err error) {
	r.over.Do(func() {
		r.err = err
		close(r.done)
		r.ended.Store(true)
	})
}
