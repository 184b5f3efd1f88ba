package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/wire"
)

// ClientOptions are the options of a client.
type ClientOptions struct {
	Model string // name or key; "" if there is only one

	// ID names this client and prefixes the requests that [Named] names, so that a later process
	// finds their results. "" makes a new one.
	ID string
	// Queue is how many requests may wait in the fleet: 0 any number, negative none.
	Queue int
	// Same refuses answers of workers with different fingerprints.
	Same bool

	Waiting func(why string) // called while there is no worker; may be nil
}

// Client sends requests to a fleet. It is a [restore.Service].
type Client struct {
	*Conn
	o       ClientOptions
	id      string
	model   Model
	members *Members
	stored  once
	stop    context.CancelFunc
	house   sync.WaitGroup

	mu    sync.Mutex
	jobs  map[string]*job
	tail  map[string]*job   // jobs with a result whose pieces may still arrive
	early map[string][]byte // results that arrived before their request

	state       atomic.Pointer[restore.Stats]
	fingerprint atomic.Pointer[string] // fingerprint of the answers so far
}

// Client returns a client as soon as a worker has the model.
func (c *Conn) Client(ctx context.Context, o ClientOptions) (_ *Client, err error) {
	k := &Client{
		Conn:  c,
		o:     o,
		id:    o.ID,
		jobs:  map[string]*job{},
		tail:  map[string]*job{},
		early: map[string][]byte{},
	}
	if k.id == "" {
		k.id = newID()
	}
	house, stop := context.WithCancel(context.WithoutCancel(ctx))
	k.stop = stop
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	if k.members, err = c.Members(house); err != nil {
		return nil, err
	}
	if err := k.find(ctx); err != nil {
		return nil, err
	}
	w, err := c.watch(house, c.results, k.id+".>", true)
	if err != nil {
		return nil, c.explain("results", err)
	}
	sub, err := c.nc.Subscribe(replySubject+k.id, k.replied)
	if err != nil {
		return nil, c.explain("replies", err)
	}
	k.house.Go(func() {
		<-house.Done()
		_ = sub.Unsubscribe() // the connection may be gone
	})
	ready := make(chan struct{})
	k.house.Go(func() { w.run(house, k.follow(ready), func(time.Time) {}) })
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	k.measure(house)
	k.house.Go(func() { every(house, time.Second, func() { k.measure(house) }) })
	k.house.Go(func() { every(house, checkEvery, func() { k.requeueLost(house) }) })
	k.house.Go(func() { every(house, beatEvery, func() { k.missed(time.Now()) }) })
	return k, nil
}

// every calls f repeatedly until ctx ends.
func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the client, not its connection.
func (c *Client) Close() {
	c.stop()
	c.house.Wait()
}

// find waits for a worker that has the model.
func (c *Client) find(ctx context.Context) error {
	told := false
	for {
		keys := map[string]string{}
		var names []string
		c.members.mu.Lock()
		changed := c.members.changed
		c.members.mu.Unlock()
		for _, w := range c.members.List() {
			if w.Draining {
				continue
			}
			if !slices.Contains(names, w.Model) {
				names = append(names, w.Model)
			}
			if c.o.Model == "" || c.o.Model == w.Model || c.o.Model == w.Key {
				keys[w.Key] = fmt.Sprintf("%s %s (%s; %s)", w.Model, w.Key, w.Version, w.Types)
			}
		}
		switch {
		case len(keys) == 1:
			for key := range keys {
				return c.use(ctx, key)
			}
		case len(keys) > 1:
			return fmt.Errorf("fleet: workers hold %d models, want one of them by name or key: %s",
				len(keys), strings.Join(slices.Sorted(maps.Values(keys)), ", "))
		}
		slices.Sort(names)
		if !told && c.o.Waiting != nil {
			told = true
			switch {
			case len(names) > 0:
				c.o.Waiting(fmt.Sprintf("no worker holds %s; there are workers with %s", c.o.Model,
					strings.Join(names, ", ")))
			default:
				c.o.Waiting("there is no worker")
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// use selects the model to ask.
func (c *Client) use(ctx context.Context, key string) error {
	call, cancel := c.within(ctx, c.callTime)
	defer cancel()
	e, err := c.models.Get(call, key)
	if err != nil {
		return c.explain("models", err)
	}
	c.model.Key = key
	if err := json.Unmarshal(e.Value(), &c.model.Info); err != nil {
		return fmt.Errorf("fleet: model %s: %w", key, err)
	}
	c.model.Info.Queue = max(0, c.o.Queue) // a worker's limits nothing
	if c.o.Same {
		return c.uniform()
	}
	return nil
}

// MixedError is returned when workers of one model may give answers that differ in the last bits.
type MixedError struct{ Fingerprints []string }

// Error lists the fingerprints.
func (e *MixedError) Error() string {
	return "fleet: workers have different fingerprints, so answers may differ in the last " +
		"bits: " + strings.Join(e.Fingerprints, ", ")
}

// uniform refuses a model whose workers have different fingerprints.
func (c *Client) uniform() error {
	var all []string
	for _, w := range c.Workers() {
		if !slices.Contains(all, w.Fingerprint) {
			all = append(all, w.Fingerprint)
		}
	}
	if len(all) > 1 {
		return &MixedError{all}
	}
	return nil
}

// Info implements restore.Service.
func (c *Client) Info() *restore.Info { return &c.model.Info }

// Key is the hash of the selected model.
func (c *Client) Key() string { return c.model.Key }

// Workers returns the live workers that hold the model.
func (c *Client) Workers() []Member { return c.members.of(c.model.Key) }

// nobody returns the error that no worker is live.
func (c *Client) nobody() error {
	others := ""
	for _, w := range c.members.List() {
		if w.Model == c.model.Info.ID && !w.Draining { // another key: they were upgraded, for one
			others = fmt.Sprintf(" as it was when this process began; start it again to ask those "+
				"with version %s (%s)", w.Version, w.Types)
		}
	}
	e := wire.New(http.StatusServiceUnavailable, "no_worker", "", "no worker holds %s now%s",
		c.model.Info.ID, others)
	e.RetryAfter = 5
	return e
}

type nameKey struct{}

// names are the names of the requests under a context.
type names struct {
	first string
	given atomic.Int64
}

// next returns the name of the next request.
func (n *names) next() string {
	if i := n.given.Add(1) - 1; i > 0 {
		return n.first + "-" + strconv.FormatInt(i, 10)
	}
	return n.first
}

// Named gives the requests under ctx names among the requests of a client with an ID: the first is
// called name, and the others, such as further choices, are numbered in order. Each name is asked
// once: a later process finds its result.
func Named(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey{}, &names{first: name})
}

// job is a request that waits for its result.
type job struct {
	id      string
	ctx     context.Context
	start   time.Time     // when the request arrived
	loaded  time.Duration // how long its pictures took
	named   bool          // stays in the queue when nobody waits for it
	stream  bool
	msg     *nats.Msg // nil once there is a result
	seq     uint64    // sequence number in the stream
	checked time.Time // when it was sent or last checked
	resent  int

	mu     sync.Mutex
	change chan struct{} // closed at the next event
	events []*restore.Piece
	try    uint64          // the delivery that the events belong to
	worker string          // the worker that sent them
	lost   time.Time       // when that worker was first missed; zero while it lives
	came   int             // events of this delivery
	told   strings.Builder // text returned so far
	begun  bool            // an event was returned
	broken error           // set when the worker of those events is gone
	over   chan struct{}
	result *result
	err    error
}

// Submit implements restore.Service. If only a worker can detect an error, the job returns it.
func (c *Client) Submit(ctx context.Context, r *restore.Request) (restore.Job, error) {
	name := newID()
	given, named := ctx.Value(nameKey{}).(*names)
	if named {
		name = given.next()
	}
	j := &job{
		id:     c.id + "." + name,
		ctx:    ctx,
		start:  r.Arrived,
		named:  named,
		stream: !named,
		change: make(chan struct{}),
		over:   make(chan struct{}),
	}
	if j.start.IsZero() {
		j.start = time.Now()
	}
	if data := c.begin(j); data != nil {
		c.finish(j, data)
		return j, nil
	}
	err := c.full()
	if err == nil {
		start := time.Now()
		err = r.Load(ctx)
		j.loaded = time.Since(start)
	}
	var key string
	if err == nil {
		j.msg, key, err = c.pack(ctx, &request{ID: j.id, Stream: j.stream, Ask: r})
	}
	if err == nil {
		msg := j.msg
		msg.Subject = askSubject + c.model.Key + "." + key
		msg.Header.Set(idHeader, j.id)
		if id := wire.RequestID(ctx); id != "" {
			msg.Header.Set(requestHeader, id)
		}
		if r.Background {
			msg.Header.Set(backgroundHeader, "1")
		}
		err = c.publish(ctx, j, msg)
	}
	if err != nil {
		c.end(j)
		return nil, err
	}
	go c.attend(ctx, j)
	return j, nil
}

// begin registers a job, or returns its result if it is already there.
func (c *Client) begin(j *job) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if data := c.early[j.id]; data != nil {
		delete(c.early, j.id)
		return data
	}
	c.jobs[j.id] = j
	return nil
}

func (c *Client) end(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, j.id)
}

// publish puts a request into the queue. It retries until ctx ends, because servers may be down for
// a while; a request that arrives twice counts once.
//
// The result may come first: the acknowledgement of a request can be lost where it is not.
func (c *Client) publish(ctx context.Context, j *job, msg *nats.Msg) error {
	var wait backoff
	name := j.id
	if j.resent > 0 {
		name += "." + strconv.Itoa(j.resent)
	}
	for {
		call, cancel := c.within(ctx, writeTime)
		options := []jetstream.PublishOpt{jetstream.WithMsgID(name)}
		if d, ok := ctx.Deadline(); ok && !j.named {
			options = append(options, jetstream.WithMsgTTL(max(time.Second,
				time.Until(d).Round(time.Second))))
		}
		ack, err := c.js.PublishMsg(call, msg, options...)
		cancel()
		if err == nil {
			j.mu.Lock()
			j.seq, j.checked = ack.Sequence, time.Now()
			j.mu.Unlock()
			return nil
		}
		select {
		case <-j.over:
			return nil
		default:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = c.explain("queue", err)
		if refusedForGood(err) {
			return err
		}
		c.log.Warn("queue", "error", err)
		if !wait.pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// full refuses a request that would wait too long.
func (c *Client) full() error {
	if c.o.Queue == 0 {
		return nil
	}
	s := c.state.Load()
	c.mu.Lock()
	mine := len(c.jobs)
	c.mu.Unlock()
	capacity, rate := 0, 0.0
	for _, w := range c.Workers() {
		capacity += w.Capacity
		rate += w.Rate
	}
	if capacity == 0 {
		return c.nobody()
	}
	waiting := max(s.Queued, mine-capacity)
	if waiting <= max(0, c.o.Queue) {
		return nil
	}
	wait := 1.0
	if rate > 0 {
		wait = min(600, math.Ceil(float64(waiting)/rate))
	}
	return &errs.FullError{Running: s.Running, Waiting: waiting, RetryAfter: int(wait)}
}

// attend ends the wait for j if ctx ends first.
func (c *Client) attend(ctx context.Context, j *job) {
	select {
	case <-j.over:
		return
	case <-ctx.Done():
	}
	if j.named {
		c.leave(j, context.Cause(ctx)) // a later process finds its result
	} else {
		c.abandon(j, context.Cause(ctx))
	}
}

// leave ends the wait for a request; false if it has its result.
func (c *Client) leave(j *job, why error) bool {
	c.mu.Lock()
	_, open := c.jobs[j.id]
	delete(c.jobs, j.id)
	c.mu.Unlock()
	if open {
		c.resolve(j, nil, why)
	}
	return open
}

// abandon removes a request from the queue when nobody waits for it.
func (c *Client) abandon(j *job, why error) {
	if !c.leave(j, why) {
		return
	}
	_ = c.nc.Publish(cancelSubject+c.model.Key, []byte(j.id)) // else it runs in vain
	j.mu.Lock()
	seq := j.seq
	j.mu.Unlock()
	if seq == 0 {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), c.callTime)
	defer cancel()
	_ = c.work.DeleteMsg(call, seq) // likewise
}

// follow receives the results of this client's requests. It closes ready when all existing
// results have arrived.
func (c *Client) follow(ready chan struct{}) func(jetstream.KeyValueEntry) {
	once := sync.OnceFunc(func() { close(ready) })
	return func(e jetstream.KeyValueEntry) {
		switch {
		case e == nil:
			once()
		case e.Operation() == jetstream.KeyValuePut:
			c.came(e.Key(), e.Value())
		}
	}
}

// came processes a result.
func (c *Client) came(id string, data []byte) {
	c.mu.Lock()
	j := c.jobs[id]
	delete(c.jobs, id)
	switch {
	case j == nil && c.o.ID != "":
		c.early[id] = data
	case j != nil && j.stream:
		c.tail[id] = j
		time.AfterFunc(lateFor, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.tail, id)
		})
	}
	c.mu.Unlock()
	switch {
	case j != nil:
		go c.finish(j, data)
	case c.o.ID == "": // it came when nobody waited any longer
		go c.forget(id)
	}
}

// forget removes a result that no later process will need.
func (c *Client) forget(id string) {
	call, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = c.Forget(call, id) // else it expires
}

// finish ends a job with its result.
func (c *Client) finish(j *job, data []byte) {
	call, cancel := context.WithTimeout(context.WithoutCancel(j.ctx), time.Minute)
	defer cancel()
	r, err := c.decodeResult(call, data)
	if err == nil && c.o.Same && r.Answer != nil {
		err = c.sameAsBefore(r.Fingerprint)
	}
	if err == nil && r.Answer != nil {
		j.waited(r)
	}
	c.resolve(j, r, err)
	if !j.named {
		c.forget(j.id)
	}
}

// waited adds the time outside of the worker to the times of an answer. Clocks of machines differ,
// so it is the whole time less the worker's.
func (j *job) waited(r *result) {
	outside := max(0, time.Since(j.start)-r.Elapsed)
	loaded := min(j.loaded, outside)
	t := &r.Answer.Timings
	t.Queue += outside - loaded
	t.Prepare += loaded
	t.FirstToken += outside
}

func (c *Client) sameAsBefore(fingerprint string) error {
	c.fingerprint.CompareAndSwap(nil, &fingerprint)
	if first := *c.fingerprint.Load(); first != fingerprint {
		return &MixedError{[]string{first, fingerprint}}
	}
	return nil
}

func (c *Client) resolve(j *job, r *result, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.over:
		return
	default:
	}
	if r != nil && r.Answer != nil && j.came > 0 && r.Try != j.try {
		// The events belong to another delivery than the answer.
		if j.begun {
			j.broken = goneError(j.worker)
		}
		j.events, j.came, j.try = nil, 0, r.Try
	}
	j.result, j.err, j.msg = r, err, nil
	close(j.over)
}

// Forget removes a result by its id, once it is no longer needed.
func (c *Conn) Forget(ctx context.Context, id string) error {
	return c.kept.Purge(ctx, jetstream.WithPurgeSubject("$KV."+resultsBucket+"."+id))
}

// ForgetAll removes the results of this client's requests, once none is needed any longer.
func (c *Client) ForgetAll(ctx context.Context) error { return c.Forget(ctx, c.id+".>") }

// replied processes a piece of an answer.
func (c *Client) replied(m *nats.Msg) {
	var e event
	if json.Unmarshal(m.Data, &e) != nil || e.Event == nil {
		return
	}
	c.mu.Lock()
	j := c.jobs[e.ID]
	if j == nil {
		j = c.tail[e.ID]
	}
	c.mu.Unlock()
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil || e.Try < j.try || j.result != nil && e.Try != j.result.Try {
		return // from a worker that counted as dead
	}
	if e.Try > j.try {
		j.events, j.came = nil, 0
	}
	switch {
	case e.Try > j.try && j.begun:
		j.broken = goneError(j.worker)
		go c.abandon(j, j.broken)
	case e.N != j.came:
		return // a piece was lost, and the result has it
	default:
		j.try, j.worker = e.Try, e.Worker
		j.came++
		j.events = append(j.events, e.Event)
	}
	j.signal()
}

// signal wakes who waits for a change of j. It must be called with j.mu held.
func (j *job) signal() {
	close(j.change)
	j.change = make(chan struct{})
}

// goneError ends an answer that was streamed in part.
func goneError(worker string) error {
	return fmt.Errorf("fleet: worker %s is gone and left the answer incomplete", worker)
}

// missed ends answers that were streamed in part and whose worker has been silent for so long
// that its requests go to others, because no other worker can continue such an answer.
func (c *Client) missed(now time.Time) {
	if !c.nc.IsConnected() || now.Sub(time.Unix(0, c.again.Load())) < 2*deadAfter {
		return // perhaps this client alone was cut off
	}
	alive := map[string]bool{}
	for _, w := range c.members.List() {
		alive[w.ID] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		j.mu.Lock()
		switch {
		case !j.begun || alive[j.worker]:
			j.lost = time.Time{}
		case j.lost.IsZero():
			j.lost = now
		case j.broken == nil && now.Sub(j.lost) > c.lay.AckWait:
			j.broken = goneError(j.worker)
			j.signal()
			go c.abandon(j, j.broken)
		}
		j.mu.Unlock()
	}
}

// Next implements restore.Job.
func (j *job) Next() (*restore.Piece, bool) {
	over := j.over
	var late <-chan time.Time
	for {
		j.mu.Lock()
		if j.broken == nil && len(j.events) > 0 {
			e := j.events[0]
			j.events, j.begun = j.events[1:], true
			j.told.WriteString(e.Text)
			j.mu.Unlock()
			return e, true
		}
		broken, change := j.broken, j.change
		ended := over == nil &&
			(j.result == nil || j.result.Answer == nil || j.came >= j.result.Pieces)
		j.mu.Unlock()
		if broken != nil || ended {
			return nil, false
		}
		select {
		case <-change:
		case <-over: // pieces may arrive after the result
			over = nil
			late = time.After(lateFor)
		case <-late:
			return j.rest()
		}
	}
}

// Ready implements restore.Job.
func (j *job) Ready() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken == nil && len(j.events) > 0
}

// lateFor is how long a job waits for missing pieces after the result.
const lateFor = time.Second

// rest returns the missing end of an answer as one piece.
func (j *job) rest() (*restore.Piece, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.came = j.result.Pieces
	rest, ok := strings.CutPrefix(j.result.Answer.Text, j.told.String())
	switch {
	case !ok:
		j.broken = errors.New("fleet: pieces of the answer were lost")
	case rest != "":
		j.told.WriteString(rest)
		return &restore.Piece{Text: rest}, true
	}
	return nil, false
}

// Answer implements restore.Job.
func (j *job) Answer() (*restore.Answer, error) {
	<-j.over
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.err != nil:
		return nil, j.err
	case j.broken != nil:
		return nil, j.broken
	case j.result.Failure != nil:
		return nil, j.result.Failure.err(j.result.Worker)
	}
	return j.result.Answer, nil
}

// How often a client checks that its requests are still there, and their age at the first check.
// For a while after a reconnection, results may arrive without a notification.
const (
	checkEvery   = 2 * time.Second
	checkAfter   = 20 * time.Second
	checkSoonFor = 30 * time.Second
)

// checkAge returns the age of a request at its first check.
func (c *Client) checkAge() time.Duration {
	if time.Since(time.Unix(0, c.again.Load())) < checkSoonFor {
		return checkEvery
	}
	return checkAfter
}

// requeueLost puts requests back that the queue lost, as a server without replicas may when it
// loses its disk, and finds missed results.
func (c *Client) requeueLost(ctx context.Context) {
	age := c.checkAge()
	c.mu.Lock()
	var old []*job
	for _, j := range c.jobs {
		j.mu.Lock()
		if j.seq > 0 && time.Since(j.checked) > age {
			old, j.checked = append(old, j), time.Now()
		}
		j.mu.Unlock()
	}
	c.mu.Unlock()
	for _, j := range old {
		call, cancel := context.WithTimeout(ctx, c.callTime)
		c.requeueIfLost(call, j)
		cancel()
	}
}

func (c *Client) requeueIfLost(ctx context.Context, j *job) {
	m, err := c.work.GetMsg(ctx, j.seq)
	if err == nil && m.Header.Get(idHeader) == j.id ||
		err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return
	}
	e, err := c.results.Get(ctx, j.id)
	switch {
	case err == nil:
		c.came(j.id, e.Value())
		return
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return
	}
	j.mu.Lock()
	msg := j.msg
	j.resent++
	j.mu.Unlock()
	if msg == nil {
		return
	}
	c.log.Warn("the queue has lost a request: it is asked again", "id", j.id)
	if err := c.publish(ctx, j, msg); err != nil {
		c.log.Warn("queue", "error", err)
	}
}

// measure reads the state of the fleet.
func (c *Client) measure(ctx context.Context) {
	s := &restore.Stats{}
	fleet := &restore.FleetStats{}
	held := 0
	for _, w := range c.Workers() {
		fleet.Workers++
		s.Running += w.Busy
		held += w.Busy
	}
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	all := workSubject + c.model.Key + ".*"
	if info, err := c.work.Info(call, jetstream.WithSubjectFilter(all)); err == nil {
		n := 0
		for _, k := range info.State.Subjects {
			n += int(k)
		}
		s.Queued = max(0, n-held)
		if n > 0 {
			of := jetstream.WithGetMsgSubject(all)
			if m, err := c.work.GetMsg(call, info.State.FirstSeq, of); err == nil {
				fleet.Oldest = max(0, time.Since(m.Time))
			}
		}
	} else if old := c.state.Load(); old != nil {
		s.Queued = old.Queued
	}
	s.Fleet = fleet
	c.state.Store(s)
}

// Stats returns the state of the fleet.
func (c *Client) Stats() restore.Stats { return *c.state.Load() }

// clientOf returns the client part of a request's id.
func clientOf(id string) string {
	client, _, _ := strings.Cut(id, ".")
	return client
}
