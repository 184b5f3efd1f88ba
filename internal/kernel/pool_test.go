package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/racetest"
)

func TestPoolRunsEachIndexOnce(t *testing.T) {
	for _, threads := range []int{0, 1, 2, 7} {
		p := NewPool(threads)
		for _, n := range []int{0, 1, 2, 3, 100, 1000} {
			hits := make([]atomic.Int32, n)
			p.Run(n, func(i int) { hits[i].Add(1) })
			for i := range hits {
				if got := hits[i].Load(); got != 1 {
					t.Errorf("threads %d, n %d: index %d ran %d times", threads, n, i, got)
				}
			}
		}
		p.Close()
		p.Close()
	}
	var none *Pool
	none.Run(2, func(int) {})
	none.Close()
	if none.Threads() != 1 {
		t.Error("a nil pool does not have one thread")
	}
}

func TestPoolAfterClose(t *testing.T) {
	p := NewPool(3)
	p.Close()
	var sum atomic.Int64
	for range 20 { // more loops than the queue holds
		p.Run(10, func(i int) { sum.Add(int64(i)) })
	}
	if got := sum.Load(); got != 20*45 {
		t.Errorf("sum %d, want %d", got, 20*45)
	}
}

func TestPoolConcurrentAndNested(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				p.Run(5, func(i int) {
					p.Run(4, func(j int) { sum.Add(int64(i*4 + j)) })
				})
			}
		})
	}
	wg.Wait()
	if got, want := sum.Load(), int64(8*50*190); got != want { // 0+…+19 = 190
		t.Errorf("sum %d, want %d", got, want)
	}
}

func TestPoolPanicReachesTheCaller(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	defer func() {
		if r := recover(); r != "boom" {
			t.Errorf("recovered %v, want boom", r)
		}
	}()
	p.Run(10, func(i int) {
		if i == 7 {
			panic("boom")
		}
	})
	t.Error("no panic")
}

func TestPoolCloseEndsWorkers(t *testing.T) {
	before := runtime.NumGoroutine()
	p := NewPool(5)
	p.Run(100, func(int) {})
	p.Close()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	t.Errorf("%d goroutines after Close, want %d", runtime.NumGoroutine(), before)
}

func TestPoolRunDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	p := NewPool(2)
	defer p.Close()
	f := func(int) {}
	p.Run(10, f)
	if n := testing.AllocsPerRun(100, func() { p.Run(10, f) }); n >= 1 {
		t.Errorf("%v allocations a loop, want 0", n)
	}
}

// Ensure that loops of Until skip indices that have not started once they have ended, and that
// other loops on the same workers do not.
func TestPoolUntil(t *testing.T) {
	for _, threads := range []int{1, 3} {
		p := NewPool(threads)
		var ended atomic.Bool
		u := p.Until(ended.Load)
		var count sync.Mutex // so that no index is counted between the last one and the end
		ran := 0
		u.Run(1000, func(int) {
			count.Lock()
			defer count.Unlock()
			if ran++; ran == 100 {
				ended.Store(true)
			}
		})
		if ran < 100 || ran > 100+threads {
			t.Errorf("%d threads: %d indices ran, want 100 and no more than were begun", threads,
				ran)
		}
		u.Run(10, func(int) { t.Error("ran after ended was true") })
		var sum atomic.Int64
		p.Run(10, func(i int) { sum.Add(int64(i)) })
		if sum.Load() != 45 {
			t.Errorf("%d threads: sum %d of another's loop, want 45", threads, sum.Load())
		}
		p.Close()
	}
}
