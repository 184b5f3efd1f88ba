package qwen3vl

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/nn"
)

// encoder is what the tower adds to [cells.Encoder].
type encoder struct {
	VisionConfig
	table []float32       // [Table², hidden]
	deep  []*cells.Merger // of the blocks Deep
}

var mergerNames = cells.MergerNames{Norm: "norm", Up: "linear_fc1", Down: "linear_fc2"}

// newEncoder binds the tower's weights under b.
func newEncoder(b *model.Binder, c VisionConfig) *cells.Encoder {
	e := &encoder{VisionConfig: c}
	v := cells.NewEncoder(b, c.Tower, cells.Names{
		Up: "mlp.linear_fc1", Down: "mlp.linear_fc2", Merger: mergerNames, Biased: true,
	})
	v.Act, v.Enter, v.After = nn.GELUTanh, e.addPositions, e.deepRows
	e.table = b.Table("pos_embed.weight", "positions, hidden", c.Table*c.Table, c.Hidden)
	for i := range c.Deep {
		e.deep = append(e.deep, cells.NewJoined(
			b.In(fmt.Sprintf("deepstack_merger_list.%d.", i)), c.Tower, mergerNames))
	}
	return v
}

// addPositions adds the learned positions to the rows that enter block 0 (2).
func (e *encoder) addPositions(r *model.Run, x []float32, lay *cells.Layout) {
	d, n := e.Hidden, len(x)/e.Hidden
	table := r.Buffer("qwen3vl.positions", n*d)
	for i := range lay.Parts {
		g := lay.Parts[i].Grid
		lo, hi := int(lay.Bounds[i]), int(lay.Bounds[i+1])
		ys, xs := nn.Corners(e.Table, g[1]), nn.Corners(e.Table, g[2])
		var mixes []nn.Mix
		for _, p := range lay.Pos[lo:hi] {
			mixes = append(mixes, ys[int(p[1])].Across(xs[int(p[2])], func(y, x int) int {
				return y*e.Table + x
			}))
		}
		nn.Blend(r.Pool, table[lo*d:hi*d], e.table, mixes, d)
	}
	nn.Add(r.Pool, x, table)
	if r.Trace != nil {
		r.Trace("vision.pos_embed", []int{n, d}, table)
		r.Trace("vision.block_in", []int{n, d}, x)
	}
}

// deepRows returns what the decoder reads of the output x of block i (6), nil if it reads nothing.
func (e *encoder) deepRows(r *model.Run, i int, x []float32) []float32 {
	k := slices.Index(e.Deep, i)
	if k < 0 {
		return nil
	}
	return e.deep[k].Merge(r, x)
}
