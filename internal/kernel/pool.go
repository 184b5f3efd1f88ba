package kernel

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Pool runs loops on a fixed number of threads: the caller of [Pool.Run] and Threads()-1 workers
// that live until Close. A nil *Pool is serial. Several callers may use one pool at once, and f may
// itself call Run. The caller always works on its own loop, so it never waits for a free worker.
type Pool struct {
	threads int
	spin    bool // each thread has a processor, so a waiting thread may spin
	jobs    chan *job
	quit    chan struct{}
	closing sync.Once
	free    *sync.Pool  // of *job
	ended   func() bool // nil: never
	step    bool        // see Step
}

// job is one loop. It is recycled when the caller and every worker that took it from the queue have
// released it.
type job struct {
	f        func(i int)
	lanes    []lane       // one a thread
	came     atomic.Int32 // threads that have begun
	left     atomic.Int64 // indices not yet finished
	refs     atomic.Int32
	ended    func() bool   // nil: never
	done     chan struct{} // receives once, when left falls to 0
	panicked atomic.Pointer[any]
}

// lane is a run of indices. The thread whose lane it is takes them in order, so that what it
// prefetches at the end of one is what it needs for the next. Others help when theirs are empty.
type lane struct {
	next atomic.Int64 // first index not yet taken
	end  int64
	_    [48]byte // a cache line of its own
}

// NewPool starts a pool with the given number of threads, including the caller's; zero or less
// means GOMAXPROCS.
func NewPool(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{
		threads: threads,
		spin:    threads <= runtime.GOMAXPROCS(0),
		jobs:    make(chan *job, threads),
		quit:    make(chan struct{}),
		free: &sync.Pool{New: func() any {
			return &job{done: make(chan struct{}, 1), lanes: make([]lane, threads)}
		}},
	}
	for range threads - 1 {
		go p.work()
	}
	return p
}

// Until returns a pool with p's threads whose loops stop early: once ended returns true, indices
// that have not started are skipped, so results are incomplete. Any thread may call ended. After it
// has returned true, it must not return false.
func (p *Pool) Until(ended func() bool) *Pool {
	u := p.view()
	u.ended = ended
	return u
}

// Step returns a pool with p's threads for the products of decoding steps: a few rows that belong
// to different sequences. [MatMul] rounds them in smaller blocks than the rows of prompts and
// pictures, which is faster for few rows and slower for many. So it is the caller's purpose that
// decides about bits, and not the number of rows. p may be nil.
func (p *Pool) Step() *Pool {
	if p == nil {
		return &Pool{threads: 1, step: true}
	}
	u := p.view()
	u.step = true
	return u
}

// view returns another pool with p's threads.
func (p *Pool) view() *Pool {
	return &Pool{
		threads: p.threads, spin: p.spin, jobs: p.jobs, quit: p.quit, free: p.free,
		ended: p.ended, step: p.step,
	}
}

// steps reports whether p is for decoding steps.
func (p *Pool) steps() bool { return p != nil && p.step }

// stopped reports whether loops of p stop early.
func (p *Pool) stopped() bool { return p != nil && p.ended != nil && p.ended() }

// Threads returns the number of threads that a loop may use: 1 for a nil pool.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return p.threads
}

// parts returns into how many parts rows are divided, from least to most, if columns or heads make
// this many tasks: so many that every thread of several has four.
func (p *Pool) parts(tasks, least, most int) int {
	want := 4 * p.Threads()
	if p.Threads() == 1 || tasks >= want {
		return least
	}
	return max(least, min((want+tasks-1)/tasks, most))
}

// share returns how many of n rows a task takes so that every thread has some: most or fewer.
func (p *Pool) share(n, most int) int {
	return max(1, min(most, (n+p.Threads()-1)/p.Threads()))
}

// Close stops the workers once they finish their current work. A loop that starts later runs only
// on its caller. Close may be called twice, and on nil.
func (p *Pool) Close() {
	if p != nil {
		p.closing.Do(func() { close(p.quit) })
	}
}

// Run calls f(0) … f(n-1), each once, in any order and on any thread, and returns when all have
// returned. Each thread begins with a run of indices of its own and takes them one at a time, then
// those that others have left, so a slow thread delays only one call of f. A panic in f is raised
// again in the caller after the loop.
func (p *Pool) Run(n int, f func(i int)) {
	if p == nil || p.threads == 1 || n <= 1 {
		for i := range n {
			if p.stopped() {
				return
			}
			f(i)
		}
		return
	}
	j := p.free.Get().(*job)
	j.f, j.ended = f, p.ended
	for i := range j.lanes {
		j.lanes[i].next.Store(int64(i) * int64(n) / int64(p.threads))
		j.lanes[i].end = int64(i+1) * int64(n) / int64(p.threads)
	}
	j.came.Store(0)
	j.left.Store(int64(n))
	j.panicked.Store(nil)
	helpers := min(p.threads, n) - 1
	j.refs.Store(int32(helpers) + 1)
	for sent := range helpers {
		select {
		case p.jobs <- j:
			continue
		default: // all workers are busy
		}
		j.refs.Add(int32(sent - helpers))
		break
	}
	j.loop()
	p.finish(j)
	cause := j.panicked.Load()
	p.release(j)
	if cause != nil {
		panic(*cause)
	}
}

func (p *Pool) work() {
	debug.SetPanicOnFault(true) // for mapped files that are cut short
	for {
		j := p.soon()
		if j == nil {
			select {
			case j = <-p.jobs:
			case <-p.quit:
				return
			}
		}
		j.loop()
		p.release(j)
	}
}

// A pass through a model is hundreds of short loops, some shorter than the time to wake a thread.
// So a thread without work polls for spinTime before it sleeps.
const (
	spinTime  = 100 * time.Microsecond
	spinPolls = 64 // polls between two readings of the clock
)

// soon returns a job that arrives while the worker still polls, or nil.
func (p *Pool) soon() *job {
	for start := time.Now(); p.spin; {
		for range spinPolls {
			select {
			case j := <-p.jobs:
				return j
			default:
			}
		}
		if time.Since(start) > spinTime {
			break
		}
	}
	return nil
}

// finish waits until all indices of j are done.
func (p *Pool) finish(j *job) {
	for start := time.Now(); p.spin; {
		for range spinPolls {
			select {
			case <-j.done:
				return
			default:
			}
		}
		if time.Since(start) > spinTime {
			break
		}
	}
	<-j.done
}

func (p *Pool) release(j *job) {
	if j.refs.Add(-1) == 0 {
		j.f, j.ended = nil, nil
		p.free.Put(j)
	}
}

// loop takes indices until there are none left, those of its own lane first.
func (j *job) loop() {
	own := int(j.came.Add(1)) - 1
	for i := range j.lanes {
		l := &j.lanes[(own+i)%len(j.lanes)]
		for at := l.next.Add(1) - 1; at < l.end; at = l.next.Add(1) - 1 {
			j.call(int(at))
			if j.left.Add(-1) == 0 {
				j.done <- struct{}{}
			}
		}
	}
}

func (j *job) call(i int) {
	defer func() {
		if r := recover(); r != nil {
			cause := r // a copy, so that only a panic allocates
			j.panicked.CompareAndSwap(nil, &cause)
		}
	}()
	if j.ended == nil || !j.ended() {
		j.f(i)
	}
}
