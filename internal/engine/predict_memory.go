package engine

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/machine"
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

// PredictMemory predicts the peak memory of a process that answers one such question. The engine
// must be opened with [Hooks].Describe, so that its process holds no weights.
func (e *Engine) PredictMemory(s Question) (*Footprint, error) {
	if !e.ck.Dry {
		return nil, fmt.Errorf("engine: predict memory: the weights are loaded, want an engine " +
			"that was opened only to describe the model")
	}
	program := machine.PeakRSS()
	q, err := e.sizeOf(s)
	if err != nil {
		return nil, err
	}
	f := &Footprint{
		Width: s.Width, Height: s.Height, Tokens: q.tokens, Kept: q.kept, Prompt: q.prompt,
		Generated: s.Generated, Program: program}
	shape, rows := e.m.Decoder().Shape(), min(f.Prompt, prefillChunk)
	f.Weights, _ = e.ck.Resident()
	f.Cache = e.shape.CacheBytes(f.Prompt+s.Generated, e.half)
	f.Encoder = e.m.EncodeBytes(q.px) + 4*int64(len(q.px.Data))
	f.Decoder = shape.ForwardBytes(rows) +
		kernel.WorkBytes(e.decoderFormat(), rows, max(shape.MLP, shape.Hidden)) +
		8*int64(f.Prompt)*int64(shape.Hidden) + 4*int64(shape.Vocab)
	f.Peak = f.Weights + f.Cache + f.Encoder + f.Decoder + f.Program
	return f, nil
}

// sized is a question's picture and its number of rows.
type sized struct {
	px                   *imageproc.Pixels
	tokens, kept, prompt int
}

// sizeOf checks a question and returns its sizes.
func (e *Engine) sizeOf(s Question) (*sized, error) {
	const most, side = 1 << 20, 1 << 14
	if min(s.Width, s.Height) < 1 || max(s.Width, s.Height) > side ||
		min(s.Text, s.Generated) < 0 || max(s.Text, s.Generated) > most {
		return nil, fmt.Errorf("engine: predict: got %d x %d pixels, %d tokens of text and %d "+
			"generated, want up to %d pixels a side and %d tokens", s.Width, s.Height, s.Text,
			s.Generated, side, most)
	}
	pixels := make([]byte, 3*s.Width*s.Height)
	pic := &imageproc.Picture{Width: s.Width, Height: s.Height, Pix: pixels}
	px, err := e.Pixels([]*imageproc.Picture{pic}, nil)
	if err != nil {
		return nil, err
	}
	pics, err := e.m.Pictures(px)
	if err != nil {
		return nil, err
	}
	q := &sized{px: px, tokens: pics[0].Shape().N, kept: s.NVis}
	if s.NVis == 0 {
		q.kept = q.tokens
	}
	if q.kept < 0 || q.kept > q.tokens {
		return nil, fmt.Errorf("engine: predict: n-vis: got %d, want 1 to the picture's %d tokens",
			s.NVis, q.tokens)
	}
	q.prompt = s.Text + q.kept
	return q, nil
}
