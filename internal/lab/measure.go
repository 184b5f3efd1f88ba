package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
)

// MeasureRequest is a question with random words, so that it needs no tokenizer.
type MeasureRequest struct {
	Image  *imageproc.Picture // nil: only text
	Reduce methods.Options
	Text   int // other tokens, at least 1: half of them, rounded up, before the picture
	Steps  int // tokens to decode after the first; no token ends the answer
	Seed   uint64
}

// Measurement is the result of Measure. The work is zero unless the engine was opened with
// [engine.Hooks].Work.
type Measurement struct {
	engine.Report
	EncodeWork, PrefillWork, DecodeWork nn.Counts
	// the process's peak of resident memory when the picture was encoded and reduced
	EncodePeakRSS int64
}

// Measure reads a picture and random words, decodes greedily, and reports the time of each stage.
// The work is meaningful only if no other request runs.
func Measure(ctx context.Context, e *engine.Engine, req MeasureRequest) (*Measurement, error) {
	if req.Text < 1 || req.Steps < 0 {
		return nil, fmt.Errorf("lab: measure: %d tokens of text and %d steps, want at "+
			"least 1 and 0", req.Text, req.Steps)
	}
	ask := engine.Request{
		Reduce: req.Reduce, IgnoreEnd: true, MaxTokens: req.Steps + 1,
		Tokens: Words(e, req.Seed, req.Text),
	}
	if req.Image != nil {
		ask.Images = engine.Pictures(req.Image)
		ask.Tokens = slices.Insert(ask.Tokens, (req.Text+1)/2, e.Model().ImageToken())
	}
	p, err := e.NewPrompt(ctx, ask)
	if err != nil {
		return nil, err
	}
	if last := p.Positions() + req.Steps; last > e.Context() {
		return nil, fmt.Errorf("lab: measure: %d positions, want at most the model's "+
			"context of %d", last, e.Context())
	}
	m, before := new(Measurement), e.Source().Work.Total()
	j, err := p.Submit(func(stage engine.Stage) {
		total := e.Source().Work.Total()
		*m.work(stage), before = total.Since(before), total
		if stage == engine.Encoding {
			m.EncodePeakRSS = machine.PeakRSS()
		}
	})
	if err != nil {
		return nil, err
	}
	ans, err := j.Answer()
	if err != nil {
		return nil, err
	}
	m.Report = ans.Report
	return m, nil
}

// work returns the field for the work of a stage.
func (m *Measurement) work(stage engine.Stage) *nn.Counts {
	switch stage {
	case engine.Encoding:
		return &m.EncodeWork
	case engine.Prefill:
		return &m.PrefillWork
	case engine.Decoding:
		return &m.DecodeWork
	}
	return new(nn.Counts)
}

// Words draws n tokens; none is a picture token.
func Words(e *engine.Engine, seed uint64, n int) []int32 {
	from := rand.New(rand.NewPCG(seed, 0))
	vocab := e.Model().Decoder().Shape().Vocab
	ids := make([]int32, n)
	for i := range ids {
		for ids[i] = int32(from.IntN(vocab)); e.StandsForPicture(ids[i]); {
			ids[i] = int32(from.IntN(vocab))
		}
	}
	return ids
}
