//go:build unix

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
)

// cable is a network between processes and a server that can be cut: nothing passes for a while
// and nobody notices, as when a plug is out, or all connections end.
type cable struct {
	url string

	mu    sync.Mutex
	whole *sync.Cond
	cut   bool
	all   map[net.Conn]bool
}

func newCable(t testing.TB, port int) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &cable{url: "nats://" + l.Addr().String(), all: map[net.Conn]bool{}}
	w.whole = sync.NewCond(&w.mu)
	var house sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		w.mend()
		w.hangUp()
		house.Wait()
	})
	house.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			w.pass() // a cut network answers no call
			to, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				from.Close()
				continue
			}
			w.mu.Lock()
			w.all[from], w.all[to] = true, true
			w.mu.Unlock()
			house.Go(func() { w.copy(to, from) })
			house.Go(func() { w.copy(from, to) })
		}
	})
	return w
}

// pass waits until the network is whole.
func (w *cable) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cut {
		w.whole.Wait()
	}
}

func (w *cable) copy(to, from net.Conn) {
	defer func() {
		to.Close()
		from.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, to)
		delete(w.all, from)
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		w.pass()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// hole lets nothing pass until mend.
func (w *cable) hole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

// mend lets everything pass again, and first what was sent meanwhile, as TCP does.
func (w *cable) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
	w.whole.Broadcast()
}

// hangUp ends all connections.
func (w *cable) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all {
		c.Close()
	}
}

// Ensure that a network that is cut between one of two workers and the server loses nothing
// and writes nothing twice: where nothing passes for a while, and where connections end too.
func TestChaosCut(t *testing.T) {
	notShort(t)
	for name, end := range map[string]bool{"silent": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, url := startNodes(t, 1)
			w := newCable(t, nodes[0].port)
			startWorkers(t, 1, url)
			startWorkers(t, 1, w.url)
			none(t, chaos(t, url, quick, few(2500, 200), plain, func(rng *rand.Rand) {
				time.Sleep(200*time.Millisecond + time.Duration(rng.IntN(300))*time.Millisecond)
				w.hole()
				if end {
					w.hangUp()
				}
				time.Sleep(time.Duration(few(10_000, 2_500)) * time.Millisecond)
				w.mend()
			}))
		})
	}
}

// Ensure that a network that is cut between a client and the server loses nothing.
func TestChaosCutClient(t *testing.T) {
	notShort(t)
	t.Parallel()
	nodes, url := startNodes(t, 1)
	w := newCable(t, nodes[0].port)
	startWorkers(t, 2, url)
	none(t, chaos(t, w.url, quick, few(1500, 150), plain, func(rng *rand.Rand) {
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		w.hole()
		w.hangUp()
		time.Sleep(time.Duration(few(10_000, 2_500)) * time.Millisecond)
		w.mend()
	}))
}

// Ensure that a request that is on its way to a worker when that ends is given back at once: with
// this layout the queue itself would give it to another worker only after an hour. Being returned
// does not count as an attempt.
func TestDrainOnItsWay(t *testing.T) {
	nodes, url := startNodes(t, 1)
	w := newCable(t, nodes[0].port)
	dial := func(url string) *Conn {
		t.Helper()
		c, err := Connect(t.Context(), Options{URL: url,
			Layout: Layout{AckWait: time.Hour, Partitions: 2, Bytes: quick.Bytes}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	_, stop := runWorker(t, dial(w.url), newEcho(1), "m1")
	k := newClient(t, dial(url), ClientOptions{})
	var asked restore.Job
	for sent := false; !sent; { // a pull may be over when the network is cut
		w.hole()
		var err error
		if asked, err = k.Submit(t.Context(), question("word", []byte("picture"))); err != nil {
			t.Fatal(err)
		}
		for try := 0; try < 50 && !sent; try++ {
			time.Sleep(10 * time.Millisecond)
			for p := range 2 {
				if i, err := k.consumer(t.Context(), "m1", p); err == nil {
					sent = sent || i.CachedInfo().NumAckPending == 1
				}
			}
		}
		if !sent {
			w.mend()
			if _, err := asked.Answer(); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.AfterFunc(100*time.Millisecond, w.mend)
	stop()
	second, _ := runWorker(t, dial(url), newEcho(1), "m1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		if a, err := asked.Answer(); err != nil || a.Worker != second.ID() {
			t.Errorf("got %+v, %v, want the second worker's answer", a, err)
		}
	}()
	select {
	case <-over:
	case <-ctx.Done():
		t.Fatal("the request was not given back")
	}
	if n := k.begunBefore(t.Context(), asked.(*job).id).Times; n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
}
