package engine

import (
	"fmt"

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
	Program       int64 // the process as it is, without any weight
	Peak          int64 // the sum: the most that is resident
}

// Question is what the cost of a question about one picture depends on.
type Question struct {
	Width, Height int // of the picture, in pixels
	NVis          int // visual tokens after the reduction, 0 for all
	Text          int // other tokens in the prompt
	Generated     int // tokens in the answer
}

// Footprint predicts the peak resident memory of a process that answers such a
// question. It needs an engine that was opened with Describe, whose process holds no
// weights.
func (e *Engine) Footprint(s Question) (*Footprint, error) {
	if !e.ck.Dry {
		return nil, fmt.Errorf(
			"engine: footprint: the weights are loaded, want an engine that was opened to " +
				"be described")
	}
	program := PeakRSS()
	q, err := e.size("footprint", s)
	if err != nil {
		return nil, err
	}
	px := q.px
	f := &Footprint{
		Width: s.Width, Height: s.Height, Tokens: q.tokens, Kept: q.kept, Prompt: q.prompt,
		Generated: s.Generated, Program: program}
	rows := min(f.Prompt, prefillChunk)
	f.Weights, _ = e.ck.Resident()
	f.Cache = e.shape.CacheBytes(f.Prompt+s.Generated, e.half)
	f.Encoder = e.m.EncodeBytes(px) + 4*int64(len(px.Data))
	f.Decoder = e.shape.ForwardBytes(rows) +
		kernel.WorkBytes(e.decoderFormat(), rows, max(e.shape.MLP, e.shape.Hidden)) +
		8*int64(f.Prompt)*int64(e.shape.Hidden) + 4*int64(e.shape.Vocab)
	f.Peak = f.Weights + f.Cache + f.Encoder + f.Decoder + f.Program
	return f, nil
}

// sized is a question's picture and the rows that it becomes.
type sized struct {
	px                   *imageproc.Pixels
	tokens, kept, prompt int
}

// size checks a question; what names the caller in errors.
func (e *Engine) size(what string, s Question) (*sized, error) {
	const most, side = 1 << 20, 1 << 14
	if e.proc == nil {
		return nil, e.lacks(&e.ck.Parts().Processor, "which pictures need")
	}
	if min(s.Width, s.Height) < 1 || max(s.Width, s.Height) > side ||
		min(s.Text, s.Generated) < 0 || max(s.Text, s.Generated) > most {
		return nil, fmt.Errorf(
			"engine: %s: got %d x %d pixels, %d tokens of text and %d generated, "+
				"want up to %d pixels a side and %d tokens",
			what, s.Width, s.Height, s.Text, s.Generated, side, most)
	}
	pic := &imageproc.Picture{
		Width: s.Width, Height: s.Height, Pix: make([]byte, 3*s.Width*s.Height),
	}
	px, err := e.proc.Process([]*imageproc.Picture{pic})
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
		return nil, fmt.Errorf("engine: %s: n-vis: got %d, want 1 to the picture's %d tokens",
			what, s.NVis, q.tokens)
	}
	q.prompt = s.Text + q.kept
	return q, nil
}

// decoderFormat is the format of the decoder's products, F32 for any that is not
// packed.
func (e *Engine) decoderFormat() kernel.Format {
	plan := e.ck.Plan.Decoder
	if p := e.ck.About().Packed; p != nil {
		plan = p.Quant
	}
	switch plan {
	case "q4", "q8":
		return kernel.Q8
	case "bf16":
		return kernel.BF16Dot
	}
	return kernel.F32
}
