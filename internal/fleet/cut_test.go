//go:build unix

package fleet

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
)

// Ensure that a network that is cut between one of two workers and the server loses nothing
// and writes nothing twice: where nothing passes for a while, and where connections end too.
func TestChaosCut(t *testing.T) {
	notShort(t)
	for name, end := range map[string]bool{"silent": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, url := fleettest.Nodes(t, 1)
			w := fleettest.NewCable(t, nodes[0].Port)
			startWorkers(t, 1, url)
			startWorkers(t, 1, w.URL())
			none(t, chaos(t, url, quick, few(2500, 200), plain, func(rng *rand.Rand) {
				time.Sleep(200*time.Millisecond + time.Duration(rng.IntN(300))*time.Millisecond)
				w.Cut()
				if end {
					w.HangUp()
				}
				time.Sleep(time.Duration(few(10_000, 2_500)) * time.Millisecond)
				w.Mend()
			}))
		})
	}
}

// Ensure that a network that is cut between a client and the server loses nothing.
func TestChaosCutClient(t *testing.T) {
	notShort(t)
	t.Parallel()
	nodes, url := fleettest.Nodes(t, 1)
	w := fleettest.NewCable(t, nodes[0].Port)
	startWorkers(t, 2, url)
	none(t, chaos(t, w.URL(), quick, few(1500, 150), plain, func(rng *rand.Rand) {
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
		w.Cut()
		w.HangUp()
		time.Sleep(time.Duration(few(10_000, 2_500)) * time.Millisecond)
		w.Mend()
	}))
}

// Ensure that a request that is on its way to a worker when that ends is given back at once: with
// this layout the queue itself would give it to another worker only after an hour.
func TestDrainOnItsWay(t *testing.T) {
	t.Parallel()
	nodes, url := fleettest.Nodes(t, 1)
	w := fleettest.NewCable(t, nodes[0].Port)
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
	_, stop := runWorker(t, dial(w.URL()), newEcho(1), "m1")
	k := newClient(t, dial(url), ClientOptions{})
	var asked restore.Job
	for sent := false; !sent; { // a pull may be over when the network is cut
		w.Cut()
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
			w.Mend()
			if _, err := asked.Answer(); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.AfterFunc(100*time.Millisecond, w.Mend)
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
}
