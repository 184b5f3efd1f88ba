package engine

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
	"github.com/restore-vlm/restore/reduce"
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
	// byte offsets in Prompt where they stand, ascending; nil: before the text
	Places []int
	Reduce methods.Options
	Tokens int // greedy tokens decoded after the prompt; they do not stop at the end token
	// ImageToken, when not nil, is what Inputs have in the places of pictures, for models
	// whose vocabulary has no token for them.
	ImageToken *int32
}

// Trace runs one forward and returns its intermediates by the names that
// CONTRIBUTING.md lists.
func (e *Engine) Trace(ctx context.Context, req TraceRequest) (map[string]*tensor.Tensor, error) {
	if req.Tokens < 0 {
		return nil, fmt.Errorf("engine: trace: tokens: got %d, want 0 or more", req.Tokens)
	}
	if err := e.Closed(); err != nil {
		return nil, err
	}
	if req.ImageToken == nil && e.m.ImageToken() < 0 {
		req.ImageToken = e.namedPlace(req.Inputs)
	}
	ids, px, pics, err := e.traceInputs(req)
	if err != nil {
		return nil, err
	}
	var out traced
	err = e.Do(ctx, func(r *model.Run) error {
		defer func() { r.Trace, r.TraceInts = nil, nil }()
		out = traced{}
		return e.trace(ctx, r, &req, ids, px, pics, out)
	})
	return out, err
}

// trace is Trace on the device.
func (e *Engine) trace(
	ctx context.Context, r *model.Run, req *TraceRequest, ids []int32, px *imageproc.Pixels,
	prepared []model.Picture, out traced,
) error {
	all := func(name string, shape []int, data []float32) {
		out[name] = tensor.FromFloat32s(shape, data)
	}
	r.Trace = all
	r.TraceInts = func(name string, shape []int, data []int32) {
		out[name] = tensor.FromInt32s(shape, data)
	}
	pics, err := e.tracePictures(r, req, px, prepared, out)
	if err != nil {
		return err
	}
	units, err := e.units(ids, pics)
	if err != nil {
		return err
	}
	in, err := e.layout(units, 0)
	if err != nil {
		return err
	}
	calib, err := e.calibration(pics)
	if err != nil {
		return err
	}
	n, h := len(in.pos), e.shape.Hidden
	full := e.expanded(units)
	if req.ImageToken != nil {
		for i, id := range full {
			if id == int64(e.m.ImageToken()) {
				full[i] = int64(*req.ImageToken)
			}
		}
	}
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

	s := newSequence(e, ctx, &Request{})
	s.cache, s.calib, s.next = e.newCache(), calib, in.next
	defer s.cache.Free()
	spans := []model.Span{
		{
			Pos: in.pos, Size: in.size, FirstSize: in.firstSize, Cache: s.cache, Calib: calib,
			Staged: in.staged, Context: ctx, Trace: all,
		},
	}
	e.m.Decoder().Forward(r, in.x, spans)
	if spans[0].Err != nil {
		return spans[0].Err
	}
	n = len(spans[0].Pos)
	out.inside(in.staged, s.cache, e.shape.RoPE.Axes() > 1)
	logits := make([]float32, n*e.shape.Vocab)
	r.Trace = all
	e.m.Decoder().Logits(r, logits, in.x, n)
	out["logits"] = tensor.FromFloat32s([]int{n, e.shape.Vocab}, logits)
	r.Trace = nil
	return e.traceTokens(r, s, logits[(n-1)*e.shape.Vocab:], req.Tokens, out)
}

// tracePictures encodes and reduces the pictures.
func (e *Engine) tracePictures(
	r *model.Run, req *TraceRequest, px *imageproc.Pixels, prepared []model.Picture, out traced,
) ([]*picture, error) {
	pics := make([]*picture, len(prepared))
	whole := true // the encoder sees the pictures as they are, together
	for i, m := range prepared {
		p := &picture{image: &image{shape: m.Shape()}, prepared: m, index: i}
		var err error
		if p.planned, err = e.plan(p.shape, req.Reduce); err != nil {
			return nil, err
		}
		whole = whole && (p.whole() || !p.small && p.site != reduce.InsideEncoder)
		pics[i] = p
	}
	if px == nil {
		return nil, nil
	}
	out["pixel_values"] = tensor.FromFloat32s(px.Shape, px.Data)
	traceSizes(out, px, prepared)
	if whole {
		visuals, err := e.m.Encode(r, prepared, pics[0].need)
		if err != nil {
			return nil, err
		}
		for i, v := range visuals {
			pics[i].visual = v
		}
	}
	for i, p := range pics {
		own, prefix := "", "reduce."
		if len(pics) > 1 {
			own, prefix = fmt.Sprintf("picture.%d.", i), fmt.Sprintf("reduce.%d.", i)
		}
		r.Trace = nil
		if !whole {
			r.Trace = func(name string, shape []int, data []float32) {
				out[own+name] = tensor.FromFloat32s(shape, data)
			}
		}
		f, err := e.features(r, p)
		r.Trace = nil
		if err != nil {
			return nil, err
		}
		p.tokens = f
		for name, t := range f.within {
			out[own+name] = t
		}
		if f.reduction == nil {
			continue
		}
		for name, t := range methods.Tensors(f.reduction) {
			out[prefix+name] = t
		}
		delete(out, prefix+"feat") // features, unless they still had to be projected
		out[prefix+"features"] = tensor.FromFloat32s([]int{p.rows(), e.shape.Hidden}, f.x)
	}
	return pics, nil
}

// traceWithin completes what a reducer inside the encoder traced by the rows
// after the projector, in the encoder's order.
func traceWithin(
	w *methods.Encoding, features []float32, hidden int,
) (map[string]*tensor.Tensor, error) {
	order, err := w.Trace["llm_order"].Int64s()
	if err != nil {
		return nil, err
	}
	projected := make([]float32, len(features))
	for i, row := range order {
		copy(projected[int(row)*hidden:(int(row)+1)*hidden], features[i*hidden:])
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
func traceSizes(out traced, px *imageproc.Pixels, pics []model.Picture) {
	var lens, sizes, grids []int64
	for _, p := range pics {
		lens = append(lens, int64(p.Shape().N))
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

// traceTokens decodes greedily into gen.*, from the logits of the first token on.
func (e *Engine) traceTokens(r *model.Run, s *sequence, first []float32, n int, out traced) error {
	if n == 0 {
		return nil
	}
	if last := int(s.next) + n; last > e.context {
		return fmt.Errorf("engine: trace: %d tokens after the prompt reach position %d, "+
			"want at most the context of %d", n, last, e.context)
	}
	var tokens, inner []int64
	var logits, pos []float32
	row, x := slices.Clone(first), make([]float32, e.shape.Hidden)
	for t := range n {
		logits = append(logits, row...)
		s.id = int32(kernel.ArgMax(row))
		tokens = append(tokens, int64(s.id))
		if t == n-1 {
			break
		}
		pos = append(pos, float32(s.next))
		if err := s.step(r, x, row); err != nil {
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

// step leads the newest token of s alone through the decoder, in x [hidden], and writes its
// logits.
func (s *sequence) step(r *model.Run, x, logits []float32) error {
	if err := s.e.m.Decoder().Embed(x, []int32{s.id}); err != nil {
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
		if u.pic.shape.Video {
			id = e.m.VideoToken()
		}
		for range u.pic.shape.N {
			ids = append(ids, int64(id))
		}
	}
	return ids
}

// namedPlace returns the token of inputs that the vocabulary of a model which cuts prompts
// at pictures calls a picture all the same, nil where there is none.
func (e *Engine) namedPlace(inputs map[string]*tensor.Tensor) *int32 {
	t := inputs["input_ids"]
	if t == nil || e.tok == nil {
		return nil
	}
	ids, err := t.Int64s()
	if err != nil {
		return nil // said where they are read
	}
	for _, text := range []string{picturePlace, "<|image_pad|>"} {
		if id, ok := e.tok.TokenID(text); ok && slices.Contains(ids, int64(id)) {
			return &id
		}
	}
	return nil
}

// traceInputs returns ids with one place a picture, the pixel values, and the pictures in them.
func (e *Engine) traceInputs(
	req TraceRequest,
) (ids []int32, px *imageproc.Pixels, pics []model.Picture, err error) {
	if req.Inputs != nil {
		ids, px, err = e.traceTensors(req)
	} else {
		ids, px, err = e.tracePrompt(req)
	}
	if err == nil && px != nil {
		pics, err = e.m.Pictures(px)
	}
	if err == nil && req.Inputs != nil {
		ids, err = e.collapse(ids, pics)
	}
	return ids, px, pics, err
}

// traceTensors returns ids and pixel values as they are given.
func (e *Engine) traceTensors(req TraceRequest) ([]int32, *imageproc.Pixels, error) {
	t, ok := req.Inputs["input_ids"]
	if !ok {
		return nil, nil, fmt.Errorf(
			"engine: trace: no tensor input_ids, want [tokens] of an integer type")
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
		if req.ImageToken != nil && id == int64(*req.ImageToken) || id == int64(e.m.ImageToken()) {
			ids[i] = e.m.ImageToken()
			continue
		}
		if id < 0 || id >= int64(e.shape.Vocab) {
			return nil, nil, fmt.Errorf(
				"engine: trace: input_ids: got %d at %d, want 0 to %d (vocab_size)", id, i,
				e.shape.Vocab-1)
		}
		ids[i] = int32(id)
	}
	px, err := tracePixels(req.Inputs)
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
func (e *Engine) collapse(ids []int32, pics []model.Picture) ([]int32, error) {
	total, want, pictures := 0, 0, len(pics)
	for _, id := range ids {
		if id == e.m.ImageToken() {
			total++
		}
	}
	for _, p := range pics {
		want += p.Shape().N
	}
	if total == pictures {
		return ids, nil
	}
	if total != want {
		return nil, fmt.Errorf("engine: trace: input_ids: %d picture tokens (id %d) for %d "+
			"pictures, want %d (expanded) or %d (one a picture)", total, e.m.ImageToken(), pictures,
			want, pictures)
	}
	var out []int32
	skip, next := 0, 0
	for _, id := range ids {
		switch {
		case id != e.m.ImageToken():
			if skip > 0 {
				return nil, fmt.Errorf(
					"engine: trace: input_ids: the %d tokens of picture %d are not together",
					pics[next-1].Shape().N, next-1)
			}
			out = append(out, id)
		case skip > 0:
			skip--
		default:
			out = append(out, id)
			skip = pics[next].Shape().N - 1
			next++
		}
	}
	return out, nil
}

// tracePrompt prepares Prompt and Images as Ask does.
func (e *Engine) tracePrompt(req TraceRequest) ([]int32, *imageproc.Pixels, error) {
	if e.tok == nil {
		return nil, nil, e.lacks(&e.ck.Parts().Tokenizer,
			"which a prompt needs; give input_ids instead")
	}
	if req.Video != nil && len(req.Images) > 0 {
		return nil, nil, fmt.Errorf("engine: trace: both a video and pictures, want one of them")
	}
	if err := e.takesPictures(); err != nil && (req.Video != nil || len(req.Images) > 0) {
		return nil, nil, err
	}
	var px *imageproc.Pixels
	var pics []*picture
	var err error
	switch {
	case req.Video != nil:
		px, err = e.videoPixels(req.Video)
	case len(req.Images) > 0:
		px, err = e.proc.Process(req.Images)
	}
	if err != nil {
		return nil, nil, err
	}
	for range len(req.Images) {
		pics = append(pics, &picture{image: &image{shape: &model.Shape{}}})
	}
	if req.Video != nil {
		pics = append(pics, &picture{image: &image{shape: &model.Shape{Video: true}}})
	}
	var messages []chat.Message
	if req.System != "" {
		if messages, err = e.system(req.System, nil); err != nil {
			return nil, nil, err
		}
	}
	question, err := userMessage(req.Prompt, pics, req.Places)
	if err != nil {
		return nil, nil, err
	}
	ids, err := e.tokenize(append(messages, question))
	return ids, px, err
}
