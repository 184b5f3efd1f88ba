package methods

import (
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// maxTokens limits N in a file: the cosine matrix has N² elements.
const maxTokens = 1 << 14

// FromTensors reads an Input from named tensors: X [N, C], and if present cls_attn and
// cls_attn_shallow [H, N+1], hidden [N+1, Cv] and keys [H, N+1, Dh], pm_q_cls [W] and pm_k [N+1,
// W], shrunk [a, b, C], received_mid and received_deep [H, N] or [N], text [M, C], clip_image [N,
// D] and clip_text [M, D]. For an encoder without a class token: received [H, N] or [N], the
// attention that tokens receive, instead of cls_attn, received_shallow, received_mid, keys [H, N,
// Dh] and hidden_cells [N, W]. For a picture encoded in views: view [N], each token's view (-1:
// none, a newline), and view_class [V, Cv], the views' class tokens before the projector, including
// view 0's, which hidden has too. It ignores other tensors. gridH and gridW are the rows and
// columns of patches; if both are 0 and N is a square number, it assumes a square grid, otherwise
// the grid is unknown; so for views. The error names the tensor; values must be finite.
func FromTensors(tensors map[string]*tensor.Tensor, gridH, gridW int) (*reduce.Input, error) {
	ts := inputTensors(tensors)
	x, shape, err := ts.take("X", []int{0, 0}, "[tokens, width]")
	switch {
	case err != nil:
		return nil, err
	case x == nil:
		return nil, fmt.Errorf("methods: X: missing, want features [tokens, width]")
	case shape[0] > maxTokens:
		return nil, fmt.Errorf("methods: X: %d tokens, want at most %d", shape[0], maxTokens)
	}
	in := &reduce.Input{X: x, N: shape[0], C: shape[1]}
	if err := ts.readPixels(in, &gridH, &gridW); err != nil {
		return nil, err
	}
	if in.GridH, in.GridW, err = gridOf(in.N, gridH, gridW); err != nil {
		return nil, err
	}
	readers := []func(*reduce.Input) error{
		ts.readEncoder, ts.readViews, ts.readLastKeys, ts.readTexts,
	}
	if _, ok := tensors["received"]; ok {
		readers = []func(*reduce.Input) error{ts.readClassless, ts.readTexts}
	}
	for _, read := range readers {
		if err := read(in); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// readPixels reads the picture's bytes. They tell the grid if it is not given: cells are squares.
func (ts inputTensors) readPixels(in *reduce.Input, gridH, gridW *int) error {
	t := ts[string(reduce.Pixels)]
	if t == nil {
		return nil
	}
	bad := func(want string) error {
		return fmt.Errorf("methods: pixels: %v of %s, want bytes [height width 3], %s", t.Shape,
			t.DType, want)
	}
	if t.DType != tensor.U8 || len(t.Shape) != 3 || t.Shape[2] != 3 {
		return bad("of the picture as the encoder sees it")
	}
	h, w := t.Shape[0], t.Shape[1]
	side := int(math.Sqrt(float64(h) * float64(w) / float64(in.N)))
	if side < 1 || h%side != 0 || w%side != 0 || h/side*(w/side) != in.N ||
		*gridH != 0 && *gridH != h/side || *gridW != 0 && *gridW != w/side {
		return bad(fmt.Sprintf("a square of pixels for each of %d tokens, in the grid's rows and "+
			"columns", in.N))
	}
	in.Pixels, in.Cell, *gridH, *gridW = slices.Clone(t.Data), side, h/side, w/side
	return nil
}

// gridOf returns the rows and columns of n tokens.
func gridOf(n, gridH, gridW int) (h, w int, err error) {
	switch side := int(math.Sqrt(float64(n))); {
	case gridH == 0 && gridW == 0 && side*side == n:
		return side, side, nil
	case gridH == 0 && gridW == 0:
		return 0, 0, nil
	case gridH < 1 || gridW < 1 || gridH > n || gridW > n || gridH*gridW != n:
		return 0, 0, fmt.Errorf("methods: grid: got %dx%d, want rows and columns of %d tokens",
			gridH, gridW, n)
	}
	return gridH, gridW, nil
}

// inputTensors are the tensors of an Input by name.
type inputTensors map[string]*tensor.Tensor

// take returns the values and the shape of a tensor, nil if it is missing. An axis of want is a
// size, or 0 for any size above 0. The layout, a format of its values, says so in errors.
func (ts inputTensors) take(
	name string, want []int, layout string, values ...any,
) ([]float32, []int, error) {
	t := ts[name]
	if t == nil {
		return nil, nil, nil
	}
	ok := len(t.Shape) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = t.Shape[i] > 0 && (want[i] == 0 || want[i] == t.Shape[i])
	}
	if !ok {
		return nil, nil, fmt.Errorf("methods: %s: shape %v, want %s", name, t.Shape,
			fmt.Sprintf(layout, values...))
	}
	v, err := values32(name, t)
	return v, t.Shape, err
}

// readEncoder reads what an encoder with a class token computed.
func (ts inputTensors) readEncoder(in *reduce.Input) error {
	v, shape, err := ts.take(string(reduce.ClsAttn), []int{0, in.N + 1},
		"[heads %d] (tokens + 1)", in.N+1)
	if err != nil {
		return err
	}
	if v != nil {
		in.ClsAttn, in.Heads = v, shape[0]
	}
	in.ClsAttnShallow, _, err = ts.take(string(reduce.ClsAttnShallow), []int{0, in.N + 1},
		"[heads %d] (tokens + 1)", in.N+1)
	if err != nil {
		return err
	}
	if in.ReceivedMid, err = ts.received(in, string(reduce.ReceivedMid)); err != nil {
		return err
	}
	if in.ReceivedDeep, err = ts.received(in, string(reduce.ReceivedDeep)); err != nil {
		return err
	}
	v, shape, err = ts.take(string(reduce.Hidden), []int{in.N + 1, 0}, "[%d width] (tokens + 1)",
		in.N+1)
	if err != nil {
		return err
	}
	if v != nil {
		in.Hidden, in.Cv = v, shape[1]
	}
	v, shape, err = ts.take(string(reduce.Keys), []int{0, in.N + 1, 0},
		"[heads %d width] (tokens + 1)", in.N+1)
	switch {
	case err != nil:
		return err
	case v != nil && in.Heads != 0 && shape[0] != in.Heads:
		return fmt.Errorf("methods: keys: %d heads, want the %d of cls_attn", shape[0], in.Heads)
	case v != nil:
		in.Keys, in.Heads, in.KeyDim = v, shape[0], shape[2]
	}
	v, shape, err = ts.take(string(reduce.Shrunk), []int{0, 0, in.C},
		"[rows columns %d] (width of X)", in.C)
	if err != nil {
		return err
	}
	if v != nil {
		in.Shrunk, in.ShrunkH, in.ShrunkW = v, shape[0], shape[1]
	}
	return nil
}

// readLastKeys reads the last layer's query and keys, for PruMerge.
func (ts inputTensors) readLastKeys(in *reduce.Input) error {
	const query = "pm_q_cls"
	q, k := ts[query], ts[string(reduce.LastKeys)]
	switch {
	case q == nil && k == nil:
		return nil
	case in.Views != nil:
		return fmt.Errorf(
			"methods: view: given together with pm_q_cls and pm_k, which say nothing of views")
	case q == nil || k == nil:
		return fmt.Errorf("methods: pm_q_cls: shape %v, and pm_k: shape %v, want both or none",
			shapeOf(q), shapeOf(k))
	}
	v, shape, err := ts.take(query, []int{0}, "[width], as pm_k needs it")
	if err != nil {
		return err
	}
	in.LastQuery = v
	in.LastKeys, _, err = ts.take(string(reduce.LastKeys), []int{in.N + 1, shape[0]},
		"[%d %d] (tokens + 1, width of pm_q_cls)", in.N+1, shape[0])
	return err
}

// readClassless reads the tensors of an encoder without a class token.
func (ts inputTensors) readClassless(in *reduce.Input) error {
	for _, name := range []string{
		string(reduce.ClsAttn), string(reduce.Hidden), "pm_q_cls", string(reduce.LastKeys), "view",
	} {
		if ts[name] != nil {
			return fmt.Errorf("methods: received: given together with %s, which needs a class "+
				"token", name)
		}
	}
	var err error
	for name, to := range map[string]*[]float32{
		"received": &in.ClsAttn, "received_shallow": &in.ClsAttnShallow,
		string(reduce.ReceivedMid): &in.ReceivedMid,
	} {
		if *to, err = ts.received(in, name); err != nil {
			return err
		}
	}
	in.NoClass, in.Heads, in.Cv = true, len(in.ClsAttn)/(in.N+1), in.C
	in.ReceivedDeep = in.ClsAttn
	in.Hidden = append(make([]float32, in.C), in.X...)
	v, shape, err := ts.take(string(reduce.Cells), []int{in.N, 0}, "[%d width] (tokens)", in.N)
	if err != nil {
		return err
	}
	if v != nil {
		in.CellDim, in.Cells = shape[1], v
	}
	v, shape, err = ts.take(string(reduce.Keys), []int{in.Heads, in.N, 0},
		"[%d %d width] (heads of received, tokens)", in.Heads, in.N)
	if err != nil || v == nil {
		return err
	}
	in.KeyDim, in.Keys = shape[2], underZeros(v, in.Heads, in.N)
	return nil
}

// received reads attention that tokens receive, [heads, N] or [N], nil if it is missing, as
// [heads, N+1].
func (ts inputTensors) received(in *reduce.Input, name string) ([]float32, error) {
	want := []int{0, in.N}
	if t := ts[name]; t != nil && len(t.Shape) == 1 {
		want = want[1:]
	}
	v, _, err := ts.take(name, want, "[heads %d] or [%d] (tokens)", in.N, in.N)
	if err != nil || v == nil {
		return nil, err
	}
	return underZeros(v, len(v)/in.N, in.N), nil
}

// readTexts reads embeddings of the text, and picture and text in CLIP's space.
func (ts inputTensors) readTexts(in *reduce.Input) error {
	var err error
	in.Text, _, err = ts.take(string(reduce.PromptText), []int{0, in.C},
		"[rows %d] (width of X)", in.C)
	if err != nil {
		return err
	}
	const image, text = "clip_image", "clip_text"
	if (ts[image] == nil) != (ts[text] == nil) {
		return fmt.Errorf("methods: %s: shape %v, and %s: shape %v, want both or none", image,
			shapeOf(ts[image]), text, shapeOf(ts[text]))
	}
	v, shape, err := ts.take(image, []int{in.N, 0}, "[%d width] (tokens)", in.N)
	if err != nil || v == nil {
		return err
	}
	in.ClipImage, in.ClipDim = v, shape[1]
	in.ClipText, _, err = ts.take(text, []int{0, in.ClipDim}, "[rows %d] (width of %s)",
		in.ClipDim, image)
	return err
}

// underZeros inserts zeros, in the class token's place, before each head of v [heads, n, width].
func underZeros(v []float32, heads, n int) []float32 {
	size := len(v) / heads
	out := make([]float32, 0, len(v)+heads*size/n)
	for h := range heads {
		out = append(append(out, make([]float32, size/n)...), v[h*size:(h+1)*size]...)
	}
	return out
}

// readViews reads each token's view.
func (ts inputTensors) readViews(in *reduce.Input) error {
	t, class := ts["view"], ts["view_class"]
	if t == nil && class == nil {
		return nil
	}
	if class == nil || len(class.Shape) != 2 || class.Shape[0] < 1 || class.Shape[0] > in.N ||
		class.Shape[1] != in.Cv || in.Cv == 0 {
		return fmt.Errorf("methods: view_class: shape %v, want [views %d] (width of hidden), "+
			"as view needs it", shapeOf(class), in.Cv)
	}
	if t == nil || len(t.Shape) != 1 || t.Shape[0] != in.N {
		return fmt.Errorf("methods: view: shape %v, want [%d] (tokens), as view_class needs it",
			shapeOf(t), in.N)
	}
	of, err := t.Int64s()
	if err != nil {
		return fmt.Errorf("methods: view: %w", err)
	}
	v, err := values32("view_class", class)
	if err != nil {
		return err
	}
	in.Views = make([]reduce.View, class.Shape[0])
	for i := range in.Views {
		in.Views[i].Class = v[i*in.Cv : (i+1)*in.Cv]
	}
	for token, i := range of {
		if i < -1 || i >= int64(len(in.Views)) {
			return fmt.Errorf("methods: view: token %d: got %d, want -1 to %d", token, i,
				len(in.Views)-1)
		}
		if i >= 0 {
			in.Views[i].Tokens = append(in.Views[i].Tokens, int32(token))
		}
	}
	for i := range in.Views {
		v := &in.Views[i]
		v.H, v.W, _ = gridOf(len(v.Tokens), 0, 0) // there is no error without sides
	}
	in.GridH, in.GridW = 0, 0 // tokens of several views form no grid
	return nil
}

// shapeOf is the shape of a tensor, nil if it is missing.
func shapeOf(t *tensor.Tensor) []int {
	if t == nil {
		return nil
	}
	return t.Shape
}

func values32(name string, t *tensor.Tensor) ([]float32, error) {
	v, err := t.Float32s()
	if err != nil {
		return nil, fmt.Errorf("methods: %s: %w", name, err)
	}
	for i, x := range v {
		if x-x != 0 {
			return nil, fmt.Errorf("methods: %s: value %d is %v, want finite numbers", name, i, x)
		}
	}
	return v, nil
}

// Tensors returns the reduction under the names in the file of `restore-lab reduce`; rows in
// decoder order, tokens by original index:
//
//	kept (plain base) or retained  [k]      int32    kept by the criterion, in its order
//	anchors                        [m]      int32    in pool order; where something was merged
//	group                          [N]      int32    row of every token, -1 dropped
//	size                           [n]      int32
//	merged                         [n]      int32    1: came out of merging
//	position                       [n]      int32    counted from the first visual token; float32
//	                                                 where one is fractional
//	feat                           [n, C]   float32
//	pool                           [M]      int32    what the anchors were chosen from
//	R, m, score                    [M]      float32  Eqs. 5-8, in the order of pool; m may be
//	                                                 -inf and score +inf
//	gain                           [m]      float64  of covered anchors, which are then in the
//	                                                 order of choice
//
// and the base's own scores: attention (all that read it; PruMerge's comes from the last layer), Q,
// w, alloc (holov), value (divprune), important, diverse, dropped (vispruner).
func Tensors(r *reduce.Reduction) map[string]*tensor.Tensor {
	n := len(r.Rows)
	size, merged, whole, position := make([]int32, n), make([]int32, n), make([]int32, n),
		make([]float32, n)
	fractional := false
	for i := range r.Rows {
		row := &r.Rows[i]
		size[i], whole[i], position[i] = int32(row.Size), int32(row.Position), float32(row.Position)
		if row.Merged {
			merged[i] = 1
		}
		fractional = fractional || row.Position != math.Trunc(row.Position)
	}
	ints := func(v []int32) *tensor.Tensor { return tensor.From([]int{len(v)}, v) }
	floats := func(v []float32) *tensor.Tensor { return tensor.From([]int{len(v)}, v) }
	out := map[string]*tensor.Tensor{
		"group": ints(r.Group), "size": ints(size), "merged": ints(merged), "position": ints(whole),
		"feat": tensor.From([]int{n, r.Width}, r.Features),
	}
	if fractional {
		out["position"] = floats(position)
	}
	if r.Options.Restore {
		out["retained"] = ints(r.Kept)
	} else {
		out["kept"] = ints(r.Kept)
	}
	if r.Anchors != nil {
		out["anchors"] = ints(r.Anchors)
	}
	if r.Rest != nil {
		out["pool"] = ints(r.Rest)
	}
	if r.Score != nil {
		out["R"], out["m"], out["score"] = floats(r.Density), floats(r.MaxSim), floats(r.Score)
	}
	for name, v := range r.Scores {
		out[name] = floats(v)
	}
	for name, v := range r.Indices {
		out[name] = ints(v)
	}
	if r.Gains != nil {
		out["gain"] = tensor.From([]int{len(r.Gains)}, r.Gains)
	}
	return out
}
