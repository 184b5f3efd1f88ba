package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

// WorkerOptions are the options of a worker.
type WorkerOptions struct {
	Service restore.Service // answers requests
	Key     string          // hash of the model, its processor, and the program
	Member  Member          // machine, CPU, cores and version; capacity 0 means the service's
	Drain   time.Duration   // time limit for running requests at the end; 0: none
	// Done is called when the worker is done with a request; may be nil.
	Done func(*Done)
}

// Done says what came of a request.
type Done struct {
	Request string // the client's name of it; "" if it has none
	Outcome Outcome
	Answer  *restore.Answer // nil if there is none
	Took    time.Duration
}

// Outcome is what came of a request.
type Outcome string

// The outcomes.
const (
	Answered  Outcome = "answered"
	Refused   Outcome = "refused"   // it cannot be answered
	Faulty    Outcome = "failed"    // perhaps a fault of the worker; another one may succeed
	Cancelled Outcome = "cancelled" // nobody waits for the answer
	Returned  Outcome = "returned"  // the worker ends
	Found     Outcome = "found"     // it had its result, or too many workers have died of it
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{Answered, Refused, Faulty, Cancelled, Returned, Found}

// Worker takes requests of one model from the queue.
type Worker struct {
	c    *Conn
	o    WorkerOptions
	self Member
	info *restore.Info

	held   pictureCache
	in     *intake
	beatMu sync.Mutex // one heartbeat after the other

	// A request that was delivered before runs alone: if it kills the process, no other request
	// dies with it.
	alone sync.RWMutex

	mu      sync.Mutex
	change  *sync.Cond
	waiting []*delivery // taken but not begun
	active  map[*delivery]bool
	room    int  // requests that may begin now
	closing bool // no more requests begin
	over    bool
	beaten  time.Time            // when the last heartbeat was stored
	unasked map[string]time.Time // cancelled requests, with the time of the message
	answers int64
	rate    float64 // answers per second, smoothed
	last    time.Time
	ids     []string      // who takes requests of the model, as last heard
	own     map[int]bool  // partitions that this worker prefers
	moved   chan struct{} // closed when they change
}

// delivery is a request that this worker holds.
type delivery struct {
	msg        *nats.Msg
	tries      uint64
	cancel     context.CancelCauseFunc
	id         string
	background bool // all others go first
}

// errCancelled is the cause when nobody waits for a request any longer.
var errCancelled = errors.New("fleet: nobody waits for the answer")

// NewWorker returns a worker after publishing the description of its model.
func (c *Conn) NewWorker(ctx context.Context, o WorkerOptions) (*Worker, error) {
	info := o.Service.Info()
	data, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	if err := c.until(ctx, "models", func(ctx context.Context) error {
		_, err := c.models.Put(ctx, o.Key, data)
		return err
	}); err != nil {
		return nil, err
	}
	w := &Worker{
		c:      c,
		o:      o,
		self:   o.Member,
		info:   info,
		active: map[*delivery]bool{}, unasked: map[string]time.Time{},
		room:  o.Member.Capacity,
		moved: make(chan struct{}),
	}
	if w.room == 0 {
		w.room = max(1, info.Parallel)
	}
	w.change = sync.NewCond(&w.mu)
	w.self.ID, w.self.Key = newID()[:12], o.Key
	w.self.Model, w.self.Fingerprint = info.ID, info.Fingerprint
	w.self.Capacity, w.self.Started = w.room, time.Now()
	return w, nil
}

// ID is the worker's name in replies and lists.
func (w *Worker) ID() string { return w.self.ID }

// Key is the hash of the worker's model, as clients may name it.
func (w *Worker) Key() string { return w.o.Key }

// Run takes and answers requests until ctx ends. Then it gives back the requests that it has not
// begun, and finishes the others.
func (w *Worker) Run(ctx context.Context) (err error) {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx)) // for begun requests
	defer stop(nil)
	unlisten, err := w.listen(work) // before the first heartbeat, after which clients call
	if err != nil {
		return err
	}
	defer unlisten()
	if err := w.c.until(ctx, "heartbeats", w.beat); err != nil {
		if ctx.Err() != nil {
			return nil // it ended before it began
		}
		return err
	}
	w.meet(ctx)
	if w.in, err = w.c.intake(w.got); err != nil {
		return w.c.explain("pulls", err)
	}
	var house sync.WaitGroup // tasks that run until the last answer
	house.Go(func() { w.live(work) })
	house.Go(func() { every(work, w.c.lay.AckWait/4, w.hold) })
	house.Go(func() { w.c.bury(work, w.o.Key) })
	house.Go(func() { every(work, 2*w.c.lay.AckWait, func() { w.sweep(work) }) })

	fatal := make(chan error, 1)
	taking, end := context.WithCancel(ctx)
	defer end()
	var pulls, runs sync.WaitGroup
	pulls.Go(func() {
		if err := w.take(taking); err != nil {
			select {
			case fatal <- err:
			default:
			}
			end()
		}
	})
	pulls.Go(func() { w.steal(taking) })
	for range w.room {
		runs.Go(func() { w.work(work) })
	}
	<-taking.Done()
	w.stop()
	house.Go(func() { w.leave(work) })
	pulls.Wait()
	w.in.wait() // else an open pull would take the returned requests again
	w.drain()
	if w.o.Drain > 0 {
		t := time.AfterFunc(w.o.Drain, func() { stop(errors.New("fleet: the worker ends")) })
		defer t.Stop()
	}
	runs.Wait()
	w.in.close()
	unlisten()
	stop(nil)
	house.Wait()
	gone, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	w.unlist(gone)
	_ = w.c.workers.Delete(gone, w.member().heartbeat()) // else it is forgotten after a while
	select {
	case err := <-fatal:
		return err
	default:
		return nil
	}
}

// live sends heartbeats, and requests the list of live workers from time to time.
func (w *Worker) live(ctx context.Context) {
	asked := time.Now()
	every(ctx, beatEvery, func() {
		call, cancel := w.c.within(ctx, 2*beatEvery)
		_ = w.beat(call) // the next one may arrive
		cancel()
		if n := w.met(); time.Since(asked) >= meetAfter(n)-beatEvery/2 {
			asked = time.Now()
			w.meet(ctx)
		}
	})
}

// member describes the worker now.
func (w *Worker) member() *Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.self
	m.Busy, m.Held, m.Answers = len(w.active), len(w.waiting), w.answers
	m.Rate, m.Draining = w.rate, w.closing
	switch since := time.Since(w.last); {
	case m.Busy > 0 && !w.last.IsZero(): // an answer may take long
		m.Rate = min(m.Rate, 1/max(since.Seconds(), 1e-6))
	case since > 10*time.Second:
		m.Rate = 0
	}
	return &m
}

// beat sends a heartbeat. A restarted server has no bucket for it, so the first worker that sends
// one creates it.
func (w *Worker) beat(ctx context.Context) error {
	w.beatMu.Lock()
	defer w.beatMu.Unlock()
	m := w.member()
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.c.workers.Put(ctx, m.heartbeat(), data)
	if lost(err) {
		if _, err = w.c.js.CreateKeyValue(ctx, w.c.heartbeats()); err == nil {
			_, err = w.c.workers.Put(ctx, m.heartbeat(), data)
		}
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.beaten = time.Now()
	}
	return err
}

// leave tells the others at once that this worker takes no more requests. Without it they would
// notice after a while.
func (w *Worker) leave(ctx context.Context) {
	call, cancel := w.c.within(ctx, writeTime)
	defer cancel()
	_ = w.beat(call)
	w.unlist(ctx)
}

// unlist removes this worker from the list of workers that take requests.
func (w *Worker) unlist(ctx context.Context) {
	ctx, cancel := w.c.within(ctx, writeTime)
	defer cancel()
	key := "$KV." + workersBucket + "." + w.self.heartbeat() // w.self never drains
	_ = w.c.beats.Purge(ctx, jetstream.WithPurgeSubject(key))
}

// met is the number of workers that took requests of the model when the list was last read.
func (w *Worker) met() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ids)
}

// meet reads the list of workers that take requests of the model. After an error the old list
// stays.
func (w *Worker) meet(ctx context.Context) {
	ctx, cancel := w.c.within(ctx, writeTime)
	defer cancel()
	ids, err := w.c.living(ctx, w.o.Key)
	if err != nil && w.met() > 0 {
		return
	}
	if !slices.Contains(ids, w.self.ID) { // its own heartbeat has not arrived yet
		ids = append(ids, w.self.ID)
	}
	slices.Sort(ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Equal(ids, w.ids) {
		return
	}
	w.ids, w.own = ids, preferred(w.self.ID, ids, w.c.lay.Partitions)
	close(w.moved)
	w.moved = make(chan struct{})
}

// prefers returns the partitions that this worker prefers, and a channel that is closed when
// they change.
func (w *Worker) prefers() (own map[int]bool, moved <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.own, w.moved
}

// hold tells the queue that this worker's requests are in progress.
func (w *Worker) hold() {
	w.mu.Lock()
	all := slices.AppendSeq(slices.Clone(w.waiting), maps.Keys(w.active))
	w.mu.Unlock()
	for _, d := range all {
		_ = d.msg.InProgress() // the next message may arrive
	}
}

// listen subscribes to messages outside of the queue, until the returned function is called.
func (w *Worker) listen(ctx context.Context) (unlisten func(), err error) {
	cancelled, err := w.c.nc.Subscribe(
		cancelSubject+w.o.Key,
		func(m *nats.Msg) { w.cancelled(string(m.Data)) },
	)
	if err != nil {
		return nil, w.c.explain("cancellation", err)
	}
	calls, err := w.c.nc.QueueSubscribe(
		rpcSubject+w.o.Key,
		"workers",
		func(m *nats.Msg) { go w.call(ctx, m) },
	)
	unlisten = func() { // errors: the connection closes anyway
		_ = cancelled.Unsubscribe()
		_ = calls.Unsubscribe()
	}
	return unlisten, w.c.explain("calls", err)
}

// unaskedFor is the longest time from the queue to a worker.
const unaskedFor = time.Minute

func (w *Worker) cancelled(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(
		w.unasked,
		func(_ string, at time.Time) bool { return now.Sub(at) > unaskedFor },
	)
	w.unasked[id] = now
	for d := range w.active {
		if d.id == id {
			d.cancel(errCancelled)
		}
	}
	for i, d := range w.waiting {
		if d.id == id {
			w.waiting = append(w.waiting[:i], w.waiting[i+1:]...)
			_ = d.msg.Term() // if this fails, it is delivered and cancelled again
			return
		}
	}
}

// take pulls from the partitions that this worker prefers, and follows changes of the workers.
func (w *Worker) take(ctx context.Context) error {
	pullers := map[int]context.CancelFunc{}
	var all sync.WaitGroup
	defer all.Wait()
	failed := make(chan error, 1)
	for {
		want, moved := w.prefers()
		for p := range want {
			if pullers[p] != nil {
				continue
			}
			mine, stop := context.WithCancel(ctx)
			pullers[p] = stop
			all.Go(func() {
				if err := w.pull(mine, p); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		for p, stop := range pullers {
			if !want[p] {
				stop()
				delete(pullers, p)
			}
		}
		select {
		case <-moved:
		case err := <-failed:
			for _, stop := range pullers {
				stop()
			}
			return err
		case <-ctx.Done():
			for _, stop := range pullers {
				stop()
			}
			return nil
		}
	}
}

// pull takes requests of one partition while there is room for them.
func (w *Worker) pull(ctx context.Context, partition int) error {
	name, known := consumerName(w.o.Key, partition), false
	var wait backoff
	for ctx.Err() == nil {
		if !known {
			call, cancel := w.c.within(ctx, w.c.callTime)
			_, err := w.c.consumer(call, w.o.Key, partition)
			cancel()
			if err != nil {
				err = w.c.explain("consumer", err)
				if Denied(err) {
					return err
				}
				wait.pause(ctx)
				continue
			}
			known = true
		}
		if !w.hasRoom(ctx) {
			return nil
		}
		if err := w.in.pull(name); err == nil {
			wait = backoff{}
		} else { // the consumer may be gone
			known = false
			wait.pause(ctx)
		}
	}
	return nil
}

// hasRoom waits until this worker holds less than twice its capacity.
func (w *Worker) hasRoom(ctx context.Context) bool {
	defer context.AfterFunc(ctx, w.wake)()
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) >= w.room && ctx.Err() == nil {
		w.change.Wait()
	}
	return ctx.Err() == nil
}

// wake wakes all goroutines that wait for a change.
func (w *Worker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.change.Broadcast()
}

// got queues a message; messages begin in order of arrival, background messages after the
// others.
func (w *Worker) got(m *nats.Msg) {
	d := &delivery{msg: m, tries: 1, id: m.Header.Get(idHeader),
		background: m.Header.Get(backgroundHeader) != ""}
	if meta, err := m.Metadata(); err == nil {
		d.tries = meta.NumDelivered
	}
	if !isID(d.id) { // it can have no result, nor notes of attempts
		w.c.log.Error("a message of the queue is dropped", "id", d.id, "want", "CLIENT.NAME")
		_ = m.Term() // if this fails, it is delivered again and ends here again
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch _, gone := w.unasked[d.id]; {
	case gone:
		_ = m.Term() // if this fails, it is delivered again and ends here again
		return
	case w.over: // a pull whose end was lost
		_ = m.Nak() // if this fails, it is delivered again after AckWait
		return
	}
	w.waiting = slices.Insert(w.waiting, w.placeOf(d), d)
	w.change.Broadcast()
}

// placeOf returns where d belongs among the waiting requests, with w.mu held.
func (w *Worker) placeOf(d *delivery) int {
	first := slices.IndexFunc(w.waiting, func(d *delivery) bool { return d.background })
	if first < 0 {
		first = len(w.waiting)
	}
	switch {
	case d.tries == 1 && d.background:
		return len(w.waiting)
	case d.tries == 1 || d.background:
		return first
	}
	return 0
}

// stop lets no more requests begin.
func (w *Worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
}

// drain gives back the requests that have not begun.
func (w *Worker) drain() {
	w.mu.Lock()
	waiting := w.waiting
	w.over, w.waiting = true, nil
	w.change.Broadcast()
	w.mu.Unlock()
	var all sync.WaitGroup
	for _, d := range waiting {
		all.Go(func() {
			if d.tries == 1 {
				w.giveBack(d, begunNote{}, 0)
			} else { // there is a note, or its absence is one
				_ = d.msg.Nak()
			}
		})
	}
	all.Wait()
}

// giveBack returns a request to the queue, which delivers it again after a time. It does not count
// as an attempt: before is the note of when this worker took it.
func (w *Worker) giveBack(d *delivery, before begunNote, after time.Duration) {
	ctx, cancel := w.c.within(context.Background(), writeTime)
	defer cancel()
	w.c.noteBegun(ctx, d.id, before)
	_ = d.msg.NakWithDelay(after) // if this fails, it is delivered again after AckWait
}

// idleFirst is the first interval at which an idle worker looks for other workers' requests. The
// interval grows up to the time between two heartbeats, or to meetAfter.
const idleFirst = 20 * time.Millisecond

// stealFrom is how many partitions of others a worker tries at once.
const stealFrom = 4

// steal takes requests from other workers' partitions while this worker is idle.
func (w *Worker) steal(ctx context.Context) {
	wait := idleFirst
	for ctx.Err() == nil {
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			return
		}
		free := w.free()
		if free == 0 {
			wait = idleFirst
			continue
		}
		if n := w.stealSome(ctx, free); n > 0 {
			wait = idleFirst
		} else {
			wait = min(meetAfter(w.met()), 2*wait)
		}
	}
}

// free is how many more requests this worker could begin now.
func (w *Worker) free() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(0, w.room-len(w.active)-len(w.waiting))
}

// stealSome takes up to free requests from a few of the others' partitions that have requests, the
// fullest first.
func (w *Worker) stealSome(ctx context.Context, free int) (taken int) {
	call, cancel := w.c.within(ctx, w.c.callTime)
	full, err := w.queued(call)
	cancel()
	if err != nil {
		return 0
	}
	own, _ := w.prefers()
	var some []int
	for p := range full { // in any order
		if !own[p] && len(some) < stealFrom {
			some = append(some, p)
		}
	}
	slices.SortFunc(some, func(a, b int) int { return cmp.Compare(full[b], full[a]) })
	for _, p := range some {
		if taken >= free || ctx.Err() != nil {
			break
		}
		taken += w.in.pullNow(consumerName(w.o.Key, p), min(2, free-taken))
	}
	return taken
}

// queued returns how many requests each partition of this worker's model holds.
func (w *Worker) queued(ctx context.Context) (map[int]uint64, error) {
	bySubject, err := entries(ctx, w.c.work, workSubject+w.o.Key+".")
	queued := map[int]uint64{}
	for partition, n := range bySubject {
		if p, err := strconv.Atoi(partition); err == nil {
			queued[p] = n
		}
	}
	return queued, err
}

// sweep deletes acknowledged requests that are still in the queue, in the partitions that this
// worker prefers. A server whose disk was full, or that was killed, may keep such requests
// without delivering them.
func (w *Worker) sweep(ctx context.Context) {
	call, cancel := w.c.within(ctx, w.c.callTime)
	defer cancel()
	queued, err := w.queued(call)
	if err != nil {
		return
	}
	own, _ := w.prefers()
	for p := range queued {
		if !own[p] {
			continue
		}
		k, err := w.c.work.Consumer(call, consumerName(w.o.Key, p))
		if err != nil {
			continue
		}
		subject := workSubject + w.o.Key + "." + strconv.Itoa(p)
		done := k.CachedInfo().AckFloor.Stream // all up to it is acknowledged
		for {
			m, err := w.c.work.GetMsg(call, 1, jetstream.WithGetMsgSubject(subject))
			if err != nil || m.Sequence > done || w.c.work.DeleteMsg(call, m.Sequence) != nil {
				break
			}
		}
	}
}

// work begins requests one after another until the worker ends.
func (w *Worker) work(ctx context.Context) {
	for {
		w.mu.Lock()
		for (len(w.waiting) == 0 || w.closing || w.crowded()) && !w.over {
			w.change.Wait()
		}
		if len(w.waiting) == 0 {
			w.mu.Unlock()
			return
		}
		d := w.waiting[0]
		w.waiting = w.waiting[1:]
		own, cancel := context.WithCancelCause(ctx)
		d.cancel = cancel
		w.active[d] = true
		w.change.Broadcast()
		w.mu.Unlock()
		w.finish(own, d)
		cancel(nil)
		w.mu.Lock()
		delete(w.active, d)
		w.change.Broadcast()
		w.mu.Unlock()
	}
}

// crowded reports whether the next waiting request is of the background, which begins in at most
// half of the worker's places, with w.mu held.
func (w *Worker) crowded() bool {
	if !w.waiting[0].background {
		return false
	}
	n := 0
	for d := range w.active {
		if d.background {
			n++
		}
	}
	return n >= max(1, w.room/2)
}

// Ready returns why the worker takes no requests now; nil if it does.
func (w *Worker) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closing:
		return errors.New("the worker ends")
	case !w.c.nc.IsConnected():
		return errors.New("the worker has no connection to its NATS server")
	case w.beaten.IsZero():
		return errors.New("the worker has not begun to take requests")
	case time.Since(w.beaten) > deadAfter:
		return fmt.Errorf("the worker's last heartbeat was stored %v ago",
			time.Since(w.beaten).Round(time.Second))
	}
	return nil
}

// Busy is the number of requests that are being answered.
func (w *Worker) Busy() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.active)
}

// finish answers a request and tells what came of it.
func (w *Worker) finish(ctx context.Context, d *delivery) {
	start := time.Now()
	outcome, a := w.answer(ctx, d)
	if w.o.Done != nil {
		w.o.Done(&Done{d.msg.Header.Get(requestHeader), outcome, a, time.Since(start)})
	}
}

// answer answers a request and writes what came of it, once.
func (w *Worker) answer(ctx context.Context, d *delivery) (Outcome, *restore.Answer) {
	var before begunNote
	if d.tries > 1 {
		before = w.c.begunBefore(ctx, d.id)
		if before.Worker != "" && w.lives(ctx, before.Worker) {
			before.Times, before.Worker = before.Times-1, "" // that one was cut off, or its server
		}
	}
	if before.Reason != "" {
		w.alone.Lock()
		defer w.alone.Unlock()
	} else {
		w.alone.RLock()
		defer w.alone.RUnlock()
	}
	if d.tries > 1 {
		if o := w.again(ctx, d, before); o != "" {
			return o, nil
		}
	}
	r, err := w.compute(ctx, d)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, errAway):
		w.c.log.Warn("request", "id", d.id, "error", err)
		w.giveBack(d, before, w.c.lay.AckWait/4)
		return Returned, nil
	default:
		return w.failed(ctx, d, before, err), nil
	}
	if err == nil {
		err = w.c.write(ctx, d.id, r)
	}
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errCancelled):
		_ = d.msg.Term() // if this fails, it is delivered again and ends in got
		return Cancelled, nil
	case err != nil:
		w.giveBack(d, before, 0)
		return Returned, nil
	}
	_ = d.msg.Ack() // if this fails, it is delivered again and its result is found
	w.count()
	if r.Answer == nil {
		return Refused, nil
	}
	return Answered, r.Answer
}

// failed gives a request back after an error that may be this worker's fault, or up after too many.
func (w *Worker) failed(
	ctx context.Context, d *delivery, before begunNote, err error,
) Outcome {
	w.c.log.Error("request failed", "id", d.id, "error", err)
	now := begunNote{Times: before.Times + 1, Reason: err.Error()}
	if now.Times < w.c.lay.Begin {
		w.c.noteBegun(ctx, d.id, now)
		_ = d.msg.NakWithDelay(w.c.lay.AckWait / 4)
		return Faulty
	}
	if w.c.giveUp(ctx, w.o.Key, d.id, now.Reason, d.msg.Header, d.msg.Data) != nil {
		w.giveBack(d, before, 0)
		return Returned
	}
	_ = d.msg.Term()
	return Faulty
}

// again checks a request that was delivered before, and notes that it begins. It returns "" if the
// request is to be answered.
func (w *Worker) again(ctx context.Context, d *delivery, before begunNote) Outcome {
	if _, err := w.c.results.Get(ctx, d.id); err == nil {
		_ = d.msg.Ack()
		return Found
	}
	if before.Times >= w.c.lay.Begin {
		if w.c.giveUp(ctx, w.o.Key, d.id, before.Reason, d.msg.Header, d.msg.Data) != nil {
			w.giveBack(d, before, 0)
			return Returned
		}
		_ = d.msg.Term()
		return Found
	}
	w.c.noteBegun(ctx, d.id, begunNote{before.Times + 1, fmt.Sprintf(
		"%d workers ended or fell silent while they computed it, the last was %s on %s",
		before.Times+1, w.self.ID, w.self.Machine), w.self.ID})
	return ""
}

// livesFor is how long a worker may need for a heartbeat.
const livesFor = 3 * beatEvery

// lives reports whether a worker of this model sends another heartbeat. What was last heard of it
// is no proof: it may have died since.
func (w *Worker) lives(ctx context.Context, id string) bool {
	ctx, cancel := w.c.within(ctx, livesFor)
	defer cancel()
	key := (&Member{ID: id, Key: w.o.Key}).heartbeat()
	first, err := w.c.workers.Get(ctx, key)
	for err == nil {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(beatEvery / 4):
		}
		var e jetstream.KeyValueEntry
		if e, err = w.c.workers.Get(ctx, key); err == nil && e.Revision() > first.Revision() {
			return true
		}
	}
	return false
}

// compute answers a request. An error is not the request's fault.
func (w *Worker) compute(ctx context.Context, d *delivery) (*result, error) {
	out := &result{Worker: w.self.ID, Fingerprint: w.info.Fingerprint, Try: d.tries}
	start := time.Now()
	q, err := w.c.unpack(ctx, d.msg.Header, d.msg.Data, &w.held)
	if err != nil {
		if f, final := failureOf(err); final {
			out.Failure = f
			return out, nil
		}
		return nil, err
	}
	q.Ask.Arrived = start
	for {
		out.Answer, out.Pieces, err = w.ask(ctx, q, d.tries)
		if !errors.Is(err, errs.ErrYielded) { // a background request's
			break
		}
	}
	if err != nil {
		f, final := failureOf(err)
		if !final {
			return nil, err
		}
		out.Failure = f
		return out, nil
	}
	out.Answer.Worker, out.Elapsed = w.self.ID, time.Since(start)
	return out, nil
}

// ask answers a request, and returns the number of streamed pieces.
func (w *Worker) ask(
	ctx context.Context, q *request, try uint64,
) (*restore.Answer, int, error) {
	j, err := w.o.Service.Submit(ctx, q.Ask)
	if err != nil {
		return nil, 0, err
	}
	pieces := 0
	if q.Stream {
		for e, ok := j.Next(); ok; e, ok = j.Next() {
			w.stream(q.ID, try, pieces, e)
			pieces++
		}
	}
	a, err := j.Answer()
	return a, pieces, err
}

// stream sends a piece of an answer to the client.
func (w *Worker) stream(id string, try uint64, n int, e *restore.Piece) {
	data, err := json.Marshal(&event{id, w.self.ID, try, n, e})
	if err == nil {
		err = w.c.nc.Publish(replySubject+clientOf(id), data)
	}
	if err != nil {
		w.c.log.Warn("reply", "id", id, "error", err)
	}
}

// count updates the rate with an answer.
func (w *Worker) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers++
	now := time.Now()
	if !w.last.IsZero() {
		gap := max(now.Sub(w.last).Seconds(), 1e-6)
		share := min(1, gap/5) // average over five seconds
		w.rate += share * (1/gap - w.rate)
	}
	w.last = now
}
