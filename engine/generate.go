package engine

import (
	"slices"
	"time"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/sample"
)

// prefillChunk is how many rows go through the decoder at once: enough for the
// products to run at full speed, few enough to bound the activations' memory.
const prefillChunk = 1024

// decodeRoom is for how many generated tokens the cache is made ready at a time,
// or a quarter of what it holds if that is more.
const decodeRoom = 256

// sequence is one request's way through the decoder.
type sequence struct {
	e      *Engine
	most   int // tokens that are generated at most; 0: up to the context's end
	room   int // tokens that the cache has room for
	cache  *nn.KVCache
	calib  *nn.Calibration
	next   float64   // position of the next token
	logits []float32 // [vocab] of the newest row
	x      []float32 // [hidden] of one decoded token
	fed    []unit    // generated tokens that the cache holds
	held   []int     // keys per layer before the newest step
	span   [1]model.Span
	pos    [1]nn.Pos
	id     [1]int32
}

// prefill reads rows, in chunks, and leaves the last row's logits.
func (s *sequence) prefill(r *model.Run, in *rows) error {
	h := s.e.shape.Hidden
	n := len(in.pos)
	last := 0 // row that holds the newest token
	s.reserve(n, 0)
	for lo := 0; lo < n; {
		hi := min(lo+prefillChunk, n)
		span := model.Span{Cache: s.cache, Calib: s.calib}
		if len(in.staged) > 0 && hi > in.staged[0].First {
			hi, span.Staged = n, in.staged // reducers inside the decoder look at the picture from the prompt's end
			for i := range span.Staged {
				span.Staged[i].First -= lo
			}
		}
		span.Pos, span.Size, span.FirstSize = in.pos[lo:hi], in.size[lo:hi], in.firstSize[lo:hi]
		spans := []model.Span{span}
		if err := s.e.m.Decoder().Forward(r, in.x[lo*h:hi*h], spans); err != nil {
			return err
		}
		last, lo = lo+len(spans[0].Pos)-1, hi
	}
	s.logits = make([]float32, s.e.shape.Vocab)
	s.e.m.Decoder().Logits(r, s.logits, in.x[last*h:], 1)
	s.next = in.next
	s.x = make([]float32, h)
	return nil
}

// reserve makes room in the cache for rows of a prompt and then the next generated
// tokens, of which made were before.
func (s *sequence) reserve(rows, made int) {
	s.room = max(decodeRoom, (s.cache.Len(0)+rows)/4)
	if s.most > 0 {
		s.room = max(1, min(s.room, s.most-made))
	}
	s.cache.Reserve(rows + s.room)
	s.fed = slices.Grow(s.fed, s.room)
}

// step feeds one generated token.
func (s *sequence) step(r *model.Run, id int32) error {
	if s.room == 0 {
		s.reserve(0, len(s.fed))
	}
	s.room--
	s.id[0] = id
	if err := s.e.m.Decoder().Embed(s.x, s.id[:]); err != nil {
		return err
	}
	s.held = s.cache.Lens(s.held[:0])
	s.pos[0] = nn.At(s.next)
	s.span[0] = model.Span{Pos: s.pos[:], Cache: s.cache, Calib: s.calib, Decoding: true}
	if err := s.e.m.Decoder().Forward(r, s.x, s.span[:]); err != nil {
		return err
	}
	s.e.m.Decoder().Logits(r, s.logits, s.x, 1)
	s.next++
	s.fed = append(s.fed, unit{id: id})
	return nil
}

// generate decodes until the model ends, MaxTokens, the context's end or
// cancellation, and fills ans.
func (s *sequence) generate(r *model.Run, sampler *sample.Sampler, req *Request, ans *Answer, start time.Time) error {
	stream := s.e.tok.NewStream()
	emit := func(text string) {
		ans.Text += text
		if req.OnText != nil && text != "" {
			req.OnText(text)
		}
	}
	var first time.Time
	for {
		id := sampler.Next(s.logits)
		if first.IsZero() {
			first = time.Now()
			ans.Report.FirstToken = first.Sub(start)
		}
		if s.e.eos[id] {
			ans.Finish = FinishStop
			break
		}
		ans.Tokens = append(ans.Tokens, id)
		emit(stream.Push(id))
		if len(ans.Tokens) == req.MaxTokens || int(s.next) >= s.e.shape.MaxPositions {
			ans.Finish = FinishLength
			break
		}
		if err := s.step(r, id); err != nil {
			if r.Err() == nil {
				return err
			}
			s.undo()
			ans.Finish = FinishCancelled
			break
		}
	}
	emit(stream.Flush())
	ans.Report.Decode = time.Since(first)
	ans.Report.GeneratedTokens = len(ans.Tokens)
	if n := len(s.fed); n > 0 && ans.Report.Decode > 0 {
		ans.Report.TokensPerSecond = float64(n) / ans.Report.Decode.Seconds()
	}
	ans.Report.PeakRSS = peakRSS()
	return nil
}

// undo takes back the keys that a cancelled step left in some layers.
func (s *sequence) undo() {
	for i, n := range s.held {
		s.cache.Layer(i).Truncate(n)
	}
}
