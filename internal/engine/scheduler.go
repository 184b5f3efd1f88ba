package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// scheduler owns the device: the worker pool, the workspaces, keys and values. Its one goroutine
// takes requests in the order of arrival and encodes and reads them one after another. All
// sequences that were read decode together, one token each per step. While a prompt is encoded or
// read, the running sequences decode between the encoder's blocks and the decoder's products, as
// often as patience says. So no product is split for them, and none of them waits longer than
// patience allows, give or take half a block or product. With Options.Throughput, they wait until
// all prompts are read.
//
// Background requests take what the others leave: none begins, is read or decodes while another
// request waits or runs, and one place is never theirs.
type scheduler struct {
	e        *Engine
	parallel int  // most sequences that run
	queue    int  // most sequences that wait
	eager    bool // prompts are read before running sequences continue

	mu      sync.Mutex
	waiting []*sequence // in order of arrival
	entered int         // requests in the queue that are not prepared yet, none of the background
	tickets ticket      // the last one
	places  int         // used places, of parallel
	closed  bool
	wake    chan struct{} // of capacity 1
	stopped chan struct{} // closed when the goroutine has ended

	preparing sync.WaitGroup // goroutines that prepare constraints

	// Only the scheduler's goroutine uses the fields below.
	read    *model.Run // workspace of encoders and prompts
	step    *model.Run // workspace of decoding
	reading *sequence  // the sequence that is being encoded or read; nil: none
	running []*sequence
	batch   []*sequence
	chosen  []*sequence // batch for choose
	choose  func(i int) // method result
	spans   []model.Span
	ids     []int32
	x       []float32 // [batch, hidden]
	logits  []float32 // [batch, vocab]
	results []result
	caches  []*nn.KVCache
	claims  []claim
	worked  bool          // since memory was given back
	changes int           // 1 + number of sequences that have freed memory
	stepped time.Time     // end of the last step
	took    time.Duration // duration of the last step
	paused  time.Time     // the last pause of reading
	unit    time.Duration // mean time between pauses
}

// result is the outcome of one step for one sequence.
type result struct {
	more bool
	err  error
}

// patience is how long prompts may be read between two steps, in step durations.
const patience = 1.0

func newScheduler(e *Engine, o *Options) *scheduler {
	d := &scheduler{
		e: e, parallel: o.Parallel, queue: o.Queue, eager: o.Throughput,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		step: &model.Run{Pool: e.pool.Step()}, changes: 1,
	}
	d.read = &model.Run{Pool: e.pool.Until(d.ended)}
	if d.parallel == 0 {
		d.parallel = parallelHere
	}
	switch d.queue {
	case 0:
		d.queue = math.MaxInt32
	case -1:
		d.queue = 0
	}
	d.read.Between, d.choose = d.between, d.result
	go d.run()
	return d
}

// ticket is a request's number in order of arrival, from 1. Tickets of the background are behind
// all others.
type ticket uint64

// behind is part of the tickets of background requests.
const behind ticket = 1 << 63

func (t ticket) background() bool { return t&behind != 0 }

// ticket returns the next ticket, with d.mu held.
func (d *scheduler) ticket(r *Request) ticket {
	d.tickets++
	if r.Background {
		return d.tickets | behind
	}
	return d.tickets
}

// enter takes a place in the queue for a request that is not prepared yet.
func (d *scheduler) enter(r *Request) (ticket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.full(r); err != nil {
		return 0, err
	}
	if !r.Background {
		d.entered++
	}
	return d.ticket(r), nil
}

// exit gives back the place of a request that is never submitted; 0 is none.
func (d *scheduler) exit(t ticket) {
	if t == 0 || t.background() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entered--
}

// full returns why r cannot take a place in the queue, with d.mu held. The background has places
// without limit, which are not the queue's.
func (d *scheduler) full(r *Request) error {
	switch free := d.parallel - d.places; {
	case d.closed:
		return fmt.Errorf("engine: %w", errs.ErrClosed)
	case !r.Background && d.urgent()-max(0, free) >= d.queue:
		return fmt.Errorf("engine: %w", errs.ErrQueueFull)
	}
	return nil
}

// urgent is the number of requests that wait, without the background, with d.mu held.
func (d *scheduler) urgent() int {
	n, _ := slices.BinarySearchFunc(d.waiting, behind, func(s *sequence, t ticket) int {
		return cmp.Compare(s.place, t)
	})
	return n + d.entered
}

// submit queues s or returns an error. A request that has entered keeps its place among those that
// are prepared.
func (d *scheduler) submit(s *sequence) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch err := d.full(s.req); {
	case d.closed, err != nil && s.place == 0 && s.work == nil:
		return err
	}
	switch {
	case s.place == 0:
		s.place = d.ticket(s.req)
	case !s.req.Background:
		d.entered--
	}
	s.unwatch = context.AfterFunc(s.ctx, d.nudge)
	_, slow := s.req.Constraint.(Preparer)
	s.unready = slow && !s.count
	i := len(d.waiting)
	for i > 0 && d.waiting[i-1].place > s.place {
		i--
	}
	d.waiting = slices.Insert(d.waiting, i, s)
	d.nudge()
	return nil
}

func (d *scheduler) nudge() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// close ends all sequences, then the goroutine.
func (d *scheduler) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.nudge()
	<-d.stopped
}

// depth returns how many sequences run and how many wait.
func (d *scheduler) depth() (running, waiting int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places, len(d.waiting) + d.entered
}

func (d *scheduler) run() {
	debug.SetPanicOnFault(true)
	defer close(d.stopped)
	defer d.preparing.Wait()
	for {
		d.reap()
		if d.shut() {
			return
		}
		if s := d.next(); s != nil {
			d.begin(s)
			if d.shouldStep() {
				d.decode()
			}
			continue
		}
		if len(d.running) == 0 {
			d.rest()
			continue
		}
		d.decode()
	}
}

// restAfter is how long no work comes before memory that only work needs goes back to the system.
var restAfter = 5 * time.Second

// rest waits for work.
func (d *scheduler) rest() {
	if !d.worked {
		<-d.wake
		return
	}
	after := time.NewTimer(restAfter)
	defer after.Stop()
	select {
	case <-d.wake:
	case <-after.C:
		d.worked = false
		d.giveBack()
	}
}

// giveBack frees the workspaces, and returns what the heap does not use to the system.
func (d *scheduler) giveBack() {
	d.read.Release()
	d.step.Release()
	runtime.GC() // pools of buffers are empty after two
	debug.FreeOSMemory()
}

// shut ends every sequence if the engine is closed.
func (d *scheduler) shut() bool {
	d.mu.Lock()
	closed := d.closed
	waiting := d.waiting
	if closed {
		d.waiting = nil
	}
	d.mu.Unlock()
	if !closed {
		return false
	}
	for _, s := range slices.Concat(waiting, d.running) {
		d.fail(s, fmt.Errorf("engine: %w", errs.ErrClosed))
	}
	return true
}

// between lets other sequences decode while a prompt is encoded or read. It returns an error if the
// sequence that is being read should end.
func (d *scheduler) between() error {
	now := time.Now()
	d.unit += (min(now.Sub(d.paused), d.took) - d.unit) / 8
	if d.shouldStep() {
		d.reap()
		d.decode()
		now = time.Now()
	}
	d.paused = now
	if d.reading.req.Background && d.pressed() {
		return fmt.Errorf("engine: %w", errs.ErrYielded)
	}
	return d.end()
}

// pressed reports whether the background should make way: another request waits and is ready, or
// runs.
func (d *scheduler) pressed() bool {
	if slices.ContainsFunc(d.running, (*sequence).urgent) {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.waiting, (*sequence).fit)
	return i >= 0 && d.waiting[i].urgent()
}

// urgent reports whether s is not of the background.
func (s *sequence) urgent() bool { return !s.req.Background }

// fit reports whether s may begin.
func (s *sequence) fit() bool { return !s.unready && s.unfit == nil }

// ended reports whether the sequence that is being read should end, so that its results are not
// needed. Any thread may call it. Work in progress may then be incomplete: call end before using
// it.
func (d *scheduler) ended() bool { return d.e.closed.Load() || d.reading.ctx.Err() != nil }

// end returns why the sequence that is being read should end, or nil.
func (d *scheduler) end() error {
	if err := d.e.Closed(); err != nil {
		return err
	}
	if err := context.Cause(d.reading.ctx); err != nil {
		return err
	}
	return d.e.reading.Err()
}

// shouldStep reports whether the running sequences should decode now, which is nearer to what
// patience says than after the next block or product. Those of the background never do while
// another request is read.
func (d *scheduler) shouldStep() bool {
	if d.reading != nil && d.reading.urgent() &&
		!slices.ContainsFunc(d.running, (*sequence).urgent) {
		return false
	}
	return !d.eager && len(d.running) > 0 &&
		time.Since(d.stepped)+d.unit/2 >= time.Duration(patience*float64(d.took))
}

// reap ends the sequences whose context has ended, or whose constraint cannot be prepared.
func (d *scheduler) reap() {
	for _, s := range slices.Clone(d.running) {
		if s.ctx.Err() != nil {
			d.fail(s, context.Cause(s.ctx))
		}
	}
	d.mu.Lock()
	var gone []*sequence
	var why []error
	d.waiting = slices.DeleteFunc(d.waiting, func(s *sequence) bool {
		if s.ctx.Err() != nil {
			s.unfit = context.Cause(s.ctx)
		}
		if s.unfit != nil {
			gone, why = append(gone, s), append(why, s.unfit)
		}
		return s.unfit != nil
	})
	d.mu.Unlock()
	for i, s := range gone {
		d.fail(s, why[i])
	}
}

// prepare begins to prepare the constraints of the waiting requests that are next. The others have
// none yet, so that a long queue takes no memory for them.
func (d *scheduler) prepare() {
	for _, s := range d.waiting[:min(len(d.waiting), d.parallel)] {
		if !s.unready || s.stop != nil {
			continue
		}
		var ctx context.Context
		ctx, s.stop = context.WithCancel(s.ctx)
		d.preparing.Go(func() {
			err := d.guard(func() error { return s.req.Constraint.(Preparer).Prepare(ctx) })
			d.mu.Lock()
			s.unready, s.unfit = false, err
			d.mu.Unlock()
			d.nudge()
		})
	}
}

// next takes the oldest waiting request that is ready if there is a place and memory for it.
func (d *scheduler) next() *sequence {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prepare()
	i := slices.IndexFunc(d.waiting, (*sequence).fit)
	if i < 0 {
		return nil
	}
	s, places := d.waiting[i], d.parallel
	if !s.urgent() {
		if slices.ContainsFunc(d.running, (*sequence).urgent) {
			return nil
		}
		places = max(1, places-1)
	}
	if s.work == nil && !s.count {
		if d.places >= places || !d.admit(s) {
			return nil
		}
		d.places++
		s.placed = true
	}
	d.waiting = slices.Delete(d.waiting, i, i+1)
	return s
}

// begin encodes and reads the request of s and starts its answer.
func (d *scheduler) begin(s *sequence) {
	d.reading, d.worked = s, true
	err := d.guard(func() error {
		if s.work == nil {
			return d.question(s)
		}
		if err := s.work(d.read); err != nil {
			return err
		}
		return d.end()
	})
	if end := d.end(); end != nil && err != nil { // skipped work may have caused any other error
		err = end
	}
	d.reading = nil
	switch {
	case err != nil:
		d.fail(s, err)
	case s.work != nil || s.count:
		d.leave(s)
		s.finish(s.ans, nil)
	}
}

// question reads the prompt of s and chooses the first token.
func (d *scheduler) question(s *sequence) error {
	e, rep := d.e, &s.ans.Report
	rep.Queue = max(0, time.Since(s.start)-s.prepared())
	rep.Prepare = s.loading // and of each picture
	s.stageEnded(Queued)
	for _, u := range s.units[s.cached:] {
		if u.pic == nil {
			continue
		}
		if err := d.features(u.pic); err != nil {
			return err
		}
	}
	if s.late { // now it is known which pictures lose tokens
		var err error
		if s.calib, err = e.calibration(s.all); err != nil {
			return err
		}
		s.root = rootOf(s.calib, s.req.Salt, s.forgot)
	}
	rows, _ := extent(s.units)
	cached, at := extent(s.units[:s.cached])
	rep.PromptTokens, rep.CachedTokens = rows, cached
	for _, u := range s.units {
		if p := u.pic; p != nil {
			rep.ImageTokens += p.rows()
			if p.chosen > 0 {
				rep.ChosenBefore++
			}
		}
	}
	if s.count {
		s.report()
		return nil
	}
	if err := s.claim(); err != nil { // a method may have determined its number of tokens only now
		return err
	}
	s.stageEnded(Encoding)
	start := time.Now()
	if err := d.readPrompt(s, at); err != nil {
		s.report()
		return err
	}
	s.release()
	s.stageEnded(Prefill)
	s.report()
	rep.Prefill = time.Since(start)
	for _, p := range s.pics {
		if p.readNow() {
			rep.Prefill -= p.inside.SelectTime + p.inside.MergeTime
		}
	}
	more, err := s.accept(d.logits)
	if err != nil {
		return err
	}
	if !s.req.NoCache {
		s.begun = e.prefixes.add(s.root, s.units, s.cache)
	}
	for i := range e.shape.Layers { // free what was reserved and not needed
		l := s.cache.Layer(i)
		l.Truncate(len(l.Pos))
	}
	s.emitPiece(false)
	if !more {
		d.complete(s)
	} else {
		d.running = append(d.running, s)
	}
	return nil
}

// readPrompt reads the prompt from unit s.cached on, at position at, and computes the logits of its
// end.
func (d *scheduler) readPrompt(s *sequence, at float64) error {
	row, err := s.prefill(d.read, s.cached, at)
	if err != nil {
		return err
	}
	d.logits = slices.Grow(d.logits[:0], d.e.shape.Vocab)[:d.e.shape.Vocab]
	d.e.m.Decoder().Logits(d.read, d.logits, row, 1)
	if err := d.end(); err != nil {
		return err
	}
	return d.e.reading.Wait(s.ctx) // no answer from a damaged file
}

// prepared is how long the preparation of the request took.
func (s *sequence) prepared() time.Duration {
	d := s.loading
	for _, p := range s.all {
		d += p.spent.prepare
	}
	return d
}

// report adds the pictures to the report.
func (s *sequence) report() {
	for _, p := range s.pics {
		s.ans.Report.add(p)
	}
}

// found records that the keys and values of p are in memory, from an earlier read of the same
// picture.
func (p *picture) found(before *picture) {
	p.got(before.tokens)
	p.from = FromPrefix
	if p.inside == nil {
		p.inside = before.inside
	}
}

// features makes the decoder's rows of p if they are not cached.
func (d *scheduler) features(p *picture) error {
	c := d.e.cached
	if p.asks() {
		return d.choiceFor(p)
	}
	if p.entry != nil {
		f := c.get(p.entry)
		if f == nil && d.e.common != nil { // another process may have made it meanwhile
			p.stored = d.e.restore(p, false)
			f = c.get(p.entry)
		}
		if f != nil {
			p.got(f)
			p.from = cmp.Or(p.stored, FromFeatures)
			c.count(p.from)
			return nil
		}
		c.count(FromNothing)
	}
	f, err := d.e.features(d.read, p)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return err
	}
	p.got(f)
	p.from, p.prepared, p.rgb = FromNothing, nil, nil
	if p.entry != nil {
		c.put(p.entry, f)
		d.e.save(p.entry.key, f)
	}
	return nil
}

// choiceFor makes the decoder's rows of p for the text that p's method reads. The encoder's output
// is kept for other texts.
func (d *scheduler) choiceFor(p *picture) error {
	c, from, encoding := d.e.cached, FromNothing, time.Duration(0)
	if given := p.visual; given == nil {
		defer func() { p.visual = nil }()
	}
	if p.entry != nil && p.visual == nil {
		if f := c.get(p.entry); f != nil {
			p.visual, from = f.visual, FromFeatures
		}
		c.count(from)
	}
	if p.visual == nil {
		start := time.Now()
		v, err := d.e.encode(d.read, p, p.need)
		if err == nil {
			err = d.end()
		}
		if err != nil {
			return err
		}
		if p.visual, encoding = v, time.Since(start); p.entry != nil {
			c.put(p.entry, &features{visual: v})
		}
	}
	f, err := d.e.features(d.read, p)
	if err == nil {
		err = d.end()
	}
	if err != nil {
		return err
	}
	p.got(f)
	p.from, p.prepared = from, nil
	p.spent.encode += encoding
	return nil
}

// decode makes one step of every running sequence that has memory for it. The background's wait
// while another one has it.
func (d *scheduler) decode() {
	start := time.Now()
	d.batch = d.batch[:0]
	for _, urgent := range []bool{true, false} {
		for _, s := range d.running {
			if s.urgent() == urgent && d.grow(s) {
				d.batch = append(d.batch, s)
			}
		}
		if len(d.batch) > 0 {
			break
		}
	}
	for lo := 0; lo < len(d.batch); lo += d.e.together {
		d.forward(d.batch[lo:min(lo+d.e.together, len(d.batch))])
	}
	d.stepped = time.Now()
	d.took = d.stepped.Sub(start)
}

// forward makes one step of the sequences together.
func (d *scheduler) forward(batch []*sequence) {
	err := d.guard(func() error {
		d.tokens(batch)
		return nil
	})
	if err != nil { // run each alone to find the one that panicked
		for _, s := range batch {
			s.undo()
			if len(batch) == 1 {
				d.fail(s, err)
			} else {
				d.forward([]*sequence{s})
			}
		}
		return
	}
	for i, s := range batch {
		switch r := d.results[i]; {
		case r.err != nil:
			s.undo()
			d.fail(s, r.err)
		default:
			s.emitPiece(false)
			if !r.more {
				d.complete(s)
			}
		}
	}
}

// tokens computes and chooses the next token of each sequence of batch.
func (d *scheduler) tokens(batch []*sequence) {
	d.advance(batch)
	d.results = slices.Grow(d.results[:0], len(batch))[:len(batch)]
	d.chosen = batch
	d.e.pool.Run(len(batch), d.choose)
}

// advance runs the decoder on the last token of each sequence of batch.
func (d *scheduler) advance(batch []*sequence) {
	e, n := d.e, len(batch)
	h, vocab := e.shape.Hidden, e.shape.Vocab
	d.spans, d.ids = d.spans[:0], d.ids[:0]
	d.x, d.logits = nn.Buffer(&d.x, n*h), nn.Buffer(&d.logits, n*vocab)
	for _, s := range batch {
		s.prepareStep()
		d.ids, d.spans = append(d.ids, s.id), append(d.spans, s.span)
	}
	if err := e.m.Decoder().Embed(d.x, d.ids); err != nil {
		panic(err) // chosen tokens are always in the vocabulary
	}
	e.m.Decoder().Forward(d.step, d.x, d.spans)
	e.m.Decoder().Logits(d.step, d.logits, d.x, n)
}

// result chooses the token of the batch's i-th sequence.
func (d *scheduler) result(i int) {
	s, vocab := d.chosen[i], d.e.shape.Vocab
	d.results[i] = result{err: d.spans[i].Err}
	if d.results[i].err != nil {
		return
	}
	s.next++
	s.fed = append(s.fed, unit{id: s.id})
	defer func() {
		if v := recover(); v != nil {
			d.results[i].err = &model.Panic{Value: v, Stack: debug.Stack()}
		}
		if d.results[i].err != nil { // then the step's keys are removed
			s.next--
			s.fed = s.fed[:len(s.fed)-1]
		}
	}()
	d.results[i].more, d.results[i].err = s.accept(d.logits[i*vocab : (i+1)*vocab])
}

// guard calls f and returns a panic in f as an error.
func (d *scheduler) guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &model.Panic{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// complete ends a sequence whose answer is complete.
func (d *scheduler) complete(s *sequence) {
	d.keep(s)
	s.stageEnded(Decoding)
	d.leave(s)
	s.close()
	s.finish(s.ans, nil)
}

// keep keeps the prefix of a sequence that ends for others, and for the next turn of its dialogue.
func (d *scheduler) keep(s *sequence) {
	if s.begun == nil {
		return
	}
	// otherwise a later prompt that contains the answer reads it again
	if s.calib == nil || !s.calib.Distance || s.calib.DecodeDistance {
		d.e.prefixes.extend(s.begun, s.fed)
	}
	d.e.prefixes.keep(s.begun)
	s.cache, s.begun = nil, nil
}

// fail ends a sequence before its answer is complete. If its own context ended, the answer so far
// is returned, and what was read is kept.
func (d *scheduler) fail(s *sequence, err error) {
	cause := context.Cause(s.ctx)
	own := cause != nil && errors.Is(err, cause)
	if own {
		d.keep(s)
	}
	d.leave(s)
	if !own {
		s.finish(nil, d.e.publicError(err))
		return
	}
	if s.work == nil && !s.count {
		s.ans.Finish = FinishCancelled
		s.close()
	}
	s.finish(s.ans, cause)
}

// leave frees the place, the keys and values, and the pictures of s.
func (d *scheduler) leave(s *sequence) {
	if s.stop != nil {
		s.stop()
	}
	if s.begun != nil {
		d.e.prefixes.trim(s.begun, 0)
		s.begun = nil
	}
	if s.cache != nil {
		s.cache.Free()
		s.cache = nil
	}
	d.changes++
	s.release()
	d.running = slices.DeleteFunc(d.running, func(r *sequence) bool { return r == s })
	if s.placed {
		d.mu.Lock()
		d.places--
		d.mu.Unlock()
		s.placed = false
	}
}

// publicError returns err as the caller sees it. Of a panic it reveals only that there was one.
func (e *Engine) publicError(err error) error {
	var p *model.Panic
	if !errors.As(err, &p) {
		return err
	}
	if u, ok := p.Value.(*nn.Unusable); ok {
		return u.Err
	}
	if checkpoint.IsFault(p.Value) {
		return cutShort(e.ck.Name)
	}
	if e.panicked != nil {
		e.panicked(p.Value, p.Stack)
	}
	return fmt.Errorf("engine: %w", errs.ErrInternal)
}
