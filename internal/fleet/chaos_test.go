//go:build unix

package fleet

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
	"github.com/restore-vlm/restore/internal/smalldisk"
)

// urlEnv tells a worker process the address of the NATS server.
const urlEnv = "RESTORE_FLEET_URL"

func TestMain(m *testing.M) {
	fleettest.Main(map[string]func(){"embedded": beEmbedded, "worker": beWorker})
	// Tests mostly wait. The flag -parallel sets another number.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// beEmbedded is a process with a server inside, as `restore batch --nats embedded`.
func beEmbedded() {
	port, err := strconv.Atoi(os.Args[2])
	if err == nil {
		_, err = natsserver.Start(natsserver.Options{Folder: os.Args[1], Port: port,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // until it is killed
}

// beWorker answers every question after 20 ms; "poison" kills it.
func beWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := func() error {
		c, err := Connect(ctx, Options{URL: os.Getenv(urlEnv),
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			return err
		}
		defer c.Close()
		b := newEcho(4)
		b.takes = 20 * time.Millisecond
		b.trying = func(text string) error {
			if text == "poison" {
				os.Exit(3)
			}
			return nil
		}
		w, err := c.NewWorker(ctx, WorkerOptions{Key: "m1", Service: b})
		if err != nil {
			return err
		}
		return w.Run(ctx)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// workers are processes that are started again whenever they end.
type workers struct {
	mu   sync.Mutex
	now  []*fleettest.Child
	over bool
	runs int
}

func startWorkers(t testing.TB, n int, url string) *workers {
	t.Helper()
	w := &workers{now: make([]*fleettest.Child, n)}
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for {
				w.mu.Lock()
				if w.over {
					w.mu.Unlock()
					return
				}
				c := fleettest.Begin(t,
					fleettest.Command("worker", []string{urlEnv + "=" + url}))
				w.now[i], w.runs = c, w.runs+1
				w.mu.Unlock()
				<-c.Done
			}
		})
	}
	t.Cleanup(func() {
		w.mu.Lock()
		w.over = true
		now := append([]*fleettest.Child(nil), w.now...)
		w.mu.Unlock()
		for _, c := range now {
			if c != nil {
				c.Kill()
			}
		}
		all.Wait()
	})
	return w
}

// one returns any of the running processes.
func (w *workers) one(rng *rand.Rand) *fleettest.Child {
	for {
		w.mu.Lock()
		c := w.now[rng.IntN(len(w.now))]
		w.mu.Unlock()
		if c != nil {
			return c
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// full reports whether the environment requests the full size, not the quick one.
func full() bool { return os.Getenv("RESTORE_CHAOS") != "" }

// chaos asks n questions while harm runs, and checks that each has exactly one result. It returns
// the questions without an answer.
func chaos(
	t *testing.T,
	url string,
	l Layout,
	n int,
	questions func(i int) string,
	harm func(rng *rand.Rand),
) map[string]error {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c, err := Connect(ctx, Options{URL: url, Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	k, err := c.Client(ctx, ClientOptions{ID: "chaos"})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		harm(rand.New(rand.NewPCG(seed, 0)))
	}()
	failed := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	slots := make(chan struct{}, 64)
	begun := time.Now()
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			text := questions(i)
			a, err := answerOf(Named(ctx, strconv.Itoa(i)), k,
				question(text, []byte(fmt.Sprint("picture ", i/5))))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[text] = err
			} else if a.Text != text {
				t.Errorf("question %q: got answer %q", text, a.Text)
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	<-done
	results := 0
	// The servers may still be starting. A call whose server goes away may wait for ever.
	if !fleettest.Eventually(func() bool {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var keys []string
		keys, err = c.results.Keys(call, jetstream.MetaOnly())
		results = len(keys)
		return err == nil && results == n
	}) {
		t.Errorf("got %d results, want %d; last error %v", results, n, err)
	}
	left := uint64(0)
	// A request that was answered twice is acknowledged later, or swept.
	if !fleettest.Eventually(func() bool {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var info *jetstream.StreamInfo
		if info, err = c.work.Info(call); err == nil {
			left = info.State.Msgs
		}
		return err == nil && left == 0
	}) {
		t.Errorf("the queue still holds %d requests; last error %v", left, err)
	}
	t.Logf("%d requests, %d results, %d failed, in %v", n, results, len(failed),
		took.Round(time.Millisecond))
	return failed
}

func notShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts many processes")
	}
}

func plain(i int) string { return "question " + strconv.Itoa(i) }

// few is n, or fewer in a quick run.
func few(n, quick int) int {
	if full() {
		return n
	}
	return quick
}

func none(t *testing.T, failed map[string]error) {
	t.Helper()
	for text, err := range failed {
		t.Errorf("%s: %v", text, err)
	}
}

// Ensure that workers that are killed at random moments lose nothing.
func TestChaosKilledWorkers(t *testing.T) {
	t.Parallel()
	_, url := fleettest.Nodes(t, 1)
	w := startWorkers(t, 3, url)
	kills := few(20, 4)
	none(t, chaos(t, url, quick, few(3000, 200), plain, func(rng *rand.Rand) {
		for range kills {
			time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
			w.one(rng).Kill()
		}
	}))
}

// Ensure that a NATS server that is killed and restarted loses nothing.
func TestChaosKilledServer(t *testing.T) {
	notShort(t)
	t.Parallel()
	nodes, url := fleettest.Nodes(t, 1)
	startWorkers(t, 2, url)
	none(t, chaos(t, url, quick, few(2000, 300), plain, func(rng *rand.Rand) {
		for range few(5, 1) {
			time.Sleep(300*time.Millisecond + time.Duration(rng.IntN(500))*time.Millisecond)
			nodes[0].Kill()
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
			nodes[0].Start(t)
		}
	}))
}

// Ensure that a worker whose NATS server is away when it begins waits for it.
func TestWorkerWaits(t *testing.T) {
	t.Parallel()
	nodes, url := fleettest.Nodes(t, 1)
	c, err := Connect(t.Context(), Options{URL: url, Layout: quick, callTime: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	nodes[0].Kill()
	time.AfterFunc(time.Second, func() { nodes[0].Start(t) })
	w, _ := runWorker(t, c, newEcho(1), "m1")
	if !fleettest.Eventually(func() bool { return w.Ready() == nil }) {
		t.Error(w.Ready())
	}
}

// Ensure that a cluster of three loses nothing when one is killed and then another is stopped for a
// while.
func TestChaosCluster(t *testing.T) {
	notShort(t)
	t.Parallel()
	nodes, url := fleettest.Nodes(t, 3)
	l := Layout{Replicas: 3, AckWait: 2 * time.Second, Partitions: 8, Bytes: quick.Bytes}
	waitCluster(t, url, l)
	startWorkers(t, 2, url)
	none(t, chaos(t, url, l, few(1500, 200), plain, func(rng *rand.Rand) {
		time.Sleep(500 * time.Millisecond)
		d := nodes[rng.IntN(3)]
		d.Kill()
		time.Sleep(2 * time.Second)
		d.Start(t)
		if full() {
			time.Sleep(3 * time.Second)
			other := nodes[rng.IntN(3)]
			other.Signal(syscall.SIGSTOP)
			time.Sleep(10 * time.Second)
			other.Signal(syscall.SIGCONT)
		}
	}))
}

// Ensure that processes that start together on a new cluster all find the streams, whoever made
// them, and do not wait long for an answer that the cluster never gives.
func TestClusterTogether(t *testing.T) {
	notShort(t)
	t.Parallel()
	_, url := fleettest.Nodes(t, 3)
	waitCluster(t, url, Layout{})
	first, err := Connect(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for range 3 {
		for name := range first.js.StreamNames(t.Context()).Name() {
			if err := first.js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				c, err := Connect(t.Context(), Options{URL: url, Layout: Layout{Replicas: 3}})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				if _, err := c.Features(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// waitCluster makes the streams once the cluster has a leader.
func waitCluster(t testing.TB, url string, l Layout) {
	t.Helper()
	var err error
	if !fleettest.Eventually(func() bool {
		var c *Conn
		o := Options{URL: url, Layout: l, callTime: 2 * time.Second} // until it has a leader
		if c, err = Connect(t.Context(), o); err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal(err)
	}
}

// Ensure that a worker that hangs, as after a broken network, loses nothing, and that its late
// answers are not written again.
func TestChaosStopped(t *testing.T) {
	notShort(t)
	t.Parallel()
	_, url := fleettest.Nodes(t, 1)
	w := startWorkers(t, 2, url)
	pause := time.Duration(few(10, 3)) * time.Second
	none(t, chaos(t, url, quick, few(1500, 300), plain, func(rng *rand.Rand) {
		time.Sleep(300 * time.Millisecond)
		c := w.one(rng)
		c.Signal(syscall.SIGSTOP)
		time.Sleep(pause)
		c.Signal(syscall.SIGCONT)
		time.Sleep(2 * time.Second) // it answers its old requests
	}))
}

// Ensure that a request that crashes its worker is given up with the reason, and that no other
// request dies with it.
func TestChaosPoison(t *testing.T) {
	notShort(t)
	t.Parallel()
	_, url := fleettest.Nodes(t, 1)
	w := startWorkers(t, 2, url)
	n := few(1000, 200)
	failed := chaos(t, url, quick, n, func(i int) string {
		if i == n/3 {
			return "poison"
		}
		return plain(i)
	}, func(*rand.Rand) {})
	err := failed["poison"]
	if len(failed) != 1 || err == nil ||
		!strings.Contains(err.Error(), "3 workers ended or fell silent") {
		t.Errorf("got %v, want the poisoned request alone", failed)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs != 2+1+3 { // in the first crash others may be the reason
		t.Errorf("%d processes, want two and four crashes", w.runs)
	}
	c, err := Connect(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := c.dead.GetLastMsgForSubject(t.Context(), deadSubject+"m1")
	if err != nil || !strings.Contains(m.Header.Get(reasonHeader), "3 workers ended") ||
		m.Header.Get(idHeader) != "chaos."+strconv.Itoa(n/3) {
		t.Errorf("dead letter: got %+v, %v", m, err)
	}
}

// Ensure that an embedded server reports a full disk, loses nothing, and continues by itself
// when the disk has room again.
func TestChaosEmbeddedDisk(t *testing.T) {
	notShort(t)
	t.Parallel()
	dir, port := t.TempDir(), fleettest.FreePort(t)
	cmd := fleettest.Command("embedded", nil, dir, strconv.Itoa(port))
	disk := smalldisk.New(t, cmd, dir, 16<<20)
	log := new(syncBuffer)
	cmd.Stderr = log
	fleettest.Begin(t, cmd)
	fleettest.WaitPort(t, port)
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	startWorkers(t, 2, url)
	n, fills := few(1000, 300), few(3, 1)
	var asked atomic.Int64
	counted := func(i int) string {
		asked.Add(1)
		return plain(i)
	}
	none(t, chaos(t, url, quick, n, counted, func(rng *rand.Rand) {
		for fill := range fills {
			log.reset()
			for asked.Load() < int64(n*(fill+1)/(fills+2)) { // others follow, and are written
				time.Sleep(time.Millisecond)
			}
			disk.Fill()
			log.wait(t, "make room on the disk")
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
			disk.Free()
			log.wait(t, "the disk has room again")
		}
	}))
}

// syncBuffer holds what a process says.
type syncBuffer struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

func (b *syncBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = nil
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}

// wait waits until the process has said something.
func (b *syncBuffer) wait(t testing.TB, what string) {
	t.Helper()
	if !fleettest.Eventually(func() bool { return strings.Contains(b.String(), what) }) {
		t.Errorf("got %q, want %q", b, what)
	}
}

// Ensure that a queue that was full accepts requests when it has room again.
func TestChaosFullDisk(t *testing.T) {
	notShort(t)
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "nats.conf")
	port := fleettest.FreePort(t)
	text := fmt.Sprintf(
		"listen: 127.0.0.1:%d\njetstream {store_dir: %q, max_file_store: 400K, max_mem: 10M}\n",
		port, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &fleettest.Node{Port: port, Config: config}
	d.Start(t)
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	l := quick
	l.Bytes = 100_000
	c, err := Connect(t.Context(), Options{URL: url, Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	startWorkers(t, 2, url)
	k := newClient(t, c, ClientOptions{})
	var all sync.WaitGroup
	for i := range 40 { // 800 kB of requests for a queue of 100 kB
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			text := "question " + strconv.Itoa(i) + " " + strings.Repeat("x", 20000)
			if a, err := answerOf(ctx, k, question(text, nil)); err != nil || a.Text != text {
				t.Errorf("question %d: %v", i, err)
			}
		})
	}
	all.Wait()
}
