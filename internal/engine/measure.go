package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
)

// MeasureRequest is a question whose words are drawn at random, so that no
// tokenizer is needed.
type MeasureRequest struct {
	Image  *imageproc.Picture // nil: text alone
	Reduce methods.Options
	Text   int // tokens besides the picture, at least 1: half of them, rounded up, before it
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
		return nil, fmt.Errorf("engine: measure: %d tokens of text and %d steps, want at "+
			"least 1 and 0", req.Text, req.Steps)
	}
	ask := Request{
		Reduce: req.Reduce, IgnoreEnd: true, NoCache: true, MaxTokens: req.Steps + 1,
		Tokens: e.Words(req.Seed, req.Text),
	}
	if req.Image != nil {
		ask.Images = []*imageproc.Picture{req.Image}
		ask.Tokens = slices.Insert(ask.Tokens, (req.Text+1)/2, e.m.ImageToken())
	}
	s, err := e.sequence(ctx, ask)
	if err != nil {
		return nil, err
	}
	if last := s.positions() + req.Steps; last > e.context {
		return nil, fmt.Errorf("engine: measure: %d positions, want at most the model's "+
			"context of %d", last, e.context)
	}
	m := new(Measurement)
	s.stage = func(of stage) { *m.products(of) = e.products() }
	if err := e.queue(s); err != nil {
		return nil, err
	}
	ans, err := (&Job{s}).Answer()
	if err != nil {
		return nil, err
	}
	m.Report = ans.Report
	return m, nil
}

// stage is a part of a request's way.
type stage int

const (
	begun stage = iota
	encoded
	read
	answered
)

func (m *Measurement) products(of stage) *Products {
	return [...]*Products{
		new(Products), &m.EncodeProducts, &m.PrefillProducts, &m.DecodeProducts,
	}[of]
}

// Words draws n tokens that are no pictures.
func (e *Engine) Words(seed uint64, n int) []int32 {
	from := rand.New(rand.NewPCG(seed, 0))
	ids := make([]int32, n)
	for i := range ids {
		for ids[i] = int32(from.IntN(e.shape.Vocab)); e.visualToken(ids[i]); {
			ids[i] = int32(from.IntN(e.shape.Vocab))
		}
	}
	return ids
}

// products takes what was counted since the last call.
func (e *Engine) products() (p Products) {
	if e.ck.Work != nil {
		p.Time, p.Operations, p.Bytes = e.ck.Work.Take()
	}
	return p
}
