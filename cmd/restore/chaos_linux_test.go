package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore/internal/fleet/fleettest"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/smalldisk"
)

// Parameters of TestChaos. Half of the requests are asked one by one, the others in batches.
const (
	chaosEvery   = 180 * time.Millisecond // of a request: 20,000 in an hour
	chaosWorkers = 8
	chaosNodes   = 3
	chaosBatch   = 50               // lines at most
	chaosClients = 8                // that ask single requests
	chaosTime    = 2 * time.Minute  // for an attempt at one
	chaosLongest = 15 * time.Second // of a harm
	chaosPatient = 10 * time.Minute // for an answer, with all attempts
)

// Ensure that a fleet in which workers, NATS servers, the gateway and disks are killed, cut off,
// paused and filled at random answers every request once, and none wrong. RESTORE_CHAOS is the
// number of requests, none without it; RESTORE_CHAOS_SEED sets what is done and when.
func TestChaos(t *testing.T) {
	n, seed := chaosSize(t, 0), uint64(time.Now().UnixNano())
	if n == 0 {
		t.Skip("takes minutes: make chaos")
	}
	if v := os.Getenv("RESTORE_CHAOS_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d requests, RESTORE_CHAOS_SEED=%d", n, seed)
	s := &soaker{t: t}
	s.prepare(1 + min(19, n/100))
	f := newChaosFleet(t)
	defer f.end()
	ctx, over := context.WithCancel(t.Context())
	defer over()
	var harms, asking sync.WaitGroup
	pause := min(6*time.Second, time.Duration(n)*chaosEvery/12)
	harms.Go(func() { f.harm(ctx, rand.New(rand.NewPCG(seed, 0)), pause) })
	f.begun = time.Now()
	asking.Go(func() { f.singles(s, n/2) })
	asking.Go(func() { f.batches(s, n-n/2) })
	asking.Wait()
	took := time.Since(f.begun)
	over()
	harms.Wait()
	f.settle()
	f.report(n, took)
}

// chaosFleet is a fleet of processes, each of which is started again when it ends.
type chaosFleet struct {
	t       *testing.T
	url     string         // of the gateway
	natsURL string         // of the servers
	ports   []int          // of the servers
	kinds   []*chaosKind   // what can be hurt
	nodes   []*chaosTarget // NATS servers
	all     []*chaosTarget // processes
	keepers sync.WaitGroup // that start them again
	begun   time.Time

	mu    sync.Mutex
	seen  map[string]int
	waits []time.Duration // of single requests, with all attempts
}

// chaosKind are targets of a kind.
type chaosKind struct {
	name    string
	targets []*chaosTarget
	ways    []string       // of hurting one
	done    map[string]int // by way
}

// The ways of hurting a target.
const (
	killed  = "killed"
	ended   = "SIGTERM"
	paused  = "paused"
	cut     = "cut off, nobody is told"
	hungUp  = "cut off, connections end"
	fullNow = "disk full"
)

var allWays = []string{killed, ended, paused, cut, hungUp, fullNow}

// chaosTarget is a process, a disk, or a process with a disk. It is hurt in one way at a time.
type chaosTarget struct {
	cables []*fleettest.Cable // that it communicates over
	disk   *smalldisk.Disk
	frail  bool // is started again when its disk has room again

	hurt sync.Mutex
	mu   sync.Mutex
	now  *fleettest.Child
	ends bool
}

// newChaosFleet starts the fleet. Between any two of its processes is a network that can be cut.
func newChaosFleet(t *testing.T) *chaosFleet {
	t.Helper()
	f := &chaosFleet{t: t, seen: map[string]int{}}
	allowed := smalldisk.Allowed(t.TempDir())
	folder := func(size int) (string, *smalldisk.Disk) {
		if allowed != nil {
			return t.TempDir(), nil
		}
		return smalldisk.Shared(t, size)
	}
	process := []string{killed, ended, paused, cut, hungUp}
	if allowed != nil {
		t.Logf("no disk gets full, because none is allowed here: %v", allowed)
	}
	f.startNodes(folder)
	cache, full := folder(1 << 20)
	var caches []*chaosTarget
	if full != nil {
		caches = append(caches, &chaosTarget{disk: full})
	}
	var workers []*chaosTarget
	for i := range chaosWorkers {
		args := []string{"worker", "--threads", "1", "--parallel", "2", "--drain-timeout", "5s",
			"--log-format", "json"}
		if i < 2 { // the others have pictures from each other only
			args = append(args, "--cache-dir", cache)
		}
		workers = append(workers, f.start(fmt.Sprint("worker", i), args...))
	}
	batches, full := folder(256 << 20)
	port := strconv.Itoa(fleettest.FreePort(t))
	f.url = "http://127.0.0.1:" + port
	gateway := f.start("gateway", "serve", "--port", port, "--batch-dir", batches,
		"--drain-timeout", "10s")
	gateway.disk = full
	gatewayWays, nodeWays := process, process
	if allowed == nil {
		nodeWays, gatewayWays = allWays, allWays
	}
	f.kinds = []*chaosKind{
		{"8 workers", workers, process, map[string]int{}},
		{"3 NATS servers", f.nodes, nodeWays, map[string]int{}},
		{"the gateway", []*chaosTarget{gateway}, gatewayWays, map[string]int{}},
		{"a disk of two workers' caches", caches, []string{fullNow}, map[string]int{}},
	}
	return f
}

// startNodes starts the NATS servers.
func (f *chaosFleet) startNodes(folder func(size int) (string, *smalldisk.Disk)) {
	var folders []string
	for range chaosNodes {
		dir, full := folder(512 << 20)
		folders = append(folders, dir)
		f.nodes = append(f.nodes, &chaosTarget{disk: full, frail: true})
	}
	nodes := fleettest.NodesIn(f.t, folders, func(from, to, port int) int {
		w := fleettest.NewCable(f.t, port)
		for _, i := range []int{from, to} {
			f.nodes[i].cables = append(f.nodes[i].cables, w)
		}
		return w.Port
	})
	var urls []string
	for i, d := range nodes {
		urls, f.ports = append(urls, d.URL()), append(f.ports, d.Port)
		f.nodes[i].now = d.Child
		f.keep("NATS server", f.nodes[i], func() *fleettest.Child {
			d.Start(f.t)
			return d.Child
		})
	}
	f.natsURL = strings.Join(urls, ",")
}

// start starts a worker or the gateway, with a network of its own to each NATS server.
func (f *chaosFleet) start(name string, args ...string) *chaosTarget {
	p := &chaosTarget{}
	var urls []string
	for i, d := range f.nodes {
		w := fleettest.NewCable(f.t, f.ports[i])
		p.cables, d.cables = append(p.cables, w), append(d.cables, w)
		urls = append(urls, w.URL())
	}
	args = append(args, "--nats", strings.Join(urls, ","), "--nats-replicas",
		strconv.Itoa(chaosNodes))
	log, err := os.Create(f.log(name))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { log.Close() })
	begin := func() *fleettest.Child {
		cmd := process(args...)
		cmd.Stderr = log
		return fleettest.Begin(f.t, cmd)
	}
	p.now = begin()
	f.keep(strings.TrimRight(name, "0123456789"), p, begin)
	return p
}

// log is the file of what a process says.
func (f *chaosFleet) log(name string) string {
	return filepath.Join(f.t.ArtifactDir(), name+".log")
}

// keep starts a process again whenever it ends, within two seconds, until the test is over.
func (f *chaosFleet) keep(name string, p *chaosTarget, begin func() *fleettest.Child) {
	f.all = append(f.all, p)
	f.keepers.Go(func() {
		for {
			<-p.child().Done
			time.Sleep(rand.N(2 * time.Second))
			p.mu.Lock()
			if p.ends {
				p.mu.Unlock()
				return
			}
			p.now = begin()
			p.mu.Unlock()
			f.saw(name + " started again")
		}
	})
}

// end ends all processes.
func (f *chaosFleet) end() {
	for _, p := range f.all {
		p.mu.Lock()
		p.ends = true
		p.now.Kill()
		p.mu.Unlock()
	}
	f.keepers.Wait()
}

// child is the process that runs now.
func (p *chaosTarget) child() *fleettest.Child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// saw counts an event.
func (f *chaosFleet) saw(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[what]++
}

// harm hurts targets until ctx ends, at random moments that are a pause apart on average.
func (f *chaosFleet) harm(ctx context.Context, r *rand.Rand, pause time.Duration) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-time.After(time.Duration(r.Int64N(int64(2 * pause)))):
		case <-ctx.Done():
			return
		}
		// A worker is hurt as often as all else together.
		k := f.kinds[[]int{0, 0, 0, 1, 1, 2, 3}[r.IntN(7)]]
		if len(k.targets) == 0 {
			continue
		}
		p, way := k.targets[r.IntN(len(k.targets))], k.ways[r.IntN(len(k.ways))]
		long := time.Duration(r.Int64N(int64(chaosLongest)))
		if !p.hurt.TryLock() {
			continue
		}
		k.done[way]++
		all.Go(func() {
			defer p.hurt.Unlock()
			f.t.Logf("%6.1f s: %s: %s", time.Since(f.begun).Seconds(), k.name, way)
			f.hurt(p, way, long)
		})
	}
}

// hurt hurts a target in a way, for a time where it is not the end of a process.
func (f *chaosFleet) hurt(p *chaosTarget, way string, long time.Duration) {
	switch way {
	case killed:
		p.child().Kill()
	case ended:
		c := p.child()
		c.Signal(syscall.SIGTERM)
		select {
		case <-c.Done:
		case <-time.After(2 * time.Minute):
			f.t.Errorf("a process does not end: %v", c.Cmd.Args)
		}
	case paused:
		c := p.child()
		c.Signal(syscall.SIGSTOP)
		time.Sleep(long)
		c.Signal(syscall.SIGCONT)
	case fullNow:
		p.disk.Fill()
		time.Sleep(long)
		p.disk.Free()
		if p.frail {
			p.child().Kill()
		}
	default:
		for _, w := range p.cables {
			w.Cut()
			if way == hungUp {
				w.HangUp()
			}
		}
		time.Sleep(long)
		for _, w := range p.cables {
			w.Mend()
		}
	}
}

// at waits until it is time for the i-th of n requests, which take as long as 2n.
func (f *chaosFleet) at(i int) {
	time.Sleep(time.Until(f.begun.Add(time.Duration(i) * 2 * chaosEvery)))
}

// singles asks n requests one by one, each until it has an answer.
func (f *chaosFleet) singles(s *soaker, n int) {
	var all sync.WaitGroup
	slots := make(chan struct{}, chaosClients)
	for i := range n {
		f.at(i)
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			f.single(s, i)
		})
	}
	all.Wait()
}

func (f *chaosFleet) single(s *soaker, i int) {
	which, begun := i%len(s.bodies), time.Now()
	var text string
	if !f.retry(fmt.Sprint("request ", i), func() (err error) {
		text, err = sendWithin(chaosTime, f.url, s.bodies[which])
		return err
	}) {
		return
	}
	if text != s.want[which] {
		f.t.Errorf("request %d: got %q, want %q", i, text, s.want[which])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits = append(f.waits, time.Since(begun))
}

// retry calls do until it succeeds, and counts why it did not.
func (f *chaosFleet) retry(what string, do func() error) bool {
	for begun := time.Now(); ; time.Sleep(100*time.Millisecond + rand.N(time.Second)) {
		err := do()
		if err == nil {
			return true
		}
		f.saw("asked again: " + reasonOf(err))
		if time.Since(begun) > chaosPatient {
			f.t.Errorf("%s: no answer after %v: %v", what, chaosPatient, err)
			return false
		}
	}
}

// reasonOf says in a few words why a client must ask again.
func reasonOf(err error) string {
	var call *url.Error
	switch {
	case errors.Is(err, errBusy):
		return "the queue is full (429)"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "no gateway listens"
	case errors.As(err, &call) && call.Timeout():
		return fmt.Sprintf("no answer in %v", chaosTime)
	case errors.As(err, &call):
		return "the connection broke"
	}
	text, _, _ := strings.Cut(err.Error(), ":")
	if strings.HasPrefix(text, "got the event") || strings.HasPrefix(text, "the stream") {
		return "a stream ended with an error or without an end"
	}
	return text
}

// batches asks n requests in batches, one after another.
func (f *chaosFleet) batches(s *soaker, n int) {
	size := min(chaosBatch, max(10, n/2))
	for from := 0; from < n; from += size {
		f.at(from)
		f.batch(s, from, min(from+size, n))
	}
}

// batch asks the requests from "from" to "to" in a batch, which must answer each line once.
func (f *chaosFleet) batch(s *soaker, from, to int) {
	var in bytes.Buffer
	want := map[string]string{}
	for i := from; i < to; i++ {
		which, id := i%len(s.bodies), fmt.Sprint("line-", i)
		want[id] = s.want[which]
		fmt.Fprintf(&in, `{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":%s}`+
			"\n", id, strings.Replace(s.bodies[which], `"stream":true`, `"stream":false`, 1))
	}
	var b jobs.Batch
	name := fmt.Sprint("from-", from)
	if !f.retry(name, func() error { return f.create(name, in.Bytes(), &b) }) {
		return
	}
	patient := chaosPatient + 4*time.Duration(to-from)*chaosEvery
	for begun := time.Now(); b.CompletedAt == nil; time.Sleep(time.Second) {
		if b.FailedAt != nil || time.Since(begun) > patient {
			f.t.Errorf("batch %s: got %+v", name, b)
			return
		}
		f.retry(name, func() error { return f.call("GET", "/v1/batches/"+b.ID, "", nil, &b) })
	}
	var out []byte
	f.retry(name, func() error {
		return f.call("GET", "/v1/files/"+*b.OutputFileID+"/content", "", nil, &out)
	})
	for line := range bytes.Lines(out) {
		var r struct {
			ID       string `json:"custom_id"`
			Response struct {
				Body struct {
					Choices []struct{ Message struct{ Content string } }
				}
			}
		}
		err := json.Unmarshal(line, &r)
		text, asked := want[r.ID]
		if c := r.Response.Body.Choices; err != nil || !asked || len(c) != 1 ||
			c[0].Message.Content != text {
			f.t.Errorf("batch %s: got %s, %v, want %q, once", name, line, err, text)
		}
		delete(want, r.ID)
	}
	for _, file := range []string{b.InputFileID, *b.OutputFileID} {
		f.retry(name, func() error {
			var gone struct{ Deleted bool }
			return f.call("DELETE", "/v1/files/"+file, "", nil, &gone)
		})
	}
	if len(want) > 0 || b.RequestCounts.Completed != to-from {
		f.t.Errorf("batch %s: %d lines without an answer, %+v", name, len(want), b)
	}
}

// create uploads a file and creates its batch, unless an earlier attempt did so and its reply was
// lost.
func (f *chaosFleet) create(name string, in []byte, b *jobs.Batch) error {
	var list struct{ Data []jobs.Batch }
	if err := f.call("GET", "/v1/batches?limit=100", "", nil, &list); err != nil {
		return err
	}
	for _, old := range list.Data {
		if old.Metadata["name"] == name {
			*b = old
			return nil
		}
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	err := w.WriteField("purpose", jobs.Input)
	if err == nil {
		var to io.Writer
		if to, err = w.CreateFormFile("file", name); err == nil {
			_, err = to.Write(in)
		}
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	var file jobs.File
	if err := f.call("POST", "/v1/files", w.FormDataContentType(), form.Bytes(),
		&file); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"input_file_id": file.ID,
		"endpoint": "/v1/chat/completions", "completion_window": "24h",
		"metadata": map[string]string{"name": name}})
	if err != nil {
		return err
	}
	return f.call("POST", "/v1/batches", "application/json", body, b)
}

// call sends a request to the gateway and decodes the reply.
func (f *chaosFleet) call(method, path, kind string, body []byte, to any) error {
	q, err := http.NewRequest(method, f.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", kind)
	c := http.Client{Timeout: chaosTime}
	resp, err := c.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	switch raw, ok := to.(*[]byte); {
	case err != nil:
		return &url.Error{Op: method, URL: path, Err: err}
	case resp.StatusCode == http.StatusTooManyRequests:
		return errBusy
	case method == "DELETE" && resp.StatusCode == http.StatusNotFound:
		return nil // an earlier attempt's reply was lost
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("status %s: %.200s", resp.Status, data)
	case ok:
		*raw = data
		return nil
	}
	return json.Unmarshal(data, to)
}

// settle waits until the queue is empty, and counts the requests that are left.
func (f *chaosFleet) settle() {
	f.t.Helper()
	c, err := nats.Connect(f.natsURL, nats.MaxReconnects(-1))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err != nil {
		f.t.Fatal(err)
	}
	count := func(stream, subjects string) (n uint64, err error) {
		ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return 0, err
		}
		i, err := s.Info(ctx, jetstream.WithSubjectFilter(subjects))
		if err != nil {
			return 0, err
		}
		for _, m := range i.State.Subjects {
			n += m
		}
		return n, nil
	}
	var left uint64
	if !fleettest.Eventually(func() bool {
		left, err = count("RESTORE_WORK", "restore.work.>")
		return err == nil && left == 0
	}) {
		f.t.Errorf("the queue holds %d requests, %v", left, err)
	}
	if n, err := count("RESTORE_DEAD", "restore.dead.>"); err != nil || n > 0 {
		f.t.Errorf("%d requests were given up, %v", n, err)
	}
}

// report prints the harm done to the fleet, and what followed.
func (f *chaosFleet) report(n int, took time.Duration) {
	var out strings.Builder
	fmt.Fprintf(&out, "%d requests in %v\n\n| hurt | %s |\n|---%s|\n", n, took.Round(time.Second),
		strings.Join(allWays, " | "), strings.Repeat("|---", len(allWays)))
	for _, k := range f.kinds {
		fmt.Fprintf(&out, "| %s", k.name)
		for _, way := range allWays {
			cell := ""
			if slices.Contains(k.ways, way) && len(k.targets) > 0 {
				cell = strconv.Itoa(k.done[way])
			}
			fmt.Fprintf(&out, " | %s", cell)
		}
		out.WriteString(" |\n")
	}
	answered := f.outcomes()
	slices.Sort(f.waits)
	if len(f.waits) > 0 {
		at := func(share float64) time.Duration {
			return f.waits[int(share*float64(len(f.waits)-1))].Round(10 * time.Millisecond)
		}
		f.seen[fmt.Sprintf("wait of a single request, with all attempts: "+
			"p50 %v, p99 %v, longest %v", at(0.5), at(0.99), at(1))] = len(f.waits)
	}
	f.seen["answers that workers computed, as far as their logs tell"] = answered
	out.WriteString("\n| seen | times |\n|---|---|\n")
	var rows []string
	for what, times := range f.seen {
		rows = append(rows, fmt.Sprintf("| %s | %d |\n", what, times))
	}
	slices.Sort(rows)
	f.t.Log(out.String() + strings.Join(rows, ""))
}

// outcomes counts the requests in the workers' logs by outcome, and returns how many were answered.
func (f *chaosFleet) outcomes() (answered int) {
	for i := range chaosWorkers {
		data, err := os.ReadFile(f.log(fmt.Sprint("worker", i)))
		if err != nil {
			f.t.Error(err)
		}
		for line := range bytes.Lines(data) {
			var l struct{ Msg, Outcome string }
			if bytes.HasPrefix(line, []byte("panic")) {
				f.t.Errorf("worker %d: %s", i, line)
			}
			switch {
			case json.Unmarshal(line, &l) != nil || l.Msg != "request" || l.Outcome == "":
			case l.Outcome == "answered":
				answered++
			default:
				f.seen["requests "+l.Outcome+" by a worker"]++
			}
		}
	}
	return answered
}
