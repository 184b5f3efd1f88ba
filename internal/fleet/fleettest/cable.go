package fleettest

import (
	"fmt"
	"net"
	"sync"
	"testing"
)

// Cable is a network to a server that can be cut: nothing passes for a while and nobody notices, as
// when a plug is out, or all connections end.
type Cable struct {
	Port int // to call

	mu    sync.Mutex
	whole *sync.Cond
	cuts  int
	all   map[net.Conn]bool
}

// NewCable makes a network to the server at a port.
func NewCable(t testing.TB, port int) *Cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Cable{Port: l.Addr().(*net.TCPAddr).Port, all: map[net.Conn]bool{}}
	w.whole = sync.NewCond(&w.mu)
	var house sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		w.mu.Lock()
		w.cuts = 0
		w.whole.Broadcast()
		w.mu.Unlock()
		w.HangUp()
		house.Wait()
	})
	house.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			house.Go(func() { w.connect(from, port) })
		}
	})
	return w
}

// URL is the address of a NATS server at the other end.
func (w *Cable) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", w.Port) }

// connect carries a connection until it ends.
func (w *Cable) connect(from net.Conn, port int) {
	defer from.Close()
	w.pass() // a cut network answers no call
	to, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return
	}
	defer to.Close()
	w.mu.Lock()
	w.all[from], w.all[to] = true, true
	w.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { w.carry(to, from) })
	both.Go(func() { w.carry(from, to) })
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, from)
	delete(w.all, to)
}

// pass waits until the network is whole.
func (w *Cable) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cuts > 0 {
		w.whole.Wait()
	}
}

// carry copies until one end closes, and closes both.
func (w *Cable) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
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

// Cut lets nothing pass until Mend has been called as often as Cut.
func (w *Cable) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts++
}

// Mend ends a Cut. What was sent meanwhile passes first, as TCP does it.
func (w *Cable) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts--
	w.whole.Broadcast()
}

// HangUp ends all connections.
func (w *Cable) HangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all {
		c.Close()
	}
}
