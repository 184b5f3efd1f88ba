//go:build unix

package fleet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/fleet/fleettest"
)

// BenchmarkCoordination shows the cost of coordination with workers that answer at once, with one
// NATS server and with three replicas, by the number of workers, with and without workers that
// leave and join. An operation is a request; -benchtime 10s measures for about that long.
func BenchmarkCoordination(b *testing.B) {
	for _, servers := range []int{1, 3} {
		b.Run(fmt.Sprint(servers, " servers"), func(b *testing.B) {
			nodes, url := fleettest.Nodes(b, servers)
			waitCluster(b, url, Layout{Replicas: servers})
			for _, n := range []int{1, 10, 50, 200} {
				for _, churn := range []bool{false, true} {
					coordinate(b, nodes, url, n, churn)
				}
			}
		})
	}
}

// coordinate measures requests to n workers.
func coordinate(b *testing.B, nodes []*fleettest.Node, url string, n int, churn bool) {
	key := fmt.Sprintf("%d workers", n)
	if churn {
		key += " with churn"
	}
	w := &coming{url: url, key: strings.ReplaceAll(key, " ", "-"), service: newEcho(4)}
	stop := w.start(b.Context(), n, churn)
	defer stop()
	c, err := Connect(b.Context(), Options{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	m, err := c.Members(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if !churn { // workers that the servers are too slow for do not come
		fleettest.Eventually(func() bool { return len(m.List()) >= n })
	}
	k := newClient(b, c, ClientOptions{Model: w.key})
	b.Run(key, func(b *testing.B) {
		there, late, asked := len(m.List()), w.late.Load(), w.service.asked.Load()
		own, theirs := processorTimes(nodes)
		var next atomic.Int64
		var askers sync.WaitGroup
		for range 256 {
			askers.Go(func() {
				for next.Add(1) <= int64(b.N) {
					if _, err := asking(b.Context(), k, "x"); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		askers.Wait()
		b.StopTimer()
		ownNow, theirsNow := processorTimes(nodes)
		memory := 0
		for _, d := range nodes {
			memory = max(memory, residentMB(d.Cmd.Process.Pid))
		}
		each := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(b.N) }
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		b.ReportMetric(float64(w.service.asked.Load()-asked-int64(b.N)), "asked-twice")
		b.ReportMetric(each(ownNow-own), "ms-here/op")
		b.ReportMetric(each(theirsNow-theirs), "ms-in-servers/op")
		b.ReportMetric(float64(memory), "MB-of-a-server")
		b.ReportMetric(float64(there), "workers")
		b.ReportMetric(float64(w.late.Load()-late), "workers-ended")
	})
}

// coming are workers that come back when they end, as services do.
type coming struct {
	url, key string
	service  *echo
	late     atomic.Int64 // workers that ended because the servers were too slow
}

// start starts n workers, which with churn leave and join, until the returned function ends them.
func (w *coming) start(ctx context.Context, n int, churn bool) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				mine, end := context.WithCancel(ctx)
				if churn {
					time.AfterFunc(2*time.Second+time.Duration(n)*100*time.Millisecond, end)
				}
				if err := w.once(mine); err != nil && mine.Err() == nil {
					w.late.Add(1)
				}
				end()
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// once is the life of a worker.
func (w *coming) once(ctx context.Context) error {
	c, err := Connect(ctx, Options{URL: w.url})
	if err != nil {
		return err
	}
	defer c.Close()
	worker, err := c.NewWorker(ctx, WorkerOptions{Key: w.key, Service: w.service})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// processorTimes returns the processor time that this process has taken, and all servers, where
// that is known.
func processorTimes(nodes []*fleettest.Node) (own, servers time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, d := range nodes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Cmd.Process.Pid))
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if err != nil || len(f) < 13 {
			continue
		}
		for _, text := range f[11:13] { // user and system, in hundredths of a second
			n, _ := strconv.Atoi(text) // 0 else
			servers += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return own, servers
}

// residentMB is the memory of a process; 0 if not known.
func residentMB(pid int) int {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident int
	if err == nil {
		_, err = fmt.Sscan(string(data), &size, &resident)
	}
	if err != nil {
		return 0
	}
	return resident * os.Getpagesize() / 1e6
}
