package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/sample"
)

// sequence is one request in progress. The device's goroutine makes its pieces; the caller waits
// for them.
type sequence struct {
	e    *Engine
	ctx  context.Context
	req  *Request
	work func(r *model.Run) error // of a job that is no question; the fields below are unused then

	units   []unit     // the prompt
	pics    []*picture // in the report, in order
	all     []*picture // in the prompt
	late    bool       // budgets by content are not known yet
	forgot  uint64     // mark of a conversation that forgot what it had read
	calib   *nn.Calibration
	root    uint64 // in the prefix cache
	most    int    // most tokens to generate; 0: up to the context's end
	sampler *sample.Sampler
	ends    []uint64    // mask without the model's end tokens; nil: no mask
	count   bool        // only the size of the prompt is wanted
	stage   func(Stage) // called at the end of each stage; may be nil

	// Only the device's goroutine uses the fields below.
	cache  *nn.KVCache
	begun  *prefix // prefix that others may share; nil: none
	next   float64 // position of the next token
	id     int32   // the last token, which the decoder has not read
	fed    []unit  // generated tokens that the decoder has read
	held   []int   // keys per layer before the last step
	pages  int     // most pages that the sequence may hold
	cached int     // units that were in memory
	tried  int     // scheduler.changes when there was too little memory for the prompt
	placed bool    // it has one of the places for running sequences
	stop   func()  // ends the preparation of its constraint; nil: not begun
	slots  int     // generated tokens for which the cache has reserved space
	writer writer
	span   model.Span
	pos    [1]nn.Pos

	place   ticket        // in the queue; 0: none before the sequence is prepared
	loading time.Duration // of Request.Load

	start, first time.Time   // the request's arrival and its first token
	unwatch      func() bool // ends the scheduler's watch of ctx

	// The scheduler's lock guards these fields.
	unready bool  // its constraint is not prepared
	unfit   error // of the constraint's preparation

	mu     sync.Mutex
	pieces []Piece
	ready  chan struct{} // of capacity 1: there are pieces, or the answer has ended
	ended  bool
	ans    *Answer
	err    error
	done   chan struct{} // closed at the end
}

// emit passes a piece to the caller.
func (s *sequence) emit(p Piece) {
	if p.Text == "" && len(p.Tokens) == 0 {
		return
	}
	s.mu.Lock()
	s.pieces = append(s.pieces, p)
	s.mu.Unlock()
	s.signal()
}

func (s *sequence) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// finish ends the sequence. ans may be nil if err is not.
func (s *sequence) finish(ans *Answer, err error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.ans, s.err = true, ans, err
	s.mu.Unlock()
	s.unwatch()
	close(s.done)
	s.signal()
}

// Job is a request that was accepted.
type Job struct{ s *sequence }

// Next waits for the next piece of the answer. It returns false at the end.
func (j *Job) Next() (Piece, bool) {
	s := j.s
	for {
		s.mu.Lock()
		if len(s.pieces) > 0 {
			p := s.pieces[0]
			s.pieces = s.pieces[1:]
			s.mu.Unlock()
			return p, true
		}
		ended := s.ended
		s.mu.Unlock()
		if ended {
			return Piece{}, false
		}
		<-s.ready
	}
}

// Ready reports whether Next would return at once.
func (j *Job) Ready() bool {
	j.s.mu.Lock()
	defer j.s.mu.Unlock()
	return len(j.s.pieces) > 0 || j.s.ended
}

// Answer waits for the end. If the request's context ended, it returns the answer so far and the
// context's cause; other errors come without an answer.
func (j *Job) Answer() (*Answer, error) {
	<-j.s.done
	return j.s.ans, j.s.err
}

// prefillChunk is how many rows the decoder reads at once: enough for full speed of the products,
// few enough to limit the memory of activations.
const prefillChunk = 1024

// decodeRoom is for how many generated tokens the cache reserves space at a time.
const decodeRoom = 256

// keysOf returns the most keys that each layer holds of units.
func (e *Engine) keysOf(units []unit) []int {
	keys := make([]int, e.shape.Layers)
	tokens := 0
	for _, u := range units {
		switch {
		case u.pic == nil:
			tokens++
		case len(u.pic.plan.Stages) > 0:
			for i := range keys {
				keys[i] += u.pic.plan.RowsAt(i)
			}
		default:
			tokens += u.pic.rows()
		}
	}
	for i := range keys {
		keys[i] += tokens
	}
	return keys
}

// pagesOf returns the pages that keys and n more tokens take.
func pagesOf(keys []int, n int) int {
	pages := 0
	for _, k := range keys {
		pages += nn.PagesOf(k + n)
	}
	return pages
}

// Stage is a stage of a request.
type Stage int

// The stages, in order.
const (
	Queued   Stage = iota // the request waits for its turn
	Encoding              // pictures are encoded and reduced
	Prefill               // the prompt is read
	Decoding              // the answer is decoded
)

// positions returns how many positions the prompt spans.
func (s *sequence) positions() int {
	_, n := extent(s.units)
	return int(n)
}

// context returns how many positions prompt and answer may span.
func (s *sequence) context() int {
	if s.req.Context == 0 {
		return s.e.context
	}
	return s.req.Context
}

// stageEnded reports the end of a stage.
func (s *sequence) stageEnded(of Stage) {
	if s.stage != nil {
		s.stage(of)
	}
}

// claim computes the most pages that the sequence may hold, and the most tokens it may generate if
// the request gives no limit. It returns an error if they can never fit.
func (s *sequence) claim() error {
	e := s.e
	rows, positions := extent(s.units)
	if err := fits(rows, positions, s.context()); err != nil {
		return err
	}
	keys, room := e.keysOf(s.units), s.context()-int(positions)
	n := room
	if s.most > 0 {
		n = min(s.most-1, room) // the last token's keys are not kept
	}
	if s.most == 0 { // up to the end of the context or of the memory
		for pagesOf(keys, n) > e.pagesMost && n > 0 {
			n -= max(1, n/16)
		}
		s.most = n + 1
	}
	if s.pages = pagesOf(keys, n); s.pages > e.pagesMost {
		page := e.pages.PageBytes()
		return fmt.Errorf("engine: %w", &errs.MemoryError{
			What: fmt.Sprintf("keys and values of %d prompt tokens and %d of an answer", rows, n+1),
			Need: int64(s.pages) * page, Have: int64(e.pagesMost) * page,
			Hint: "ask for a shorter answer, a smaller budget of visual tokens, or keys and " +
				"values in float16",
		})
	}
	return nil
}

// cuts returns the ends of the parts in which units from n on are read. A picture reduced inside
// the decoder is read with the prompt for which its tokens were chosen, so each such prompt ends a
// part.
func (s *sequence) cuts(n int) []int {
	var at []int
	for _, u := range s.units[n:] {
		if p := u.pic; p != nil && p.chosen > n && p.chosen < len(s.units) {
			at = append(at, p.chosen)
		}
	}
	slices.Sort(at)
	return append(slices.Compact(at), len(s.units))
}

// prefill reads the units from n on, the first at position at, and returns the last row.
func (s *sequence) prefill(r *model.Run, n int, at float64) ([]float32, error) {
	h := s.e.shape.Hidden
	var row []float32
	for _, end := range s.cuts(n) {
		in, err := s.e.layout(s.units[n:end], at)
		if err != nil {
			return nil, err
		}
		for _, u := range s.units[n:end] {
			if u.pic != nil {
				u.pic.tokens = u.pic.tokens.bare() // the rows hold the values now
			}
		}
		last, err := s.read(r, in)
		if err != nil {
			return nil, err
		}
		row, n, at = in.X[last*h:(last+1)*h], end, in.Next
	}
	s.next = at
	return row, nil
}

// read runs the decoder on rows, in chunks, and returns the index of the last row left.
func (s *sequence) read(r *model.Run, in *Rows) (last int, err error) {
	h, n := s.e.shape.Hidden, len(in.Pos)
	for lo := 0; lo < n; {
		hi := in.chunk(lo)
		span := model.Span{Cache: s.cache, Calib: s.calib, Context: s.ctx, LastOnly: true}
		if len(in.Staged) > 0 && hi > in.Staged[0].First {
			// Methods inside the decoder use the prompt's last rows to look at the picture.
			hi, span.Staged = n, in.Staged
			for i := range span.Staged {
				span.Staged[i].First -= lo
			}
		}
		span.Pos, span.Size, span.FirstSize = in.Pos[lo:hi], in.Size[lo:hi], in.FirstSize[lo:hi]
		span.Deep, span.Blocks = in.deep(lo, hi, h), in.blocks(lo, hi)
		spans := []model.Span{span}
		s.e.m.Decoder().Forward(r, in.X[lo*h:hi*h], spans)
		if spans[0].Err != nil {
			return 0, spans[0].Err
		}
		last, lo = lo+len(spans[0].Pos)-1, hi
	}
	return last, nil
}

// prepareStep makes the span of the sequence's next step.
func (s *sequence) prepareStep() {
	if s.slots == 0 {
		s.slots = min(max(decodeRoom, s.cache.Len(0)/4), max(1, s.most-len(s.fed)))
		s.cache.Reserve(0, s.slots)
		s.fed = slices.Grow(s.fed, s.slots)
	}
	s.slots--
	s.held = s.cache.Lens(s.held[:0])
	s.pos[0] = nn.At(s.next)
	s.span = model.Span{
		Pos: s.pos[:], Cache: s.cache, Calib: s.calib, Decoding: true, Context: s.ctx,
	}
}

// undo removes the keys that a failed step left in some layers.
func (s *sequence) undo() {
	for i, n := range s.held {
		s.cache.Layer(i).Truncate(n)
	}
}

// accept chooses the next token from logits. It reports whether the answer continues. It runs on
// any thread, in parallel with other sequences.
func (s *sequence) accept(logits []float32) (more bool, err error) {
	if !sample.Finite(logits) {
		return false, fmt.Errorf("engine: logits of token %d: %w", len(s.ans.Tokens),
			errs.ErrNotFinite)
	}
	id, err := s.choose(logits)
	if err != nil {
		return false, err
	}
	if s.first.IsZero() {
		s.first = time.Now()
		s.ans.Report.FirstToken = s.first.Sub(s.start)
	}
	if id < 0 || s.e.eos[id] && !s.req.IgnoreEnd {
		s.ans.Finish = FinishStop
		return false, nil
	}
	s.id = id
	s.sampler.Accept(id)
	s.ans.Tokens = append(s.ans.Tokens, id)
	stopped := s.writer.push(id, s.scored(id, logits))
	if c := s.req.Constraint; c != nil {
		if err := c.Accept(id); err != nil {
			return false, err
		}
		stopped = stopped || c.Done()
	}
	switch {
	case stopped:
		s.ans.Finish = FinishStop
	case len(s.ans.Tokens) == s.most || int(s.next) >= s.context():
		s.ans.Finish = FinishLength
	default:
		return true, nil
	}
	return false, nil
}

// choose draws a token. It returns -1 if none is allowed.
func (s *sequence) choose(logits []float32) (int32, error) {
	mask := s.ends
	if c := s.req.Constraint; c != nil {
		if c.Done() {
			return -1, nil
		}
		may := c.Mask()
		if err := context.Cause(s.ctx); err != nil {
			return 0, err // the mask may be incomplete
		}
		switch {
		case s.ends == nil:
			mask = may
		case may != nil:
			mask = slices.Clone(may)
			for i := range mask {
				mask[i] &= s.ends[i]
			}
		}
	}
	if mask == nil {
		return s.sampler.Next(logits), nil
	}
	id := s.sampler.NextOf(logits, mask)
	if id < 0 && s.req.Constraint == nil {
		return 0, fmt.Errorf("engine: every token is an end token, and no end token is allowed")
	}
	return id, nil
}

// scored returns the reported data of a token.
func (s *sequence) scored(id int32, logits []float32) Token {
	if !s.req.LogProbs {
		return Token{}
	}
	sum := sample.LogSum(logits)
	t := Token{ID: id, LogProb: float64(logits[id]) - sum}
	for _, top := range sample.Top(logits, s.req.Top) {
		b := s.e.tok.Piece(top, len(s.ans.Tokens) == 1)
		t.Top = append(t.Top, TopToken{ID: top, LogProb: float64(logits[top]) - sum, Bytes: b})
	}
	return t
}

// close completes the answer.
func (s *sequence) close() {
	s.writer.end()
	s.emitPiece(true)
	a, r := s.ans, &s.ans.Report
	a.Text, a.Stop = s.writer.text.String(), s.writer.stop
	if !s.first.IsZero() {
		r.Decode = time.Since(s.first)
	}
	r.GeneratedTokens = len(a.Tokens)
	if n := len(s.fed); n > 0 && r.Decode > 0 {
		r.TokensPerSecond = float64(n) / r.Decode.Seconds()
	}
	r.PeakRSS = machine.PeakRSS()
}

func (s *sequence) emitPiece(end bool) {
	p := s.writer.piece(end)
	p.made = len(s.ans.Tokens)
	s.ans.Scored = append(s.ans.Scored, p.Tokens...)
	s.emit(p)
}
