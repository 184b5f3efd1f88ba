package cells

import (
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Encoded is what a tower computes of its cells, in raster order. The caller owns it.
type Encoded struct {
	X    []float32   // [cells, out] of the merger
	Deep [][]float32 // the same for each of the decoder's first layers; nil for most models
	// [heads, cells] mean attention that a cell's patches receive in the block with the scores; nil
	// unless needed
	Received []float32
	Taps     map[int][]float32 // the same of each block in Needs.Received
	// [cells, hidden] the last block's output, averaged over the cell's patches; nil unless needed
	Cells []float32
	// [cells, hidden] keys of the block with the scores, after the rotation, averaged over the
	// cell's patches; nil unless needed
	Keys  []float32
	Needs model.Needs
}

// Visuals returns the pictures, whose cells follow one another in o, of a tower with attention a.
func (o *Encoded) Visuals(pics []model.Picture, a *nn.Attention) []*model.Visual {
	visuals, first := make([]*model.Visual, len(pics)), 0
	for i, p := range pics {
		visuals[i] = o.visual(first, p.Shape(), a)
		first += p.Shape().T - 1
	}
	return visuals
}

// visual returns the picture of shape s that begins at cell first.
func (o *Encoded) visual(first int, s *model.Shape, a *nn.Attention) *model.Visual {
	n, c, d := s.T-1, s.Cv, a.Heads*a.HeadDim
	v := &model.Visual{Shape: s, X: o.X[first*c : (first+n)*c], Heads: a.Heads, KeyDim: a.HeadDim,
		Needs: o.Needs}
	v.Hidden = nn.BelowZeros(v.X, c)
	for _, level := range o.Deep {
		v.Deep = append(v.Deep, level[first*c:(first+n)*c])
	}
	part := func(all []float32) []float32 {
		return nn.ColumnsBelowZeros(all, a.Heads, len(all)/a.Heads, first, n)
	}
	if o.Received != nil {
		v.ClsAttn = part(o.Received)
	}
	v.Received = make(map[int][]float32, len(o.Taps))
	for block, all := range o.Taps {
		v.Received[block] = part(all)
	}
	if o.Cells != nil {
		v.CellDim, v.Cells = d, o.Cells[first*d:(first+n)*d]
	}
	if o.Keys != nil {
		v.Keys = nn.HeadsFirst(nn.BelowZeros(o.Keys[first*d:(first+n)*d], d), n+1, a.Heads,
			a.HeadDim)
	}
	return v
}
