package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/sample"
)

// MeasureRequest is a question whose words are drawn at random, so that no
// tokenizer is needed.
type MeasureRequest struct {
	Image  *imageproc.Picture // nil: text alone
	Reduce reduce.Options
	Text   int // tokens beside the picture, at least 1: half of them, rounded up, before it
	Steps  int // tokens to decode after the first; the end-of-sequence token does not end it
	Seed   uint64
}

// Measurement is what a MeasureRequest took. The products are zero unless
// Options.Work was given.
type Measurement struct {
	Report
	EncodeProducts, PrefillProducts, DecodeProducts Products
}

// Products are the linear layers' share of a stage.
type Products struct {
	Time       time.Duration
	Operations int64 // two a multiply-add
	Bytes      int64 // of weights, as kept in memory
}

// Measure reads a picture and random words, decodes greedily, and tells how long
// everything took. Only with no other request running do Products mean anything.
func (e *Engine) Measure(ctx context.Context, req MeasureRequest) (*Measurement, error) {
	if req.Text < 1 || req.Steps < 0 {
		return nil, fmt.Errorf("engine: measure: %d tokens of text and %d steps, want at least 1 and 0", req.Text, req.Steps)
	}
	sampler, err := sample.New(sample.Options{})
	if err != nil {
		return nil, err
	}
	r := e.run()
	defer e.runs.put(r)
	r.Context, r.Trace = ctx, nil
	m := new(Measurement)
	c, done := e.once(req.Reduce)
	defer done()
	e.products()
	start := time.Now()
	ask := &Request{}
	if req.Image != nil {
		ask.Images = []*imageproc.Picture{req.Image}
	}
	pics, err := c.look(r, ask, &m.Report)
	if err != nil {
		return nil, err
	}
	m.EncodeProducts = e.products()
	units := make([]unit, req.Text, req.Text+len(pics))
	words := rand.New(rand.NewPCG(req.Seed, 0))
	for i := range units {
		units[i].id = int32(words.IntN(e.shape.Vocab))
	}
	if len(pics) > 0 {
		at := (req.Text + 1) / 2
		units = append(units[:at], append([]unit{{pic: pics[0]}}, units[at:]...)...)
	}
	s := &sequence{e: e, most: req.Steps + 1, cache: c.cache, calib: calibrationOf(e, pics)}
	if err := c.prefill(r, s, units, &m.Report); err != nil {
		return nil, err
	}
	m.PrefillProducts = e.products()
	for _, p := range pics {
		m.add(p)
	}
	id := sampler.Next(s.logits)
	first := time.Now()
	m.FirstToken = first.Sub(start)
	if last := int(s.next) + req.Steps; last > e.shape.MaxPositions {
		return nil, fmt.Errorf("engine: measure: %d positions, want at most the model's context of %d (max_position_embeddings)", last, e.shape.MaxPositions)
	}
	for range req.Steps {
		if err := s.step(r, id); err != nil {
			return nil, err
		}
		id = sampler.Next(s.logits)
	}
	m.Decode, m.GeneratedTokens = time.Since(first), 1+req.Steps
	m.DecodeProducts = e.products()
	if req.Steps > 0 {
		m.TokensPerSecond = float64(req.Steps) / m.Decode.Seconds()
	}
	m.PeakRSS = peakRSS()
	return m, nil
}

// products takes what was counted since the last call.
func (e *Engine) products() (p Products) {
	if e.ck.Work != nil {
		p.Time, p.Operations, p.Bytes = e.ck.Work.Take()
	}
	return p
}
