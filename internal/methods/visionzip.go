package methods

// VisionZip: "VisionZip: Longer is Better but Not Necessary in Vision Language Models"
// (arXiv:2412.04467).

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var visionZipMethod = &method{
	Method: reduce.Method{
		Name:       "visionzip",
		Title:      "VisionZip: highest attention, other tokens merged by keys",
		Summary:    "Keeps what stands out and blends the rest into a few.",
		Paper:      "https://arxiv.org/abs/2412.04467",
		Site:       reduce.AfterEncoder,
		Needs:      []reduce.Need{reduce.ClsAttn},
		NeedsPlain: []reduce.Need{reduce.Hidden, reduce.Keys},
		Minimum:    "1 patch under RESTORE; alone 1 row, the class token",
		PerView:    true,
		Cost:       "N·n·K/6 (K: width of one head's keys)",
		Notes: reduce.Notes{
			Equations: `
Budget n = D + C. The D dominant rows are the class token and the D-1 patches of highest
class-token attention (summed over heads). From the other M patches in raster order, every
(M div C)-th is a contextual anchor; each other patch joins the anchor of highest cosine of the
head-averaged keys, and a contextual row is the anchor's feature plus the mean of those that
joined (not a mean that includes the anchor). All of this is before the projector. Default split:
C = n·10/64, rounded, the authors' 54:10 at 64.

Without a class token (the authors' release for such an encoder) the D patches of highest received
attention are dominant, C is floor(N/20), keys are those after the rotation, and the merged rows
are those after the projector.`,
			Departures: `
The paper speaks of averaged groups; anchor plus mean is the authors' code. C may not exceed the
remaining patches. Without compat released rows are in raster order, a contextual row at its
anchor's place (as in the authors' release for encoders without a class token, which also keeps
original positions: so compat released does there). The class token, which has no place, is first,
at position 0. Under RESTORE VisionZip's share is the patches of highest attention, without the
class token, and RESTORE's anchors replace the contextual ones.`,
		},
	},
	parameters: func() own { return new(visionZipParams) }, split: splitVisionZip,
	check: checkVisionZip, classlessRaster: true,
	pick: func(w *work, k int) (*selection, error) {
		s := sumAttention(w.in)
		return &selection{
			kept: topK(s, k), scores: map[string][]float32{"attention": float32s(s)},
		}, nil
	},
	plain: visionZip,
	ops: func(o *Plan, d Dims) float64 {
		c := o.own.(*visionZipParams).contextual
		return float64(o.N-o.NVis) * float64(c) * float64(d.KeyDim)
	},
}

// visionZipParams are VisionZip's parameters.
type visionZipParams struct {
	contextual int
	given      bool
}

// Declare implements own.
func (v *visionZipParams) Declare(d *reduce.Declaration) {
	d.Int(&v.contextual, reduce.Parameter{
		Name: "visionzip-contextual", Unit: "N", Default: "n*10/64", Least: new(1.),
		Help: "contextual rows of the budget; the others are dominant, including the class token",
	})
}

// complete sets the contextual rows; RESTORE's anchors replace them.
func (v *visionZipParams) complete(p *Plan, d *reduce.Declaration) error {
	v.given = d.Given("visionzip-contextual")
	switch {
	case p.Restore && v.given:
		return useless("visionzip-contextual", strconv.Itoa(v.contextual),
			"with restore on (anchors take the place of contextual rows)")
	case p.Restore || v.given:
	default:
		v.contextual = visionZipSplit(p, p.N, p.NVis)
	}
	if sizes := p.facts.Views; sizes != nil && !v.given && v.contextual > 0 && p.NVis < p.N {
		v.contextual = 0
		for i, keep := range p.method.shares(p.Keep, sizes) {
			v.contextual += visionZipSplit(p, sizes[i], keep)
		}
	}
	return nil
}

// splitVisionZip gives each view its part of the contextual rows: equal parts of a given number,
// otherwise the default for the view's share.
func splitVisionZip(p *Plan, sizes, keep []int) []own {
	v, room, out := p.own.(*visionZipParams), make([]int, len(sizes)), make([]own, len(sizes))
	for i, k := range keep {
		if room[i] = k; !p.NoClass {
			room[i] = max(0, k-1)
		}
	}
	given := shares(v.contextual, room, 1)
	for i, k := range keep {
		part := *v
		switch {
		case v.given || v.contextual == 0:
			part.contextual = given[i]
		default:
			part.contextual = visionZipSplit(p, sizes[i], k)
		}
		out[i] = &part
	}
	return out
}

// checkVisionZip refuses more contextual rows than fit into a share of k.
func checkVisionZip(p *Plan, k int) error {
	c, most, why := p.own.(*visionZipParams).contextual, k-1, "the budget less the class token"
	if p.NoClass {
		most, why = k, "the budget"
	}
	if p.Restore || c <= most {
		return nil
	}
	return refused("visionzip-contextual", errs.TooLarge, strconv.Itoa(c),
		fmt.Sprintf("at most %d", most), why)
}

// visionZipSplit is the default number of contextual rows in a budget of k rows for n tokens: the
// authors' 10 of 64, rounded, at least 1 besides the class token, or their share without one.
func visionZipSplit(p *Plan, n, k int) int {
	if p.NoClass {
		return min(k, max(1, n/visionZipShare))
	}
	return max(0, min(k-1, max(1, (k*10+32)/64)))
}

// visionZipShare is the authors' number of tokens per contextual row without a class token, for any
// budget.
const visionZipShare = 20

func visionZip(w *work) (*reduce.Reduction, error) {
	in, contextual := w.in, w.o.own.(*visionZipParams).contextual
	s := sumAttention(in)
	class, x, width, space := 1, in.Hidden, in.Cv, reduce.Encoder
	if w.o.NoClass {
		class, x, width, space = 0, in.X, in.C, reduce.Decoder
	}
	patches := x[class*width:]
	dominant := topK(s, w.o.NVis-contextual-class)
	rest := others(in.N, dominant)
	slices.Sort(dominant)
	start := time.Now()

	if contextual == 0 { // there is no row to merge them into
		rest = nil
	}
	step := max(1, len(rest)/max(1, contextual))
	r := &reduce.Reduction{
		Width: width, Space: space, Kept: dominant, Scores: map[string][]float32{
			"attention": float32s(s),
		},
	}
	if !w.o.NoClass {
		r.Rows = append(r.Rows, reduce.Row{Anchor: -1, IsClass: true, Size: 1})
	}
	for _, t := range dominant {
		r.Rows = append(r.Rows, reduce.Row{Members: []int32{t}, Anchor: t, Size: 1})
	}
	for j := range contextual {
		r.Anchors = append(r.Anchors, rest[j*step])
		r.Rows = append(r.Rows, reduce.Row{
			Members: []int32{rest[j*step]}, Anchor: rest[j*step], Merged: true,
		})
	}
	metric, length := meanKeys(in)
	groups := r.Rows[len(r.Rows)-contextual:]
	key := func(t int32) []float64 { return metric[int(t)*in.KeyDim:][:in.KeyDim] }
	for i, t := range rest {
		if i%step == 0 && i/step < contextual {
			continue
		}
		best, top := 0, math.Inf(-1)
		for j, a := range r.Anchors {
			if c := cosine64(key(t), key(a), length[t]*length[a]); c > top {
				best, top = j, c
			}
		}
		groups[best].Members = append(groups[best].Members, t)
	}
	for j := range groups {
		slices.Sort(groups[j].Members)
		groups[j].Size = len(groups[j].Members)
	}
	r.N = in.N
	o := *w.o
	o.MergePosition = "anchor"
	(&work{in: in, o: &o}).place(r)
	r.Features = zipped(r.Rows, width, x, patches)
	r.MergeTime = time.Since(start)
	return r, nil
}

// cosine64 is the cosine of x and y, whose lengths have the product n; 0 if one is zero.
func cosine64(x, y []float64, n float64) float64 {
	if !(n > 0) {
		return 0
	}
	sum := 0.0
	for k, v := range x {
		sum += v * y[k]
	}
	return sum / n
}

// zipped returns the features of rows: the class token's, a kept patch's, or an anchor's plus the
// mean of those that joined it.
func zipped(rows []reduce.Row, width int, class, patches []float32) []float32 {
	out, sum := make([]float32, len(rows)*width), make([]float32, width)
	for i := range rows {
		row, dst := &rows[i], out[i*width:][:width]
		if row.IsClass {
			copy(dst, class)
			continue
		}
		copy(dst, patches[int(row.Anchor)*width:])
		if row.Size > 1 {
			joined := slices.DeleteFunc(slices.Clone(row.Members),
				func(t int32) bool { return t == row.Anchor })
			mean(sum, patches, width, joined)
			for k, v := range sum {
				dst[k] += v
			}
		}
	}
	return out
}

// meanKeys averages the patches' keys over heads, [N, KeyDim], and returns each row's length.
func meanKeys(in *reduce.Input) (metric, length []float64) {
	metric, length = make([]float64, in.N*in.KeyDim), make([]float64, in.N)
	for h := range in.Heads {
		for i, v := range in.Keys[(h*(in.N+1)+1)*in.KeyDim:][:in.N*in.KeyDim] {
			metric[i] += float64(v) / float64(in.Heads)
		}
	}
	for i := range length {
		sum := 0.0
		for _, v := range metric[i*in.KeyDim:][:in.KeyDim] {
			sum += v * v
		}
		length[i] = math.Sqrt(sum)
	}
	return metric, length
}
