package methods

// VScan: "VScan: Rethinking Visual Token Reduction for Efficient Large Vision-Language Models"
// (arXiv:2505.22654), its part after the encoder.

import (
	"slices"
	"time"

	"github.com/restore-vlm/restore/reduce"
)

const (
	vScanWindow    = 6 // tokens along a window's side
	vScanClassless = 4 // the same without a class token
)

var vScanMethod = &method{
	Method: reduce.Method{
		Name:    "vscan",
		Title:   "VScan: shallow attention in windows, deep attention over all",
		Summary: "Keeps striking patches of every region and the most striking ones of all.",
		Paper:   "https://arxiv.org/abs/2505.22654",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ClsAttn, reduce.ClsAttnShallow, reduce.Grid},
		Minimum: "1 token",
		PerView: true,
		Cost:    "n·N·C (cosines, without RESTORE)",
		Notes: reduce.Notes{
			Equations: `
q = floor(k·share) tokens are local: the grid is cut into windows of 6x6 (4x4 without a class token;
the last of each axis takes what is left), and tokens are taken by falling class-token attention in
a shallow layer (the 6th of 24), each while its window has fewer than q/windows, rounded up, until q
are found; if windows run full before, the rest regardless of windows. The k-q others of largest
class-token attention in the layer of the features are global. Alone, every other token joins the
kept token of largest cosine after the projector; a row is the mean of its group, at the kept token's
position.`,
			Departures: `
This is the rule of the authors' code without a class token, which fails on grids of fewer than 4
rows or columns; here an axis has at least one window. Their code with one takes floor(q/16) in each
of 16 windows: the same tokens where 16 divides q, fewer than k where it does not, and it fails below
32 tokens. Without a class token: the attention that tokens receive in the first and the
last layer that see the whole picture; where all do, the layer at a quarter of the depth. The
authors' budgets are per view; here the views share the budget equally, and the moments of a video
have windows of their own. Their second stage, inside the decoder, is one stage of PyramidDrop.`,
			Licence: "The authors' code: MIT.",
		},
	},
	parameters: func() own { return new(vScanParams) },
	pick:       vScan,
	plain:      vScanPlain,
	raster:     true,
	ops: func(o *Plan, d Dims) float64 {
		if o.Restore {
			return 0
		}
		return float64(o.NVis) * float64(o.N) * float64(d.C)
	},
}

// vScanParams are VScan's parameters.
type vScanParams struct{ local float64 }

// Declare implements own.
func (v *vScanParams) Declare(d *reduce.Declaration) {
	v.local = 0.5
	d.Float(&v.local, reduce.Parameter{
		Name: "vscan-local", Unit: "share", Least: new(0.), Most: new(1.),
		Help: "share of the kept tokens chosen in windows",
	})
}

func vScan(w *work, k int) (*selection, error) {
	in := w.in
	shallow, deep := meanHeads(in.ClsAttnShallow, in.N), meanAttention(in)
	local := w.vScanLocals(rank(shallow), int(float64(k)*w.o.own.(*vScanParams).local))
	var global []int32
	for _, t := range rank(deep) {
		if len(local)+len(global) == k {
			break
		}
		if !slices.Contains(local, t) {
			global = append(global, t)
		}
	}
	return &selection{
		kept:    slices.Concat(local, global),
		scores:  map[string][]float32{"attention": float32s(deep), "shallow": float32s(shallow)},
		indices: map[string][]int32{"local": local, "global": global},
	}, nil
}

// vScanLocals takes q tokens of order, at most an equal part, rounded up, in each window.
func (w *work) vScanLocals(order []int32, q int) []int32 {
	side, of, windows := vScanWindow, make([]int, w.in.N), 0
	if w.in.NoClass {
		side = vScanClassless
	}
	for _, g := range gridsOf(w.in) {
		down, across := max(1, g.H/side), max(1, g.W/side)
		for i, t := range g.Tokens {
			y, x := min(i/g.W/side, down-1), min(i%g.W/side, across-1)
			of[t] = windows + y*across + x
		}
		windows += down * across
	}
	most := (q + windows - 1) / windows
	var local, full []int32
	count := make([]int, windows)
	for _, t := range order {
		if len(local) == q {
			return local
		}
		if count[of[t]] == most {
			full = append(full, t)
			continue
		}
		count[of[t]]++
		local = append(local, t)
	}
	return append(local, full[:q-len(local)]...)
}

// vScanPlain is VScan without RESTORE.
func vScanPlain(w *work) (*reduce.Reduction, error) {
	sel, err := vScan(w, w.o.NVis)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	r := &reduce.Reduction{
		N: w.in.N, Width: w.in.C, Kept: sel.kept, Scores: sel.scores, Indices: sel.indices,
	}
	c, err := newColumns(w.pool, w.in.X, w.in.N, w.in.C, len(sel.kept), "X")
	if err != nil {
		return nil, err
	}
	if err := w.joinKept(r, c, sel.kept, w.in.X); err != nil {
		return nil, err
	}
	r.MergeTime = time.Since(start)
	return r, nil
}
