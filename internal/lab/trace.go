package lab

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// TraceRequest is one forward to trace. It has either Inputs, with input_ids [S] (picture tokens
// expanded, or one for each picture), pixel_values and pixel_values_videos, or Prompt, Images and
// Video.
type TraceRequest struct {
	Inputs map[string]*tensor.Tensor
	Prompt string
	System string // system prompt before Prompt; "": the template's default
	Images []*imageproc.Picture
	Video  *imageproc.Video // comes before Images
	// ascending byte offsets of video and pictures in Prompt; nil: before the text
	Places []int
	Reduce methods.Options
	Tokens int  // greedy tokens to decode after the prompt; the end token does not end the answer
	NoMaps bool // leaves out the attention matrices
	// ImageToken, when not nil, is the id that Inputs have at the places of pictures, for models
	// whose vocabulary has no picture token.
	ImageToken *int32
}

// Trace runs one forward and returns its intermediates. CONTRIBUTING.md lists their names.
func Trace(
	ctx context.Context, e *engine.Engine, req TraceRequest,
) (map[string]*tensor.Tensor, error) {
	if req.Tokens < 0 {
		return nil, fmt.Errorf("lab: trace: tokens: got %d, want 0 or more", req.Tokens)
	}
	if err := e.Closed(); err != nil {
		return nil, err
	}
	if req.ImageToken == nil && e.Model().ImageToken() < 0 {
		req.ImageToken = namedPlace(e, req.Inputs)
	}
	t := &tracing{e: e, m: e.Model(), req: &req}
	if err := t.prepare(ctx); err != nil {
		return nil, err
	}
	err := e.Do(ctx, func(r *model.Run) error {
		defer func() { r.Trace, r.TraceInts, r.NoMaps = nil, nil, false }()
		r.NoMaps = req.NoMaps
		t.out = traced{}
		return t.run(r)
	})
	return t.out, err
}

// tracing is a trace in progress.
type tracing struct {
	e      *engine.Engine
	m      model.Multimodal
	req    *TraceRequest
	px     *imageproc.Pixels // nil without pictures
	video  *imageproc.Pixels // nil without a video
	prompt *engine.Prompt
	out    traced
}

// prepare lays out the prompt.
func (t *tracing) prepare(ctx context.Context) (err error) {
	ask := engine.Request{
		Prompt: t.req.Prompt, System: t.req.System, Places: t.req.Places, Reduce: t.req.Reduce,
	}
	var ids []int32
	if t.req.Inputs != nil {
		ids, err = t.tensors()
	} else {
		err = t.pixels()
	}
	if err != nil {
		return err
	}
	var pics []model.Picture
	var rgb [][]byte
	for _, px := range []*imageproc.Pixels{t.video, t.px} {
		if px == nil {
			continue
		}
		own, err := t.m.Pictures(px)
		if err != nil {
			return err
		}
		pics = append(pics, own...)
		rgb = append(rgb, px.RGB...) // none of a video, whose pictures have none
	}
	if pics != nil {
		ask.Encoded = t.e.Prepared(pics, rgb)
	}
	if t.req.Inputs != nil {
		if ids, err = t.collapse(ids, pics); err != nil {
			return err
		}
		ask = engine.Request{Tokens: ids, Encoded: ask.Encoded, Reduce: ask.Reduce}
	}
	t.prompt, err = t.e.NewPrompt(ctx, ask)
	return err
}

// run does the part of Trace that runs on the device.
func (t *tracing) run(r *model.Run) error {
	shape, out := t.m.Decoder().Shape(), t.out
	all := func(name string, shape []int, data []float32) {
		out[name] = tensor.From(shape, data)
	}
	r.Trace = all
	r.TraceInts = func(name string, shape []int, data []int32) {
		out[name] = tensor.From(shape, data)
	}
	if err := t.pictures(r); err != nil {
		return err
	}
	in, err := t.prompt.Rows(r)
	if err != nil {
		return err
	}
	n, h := len(in.Pos), shape.Hidden
	full := t.prompt.IDs()
	if t.req.ImageToken != nil {
		for i, id := range full {
			if id == int64(t.m.ImageToken()) {
				full[i] = int64(*t.req.ImageToken)
			}
		}
	}
	out["input_ids"] = tensor.From([]int{len(full)}, full)
	out["embeds"] = tensor.From([]int{n, h}, in.X)
	pos := make([]float32, n)
	for i, p := range in.Pos {
		pos[i] = float32(p[0])
	}
	out["positions"] = tensor.From([]int{n}, pos)
	out["sizes"] = tensor.From([]int{n}, in.Size)
	if shape.RoPE[0].Axes() > 1 {
		out["position_ids"] = axes(in.Pos)
		out["rope_delta"] = tensor.From([]int{1}, []int64{int64(in.Next) - int64(n)})
	}

	defer t.prompt.Free()
	span, err := t.prompt.Read(r, in, all)
	if err != nil {
		return err
	}
	n = len(span.Pos)
	out.inside(in.Staged, span.Cache, shape.RoPE[0].Axes() > 1)
	logits := make([]float32, n*shape.Vocab)
	r.Trace = all
	t.m.Decoder().Logits(r, logits, in.X, n)
	out["logits"] = tensor.From([]int{n, shape.Vocab}, logits)
	r.Trace = nil
	return t.tokens(r, span.Cache, logits[(n-1)*shape.Vocab:])
}

// pictures encodes and reduces the pictures.
func (t *tracing) pictures(r *model.Run) error {
	if t.px == nil && t.video == nil {
		return nil
	}
	out, hidden := t.out, t.m.Decoder().Shape().Hidden
	t.pixelValues()
	together, err := t.prompt.Encode(r)
	if err != nil {
		return err
	}
	for i := range t.prompt.Len() {
		own, prefix := "", "reduce."
		if t.prompt.Len() > 1 {
			own, prefix = fmt.Sprintf("picture.%d.", i), fmt.Sprintf("reduce.%d.", i)
		}
		r.Trace = nil
		if !together {
			r.Trace = func(name string, shape []int, data []float32) {
				out[own+name] = tensor.From(shape, data)
			}
		}
		f, err := t.prompt.Reduce(r, i)
		r.Trace = nil
		if err != nil {
			return err
		}
		if f.Encoding != nil {
			within, err := traceWithin(f.Encoding, f.X, hidden)
			if err != nil {
				return err
			}
			for name, v := range within {
				out[own+name] = v
			}
		}
		if f.Reduction == nil {
			continue
		}
		for name, v := range methods.Tensors(f.Reduction) {
			out[prefix+name] = v
		}
		delete(out, prefix+"feat") // features, unless they still had to go through the projector
		if len(f.Deep) > 0 {
			rows := len(f.Reduction.Rows)
			out[prefix+"deepstack"] = tensor.From(
				[]int{len(f.Deep) / rows / hidden, rows, hidden}, f.Deep)
		}
		out[prefix+"features"] = tensor.From([]int{len(f.Reduction.Rows), hidden}, f.X)
	}
	return nil
}

// traceWithin adds the rows after the projector, in the encoder's order, to the trace of a reducer
// inside the encoder.
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
	w.Trace["projected"] = tensor.From([]int{len(order), hidden}, projected)
	return w.Trace, nil
}

// axes returns positions as [3, rows]: integers if all are whole numbers, otherwise float32.
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
		return tensor.From([]int{3, len(pos)}, ids)
	}
	return tensor.From([]int{3, len(pos)}, vals)
}

// pixelValues writes the pictures and the video, and their sizes: in pixels, in patches and in
// tokens.
func (t *tracing) pixelValues() {
	var lens []int64
	for i := range t.prompt.Len() {
		lens = append(lens, int64(t.prompt.Shape(i).N))
	}
	t.out["packed_lens"] = tensor.From([]int{len(lens)}, lens)
	if t.px != nil {
		maps.Copy(t.out, PixelValues(t.px))
	}
	if px := t.video; px != nil {
		shape := px.Shape
		if len(shape) == 4 { // frames
			shape = append([]int{1}, shape...)
		}
		t.out["pixel_values_videos"] = tensor.From(shape, px.Data)
		t.out.rows("video_grid_thw", len(px.GridTHW), func(i int) []int { return px.GridTHW[i][:] })
	}
}

// PixelValues are prepared pictures and their sizes, under the names of a trace.
func PixelValues(px *imageproc.Pixels) map[string]*tensor.Tensor {
	out := traced{"pixel_values": tensor.From(px.Shape, px.Data)}
	out.rows("image_sizes", len(px.ImageSizes), func(i int) []int { return px.ImageSizes[i][:] })
	out.rows("canvas_sizes", len(px.CanvasSizes), func(i int) []int { return px.CanvasSizes[i][:] })
	out.rows("image_grid_thw", len(px.GridTHW), func(i int) []int { return px.GridTHW[i][:] })
	out.rows("image_splits", len(px.Splits), func(i int) []int { return px.Splits[i][:] })
	return out
}

// rows writes n rows of whole numbers, if there are any.
func (o traced) rows(name string, n int, row func(i int) []int) {
	var all []int64
	for i := range n {
		for _, v := range row(i) {
			all = append(all, int64(v))
		}
	}
	if n > 0 {
		o[name] = tensor.From([]int{n, len(all) / n}, all)
	}
}

// tokens decodes greedily into gen.*, starting with the logits of the first token.
func (t *tracing) tokens(r *model.Run, cache *nn.KVCache, first []float32) error {
	n, shape := t.req.Tokens, t.m.Decoder().Shape()
	if n == 0 {
		return nil
	}
	if last := int(t.prompt.Next()) + n; last > t.e.Context() {
		return fmt.Errorf("lab: trace: %d tokens after the prompt reach position %d, "+
			"want at most the context of %d", n, last, t.e.Context())
	}
	var tokens, inner []int64
	var logits, pos []float32
	row, x := slices.Clone(first), make([]float32, shape.Hidden)
	for i := range n {
		logits = append(logits, row...)
		id := int32(kernel.ArgMax(row))
		tokens = append(tokens, int64(id))
		if i == n-1 {
			break
		}
		at := t.prompt.Next()
		pos = append(pos, float32(at))
		if err := t.prompt.Step(r, id, x, row); err != nil {
			return err
		}
		for i := range cache.Layers() {
			inner = append(inner, int64(at-cache.Layer(i).Shift))
		}
	}
	t.out["gen.layer_positions"] = tensor.From([]int{n - 1, cache.Layers()}, inner)
	t.out["gen.tokens"] = tensor.From([]int{n}, tokens)
	t.out["gen.logits"] = tensor.From([]int{n, shape.Vocab}, logits)
	t.out["gen.positions"] = tensor.From([]int{n - 1}, pos)
	return nil
}

// namedPlace returns the token that marks pictures in inputs, if the model's vocabulary names one
// although the model splits prompts at pictures; otherwise nil.
func namedPlace(e *engine.Engine, inputs map[string]*tensor.Tensor) *int32 {
	t, tok := inputs["input_ids"], e.Tokenizer()
	if t == nil || tok == nil {
		return nil
	}
	ids, err := t.Int64s()
	if err != nil {
		return nil // the error is returned where they are read
	}
	for _, text := range []string{engine.PicturePlace, "<|image_pad|>"} {
		if id, ok := tok.TokenID(text); ok && slices.Contains(ids, int64(id)) {
			return &id
		}
	}
	return nil
}

// tensors reads pixel values as given, and returns the ids.
func (t *tracing) tensors() ([]int32, error) {
	given, ok := t.req.Inputs["input_ids"]
	if !ok {
		return nil, fmt.Errorf(
			"lab: trace: no tensor input_ids, want [tokens] of an integer type")
	}
	wide, err := given.Int64s()
	if err != nil {
		return nil, fmt.Errorf("lab: trace: input_ids: %w", err)
	}
	switch shape := given.Shape; {
	case len(wide) == 0:
		return nil, fmt.Errorf("lab: trace: input_ids: no tokens")
	case len(shape) > 2, len(shape) == 2 && shape[0] != 1:
		return nil, fmt.Errorf(
			"lab: trace: input_ids: got the shape %v, want one row, [tokens] or [1 tokens]", shape)
	}
	ids := make([]int32, len(wide))
	for i, id := range wide {
		own := t.req.ImageToken
		if own != nil && id == int64(*own) || id == int64(t.m.ImageToken()) {
			ids[i] = t.m.ImageToken()
			continue
		}
		if vocab := t.m.Decoder().Shape().Vocab; id < 0 || id >= int64(vocab) {
			return nil, fmt.Errorf(
				"lab: trace: input_ids: got %d at %d, want 0 to %d (vocab_size)", id, i, vocab-1)
		}
		ids[i] = int32(id)
	}
	if t.px, err = pixelsOf(t.req.Inputs, "pixel_values", "image_grid_thw"); err != nil {
		return nil, err
	}
	if t.video, err = pixelsOf(t.req.Inputs, "pixel_values_videos", "video_grid_thw"); err != nil {
		return nil, err
	}
	if t.px != nil {
		sizes, err := wholeRows(t.req.Inputs, "image_sizes", 2)
		if err != nil {
			return nil, err
		}
		for _, s := range sizes {
			t.px.ImageSizes = append(t.px.ImageSizes, [2]int(s))
		}
		splits, err := wholeRows(t.req.Inputs, "image_splits", 2)
		if err != nil {
			return nil, err
		}
		for _, s := range splits {
			t.px.Splits = append(t.px.Splits, [2]int(s))
		}
		canvases, err := wholeRows(t.req.Inputs, "canvas_sizes", 2)
		if err != nil {
			return nil, err
		}
		for _, s := range canvases {
			t.px.CanvasSizes = append(t.px.CanvasSizes, [2]int(s))
		}
	}
	if v := t.video; v != nil {
		v.SecondsPerMoment = 1
		switch len(v.Shape) {
		case 2: // [patches, values], with video_grid_thw
		case 5: // [1, frames, 3, height, width]
			if v.Shape[0] == 1 {
				v.Shape = v.Shape[1:]
				break
			}
			fallthrough
		default:
			return nil, fmt.Errorf("lab: trace: pixel_values_videos: shape %v, want one video, "+
				"[1 frames 3 height width], or [patches values]", v.Shape)
		}
	}
	return ids, nil
}

// pixelsOf returns the pixel values of that name with their grids; nil if there are none.
func pixelsOf(
	in map[string]*tensor.Tensor, name, grids string,
) (*imageproc.Pixels, error) {
	t, ok := in[name]
	if !ok {
		return nil, nil
	}
	data, err := t.Float32s()
	if err != nil {
		return nil, fmt.Errorf("lab: trace: %s: %w", name, err)
	}
	for i, v := range data {
		if !(v >= -math.MaxFloat32 && v <= math.MaxFloat32) {
			return nil, fmt.Errorf("lab: trace: %s: got %v at %d, want finite numbers", name, v, i)
		}
	}
	px := &imageproc.Pixels{Shape: t.Shape, Data: data}
	rows, err := wholeRows(in, grids, 3)
	for _, g := range rows {
		px.GridTHW = append(px.GridTHW, [3]int(g))
	}
	return px, err
}

// wholeRows returns the rows of a tensor [rows, width] of whole numbers; nil if there is none.
func wholeRows(in map[string]*tensor.Tensor, name string, width int) (rows [][]int, _ error) {
	t, ok := in[name]
	if !ok || len(t.Shape) != 2 || t.Shape[1] != width {
		return nil, nil
	}
	v, err := t.Int64s()
	if err != nil {
		return nil, fmt.Errorf("lab: trace: %s: %w", name, err)
	}
	for i := 0; i < len(v); i += width {
		row := make([]int, width)
		for k := range row {
			row[k] = int(v[i+k])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// collapse leaves one picture token for each picture. ids has either that, or all tokens of each
// picture, its texts among them, in the order of the pictures and in that of the video's moments.
func (t *tracing) collapse(ids []int32, pics []model.Picture) ([]int32, error) {
	total, want := 0, 0
	left := map[int32][][]int32{} // tokens of pictures that are to come, by the one for each
	visual := func(id int32) bool {
		return id == t.m.ImageToken() || id >= 0 && id == t.m.VideoToken()
	}
	for _, id := range ids {
		if visual(id) {
			total++
		}
	}
	for _, p := range pics {
		token := model.Token(t.m, p.Shape())
		own := p.Shape().IDs(token)
		left[token] = append(left[token], own)
		for _, id := range own {
			if visual(id) {
				want++
			}
		}
	}
	if total == len(pics) {
		return ids, nil
	}
	if total != want {
		return nil, fmt.Errorf("lab: trace: input_ids: %d picture tokens (id %d) for %d "+
			"pictures, want %d (expanded) or %d (one each)", total, t.m.ImageToken(), len(pics),
			want, len(pics))
	}
	var out []int32
	for i := 0; i < len(ids); {
		id, n := ids[i], 1
		token := t.m.ImageToken()
		if id == t.m.VideoToken() {
			token = id
		}
		next := left[token]
		switch {
		case len(next) > 0 && id == next[0][0] && i+len(next[0]) <= len(ids) &&
			slices.Equal(ids[i:i+len(next[0])], next[0]):
			n, id, left[token] = len(next[0]), token, next[1:]
		case visual(id) && len(next) == 0:
			return nil, fmt.Errorf("lab: trace: input_ids: the token %d at %d is of no picture", id,
				i)
		case visual(id):
			return nil, fmt.Errorf("lab: trace: input_ids: the %d tokens of the picture at %d are "+
				"not adjacent, or not its own", len(next[0]), i)
		}
		out = append(out, id)
		i += n
	}
	return out, nil
}

// pixels prepares the pictures and the video of a question.
func (t *tracing) pixels() (err error) {
	if len(t.req.Images) > 0 {
		if t.px, err = t.e.Pixels(t.req.Images, nil); err != nil {
			return err
		}
	}
	if t.req.Video != nil {
		t.video, err = t.e.Pixels(nil, t.req.Video)
	}
	return err
}
