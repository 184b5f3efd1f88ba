package fleet

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// intake receives the messages that a worker pulls from consumers of the queue.
//
// A pull is never cancelled: the server ends it, with its messages or with a status, and all pulls
// share a subscription that outlives them. So no message that is on its way is dropped, which
// the server would deliver again only after AckWait. (The client library's Fetch drops it when its
// context ends.)
type intake struct {
	c     *Conn
	keep  time.Duration // how long the server keeps a pull
	got   func(*nats.Msg)
	inbox string // of replies, followed by the pull's number
	sub   *nats.Subscription

	mu    sync.Mutex
	last  int               // number of the last pull
	open  map[int]*openPull // by number
	pulls sync.WaitGroup    // that are open
}

// openPull is a pull that the server has not ended.
type openPull struct {
	consumer string
	left     int           // messages that may still come
	err      error         // why the server ended it
	done     chan struct{} // closed at the end
}

// pullFor is how long the server keeps a pull that it has nothing for. A worker that ends waits for
// its pulls.
func (l *Layout) pullFor() time.Duration { return min(2*time.Second, l.AckWait/2) }

// pullSlack is how much later the server's word may come. A pull without it counts as ended, but
// its messages are received even then.
const pullSlack = time.Second

// intake returns an intake that passes messages on to got.
func (c *Conn) intake(got func(*nats.Msg)) (*intake, error) {
	i := &intake{c: c, keep: c.lay.pullFor(), got: got, inbox: c.nc.NewInbox() + ".",
		open: map[int]*openPull{}}
	var err error
	i.sub, err = c.nc.Subscribe(i.inbox+"*", i.received)
	return i, err
}

// wait returns when no pull is open. No pull may begin meanwhile.
func (i *intake) wait() { i.pulls.Wait() }

// close drops what comes from now on.
func (i *intake) close() { _ = i.sub.Unsubscribe() } // the connection closes anyway

// pull asks a consumer for a message, until it has one, but not longer than keep. It returns a
// little before that, so that the next pull begins before the server ends this one; err says why it
// ended earlier.
func (i *intake) pull(consumer string) error {
	p, err := i.begin(consumer, 1, fmt.Sprintf(`{"batch":1,"expires":%d}`, i.keep), i.keep)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-time.After(i.keep * 3 / 4):
		return nil
	}
}

// pullNow takes up to n messages that a consumer has now, and returns how many came.
func (i *intake) pullNow(consumer string, n int) int {
	p, err := i.begin(consumer, n, fmt.Sprintf(`{"batch":%d,"no_wait":true}`, n), 0)
	if err != nil {
		return 0
	}
	<-p.done
	return n - p.left
}

// begin sends a pull for n messages that the server keeps for a time.
func (i *intake) begin(
	consumer string, n int, body string, kept time.Duration,
) (*openPull, error) {
	p := &openPull{consumer: consumer, left: n, done: make(chan struct{})}
	i.mu.Lock()
	i.last++
	number := i.last
	i.open[number] = p
	i.pulls.Add(1)
	i.mu.Unlock()
	end := func(err error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.end(number, err)
	}
	err := i.c.nc.PublishRequest(nextSubject+consumer, i.inbox+strconv.Itoa(number), []byte(body))
	if err != nil {
		end(err)
		return nil, err
	}
	time.AfterFunc(kept+pullSlack, func() { end(nil) })
	return p, nil
}

// end ends a pull that may be open. It must be called with i.mu held.
func (i *intake) end(number int, err error) {
	p := i.open[number]
	if p == nil {
		return
	}
	delete(i.open, number)
	p.err = err
	close(p.done)
	i.pulls.Done()
}

// received processes a message, or a status of a pull.
func (i *intake) received(m *nats.Msg) {
	if code := m.Header.Get("Status"); code != "" && len(m.Data) == 0 {
		number, _ := strconv.Atoi(m.Subject[len(i.inbox):]) // ours
		var err error
		switch code {
		case "404", "408": // no messages, or not in time
		default:
			err = fmt.Errorf("fleet: a pull: %s %s", code, m.Header.Get("Description"))
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		i.end(number, err)
		return
	}
	i.got(m)
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	// It is for the consumer's oldest pull.
	i.mu.Lock()
	defer i.mu.Unlock()
	oldest := 0
	for number, p := range i.open {
		if p.consumer == meta.Consumer && (oldest == 0 || number < oldest) {
			oldest = number
		}
	}
	if p := i.open[oldest]; p != nil {
		if p.left--; p.left == 0 {
			i.end(oldest, nil)
		}
	}
}
