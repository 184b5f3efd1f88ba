package engine

import (
	"context"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/reduce"
)

// Prompt is a request that was checked and prepared as by Submit but not queued, so that package
// lab can run its steps one by one. Call methods that take a Run only in functions that Do runs.
type Prompt struct{ s *sequence }

// NewPrompt prepares req. It reads and writes no cache.
func (e *Engine) NewPrompt(ctx context.Context, req Request) (*Prompt, error) {
	req.NoCache = true
	if err := e.refuse(&req); err != nil {
		return nil, err
	}
	s, err := e.sequence(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Prompt{s}, nil
}

// Submit queues the request. stage, which may be nil, is called on the device's goroutine at the
// end of each stage.
func (p *Prompt) Submit(stage func(Stage)) (*Job, error) {
	p.s.stage = stage
	if err := p.s.e.queue(p.s); err != nil {
		return nil, err
	}
	return &Job{p.s}, nil
}

// Positions returns how many positions the prompt spans.
func (p *Prompt) Positions() int { return p.s.positions() }

// Len returns the number of pictures.
func (p *Prompt) Len() int { return len(p.s.all) }

// Shape returns the shape of picture i before its reduction.
func (p *Prompt) Shape(i int) *model.Shape { return p.s.all[i].shape }

// IDs returns the prompt's ids with all tokens of each picture before reduction, so that the prompt
// of a trace can be read again.
func (p *Prompt) IDs() []int64 {
	m := p.s.e.m
	var ids []int64
	for _, u := range p.s.units {
		switch {
		case u.pic == nil:
			ids = append(ids, int64(u.id))
		default:
			for _, id := range u.pic.shape.Unpruned().IDs(model.Token(m, u.pic.shape)) {
				ids = append(ids, int64(id))
			}
		}
	}
	return ids
}

// Encode runs the encoder once over all pictures. If a method changes the encoder's work, Encode
// does nothing and returns false; Reduce then encodes each picture.
func (p *Prompt) Encode(r *model.Run) (bool, error) {
	prepared := make([]model.Picture, 0, p.Len())
	for _, pic := range p.s.all {
		if !pic.whole() && (pic.small || pic.site == reduce.InsideEncoder) {
			return false, nil
		}
		prepared = append(prepared, pic.prepared)
	}
	if len(prepared) == 0 {
		return true, nil
	}
	visuals, err := p.s.e.m.Encode(r, prepared, p.s.all[0].need)
	if err != nil {
		return false, err
	}
	for i, v := range visuals {
		p.s.all[i].visual = v
	}
	return true, nil
}

// Input returns the data that methods read of picture i, which must be encoded.
func (p *Prompt) Input(i int) *reduce.Input {
	pic := p.s.all[i]
	return pic.input(pic.visual)
}

// Reduced holds the rows of a picture for the decoder.
type Reduced struct {
	Reduction *reduce.Reduction // nil: every token
	X         []float32         // [rows, hidden]
	Deep      []float32         // [levels, rows, hidden] added after the first layers; nil: none
	Encoding  *methods.Encoding // of a method inside the encoder, if r has a Trace
}

// Reduce encodes picture i if needed, and reduces it.
func (p *Prompt) Reduce(r *model.Run, i int) (*Reduced, error) {
	pic := p.s.all[i]
	f, err := p.s.e.features(r, pic)
	if err != nil {
		return nil, err
	}
	pic.tokens = f
	n := len(f.x) / (1 + p.s.e.shape.Deep)
	return &Reduced{f.reduction, f.x[:n], f.x[n:], f.encoding}, nil
}

// Rows reduces the pictures that are not reduced yet and returns the decoder's rows of the prompt.
func (p *Prompt) Rows(r *model.Run) (*Rows, error) {
	s := p.s
	for i, pic := range s.all {
		if pic.tokens == nil {
			if _, err := p.Reduce(r, i); err != nil {
				return nil, err
			}
		}
	}
	var err error
	if s.calib, err = s.e.calibration(s.all); err != nil {
		return nil, err
	}
	return s.e.layout(s.units, 0)
}

// Visual reports, for each key that a layer holds after the prompt was read, whether it belongs to
// a picture.
func (p *Prompt) Visual(layer int) []bool {
	var out []bool
	for _, u := range p.s.units {
		out = append(out, slices.Repeat([]bool{u.pic != nil}, u.keys(layer))...)
	}
	return out
}

// Read runs the decoder on in with an empty cache, which Free frees. trace, which may be nil,
// receives every intermediate. The returned span tells which rows are left in in.X.
func (p *Prompt) Read(
	r *model.Run, in *Rows, trace func(name string, shape []int, data []float32),
) (*model.Span, error) {
	s := p.s
	p.Free()
	s.cache, s.next = s.e.newCache(), in.Next
	spans := []model.Span{{
		Pos: in.Pos, Size: in.Size, FirstSize: in.FirstSize, Cache: s.cache, Calib: s.calib,
		Staged: in.Staged, Deep: in.Deep, Blocks: in.Blocks, Context: s.ctx, Trace: trace,
	}}
	s.e.m.Decoder().Forward(r, in.X, spans)
	return &spans[0], spans[0].Err
}

// Next returns the position of the token that Step reads next.
func (p *Prompt) Next() float64 { return p.s.next }

// Step runs the decoder on one more token after Read. It uses x [hidden] and writes the token's
// logits [vocab].
func (p *Prompt) Step(r *model.Run, id int32, x, logits []float32) error {
	s := p.s
	if err := s.e.m.Decoder().Embed(x, []int32{id}); err != nil {
		return err
	}
	s.prepareStep()
	spans := []model.Span{s.span}
	s.e.m.Decoder().Forward(r, x, spans)
	if spans[0].Err != nil {
		return spans[0].Err
	}
	s.e.m.Decoder().Logits(r, logits, x, 1)
	s.next++
	return nil
}

// Free frees the cache that Read filled.
func (p *Prompt) Free() {
	if s := p.s; s.cache != nil {
		s.cache.Free()
		s.cache, s.slots = nil, 0
	}
}

// Prepared returns pictures that are encoded when a request reads them. rgb are the pictures'
// bytes as in imageproc.Pixels, nil if not known.
func (e *Engine) Prepared(pics []model.Picture, rgb [][]byte) *Encoded {
	out := &Encoded{visuals: make([]*model.Visual, len(pics))}
	for i, p := range pics {
		r := ready{image: &image{shape: p.Shape()}, prepared: p}
		if i < len(rgb) {
			r.rgb = rgb[i]
		}
		out.pictures = append(out.pictures, r)
	}
	return out
}

// Pixels prepares pictures, or the video v if it is not nil.
func (e *Engine) Pixels(pics []*imageproc.Picture, v *imageproc.Video) (*imageproc.Pixels, error) {
	if err := e.takesPictures(); err != nil {
		return nil, err
	}
	if v != nil {
		return e.videoPixels(v)
	}
	return e.proc.Process(pics)
}

// Model returns the bound model.
func (e *Engine) Model() model.Multimodal { return e.m }

// Source returns the source that the model was bound from.
func (e *Engine) Source() *model.Source { return e.ck }

// SourceAs binds the same files with quant as the decoder's weight type. It reads no weights.
func (e *Engine) SourceAs(quant string) (*model.Source, error) {
	o := Options{Quant: quant}
	if name, why := e.ck.Encoder(); why == "" && !e.Packed() {
		o.EncoderQuant = name
	}
	return boundAs(e.ck.Bundle, o, Hooks{Weights: e.ck.Make})
}
