package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
)

// picture is one picture as the decoder reads it.
type picture struct {
	visual    *model.Visual
	reduction *reduce.Reduction // before the decoder; nil: every token
	inside    *reduce.Inside    // inside the decoder, once it has read the picture; nil: nothing
	options   reduce.Resolved
	features  []float32                 // [rows, hidden]
	encode    time.Duration             // of encoding it anew for the method
	list      *list                     // what was reduced of a picture that was encoded in views; nil: all tokens
	frames    []imageproc.Frame         // the parts of the picture that its grids cover
	within    map[string]*tensor.Tensor // trace of a method inside the encoder; nil outside of traces
}

func (p *picture) rows() int {
	if p.reduction == nil {
		return p.visual.N
	}
	return len(p.reduction.Rows)
}

// reduced returns what became of the picture; nil where every token was read.
func (p *picture) reduced() *reduce.Reduction {
	if p.inside != nil {
		return p.inside.Reduction()
	}
	return p.reduction
}

// See prepares and encodes pictures once, with every by-product that a reducer
// may read, so that several requests can share the work.
func (e *Engine) See(ctx context.Context, pics []*imageproc.Picture) (*Seen, error) {
	r := e.run()
	defer e.runs.put(r)
	r.Context, r.Trace = ctx, nil
	return e.see(r, nil, pics, model.Needs{ClsAttn: true, Keys: true, Last: true})
}

// see prepares and encodes a video, which may be nil, and pictures.
func (e *Engine) see(r *model.Run, video *imageproc.Video, pics []*imageproc.Picture, need model.Needs) (*Seen, error) {
	start := time.Now()
	all, err := e.prepare(video, pics)
	if err != nil {
		return nil, err
	}
	prepared := time.Now()
	s := &Seen{prepare: prepared.Sub(start)}
	for _, px := range all {
		visuals, err := e.m.Encode(r, px, need)
		if err != nil {
			return nil, err
		}
		for i, v := range visuals {
			s.visuals, s.frames = append(s.visuals, v), append(s.frames, px.GridFrames(i))
		}
	}
	s.encode = time.Since(prepared)
	return s, nil
}

// prepare makes pixel values of a video, if there is one, and of the pictures, if
// there are any.
func (e *Engine) prepare(video *imageproc.Video, pics []*imageproc.Picture) ([]*imageproc.Pixels, error) {
	if e.proc == nil {
		return nil, fmt.Errorf("engine: %s: no preprocessor_config.json, which pictures need; give pixel_values instead", e.ck.Name)
	}
	var out []*imageproc.Pixels
	if video != nil {
		proc, ok := e.proc.(imageproc.VideoProcessor)
		if !ok || e.m.VideoToken() < 0 {
			return nil, fmt.Errorf("engine: video: got %d frames, and %s takes no videos, only pictures", len(video.Frames), e.ck.Name)
		}
		px, err := proc.ProcessVideo(video)
		if err != nil {
			return nil, err
		}
		out = append(out, px)
	}
	if len(pics) > 0 {
		px, err := e.proc.Process(pics)
		if err != nil {
			return nil, err
		}
		out = append(out, px)
	}
	return out, nil
}

// needs says which by-products of the encoder the method of o reads.
func needs(o reduce.Options) model.Needs {
	var n model.Needs
	for _, m := range reduce.Methods() {
		if m.Name != o.Base {
			continue
		}
		n.Later = m.Site == reduce.InsideEncoder
		for _, need := range m.Require(o.Restore) {
			n.ClsAttn = n.ClsAttn || need == reduce.ClsAttn
			n.Keys = n.Keys || need == reduce.Keys
			n.Last = n.Last || need == reduce.LastKeys
			n.Later = n.Later || need == reduce.Shrunk
		}
	}
	return n
}

// reduce applies o to one encoded picture, the i-th of its request.
func (e *Engine) reduce(r *model.Run, v *model.Visual, i int, o reduce.Options) (*picture, error) {
	p := &picture{visual: v, features: v.X}
	if err := checkNewlines(v, &o); err != nil {
		return nil, err
	}
	if err := checkAxes(v, &o); err != nil {
		return nil, err
	}
	if v.NoClass && needs(o).Last {
		return nil, fmt.Errorf("engine: base %s: reads the class token of the encoder's last layer, and this model's encoder has no class token; want another base", o.Base)
	}
	if o.InsideEncoder() && v.Again.Within == nil {
		return nil, fmt.Errorf("engine: base %s: this model's encoder cannot be reduced inside: %s; want another base", o.Base, v.Again.Closed)
	}
	var err error
	o.NoClass, o.Layers = v.NoClass, e.shape.Layers
	if o.WantsRecipe() {
		if o.FitPruneRecipe, err = e.recipe(); err != nil {
			return nil, err
		}
	}
	o.EncoderBlocks, o.EncoderDepth = v.Again.Blocks, v.Again.Depth
	if v.Views == nil || o.Inside() {
		p.options, err = o.Resolve(v.N) // inside the decoder every row takes part, whatever view it came from
	} else {
		p.list = listOf(v, &o)
		p.options, err = o.ResolveViews(len(p.list.source), p.list.sizes())
	}
	if err != nil {
		return nil, err
	}
	if p.options.Base == "none" || p.options.NVis == p.options.N || len(p.options.Stages) > 0 {
		if p.features == nil { // it was to be encoded otherwise
			start := time.Now()
			whole, err := v.Again.Whole(r)
			if err != nil {
				return nil, err
			}
			p.features, p.encode = whole.X, time.Since(start)
		}
		return p, nil
	}
	if o.InsideEncoder() {
		return p, e.within(r, p)
	}
	if needs(o).Later && v.Again.Shrink == nil {
		return nil, fmt.Errorf("engine: base %s: this model cannot encode a picture at another size: %s; want another base", o.Base, v.Again.Fixed)
	}
	in := p.input()
	in.Seed, in.Pool = int64(i), r.Pool
	if needs(o).Later {
		start := time.Now()
		if err := shrink(r, v, in, p.options.NVis); err != nil {
			return nil, err
		}
		p.encode = time.Since(start)
	}
	if p.reduction, err = reduce.Reduce(in, p.options); err != nil {
		return nil, err
	}
	p.options, p.features = p.reduction.Options, p.reduction.Features
	if p.reduction.Space == reduce.Encoder {
		p.features = e.m.Project(r, p.reduction.Features, len(p.reduction.Rows))
	}
	return p, nil
}

// input returns what reducers read of the picture.
func (p *picture) input() *reduce.Input {
	v := p.visual
	if p.list != nil {
		in := p.list.input(v)
		in.Grids = p.cuts()
		return in
	}
	in := &reduce.Input{
		N: v.N, C: v.C, X: v.X, GridH: v.GridH, GridW: v.GridW, Cv: v.Cv, Hidden: v.Hidden,
		Heads: v.Heads, ClsAttn: v.ClsAttn, KeyDim: v.KeyDim, Keys: v.Keys,
		LastQuery: v.LastQuery, LastKeys: v.LastKeys,
	}
	if v.T == v.N { // the class token is one of the visual tokens ("full"): its row leads and stands among the tokens too
		in.Hidden = nn.RepeatFirst(v.Hidden, 1, v.T, v.Cv)
		in.ClsAttn = nn.RepeatFirst(v.ClsAttn, v.Heads, v.T, 1)
		in.Keys = nn.RepeatFirst(v.Keys, v.Heads, v.T, v.KeyDim)
		in.LastKeys = nn.RepeatFirst(v.LastKeys, 1, v.T, len(v.LastQuery))
	}
	return in
}

// shrink encodes the picture of v at the size that n tokens take.
func shrink(r *model.Run, v *model.Visual, in *reduce.Input, n int) (err error) {
	if in.ShrunkH, in.ShrunkW, err = reduce.ShrunkGrid(v.GridH, v.GridW, n); err != nil {
		return err
	}
	in.Shrunk, err = v.Again.Shrink(r, in.ShrunkH, in.ShrunkW)
	return err
}

// within encodes the picture with its method at work between the encoder's blocks.
func (e *Engine) within(r *model.Run, p *picture) error {
	start := time.Now()
	var views [][]int32
	if p.list != nil {
		views = p.list.views
	}
	w, err := reduce.NewEncoding(p.options, p.visual.Again.Class, views)
	if err != nil {
		return err
	}
	if r.Trace != nil {
		w.Trace = map[string]*tensor.Tensor{}
	}
	features, err := p.visual.Again.Within(r, w)
	if err != nil {
		return err
	}
	if p.reduction, err = w.Reduction(features, p.visual.Cv); err != nil {
		return err
	}
	p.features = e.m.Project(r, p.reduction.Features, len(p.reduction.Rows))
	p.encode = time.Since(start) - w.SelectTime
	if r.Trace != nil {
		p.within, err = traceWithin(w, p, e.shape.Hidden)
	}
	return err
}
