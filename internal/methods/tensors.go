package methods

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// maxTokens limits N in a file: the cosine matrix has N² elements.
const maxTokens = 1 << 14

// FromTensors reads an Input from named tensors: X [N, C], and if present cls_attn [H, N+1], hidden
// [N+1, Cv] and keys [H, N+1, Dh], pm_q_cls [W] and pm_k [N+1, W], shrunk [a, b, C]. For an encoder
// without a class token: received [H, N] or [N], the attention that tokens receive, instead of
// cls_attn, and keys [H, N, Dh]. For a picture encoded in views: view [N], each token's view (-1:
// none, a newline), and view_class [V, Cv], the views' class tokens before the projector, including
// view 0's, which hidden has too. It ignores other tensors. gridH and gridW are the rows and
// columns of patches; if both are 0 and N is a square number, it assumes a square grid, otherwise
// the grid is unknown. The error names the tensor; values must be finite.
func FromTensors(tensors map[string]*tensor.Tensor, gridH, gridW int) (*reduce.Input, error) {
	x, ok := tensors["X"]
	if !ok {
		return nil, fmt.Errorf("methods: X: missing, want features [tokens, width]")
	}
	if len(x.Shape) != 2 || x.Shape[0] < 1 || x.Shape[1] < 1 {
		return nil, fmt.Errorf("methods: X: shape %v, want [tokens, width]", x.Shape)
	}
	in := &reduce.Input{N: x.Shape[0], C: x.Shape[1], GridH: gridH, GridW: gridW}
	if in.N > maxTokens {
		return nil, fmt.Errorf("methods: X: %d tokens, want at most %d", in.N, maxTokens)
	}
	switch side := int(math.Sqrt(float64(in.N))); {
	case gridH == 0 && gridW == 0:
		if side*side == in.N {
			in.GridH, in.GridW = side, side
		}
	case gridH < 1 || gridW < 1 || gridH > in.N || gridW > in.N || gridH*gridW != in.N:
		return nil, fmt.Errorf("methods: grid: got %dx%d, want rows and columns of %d tokens", gridH,
			gridW, in.N)
	}
	var err error
	if in.X, err = values32("X", x); err != nil {
		return nil, err
	}
	if t, ok := tensors["received"]; ok {
		return in, classless(in, t, tensors)
	}
	if t, ok := tensors[string(reduce.ClsAttn)]; ok {
		if len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] != in.N+1 {
			return nil, fmt.Errorf("methods: cls_attn: shape %v, want [heads %d] (tokens + 1)",
				t.Shape, in.N+1)
		}
		in.Heads = t.Shape[0]
		if in.ClsAttn, err = values32("cls_attn", t); err != nil {
			return nil, err
		}
	}
	if t, ok := tensors[string(reduce.Hidden)]; ok {
		if len(t.Shape) != 2 || t.Shape[0] != in.N+1 || t.Shape[1] < 1 {
			return nil, fmt.Errorf("methods: hidden: shape %v, want [%d width] (tokens + 1)",
				t.Shape, in.N+1)
		}
		in.Cv = t.Shape[1]
		if in.Hidden, err = values32("hidden", t); err != nil {
			return nil, err
		}
	}
	if t, ok := tensors[string(reduce.Keys)]; ok {
		if len(t.Shape) != 3 || t.Shape[0] < 1 || t.Shape[1] != in.N+1 || t.Shape[2] < 1 {
			return nil, fmt.Errorf("methods: keys: shape %v, want [heads %d width] (tokens + 1)",
				t.Shape, in.N+1)
		}
		if in.Heads != 0 && t.Shape[0] != in.Heads {
			return nil, fmt.Errorf("methods: keys: %d heads, want the %d of cls_attn", t.Shape[0],
				in.Heads)
		}
		in.Heads, in.KeyDim = t.Shape[0], t.Shape[2]
		if in.Keys, err = values32("keys", t); err != nil {
			return nil, err
		}
	}
	if t, ok := tensors[string(reduce.Shrunk)]; ok {
		if len(t.Shape) != 3 || t.Shape[0] < 1 || t.Shape[1] < 1 || t.Shape[2] != in.C {
			return nil, fmt.Errorf("methods: shrunk: shape %v, want [rows columns %d] (width of X)",
				t.Shape, in.C)
		}
		in.ShrunkH, in.ShrunkW = t.Shape[0], t.Shape[1]
		if in.Shrunk, err = values32("shrunk", t); err != nil {
			return nil, err
		}
	}
	if err := readViews(in, tensors); err != nil {
		return nil, err
	}
	q, k := tensors["pm_q_cls"], tensors[string(reduce.LastKeys)]
	if q == nil && k == nil {
		return in, nil
	}
	if in.Views != nil {
		return nil, fmt.Errorf(
			"methods: view: given together with pm_q_cls and pm_k, which say nothing of views")
	}
	if q == nil || len(q.Shape) != 1 || q.Shape[0] < 1 {
		return nil, fmt.Errorf("methods: pm_q_cls: shape %v, want [width], as pm_k needs it",
			shapeOf(q))
	}
	if k == nil || len(k.Shape) != 2 || k.Shape[0] != in.N+1 || k.Shape[1] != q.Shape[0] {
		return nil, fmt.Errorf("methods: pm_k: shape %v, want [%d %d] (tokens + 1, width of "+
			"pm_q_cls)", shapeOf(k), in.N+1, q.Shape[0])
	}
	if in.LastQuery, err = values32("pm_q_cls", q); err != nil {
		return nil, err
	}
	if in.LastKeys, err = values32(string(reduce.LastKeys), k); err != nil {
		return nil, err
	}
	return in, nil
}

// classless reads the tensors of an encoder without a class token.
func classless(
	in *reduce.Input, received *tensor.Tensor, tensors map[string]*tensor.Tensor,
) (err error) {
	for _, name := range []string{
		string(reduce.ClsAttn), string(reduce.Hidden), "pm_q_cls", string(reduce.LastKeys), "view",
	} {
		if tensors[name] != nil {
			return fmt.Errorf("methods: received: given together with %s, which needs a class token",
				name)
		}
	}
	s := received.Shape
	if len(s) == 1 {
		s = []int{1, s[0]}
	}
	if len(s) != 2 || s[0] < 1 || s[1] != in.N {
		return fmt.Errorf("methods: received: shape %v, want [heads %d] or [%d] (tokens)",
			received.Shape, in.N, in.N)
	}
	in.NoClass, in.Heads, in.Cv = true, s[0], in.C
	in.Hidden = append(make([]float32, in.C), in.X...)
	v, err := values32("received", received)
	if err != nil {
		return err
	}
	in.ClsAttn = underZeros(v, in.Heads, in.N)
	t := tensors[string(reduce.Keys)]
	if t == nil {
		return nil
	}
	if len(t.Shape) != 3 || t.Shape[0] != in.Heads || t.Shape[1] != in.N || t.Shape[2] < 1 {
		return fmt.Errorf("methods: keys: shape %v, want [%d %d width] (heads of received, tokens)",
			t.Shape, in.Heads, in.N)
	}
	if v, err = values32("keys", t); err != nil {
		return err
	}
	in.KeyDim = t.Shape[2]
	in.Keys = underZeros(v, in.Heads, in.N)
	return nil
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
func readViews(in *reduce.Input, tensors map[string]*tensor.Tensor) error {
	t, class := tensors["view"], tensors["view_class"]
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

// Tensors returns the reduction under the names in the file of `restore reduce`; rows in decoder
// order, tokens by original index:
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
	ints := func(v []int32) *tensor.Tensor { return tensor.FromInt32s([]int{len(v)}, v) }
	floats := func(v []float32) *tensor.Tensor { return tensor.FromFloat32s([]int{len(v)}, v) }
	out := map[string]*tensor.Tensor{
		"group": ints(r.Group), "size": ints(size), "merged": ints(merged), "position": ints(whole),
		"feat": tensor.FromFloat32s([]int{n, r.Width}, r.Features),
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
	if r.Gains != nil {
		out["gain"] = tensor.FromFloat64s([]int{len(r.Gains)}, r.Gains)
	}
	for name, v := range r.Scores {
		out[name] = floats(v)
	}
	for name, v := range r.Indices {
		out[name] = ints(v)
	}
	return out
}
