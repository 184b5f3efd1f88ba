package methods

// ApET: approximation-error guided token compression (arXiv:2602.19870).

import (
	"math"
	"slices"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const apetRidge = 1e-5

var apetMethod = &method{
	Method: reduce.Method{
		Name:    "apet",
		Title:   "ApET: tokens that a small basis fits worst",
		Summary: "Keeps what a few sample patches describe worst.",
		Paper:   "https://arxiv.org/abs/2602.19870",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.Hidden},
		Minimum: "1 token",
		PerView: true,
		Cost:    "m·N·Cv (basis and errors) and k·N·Cv (cosines)",
		Notes: reduce.Notes{
			Equations: `
F are the features before the projector. A basis of m tokens is chosen by farthest points: it starts
with token b; then the token of largest squared distance to the nearest of the basis, until that is
0. The error of a token is the distance of its features to their ridge fit by the basis,
|F_i - B^T (B B^T + 10^-5 I)^-1 B F_i|. Kept are the basis and the tokens of largest error. Alone,
every other token joins the kept token of largest cosine that is not in the basis; a row is the mean
of its group.`,
			Departures: `
The authors start at a random token; here b is 0. m is 10, or k/2 if k is 10 or less, where their
code fails. Their code keeps the k tokens of largest error and overwrites the features of the last m
with the basis's, at other tokens' positions, so that what those tokens held is lost; compat
released does the same without RESTORE. Without a class token: the features after the projector,
as in their code for such models.`,
			Licence: "The authors' code: MIT.",
		},
	},
	parameters: func() own { return new(apetParams) },
	pick: func(w *work, k int) (*selection, error) {
		f := newAPET(w, k)
		return &selection{
			kept: f.kept(k), scores: map[string][]float32{"error": float32s(f.err)},
		}, nil
	},
	plain:  apet,
	raster: true,
	ops: func(o *Plan, d Dims) float64 {
		n := float64(o.N) * float64(d.Cv)
		fit := 2 * n * float64(o.own.(*apetParams).size(o.Keep))
		if o.Restore {
			return fit
		}
		return fit + n*float64(o.NVis)
	},
}

// apetParams are ApET's parameters.
type apetParams struct{ basis, start int }

// Declare implements own.
func (a *apetParams) Declare(d *reduce.Declaration) {
	a.basis = 10
	d.Int(&a.basis, reduce.Parameter{
		Name: "apet-basis", Unit: "N", Least: new(1.),
		Help: "tokens of the basis; half of the budget if that is not larger",
	})
	d.Int(&a.start, reduce.Parameter{
		Name: "apet-start", Unit: "N", Least: new(0.),
		Help: "first token of the basis; the last one if a picture or view has fewer",
	})
}

// size returns the number of tokens of the basis in a budget of k.
func (a *apetParams) size(k int) int {
	if k <= a.basis {
		return k / 2
	}
	return a.basis
}

// apetFit is a basis and how well it fits the tokens.
type apetFit struct {
	x     []float32 // [n, width]
	width int
	basis []int32
	err   []float64 // [n]
}

// newAPET chooses the basis for a budget of k and computes the errors.
func newAPET(w *work, k int) *apetFit {
	f := &apetFit{x: w.in.X, width: w.in.C, err: make([]float64, w.in.N)}
	if !w.in.NoClass {
		f.x, f.width = w.in.Hidden[w.in.Cv:], w.in.Cv
	}
	p := w.o.own.(*apetParams)
	f.farthest(w.pool, p.size(k), min(p.start, w.in.N-1))
	f.fit(w.pool)
	return f
}

func (f *apetFit) row(i int32) []float32 { return f.x[int(i)*f.width:][:f.width] }

// farthest chooses m tokens by farthest points.
func (f *apetFit) farthest(p *kernel.Pool, m, start int) {
	near := slices.Repeat([]float64{math.Inf(1)}, len(f.err))
	next := int32(start)
	for len(f.basis) < m {
		f.basis = append(f.basis, next)
		from := f.row(next)
		p.Run(len(near), func(i int) {
			sum := 0.0
			for k, v := range f.row(int32(i)) {
				d := float64(v) - float64(from[k])
				sum += d * d
			}
			near[i] = min(near[i], sum)
		})
		if next = topK(near, 1)[0]; near[next] == 0 {
			return
		}
	}
}

// fit computes the tokens' distances to their ridge fit.
func (f *apetFit) fit(p *kernel.Pool) {
	m := len(f.basis)
	gram := make([]float64, m*m)
	for i, a := range f.basis {
		for j, b := range f.basis {
			gram[i*m+j] = dotWide(f.row(a), f.row(b))
		}
		gram[i*m+i] += apetRidge
	}
	l := choleskyOf(gram, m)
	p.Run(len(f.err), func(i int) {
		x := f.row(int32(i))
		c := make([]float64, m)
		for j, b := range f.basis {
			c[j] = dotWide(f.row(b), x)
		}
		solve(l, c)
		sum := 0.0
		for k, v := range x {
			d := float64(v)
			for j, b := range f.basis {
				d -= c[j] * float64(f.x[int(b)*f.width+k])
			}
			sum += d * d
		}
		f.err[i] = math.Sqrt(sum)
	})
}

// dependent is the share of a row's squared length below which what the earlier rows leave of it is
// rounding.
const dependent = 1e-13

// choleskyOf returns the lower factor of a positive definite matrix [m, m]. A row that depends on
// the earlier ones has an infinite diagonal, so that solve leaves it out.
func choleskyOf(a []float64, m int) []float64 {
	l := slices.Clone(a)
	for i := range m {
		for j := range i + 1 {
			sum := l[i*m+j]
			for k := range j {
				sum -= l[i*m+k] * l[j*m+k]
			}
			switch {
			case i != j:
				l[i*m+j] = sum / l[j*m+j]
			case sum > dependent*a[i*m+i]:
				l[i*m+i] = math.Sqrt(sum)
			default:
				l[i*m+i] = math.Inf(1)
			}
		}
	}
	return l
}

// solve replaces b by the solution of L·Lᵀ·x = b, with 0 for rows that are left out.
func solve(l, b []float64) {
	m := len(b)
	for i := range m {
		for k := range i {
			b[i] -= l[i*m+k] * b[k]
		}
		b[i] /= l[i*m+i]
	}
	for i := m - 1; i >= 0; i-- {
		for k := i + 1; k < m; k++ {
			b[i] -= l[k*m+i] * b[k]
		}
		b[i] /= l[i*m+i]
	}
}

// kept returns the basis and the tokens of largest error outside of it, k in all.
func (f *apetFit) kept(k int) []int32 {
	list := others(len(f.err), f.basis)
	e := make([]float64, len(list))
	for i, t := range list {
		e[i] = f.err[t]
	}
	kept := slices.Clone(f.basis)
	for _, i := range topK(e, k-len(kept)) {
		kept = append(kept, list[i])
	}
	return kept
}

// apet is ApET without RESTORE.
func apet(w *work) (*reduce.Reduction, error) {
	in, k := w.in, w.o.NVis
	f := newAPET(w, k)
	r := &reduce.Reduction{
		N: in.N, Width: f.width, Space: reduce.Encoder,
		Scores:  map[string][]float32{"error": float32s(f.err)},
		Indices: map[string][]int32{"basis": f.basis},
	}
	if in.NoClass {
		r.Space = reduce.Decoder
	}
	start := time.Now()
	released := w.o.Compat == "released"
	r.Kept = f.kept(k)
	heads := r.Kept[len(f.basis):]
	if released {
		r.Kept = topK(f.err, k)
		heads = r.Kept[:k-len(f.basis)]
	}
	if len(heads) == 0 {
		heads = r.Kept
	}
	c, err := newCosines(w.pool, f.x, in.N, f.width, "hidden")
	if err != nil {
		return nil, err
	}
	if err := w.joinKept(r, c, heads, f.x); err != nil {
		return nil, err
	}
	if released { // the basis overwrites the last kept ones
		last := slices.Sorted(slices.Values(r.Kept[max(0, k-len(f.basis)):]))
		for i, t := range last {
			row := slices.IndexFunc(r.Rows, func(row reduce.Row) bool { return row.Anchor == t })
			copy(r.Features[row*f.width:(row+1)*f.width], f.row(f.basis[i]))
		}
	}
	r.MergeTime = time.Since(start)
	return r, nil
}
