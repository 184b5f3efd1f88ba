package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
	"github.com/restore-vlm/restore/tokenizer/chat"
)

// TraceRequest is one forward whose every intermediate is wanted. Either Inputs
// holds input_ids [S] (picture tokens expanded, or one a picture) and
// pixel_values, or Prompt and Images are given.
type TraceRequest struct {
	Inputs map[string]*tensor.Tensor
	Prompt string
	System string // system prompt before Prompt; "" is what the template says by itself
	Images []*imageproc.Picture
	Video  *imageproc.Video // instead of Images
	Reduce reduce.Options
	Tokens int // greedy tokens decoded after the prompt; they do not stop at the end token
}

// Trace runs one forward and returns its intermediates by the names that
// CONTRIBUTING.md lists.
func (e *Engine) Trace(ctx context.Context, req TraceRequest) (map[string]*tensor.Tensor, error) {
	if req.Tokens < 0 {
		return nil, fmt.Errorf("engine: trace: tokens: got %d, want 0 or more", req.Tokens)
	}
	ids, px, err := e.traceInputs(req)
	if err != nil {
		return nil, err
	}
	out := map[string]*tensor.Tensor{}
	r := &model.Run{Pool: e.pool, Context: ctx}
	r.Trace = func(name string, shape []int, data []float32) { out[name] = tensor.FromFloat32s(shape, data) }
	r.TraceInts = func(name string, shape []int, data []int32) { out[name] = tensor.FromInt32s(shape, data) }

	var pics []*picture
	var visuals []*model.Visual
	if px != nil {
		if visuals, err = e.m.Encode(r, px, needs(req.Reduce)); err != nil {
			return nil, err
		}
		out["pixel_values"] = tensor.FromFloat32s(px.Shape, px.Data)
		traceSizes(out, px, visuals)
	}
	for i, v := range visuals {
		own := ""
		if len(visuals) > 1 {
			own = fmt.Sprintf("picture.%d.", i)
		}
		r.Trace = nil
		if v.X == nil { // what the encoder does is still to come
			r.Trace = func(name string, shape []int, data []float32) { out[own+name] = tensor.FromFloat32s(shape, data) }
		}
		p, err := e.reduce(r, v, i, req.Reduce)
		if err != nil {
			return nil, err
		}
		pics = append(pics, p)
		for name, t := range p.within {
			out[own+name] = t
		}
		if p.reduction == nil {
			continue
		}
		prefix := "reduce."
		if len(visuals) > 1 {
			prefix = fmt.Sprintf("reduce.%d.", i)
		}
		for name, t := range p.reduction.Tensors() {
			out[prefix+name] = t
		}
		delete(out, prefix+"feat") // features, unless they still had to be projected
		out[prefix+"features"] = tensor.FromFloat32s([]int{p.rows(), e.shape.Hidden}, p.features)
	}
	units, err := e.units(ids, pics)
	if err != nil {
		return nil, err
	}
	in, err := e.layout(units, 0)
	if err != nil {
		return nil, err
	}
	n, h := len(in.pos), e.shape.Hidden
	full := e.expanded(units)
	out["input_ids"] = tensor.FromInt64s([]int{len(full)}, full)
	out["embeds"] = tensor.FromFloat32s([]int{n, h}, in.x)
	pos := make([]float32, n)
	for i, p := range in.pos {
		pos[i] = float32(p[0])
	}
	out["positions"] = tensor.FromFloat32s([]int{n}, pos)
	out["sizes"] = tensor.FromFloat32s([]int{n}, in.size)
	if e.shape.RoPE.Axes() > 1 {
		out["position_ids"] = axes(in.pos)
		out["rope_delta"] = tensor.FromInt64s([]int{1}, []int64{int64(in.next) - int64(n)})
	}

	r.Trace = func(name string, shape []int, data []float32) { out[name] = tensor.FromFloat32s(shape, data) }
	s := &sequence{e: e, cache: e.newCache(), calib: calibrationOf(e, pics), next: in.next, x: make([]float32, h)}
	spans := []model.Span{{Pos: in.pos, Size: in.size, FirstSize: in.firstSize, Cache: s.cache, Calib: s.calib, Staged: in.staged}}
	if err := e.m.Decoder().Forward(r, in.x, spans); err != nil {
		return nil, err
	}
	n = len(spans[0].Pos)
	traced(out).inside(in.staged, s.cache, e.shape.RoPE.Axes() > 1)
	logits := make([]float32, n*e.shape.Vocab)
	e.m.Decoder().Logits(r, logits, in.x, n)
	out["logits"] = tensor.FromFloat32s([]int{n, e.shape.Vocab}, logits)
	r.Trace = nil
	s.logits = append([]float32(nil), logits[(n-1)*e.shape.Vocab:]...)
	return out, e.traceTokens(r, s, req.Tokens, out)
}

// traceWithin completes what a reducer inside the encoder traced by the rows
// after the projector, in the encoder's order.
func traceWithin(w *reduce.Encoding, p *picture, hidden int) (map[string]*tensor.Tensor, error) {
	order, err := w.Trace["llm_order"].Int64s()
	if err != nil {
		return nil, err
	}
	projected := make([]float32, len(p.features))
	for i, row := range order {
		copy(projected[int(row)*hidden:(int(row)+1)*hidden], p.features[i*hidden:])
	}
	w.Trace["projected"] = tensor.FromFloat32s([]int{len(order), hidden}, projected)
	return w.Trace, nil
}

// axes returns positions as [3, rows]: whole numbers where all are, else float32.
func axes(pos []nn.Pos) *tensor.Tensor {
	ids, vals := make([]int64, 0, 3*len(pos)), make([]float32, 0, 3*len(pos))
	exact := true
	for a := range 3 {
		for _, p := range pos {
			ids, vals = append(ids, int64(p[a])), append(vals, float32(p[a]))
			exact = exact && p[a] == math.Trunc(p[a])
		}
	}
	if exact {
		return tensor.FromInt64s([]int{3, len(pos)}, ids)
	}
	return tensor.FromFloat32s([]int{3, len(pos)}, vals)
}

// traceSizes puts the pictures' sizes into out: in pixels, in patches and in tokens.
func traceSizes(out map[string]*tensor.Tensor, px *imageproc.Pixels, visuals []*model.Visual) {
	var lens, sizes, grids []int64
	for _, v := range visuals {
		lens = append(lens, int64(v.N))
	}
	for _, s := range px.ImageSizes {
		sizes = append(sizes, int64(s[0]), int64(s[1]))
	}
	for _, g := range px.GridTHW {
		grids = append(grids, int64(g[0]), int64(g[1]), int64(g[2]))
	}
	out["packed_lens"] = tensor.FromInt64s([]int{len(lens)}, lens)
	if sizes != nil {
		out["image_sizes"] = tensor.FromInt64s([]int{len(px.ImageSizes), 2}, sizes)
	}
	if grids != nil {
		out["image_grid_thw"] = tensor.FromInt64s([]int{len(px.GridTHW), 3}, grids)
	}
}

// traceTokens decodes greedily into gen.*.
func (e *Engine) traceTokens(r *model.Run, s *sequence, n int, out map[string]*tensor.Tensor) error {
	if n == 0 {
		return nil
	}
	if last := int(s.next) + n; last > e.shape.MaxPositions {
		return fmt.Errorf("engine: trace: %d tokens after the prompt reach position %d, want at most the context of %d", n, last, e.shape.MaxPositions)
	}
	var tokens, inner []int64
	var logits, pos []float32
	for t := range n {
		logits = append(logits, s.logits...)
		id := int32(kernel.ArgMax(s.logits))
		tokens = append(tokens, int64(id))
		if t == n-1 {
			break
		}
		pos = append(pos, float32(s.next))
		if err := s.step(r, id); err != nil {
			return err
		}
		for i := range s.cache.Layers() {
			inner = append(inner, int64(s.next-1-s.cache.Layer(i).Shift))
		}
	}
	out["gen.layer_positions"] = tensor.FromInt64s([]int{n - 1, s.cache.Layers()}, inner)
	out["gen.tokens"] = tensor.FromInt64s([]int{n}, tokens)
	out["gen.logits"] = tensor.FromFloat32s([]int{n, e.shape.Vocab}, logits)
	out["gen.positions"] = tensor.FromFloat32s([]int{n - 1}, pos)
	return nil
}

// expanded returns the ids with one picture token per visual token before
// reduction, so that a trace can be fed back.
func (e *Engine) expanded(units []unit) []int64 {
	var ids []int64
	for _, u := range units {
		if u.pic == nil {
			ids = append(ids, int64(u.id))
			continue
		}
		id := e.m.ImageToken()
		if u.pic.visual.Video {
			id = e.m.VideoToken()
		}
		for range u.pic.visual.N {
			ids = append(ids, int64(id))
		}
	}
	return ids
}

// traceInputs returns ids with one place a picture, and the pixel values.
func (e *Engine) traceInputs(req TraceRequest) ([]int32, *imageproc.Pixels, error) {
	if req.Inputs == nil {
		return e.tracePrompt(req)
	}
	t, ok := req.Inputs["input_ids"]
	if !ok {
		return nil, nil, fmt.Errorf("engine: trace: no tensor input_ids, want [tokens] of an integer type")
	}
	wide, err := t.Int64s()
	if err != nil {
		return nil, nil, fmt.Errorf("engine: trace: input_ids: %w", err)
	}
	if len(wide) == 0 {
		return nil, nil, fmt.Errorf("engine: trace: input_ids: no tokens")
	}
	ids := make([]int32, len(wide))
	for i, id := range wide {
		if id < 0 || id >= int64(e.shape.Vocab) {
			return nil, nil, fmt.Errorf("engine: trace: input_ids: got %d at %d, want 0 to %d (vocab_size)", id, i, e.shape.Vocab-1)
		}
		ids[i] = int32(id)
	}
	px, err := tracePixels(req.Inputs)
	if err != nil {
		return nil, nil, err
	}
	ids, err = e.collapse(ids, px)
	return ids, px, err
}

func tracePixels(in map[string]*tensor.Tensor) (*imageproc.Pixels, error) {
	t, ok := in["pixel_values"]
	if !ok {
		return nil, nil
	}
	data, err := t.Float32s()
	if err != nil {
		return nil, fmt.Errorf("engine: trace: pixel_values: %w", err)
	}
	px := &imageproc.Pixels{Shape: t.Shape, Data: data}
	if t, ok := in["image_sizes"]; ok && len(t.Shape) == 2 && t.Shape[1] == 2 {
		v, err := t.Int64s()
		if err != nil {
			return nil, fmt.Errorf("engine: trace: image_sizes: %w", err)
		}
		for i := 0; i < len(v); i += 2 {
			px.ImageSizes = append(px.ImageSizes, [2]int{int(v[i]), int(v[i+1])})
		}
	}
	if t, ok := in["image_grid_thw"]; ok && len(t.Shape) == 2 && t.Shape[1] == 3 {
		v, err := t.Int64s()
		if err != nil {
			return nil, fmt.Errorf("engine: trace: image_grid_thw: %w", err)
		}
		for i := 0; i < len(v); i += 3 {
			px.GridTHW = append(px.GridTHW, [3]int{int(v[i]), int(v[i+1]), int(v[i+2])})
		}
	}
	return px, nil
}

// collapse leaves one picture token per picture. ids holds either that or one
// per visual token, in the pictures' order.
func (e *Engine) collapse(ids []int32, px *imageproc.Pixels) ([]int32, error) {
	total := 0
	for _, id := range ids {
		if id == e.m.ImageToken() {
			total++
		}
	}
	pictures, want := 0, 0
	if px != nil {
		if len(px.Shape) == 0 || px.Shape[0] < 1 {
			return nil, fmt.Errorf("engine: trace: pixel_values: shape %v holds no picture", px.Shape)
		}
		pictures = px.Shape[0]
		if px.GridTHW != nil {
			pictures = len(px.GridTHW)
		}
		for i := range pictures {
			want += e.m.PictureTokens(px, i)
		}
	}
	if total == pictures {
		return ids, nil
	}
	if total != want {
		return nil, fmt.Errorf("engine: trace: input_ids: %d picture tokens (id %d) for %d pictures, want %d (expanded) or %d (one a picture)", total, e.m.ImageToken(), pictures, want, pictures)
	}
	var out []int32
	skip, next := 0, 0
	for _, id := range ids {
		switch {
		case id != e.m.ImageToken():
			if skip > 0 {
				return nil, fmt.Errorf("engine: trace: input_ids: the %d tokens of picture %d are not together", e.m.PictureTokens(px, next-1), next-1)
			}
			out = append(out, id)
		case skip > 0:
			skip--
		default:
			out = append(out, id)
			skip = e.m.PictureTokens(px, next) - 1
			next++
		}
	}
	return out, nil
}

// tracePrompt prepares Prompt and Images as Ask does.
func (e *Engine) tracePrompt(req TraceRequest) ([]int32, *imageproc.Pixels, error) {
	if e.tok == nil {
		return nil, nil, fmt.Errorf("engine: %s: no tokenizer.json, which a prompt needs; give input_ids instead", e.ck.Name)
	}
	if req.Video != nil && len(req.Images) > 0 {
		return nil, nil, fmt.Errorf("engine: trace: both a video and pictures, want one of them")
	}
	var px *imageproc.Pixels
	var places []*picture
	if req.Video != nil || len(req.Images) > 0 {
		all, err := e.prepare(req.Video, req.Images)
		if err != nil {
			return nil, nil, err
		}
		px = all[0]
		for range max(1, len(req.Images)) {
			places = append(places, &picture{visual: &model.Visual{Video: req.Video != nil}})
		}
	}
	var messages []chat.Message
	if req.System != "" {
		var err error
		if messages, err = e.system(req.System, nil); err != nil {
			return nil, nil, err
		}
	}
	ids, err := e.encode(append(messages, userMessage(req.Prompt, places)))
	return ids, px, err
}
