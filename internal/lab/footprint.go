package lab

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
)

// Footprint is the memory in bytes that a question about one picture takes.
type Footprint struct {
	Width, Height int // of the picture, in pixels
	Tokens, Kept  int // visual tokens before and after the reduction
	Prompt        int // rows of the decoder
	Generated     int // tokens of the answer
	Weights       int64
	Cache         int64 // keys and values
	Encoder       int64 // buffers and results of the vision tower
	Decoder       int64 // buffers of a forward, and the rows that it reads
	Program       int64 // the process without any weights
	Peak          int64 // the sum: the peak of resident memory
}

// Question describes a question about one picture as far as its cost depends on it.
type Question struct {
	Width, Height int // of the picture, in pixels
	NVis          int // visual tokens after the reduction, 0 for all
	Text          int // other tokens in the prompt
	Generated     int // tokens in the answer
}

// PredictMemory predicts the peak memory of a process that answers one such question. e must be
// opened with [engine.Hooks].Describe, so that its process holds no weights.
func PredictMemory(e *engine.Engine, s Question) (*Footprint, error) {
	source := e.Source()
	if !source.Dry {
		return nil, fmt.Errorf(
			"lab: footprint: the weights are loaded, want an engine that was opened only to " +
				"describe the model")
	}
	program := engine.PeakRSS()
	q, err := sizeOf(e, "footprint", s)
	if err != nil {
		return nil, err
	}
	f := &Footprint{
		Width: s.Width, Height: s.Height, Tokens: q.tokens, Kept: q.kept, Prompt: q.prompt,
		Generated: s.Generated, Program: program}
	shape, rows := e.Model().Decoder().Shape(), min(f.Prompt, engine.PrefillChunk)
	f.Weights, _ = source.Resident()
	f.Cache = e.CacheBytes(f.Prompt + s.Generated)
	f.Encoder = e.Model().EncodeBytes(q.px) + 4*int64(len(q.px.Data))
	f.Decoder = shape.ForwardBytes(rows) +
		kernel.WorkBytes(e.DecoderFormat(), rows, max(shape.MLP, shape.Hidden)) +
		8*int64(f.Prompt)*int64(shape.Hidden) + 4*int64(shape.Vocab)
	f.Peak = f.Weights + f.Cache + f.Encoder + f.Decoder + f.Program
	return f, nil
}

// sized is a question's picture and its number of rows.
type sized struct {
	px                   *imageproc.Pixels
	tokens, kept, prompt int
}

// sizeOf checks a question; what names the caller in errors.
func sizeOf(e *engine.Engine, what string, s Question) (*sized, error) {
	const most, side = 1 << 20, 1 << 14
	if min(s.Width, s.Height) < 1 || max(s.Width, s.Height) > side ||
		min(s.Text, s.Generated) < 0 || max(s.Text, s.Generated) > most {
		return nil, fmt.Errorf("lab: %s: got %d x %d pixels, %d tokens of text and %d generated, "+
			"want up to %d pixels a side and %d tokens", what, s.Width, s.Height, s.Text,
			s.Generated, side, most)
	}
	pic := &imageproc.Picture{
		Width: s.Width, Height: s.Height, Pix: make([]byte, 3*s.Width*s.Height),
	}
	px, err := e.Pixels([]*imageproc.Picture{pic}, nil)
	if err != nil {
		return nil, err
	}
	pics, err := e.Model().Pictures(px)
	if err != nil {
		return nil, err
	}
	q := &sized{px: px, tokens: pics[0].Shape().N, kept: s.NVis}
	if s.NVis == 0 {
		q.kept = q.tokens
	}
	if q.kept < 0 || q.kept > q.tokens {
		return nil, fmt.Errorf("lab: %s: n-vis: got %d, want 1 to the picture's %d tokens",
			what, s.NVis, q.tokens)
	}
	q.prompt = s.Text + q.kept
	return q, nil
}
