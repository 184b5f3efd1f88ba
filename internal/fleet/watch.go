package fleet

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// watch follows keys of a bucket. The server's state of a watch is lost when the server restarts.
// So watch starts again after every reconnection, and retries until it succeeds, because a bucket
// in memory returns a little later than its server.
type watch struct {
	c    *Conn
	kv   jetstream.KeyValue
	keys string
	from bool // resume after the last received entry, not with all entries

	now    jetstream.KeyWatcher // nil: none
	cancel context.CancelFunc   // cancels now
	made   int64                // c.again at the start of now
	last   uint64               // revision of the last received entry
}

// watch starts to follow keys. The caller must call run on the result.
func (c *Conn) watch(
	ctx context.Context, kv jetstream.KeyValue, keys string, from bool,
) (*watch, error) {
	w := &watch{c: c, kv: kv, keys: keys, from: from}
	return w, w.begin(ctx)
}

func (w *watch) begin(ctx context.Context) (err error) {
	w.made = w.c.again.Load()
	var more []jetstream.WatchOpt
	if w.from && w.last > 0 {
		more = append(more, jetstream.ResumeFromRevision(w.last+1))
	}
	ctx, w.cancel = context.WithCancel(ctx)
	slow := time.AfterFunc(w.c.callTime, w.cancel)
	defer slow.Stop()
	if w.now, err = w.kv.Watch(ctx, w.keys, more...); err != nil {
		w.cancel()
		w.now = nil
	}
	return err
}

// end stops the current watch.
func (w *watch) end() {
	if w.now == nil {
		return
	}
	old := w.now
	w.now = nil
	_ = old.Stop() // its connection may be gone
	w.cancel()
	go func() {
		for range old.Updates() { // until it is closed: its sender may wait
			continue
		}
	}()
}

// run calls heard with each entry, and with nil after all existing entries, and calls tick every
// second, until ctx ends.
func (w *watch) run(
	ctx context.Context, heard func(jetstream.KeyValueEntry), tick func(time.Time),
) {
	defer w.end()
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		var updates <-chan jetstream.KeyValueEntry
		if w.now != nil {
			updates = w.now.Updates()
		}
		select {
		case <-ctx.Done():
			return
		case e, open := <-updates:
			if !open {
				w.cancel()
				w.now = nil
				continue
			}
			if e != nil {
				w.last = e.Revision()
			}
			heard(e)
		case now := <-t.C:
			tick(now)
			if w.now == nil || w.made != w.c.again.Load() {
				w.end()
				_ = w.begin(ctx) // if this fails, the next tick retries
			}
		}
	}
}
