//go:build unix

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/server"
)

// TestChaosCoordination prints the cost of coordination with workers that answer at once, with one
// NATS server and with three replicas: requests per second by the number of workers, with and
// without workers that leave and join.
func TestChaosCoordination(t *testing.T) {
	if !full() {
		t.Skip("measures")
	}
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			nodes, url := startNodes(t, servers)
			waitCluster(t, url, Layout{Replicas: servers})
			for _, n := range []int{1, 10, 50, 200} {
				for _, churn := range []bool{false, true} {
					coordinate(t, nodes, url, n, churn)
				}
			}
		})
	}
}

func coordinate(t *testing.T, nodes []*node, url string, n int, churn bool) {
	key := fmt.Sprintf("w%d", n)
	if churn {
		key += "churn"
	}
	b := newEcho(4)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var late atomic.Int64 // workers that ended because the servers were too slow
	one := func(ctx context.Context) {
		c, err := Connect(ctx, Options{URL: url})
		if err != nil {
			if ctx.Err() == nil {
				late.Add(1)
			}
			return
		}
		defer c.Close()
		w, err := c.NewWorker(ctx, WorkerOptions{Key: key,
			Backend: func(json.RawMessage) (server.Backend, error) { return b, nil }})
		if err == nil {
			err = w.Run(ctx)
		}
		if err != nil && ctx.Err() == nil {
			late.Add(1)
		}
	}
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				mine, end := context.WithCancel(ctx)
				if churn {
					time.AfterFunc(2*time.Second+time.Duration(n)*100*time.Millisecond, end)
				}
				one(mine) // and again, as a service is started
				end()
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	c, err := Connect(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for wait := 0; !churn && len(m.List()) < n && wait < 600; wait++ {
		time.Sleep(100 * time.Millisecond)
	}
	there := len(m.List())
	k := newClient(t, c, ClientOptions{Model: key})
	const most = 10 * time.Second
	begun, answered := time.Now(), 0
	own, theirs := processorTimes(nodes)
	var mu sync.Mutex
	var askers sync.WaitGroup
	for range 256 {
		askers.Go(func() {
			for time.Since(begun) < most {
				if _, err := asking(t.Context(), k, "x"); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answered++
				mu.Unlock()
			}
		})
	}
	askers.Wait()
	took := time.Since(begun)
	ownNow, theirsNow := processorTimes(nodes)
	each := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(answered) }
	twice := b.asked.Load() - int64(answered)
	memory := 0
	for _, d := range nodes {
		memory = max(memory, residentMB(d.cmd.Process.Pid))
	}
	t.Logf("%3d workers (%d there), churn %-5v: %5.0f requests a second, %d of %d asked twice, "+
		"a server %d MB, %d workers ended by themselves; processor time of a request %.2f ms "+
		"here, %.2f ms in servers", n, there, churn, float64(answered)/took.Seconds(), twice, answered,
		memory, late.Load(), each(ownNow-own), each(theirsNow-theirs))
	stop()
	all.Wait()
}

// processorTimes returns the processor time that this process has taken, and all servers, where
// that is known.
func processorTimes(nodes []*node) (own, servers time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		own = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for _, d := range nodes {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
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
