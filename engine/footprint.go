package engine

import (
	"fmt"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/kernel"
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

// Footprint predicts the peak resident memory of a process that answers one
// question about a picture of width × height pixels, reduced to nVis tokens (0:
// all), with text other tokens in the prompt and generated ones in the answer. It
// needs an engine that was opened with Describe, whose process holds no weights.
func (e *Engine) Footprint(width, height, nVis, text, generated int) (*Footprint, error) {
	const most = 1 << 20
	if !e.ck.Dry {
		return nil, fmt.Errorf("engine: footprint: the weights are loaded, want an engine that was opened to be described")
	}
	if e.proc == nil {
		return nil, fmt.Errorf("engine: %s: no preprocessor_config.json, which pictures need", e.ck.Name)
	}
	if width < 1 || height < 1 || width > 1<<14 || height > 1<<14 || text < 0 || generated < 0 || text > most || generated > most {
		return nil, fmt.Errorf("engine: footprint: got %d x %d pixels, %d tokens of text and %d generated, want up to %d pixels a side and %d tokens",
			width, height, text, generated, 1<<14, most)
	}
	program := peakRSS()
	px, err := e.proc.Process([]*imageproc.Picture{{Width: width, Height: height, Pix: make([]byte, 3*width*height)}})
	if err != nil {
		return nil, err
	}
	f := &Footprint{Width: width, Height: height, Tokens: e.m.PictureTokens(px, 0), Generated: generated, Program: program}
	if f.Kept = nVis; nVis == 0 {
		f.Kept = f.Tokens
	}
	if f.Kept < 0 || f.Kept > f.Tokens {
		return nil, fmt.Errorf("engine: footprint: n-vis: got %d, want 1 to the picture's %d tokens", nVis, f.Tokens)
	}
	f.Prompt = text + f.Kept
	rows := min(f.Prompt, prefillChunk)
	f.Weights, _ = e.ck.Resident()
	f.Cache = e.shape.CacheBytes(f.Prompt+generated, e.half)
	f.Encoder = e.m.EncodeBytes(px) + 4*int64(len(px.Data))
	f.Decoder = e.shape.ForwardBytes(rows) + kernel.WorkBytes(e.decoderFormat(), rows, max(e.shape.MLP, e.shape.Hidden)) +
		8*int64(f.Prompt)*int64(e.shape.Hidden) + 4*int64(e.shape.Vocab)
	f.Peak = f.Weights + f.Cache + f.Encoder + f.Decoder + f.Program
	return f, nil
}

// decoderFormat is the format of the decoder's products, F32 for any that is not
// packed.
func (e *Engine) decoderFormat() kernel.Format {
	plan := e.ck.Plan.Decoder
	if p := e.ck.Packed(); p != nil {
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
