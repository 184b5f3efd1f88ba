package engine

import (
	"cmp"
	"fmt"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// Footprint is the memory in bytes that a question about one picture takes.
type Footprint struct {
	Width, Height int // of the picture, in pixels
	Tokens        int // visual tokens of the picture
	Encoded       int // of them, tokens that a method before the encoder leaves
	Kept          int // after the reduction
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
	Encoded       int // visual tokens that a method before the encoder leaves, 0 for all
	NVis          int // visual tokens after the reduction, 0 for all that are encoded
	Text          int // other tokens in the prompt
	Generated     int // tokens in the answer
}

// PredictMemory predicts the peak memory of a process that answers one such question with the
// weights of source: the engine's own, or the same files with other types. The engine must be
// opened with [Hooks].Describe, so that its process holds no weights.
func (e *Engine) PredictMemory(source *model.Source, s Question) (*Footprint, error) {
	if !e.ck.Dry {
		return nil, fmt.Errorf("engine: predict memory: the weights are loaded, want an engine " +
			"that was opened only to describe the model")
	}
	q, err := e.sizeOf(s)
	if err == nil {
		err = fits(q.prompt, float64(q.positions), e.context)
	}
	if err != nil {
		return nil, err
	}
	if left := e.context - q.positions; s.Generated > left {
		return nil, fmt.Errorf("engine: predict: %w", &errs.OptionError{Name: "gen",
			Got: fmt.Sprint(s.Generated), Want: fmt.Sprintf("at most %d, what the prompt leaves "+
				"of the model's context of %d positions", left, e.context)})
	}
	f := &Footprint{
		Width: s.Width, Height: s.Height, Tokens: q.tokens, Encoded: q.encoded, Kept: q.kept,
		Prompt: q.prompt, Generated: s.Generated, Program: e.program}
	shape, rows := e.m.Decoder().Shape(), min(f.Prompt, prefillChunk)
	f.Weights, _ = source.Resident()
	f.Cache = e.shape.CacheBytes(f.Prompt+s.Generated, e.halves(source))
	f.Encoder = e.m.EncodeBytes(q.px, q.share()) + 4*int64(len(q.px.Data))
	if q.encoded < q.tokens { // their pixel values are copied
		f.Encoder += int64(q.share() * 4 * float64(len(q.px.Data)))
	}
	var scratch int64
	for _, p := range source.Products() {
		if p.Decoder && !p.Head {
			scratch = max(scratch, kernel.WorkBytes(nn.FormatOf(p.Type), rows, p.In))
		}
	}
	f.Decoder = shape.ForwardBytes(rows) + scratch + 8*int64(f.Prompt)*int64(shape.Hidden) +
		4*int64(shape.Vocab)
	f.Peak = f.Weights + f.Cache + f.Encoder + f.Decoder + f.Program
	return f, nil
}

// sized is a question's picture and its number of rows.
type sized struct {
	px                            *imageproc.Pixels
	tokens, encoded, kept, prompt int
	positions                     int // of the prompt
}

// share is the part of the picture's patches that are encoded.
func (q *sized) share() float64 { return float64(q.encoded) / float64(q.tokens) }

// sizeOf checks a question and returns its sizes.
func (e *Engine) sizeOf(s Question) (*sized, error) {
	const most, side = 1 << 20, 1 << 14
	if min(s.Width, s.Height) < 1 || max(s.Width, s.Height) > side ||
		min(s.Text, s.Generated) < 0 || max(s.Text, s.Generated) > most {
		return nil, fmt.Errorf("engine: predict: got %d x %d pixels, %d tokens of text and %d "+
			"generated, want up to %d pixels a side and %d tokens", s.Width, s.Height, s.Text,
			s.Generated, side, most)
	}
	px, pic, err := e.blank(s.Width, s.Height)
	if err != nil {
		return nil, err
	}
	shape := pic.Shape()
	q := &sized{px: px, tokens: shape.N - len(shape.Texts())}
	if q.encoded, err = part("encoded", s.Encoded, q.tokens); err != nil {
		return nil, err
	}
	if _, ok := pic.(model.Divisible); !ok && q.encoded < q.tokens {
		return nil, fmt.Errorf("engine: predict: %w", &errs.OptionError{
			Name: "encoded", Got: fmt.Sprint(s.Encoded), Want: fmt.Sprintf("0 or %d, all of the "+
				"picture's tokens, which this model's encoder needs", q.tokens)})
	}
	reducible, positions := q.encoded, int(shape.Extent())
	if shape.Views != nil && shape.Views.Texts == nil { // newlines, which a reduction drops
		reducible = len(listOf(shape, &methods.Options{}, new(reduce.Method)).source)
	}
	if q.kept, err = part("n-vis", s.NVis, reducible); err != nil {
		return nil, err
	}
	switch {
	case q.kept == reducible: // nothing is reduced
		q.kept = q.encoded
	case reducible < q.encoded:
		positions = reducible
	}
	q.prompt = s.Text + q.kept + len(shape.Texts())
	q.positions = s.Text + positions
	return q, nil
}

// blank prepares a black picture of that size.
func (e *Engine) blank(width, height int) (*imageproc.Pixels, model.Picture, error) {
	px, err := e.Pixels([]*imageproc.Picture{
		{Width: width, Height: height, Pix: make([]byte, 3*width*height)},
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	pics, err := e.m.Pictures(px)
	if err != nil {
		return nil, nil, err
	}
	return px, pics[0], nil
}

// part checks a number of a picture's tokens; 0 means all.
func part(name string, n, all int) (int, error) {
	if n < 0 || n > all {
		return 0, fmt.Errorf("engine: predict: %w", &errs.OptionError{Name: name,
			Got: fmt.Sprint(n), Want: fmt.Sprintf("1 to the picture's %d tokens", all)})
	}
	return cmp.Or(n, all), nil
}
