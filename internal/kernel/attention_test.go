package kernel

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/racetest"
)

const (
	// attnTol bounds |got-want| for values of order 1: a score is a sum of up to 128 float32
	// products, and e^x turns its absolute error into a relative one.
	attnTol = 2e-6
	// attnGoldenTol is for the golden data, whose inputs are rounded to float32.
	attnGoldenTol = 5e-6
)

// attendRef is a straightforward float64 evaluation: outputs [Tq, Heads*HeadDim] and probabilities
// [Heads, Tq, Tk].
func attendRef(a *Attention) (out, probs []float64) {
	d, or := a.HeadDim, func(stride, heads int) int {
		if stride == 0 {
			return heads * a.HeadDim
		}
		return stride
	}
	qStride, kStride := or(a.QStride, a.Heads), or(a.KStride, a.KVHeads)
	vStride := or(a.VStride, a.KVHeads)
	out = make([]float64, a.Tq*a.Heads*d)
	probs = make([]float64, a.Heads*a.Tq*a.Tk)
	for h := range a.Heads {
		kv := h * a.KVHeads / a.Heads
		for i := range a.Tq {
			p := probs[(h*a.Tq+i)*a.Tk:][:a.Tk]
			sum, top := 0.0, math.Inf(-1)
			query := a.Q[i*qStride+h*d:][:d]
			for j := range p {
				seen := !a.Causal || j <= i+a.Tk-a.Tq && (a.Window == 0 || j > i+a.Tk-a.Tq-a.Window)
				if a.Ends != nil {
					seen = j < int(a.Ends[i]) && (a.Window == 0 || j > i+a.Tk-a.Tq-a.Window)
				}
				for s := 1; s < len(a.Segments); s++ {
					if bound := int(a.Segments[s]); (i < bound) != (j < bound) {
						seen = false
					}
				}
				if !seen {
					p[j] = math.Inf(-1)
					continue
				}
				dot := 0.0
				for c, k := range a.K[j*kStride+kv*d:][:d] {
					dot += float64(query[c]) * float64(k)
				}
				p[j] = dot * float64(a.Scale)
				if b := a.Bias; b != nil && b.Row != nil {
					var one [1]float32
					b.Row(one[:], i, j)
					p[j] += float64(one[0])
				} else if b != nil {
					if b.LogSize != nil {
						p[j] += float64(b.LogSize[j])
					}
					if b.Table != nil {
						p[j] += float64(b.Table[int(math.Abs(float64(b.QueryPos[i]-b.KeyPos[j])))])
					}
				}
				top = math.Max(top, p[j])
			}
			for j := range p {
				p[j] = math.Exp(p[j] - top)
				sum += p[j]
			}
			row := out[(i*a.Heads+h)*d:][:d]
			for j := range p {
				p[j] /= sum
				for c, v := range a.V[j*vStride+kv*d:][:d] {
					row[c] += p[j] * float64(v)
				}
			}
		}
	}
	return out, probs
}

// references holds the results of attendRef for a test's calls, by name. A test makes the same
// calls with every implementation, and the reference takes longer than all of them.
type references map[string]struct{ out, probs []float64 }

func (r references) of(name string, a *Attention) (out, probs []float64) {
	x, ok := r[name]
	if !ok {
		x.out, x.probs = attendRef(a)
		r[name] = x
	}
	return x.out, x.probs
}

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// worst returns the largest |got-want| and its index; NaN counts as infinite.
func worst(got []float32, want []float64) (diff float64, at int) {
	for i, w := range want {
		e := math.Abs(float64(got[i]) - w)
		if !(e <= math.MaxFloat64) {
			e = math.Inf(1)
		}
		if e > diff {
			diff, at = e, i
		}
	}
	return diff, at
}

func checkWorst(t *testing.T, name string, got []float32, want []float64, tol float64) {
	t.Helper()
	if d, i := worst(got, want); !(d <= tol) {
		t.Errorf("%s: index %d: got %g, want %g, difference %.2g, want at most %.2g", name, i,
			got[i], want[i], d, tol)
	}
}

func TestWorstRejectsNaN(t *testing.T) {
	if d, i := worst([]float32{1, float32(math.NaN())}, []float64{1, 1}); !math.IsInf(d, 1) ||
		i != 1 {
		t.Errorf("worst = %g at %d, want +Inf at 1", d, i)
	}
}

// attnCase is a shape and the features in use.
type attnCase struct {
	heads, kvHeads, dim, tq, tk int
	causal                      bool
	segments                    []int32
	bias                        string // "", "size", "table", "both", "row"
	taps                        bool
	pad                         int  // added to every stride
	peaks                       bool // with taps: the maximum over heads instead of column sums
}

func (c attnCase) String() string {
	return fmt.Sprintf("h%d/kv%d/d%d/%dx%d/causal=%v/seg=%v/bias=%s/taps=%v/peaks=%v", c.heads,
		c.kvHeads, c.dim, c.tq, c.tk, c.causal, c.segments, c.bias, c.taps, c.peaks)
}

const canary = 12345.5

func (c attnCase) make(r *rand.Rand) *Attention {
	qs, ks := c.heads*c.dim+c.pad, c.kvHeads*c.dim+c.pad
	a := &Attention{
		Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.dim, Tq: c.tq, Tk: c.tk,
		Scale: float32(1 / math.Sqrt(float64(c.dim))), Causal: c.causal, Segments: c.segments,
		Q: normal(r, c.tq*qs+1)[1:], K: normal(r, c.tk*ks+3)[3:], V: normal(r, c.tk*ks+5)[5:],
		QStride: qs, KStride: ks, VStride: ks, OutStride: qs,
	}
	a.Out = make([]float32, c.tq*qs+8)
	for i := range a.Out {
		a.Out[i] = canary
	}
	b := &Bias{}
	pos := make([]int32, c.tk)
	for i, at := 0, int32(0); i < c.tk; i++ {
		at += int32(r.Intn(3))
		pos[i] = at
	}
	if c.bias == "size" || c.bias == "both" {
		b.LogSize = make([]float32, c.tk)
		for i := range b.LogSize {
			b.LogSize[i] = float32(math.Log(float64(1 + r.Intn(9))))
		}
	}
	if c.bias == "table" || c.bias == "both" {
		b.KeyPos, b.QueryPos = pos, pos[c.tk-c.tq:]
		b.Table = make([]float32, int(pos[c.tk-1])+1)
		for i := range b.Table {
			b.Table[i] = float32(math.Log(2 - math.Cos(float64(i)/9)))
		}
	}
	if c.bias == "row" {
		b.Row = func(dst []float32, q, k0 int) {
			for i := range dst {
				dst[i] = float32(math.Sin(float64(q)*1.5 + float64(k0+i)))
			}
		}
	}
	if c.bias != "" {
		a.Bias = b
	}
	if c.taps {
		a.RowTapQueries = slices.Compact([]int32{0, int32(c.tq * 2 / 3), int32(c.tq - 1)})
		a.RowTap = slices.Repeat([]float32{canary}, c.heads*len(a.RowTapQueries)*c.tk+1)
		if c.peaks {
			a.MaxTap = slices.Repeat([]float32{canary}, c.tq*c.tk+1)
		} else {
			a.ColTap = slices.Repeat([]float32{canary}, c.heads*c.tk+1)
		}
	}
	return a
}

func attnCases() []attnCase {
	cases := []attnCase{
		{1, 1, 1, 1, 1, false, nil, "", false, 0, false},
		{3, 3, 20, 7, 7, true, nil, "both", true, 0, false},
		{6, 2, 10, 5, 31, true, nil, "both", false, 3, false},
		{4, 2, 16, 1, 77, true, nil, "both", false, 0, false},
		{4, 1, 64, 2, 530, true, nil, "size", false, 0, false},
		{2, 2, 72, 3, 1100, true, nil, "row", false, 2, false},
		{2, 1, 128, 1, 1200, true, nil, "table", false, 0, false},
		{2, 2, 64, 97, 97, false, nil, "", true, 0, false},
		{5, 5, 64, 50, 50, false, nil, "size", true, 1, false},
		{2, 2, 80, 70, 70, false, []int32{0, 16, 16, 33, 70}, "", true, 0, false},
		{2, 2, 80, 70, 70, true, []int32{0, 16, 33, 70}, "both", true, 0, false},
		{6, 3, 128, 205, 205, true, nil, "both", false, 0, false},
		{5, 1, 96, 100, 700, true, nil, "row", false, 0, false},
		{2, 1, 128, 60, 1300, true, nil, "table", true, 0, false},
		{2, 1, 24, 200, 1300, false, nil, "both", false, 0, false},
		{1, 1, 128, 400, 600, true, nil, "", false, 0, false},
		{4, 2, 40, 300, 333, true, nil, "", true, 0, true},
		{3, 1, 128, 100, 700, true, nil, "both", true, 2, true},
		{4, 4, 16, 2, 90, true, nil, "size", true, 0, true},
		{2, 2, 80, 70, 70, false, []int32{0, 16, 16, 33, 70}, "row", true, 0, true},
	}
	r := rand.New(rand.NewSource(5))
	for range 60 {
		kv := 1 + r.Intn(3)
		c := attnCase{
			heads: kv * (1 + r.Intn(3)), kvHeads: kv, dim: 1 + r.Intn(130), tq: 1 + r.Intn(70),
			causal: r.Intn(2) == 0,
			bias:   []string{"", "size", "table", "both", "row"}[r.Intn(5)], taps: r.Intn(3) == 0,
			pad: r.Intn(4), peaks: r.Intn(2) == 0}
		c.tk = c.tq + r.Intn(100)
		cases = append(cases, c)
	}
	if testing.Short() { // the reference takes long under emulation
		cases = slices.DeleteFunc(cases, func(c attnCase) bool {
			return c.heads*c.dim*c.tq*c.tk > 1<<19
		})
	}
	return cases
}

func TestAttend(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	refs := references{}
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(9))
		for i, c := range attnCases() {
			a := c.make(r)
			out, probs := refs.of(fmt.Sprint(i), a)
			Attend(pool, a)
			t.Run(c.String(), func(t *testing.T) {
				checkAttention(t, a, out, probs, attnTol, attnTol)
				serial := *a
				serial.Out = make([]float32, len(a.Out))
				Attend(nil, &serial)
				for i := range a.Tq {
					w := a.Heads * a.HeadDim
					if !slices.Equal(serial.Out[i*a.OutStride:][:w], a.Out[i*a.OutStride:][:w]) {
						t.Errorf("row %d differs between 1 and 2 threads", i)
					}
				}
			})
		}
	})
}

// roundedRows is scale·x for rows of bfloat16.
func roundedRows(x []float32, scale float32) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = BFloat(roundBF16(v * scale))
	}
	return out
}

// byteRows is x with every head's part of a row rounded to the nearest of 255 multiples of its own
// step. With centre, it is less the mean of the part over the rows of its segment.
func byteRows(x []float32, stride, heads, dim int, centre bool, segments []int32) []float32 {
	out := slices.Clone(x)
	for h := range heads {
		for s := 1; s < len(segments); s++ {
			first, end := int(segments[s-1]), int(segments[s])
			mean := make([]float64, dim)
			for r := first; r < end && centre; r++ {
				for i := range dim {
					mean[i] += float64(x[r*stride+h*dim+i]) / float64(end-first)
				}
			}
			for r := first; r < end; r++ {
				part := out[r*stride+h*dim:][:dim]
				most := 0.0
				for i, v := range part {
					most = max(most, math.Abs(float64(v)-mean[i]))
				}
				for i, v := range part {
					step := most / 127
					part[i] = float32(math.RoundToEven((float64(v)-mean[i])/step) * step)
				}
			}
		}
	}
	return out
}

// Ensure that rounded products are the products of rounded inputs, and that taps are not rounded.
func TestAttendRounded(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	fewWords(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(10))
		for _, c := range attnCases() {
			if c.causal {
				continue
			}
			a := c.make(r)
			for _, rounding := range []Rounding{RoundPairs, RoundBytes, RoundWords} {
				checkRounded(t, pool, a, c, rounding)
			}
		}
	})
}

// fewWords has attention round to words however few queries there are.
func fewWords(t *testing.T) {
	least := wordsQueries
	wordsQueries = 0
	t.Cleanup(func() { wordsQueries = least })
}

func checkRounded(t *testing.T, pool *Pool, a *Attention, c attnCase, rounding Rounding) {
	on := computing()
	pairs := on.bf16 && c.dim%2 == 0 && rounding != RoundWords
	words := rounding == RoundWords && on.impl == implAVX2 && c.dim <= 128 && a.MaxTap == nil
	quads := rounding == RoundBytes && (on.impl == implAVX512 && on.vnni ||
		on.impl == implAVXVNNI) && c.dim%4 == 0 && c.bias == "" && !c.taps
	plain := *a
	plain.Out, plain.Rounding = slices.Clone(a.Out), Exact
	a.Rounding = rounding
	Attend(pool, a)
	if !pairs && !quads && !words {
		plain.RowTap, plain.MaxTap, plain.ColTap = nil, nil, nil
		Attend(pool, &plain)
		if !slices.Equal(plain.Out, a.Out) {
			t.Errorf("%v: rounding %d changes an exact product", c, rounding)
		}
		return
	}
	t.Run(fmt.Sprintf("%v/%d", c, rounding), func(t *testing.T) {
		b, tol, taps := *a, attnTol, attnTol
		switch {
		case pairs:
			b, tol = pairsReference(a)
		case words:
			tol, taps = wordsTol, wordsTol/5 // probabilities of many keys are below 1/5
			if e := roundingError(pool, a, rounding); !(e < 0.001) {
				t.Errorf("error %.5f of the root mean square, want less than 0.001", e)
			}
		}
		b.Rounding = Exact
		if quads {
			segments := a.Segments
			if segments == nil {
				segments = []int32{0, int32(a.Tk)}
			}
			b.K = byteRows(a.K, a.KStride, a.KVHeads, a.HeadDim, true, segments)
			b.Q = byteRows(a.Q, a.QStride, a.Heads, a.HeadDim, false, []int32{0, int32(a.Tq)})
			b.Scale = a.Scale
			tol += 1. / (4 * 127) // what lies between two integers may become either
		}
		out, probs := attendRef(&b)
		checkAttention(t, &b, out, probs, tol, taps)
		near := *a
		near.Out, near.RowTap, near.MaxTap, near.ColTap = plain.Out, nil, nil, nil
		near.Rounding = Exact
		Attend(nil, &near)
		if slices.Equal(near.Out, a.Out) && c.tk > 1 {
			t.Error("not rounded")
		}
	})
}

// wordsTol bounds outputs and probabilities of attention in words. A query, a key or a value is off
// by 1/4094 of the largest of its row or column at most, here four; a score by the root of the head
// dim times that, 0.01, and a probability by as much of itself.
const wordsTol = 0.01

// pairsReference returns a with queries, keys and values rounded to bfloat16, and how far its exact
// output may be off: a probability is rounded to 8 bits, so that it is off by 2^-9 of itself.
func pairsReference(a *Attention) (b Attention, tol float64) {
	b = *a
	b.Q, b.K, b.Scale = roundedRows(a.Q, a.Scale), roundedRows(a.K, 1), 1
	b.V = roundedRows(a.V, 1)
	most := 0.0
	for _, v := range b.V {
		most = max(most, math.Abs(float64(v)))
	}
	return b, most/512 + attnTol
}

// Ensure that keys of several blocks, far from zero, lose no more by rounding to bytes than
// other keys, and that what is not a number stays so.
func TestAttendBytes(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	forEachISA(t, func(t *testing.T) {
		c := attnCase{heads: 2, kvHeads: 2, dim: 72, tq: 62, tk: 2500, pad: 3}
		a := c.make(rand.New(rand.NewSource(11)))
		check := func(what string) {
			// 0.7 % of queries and keys, which are 8-bit integers, makes 1 % of a score
			if e := roundingError(pool, a, RoundBytes); !(e < 0.02) {
				t.Errorf("%s: error %.3f of the root mean square, want less than 0.02", what, e)
			}
		}
		for i := range a.K {
			a.K[i] += 100 * float32(math.Sin(float64(i%a.KStride)))
		}
		check("keys far from zero")
		for i := range a.Q {
			a.Q[i] = 0.1
		}
		for i := range a.K {
			a.K[i] = float32(1 - i/a.KStride%2*2)
		}
		check("the largest sums")
		b := c.make(rand.New(rand.NewSource(13)))
		for i := range b.V { // columns of 1/1000 to 1000
			b.V[i] *= float32(math.Pow(1000, math.Sin(float64(i%b.VStride))))
		}
		for i := range b.KStride { // a key whose probability is half of all, in the second block
			b.Q[i], b.K[1500*b.KStride+i] = 1, 7.8/(72*b.Scale)
		}
		for i, e := range columnErrors(pool, b, RoundBytes) {
			if !(e < 0.02) {
				t.Errorf("column %d of values: error %.3f, want less than 0.02", i, e)
			}
		}
		b.V[b.VStride*2400+c.dim+1] = float32(math.Inf(1))
		Attend(pool, b)
		if v := b.Out[c.dim+1]; !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 1) {
			t.Errorf("output of an infinite value is %g", v)
		}
		a.Q[5] = float32(math.Inf(1))
		a.K[a.KStride*2400+c.dim+1] = float32(math.NaN())
		Attend(pool, a)
		for i, v := range a.Out[:c.heads*c.dim] { // of the first query
			if v == v {
				t.Fatalf("output %d is %g, want NaN", i, v)
			}
		}
	})
}

// columnErrors attends with rounding and returns the error of every column of the outputs, of its
// root mean square.
func columnErrors(p *Pool, a *Attention, rounding Rounding) []float64 {
	exact := *a
	exact.Out, exact.Rounding = slices.Clone(a.Out), Exact
	Attend(p, &exact)
	a.Rounding = rounding
	Attend(p, a)
	errs := make([]float64, a.Heads*a.HeadDim)
	for i := range errs {
		var off, all float64
		for q := range a.Tq {
			v, w := float64(exact.Out[q*a.OutStride+i]), float64(a.Out[q*a.OutStride+i])
			off += (w - v) * (w - v)
			all += v * v
		}
		errs[i] = math.Sqrt(off / all)
	}
	return errs
}

// roundingError attends with rounding and returns the error of the output, of its root mean square.
func roundingError(p *Pool, a *Attention, rounding Rounding) float64 {
	exact := *a
	exact.Out, exact.Rounding = slices.Clone(a.Out), Exact
	Attend(p, &exact)
	a.Rounding = rounding
	Attend(p, a)
	var off, all float64
	for i, v := range exact.Out {
		if v == canary {
			continue
		}
		off += float64(a.Out[i]-v) * float64(a.Out[i]-v)
		all += float64(v) * float64(v)
	}
	return math.Sqrt(off / all)
}

// Ensure that probabilities relative to the first scores survive later ones that are far above, and
// that no key that does not exist counts among the first.
func TestAttendSample(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	fewWords(t)
	forEachISA(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(12))
		for _, rounding := range []Rounding{RoundPairs, RoundBytes, RoundWords} {
			check := func(what string, a *Attention) {
				// a probability and a value are rounded to 8 bits
				if e := roundingError(pool, a, rounding); !(e < 0.01) {
					t.Errorf("%d: %s: error %.3f of the root mean square, want less than 0.01",
						rounding, what, e)
				}
			}
			a := attnCase{heads: 2, kvHeads: 2, dim: 72, tq: 70, tk: 2500, pad: 3}.make(r)
			// later scores are 85, 500 and 3 above the first, those of the last queries below
			for i := range a.Q {
				a.Q[i] = 1 + 0.1*float32(r.NormFloat64())
				if i/a.QStride > 60 {
					a.Q[i] = -a.Q[i]
				}
			}
			clear(a.K)
			for key, score := range map[int]float32{200: 85, 1700: 500, 2300: 3} {
				for i := range a.KStride {
					a.K[key*a.KStride+i] = score / (72 * a.Scale)
				}
			}
			check("scores far above the first", a)
			if rounding == RoundPairs {
				a.Causal = true
				check("scores far above the first, causal", a)
			}
			a = attnCase{heads: 2, kvHeads: 2, dim: 72, tq: 5, tk: 7}.make(r)
			for i := range a.Q {
				a.Q[i] = 1
			}
			for i := range a.K {
				a.K[i] = -16 // every score is -136
			}
			check("scores far below 0", a)
		}
	})
}

// Ensure that a row of a prompt has the same bits whatever part of the prompt is computed with it,
// also where the probabilities of others exceed what a sum holds.
func TestAttendCut(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	forEachISA(t, func(t *testing.T) {
		for _, dim := range []int{16, 64, 128} {
			a := attnCase{heads: 2, kvHeads: 1, dim: dim, tq: 300, tk: 300, causal: true}.make(
				rand.New(rand.NewSource(15)))
			for i := range a.Q { // every ninth query finds one key far above the first
				if i/a.QStride%9 == 0 {
					a.Q[i] = 3
				}
			}
			for i := range a.KStride {
				a.K[100*a.KStride+i] = 200 / (float32(dim) * a.Scale)
			}
			paged(a, true, a.Tk, a.Tk)
			a.Rounding = RoundPairs
			Attend(pool, a)
			for _, cut := range []int{4, 100, 117, 290} {
				first, rest := *a, *a
				first.Tq, first.Tk, rest.Tq = cut, cut, a.Tq-cut
				rest.Q = a.Q[cut*a.QStride:]
				for at, b := range map[int]*Attention{0: &first, cut: &rest} {
					b.Out = make([]float32, b.Tq*b.OutStride)
					Attend(pool, b)
					for q := range b.Tq {
						n := a.Heads * dim
						if got, want := b.Out[q*b.OutStride:][:n],
							a.Out[(at+q)*a.OutStride:][:n]; !slices.Equal(got, want) {
							t.Fatalf("head dim %d: row %d of a prompt cut at %d: got %v, whole %v",
								dim, at+q, cut, got[:4], want[:4])
						}
					}
				}
			}
		}
	})
}

// TestAttendPositions: keys far apart, out of order, or after the queries that see them.
func TestAttendPositions(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	change := map[string]func(a *Attention, i int, p int32) int32{
		"gaps":     func(a *Attention, i int, p int32) int32 { return 9 * p },
		"one gap":  func(a *Attention, i int, p int32) int32 { return p + 40*int32(i/37) },
		"reversed": func(a *Attention, i int, p int32) int32 { return int32(len(a.Bias.Table)) - 1 - p },
		"equal":    func(a *Attention, i int, p int32) int32 { return 7 },
		"ahead":    func(a *Attention, i int, p int32) int32 { return p },
	}
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(10))
		for name, f := range change {
			for _, c := range []attnCase{
				{2, 1, 32, 70, 90, true, nil, "both", true, 0, true},
				{3, 3, 16, 66, 66, true, nil, "table", true, 0, false},
				{2, 1, 32, 41, 600, true, nil, "both", false, 0, false},
				{2, 2, 24, 35, 50, false, nil, "both", false, 0, false},
			} {
				a := c.make(r)
				keys, queries := slices.Clone(a.Bias.KeyPos), slices.Clone(a.Bias.QueryPos)
				for i, p := range keys {
					keys[i] = f(a, i, p)
				}
				for i, p := range queries {
					queries[i] = f(a, i+c.tk-c.tq, p)
					if name == "ahead" {
						queries[i] = p / 2
					}
				}
				a.Bias.KeyPos, a.Bias.QueryPos = keys, queries
				a.Bias.Table = make([]float32, 10*len(a.Bias.Table)+700)
				for i := range a.Bias.Table {
					a.Bias.Table[i] = float32(math.Sin(float64(i) / 5))
				}
				out, probs := attendRef(a)
				Attend(pool, a)
				t.Run(name+"/"+c.String(), func(t *testing.T) {
					checkAttention(t, a, out, probs, attnTol, attnTol)
				})
			}
		}
	})
}

func checkAttention(t *testing.T, a *Attention, out, probs []float64, tol, taps float64) {
	t.Helper()
	w := a.Heads * a.HeadDim
	dense := make([]float32, 0, len(out))
	for i := range a.Tq {
		dense = append(dense, a.Out[i*a.OutStride:][:w]...)
		if i < a.Tq-1 && a.OutStride > w && a.Out[i*a.OutStride+w] != canary {
			t.Errorf("row %d: written past its end", i)
		}
	}
	checkWorst(t, "out", dense, out, tol)
	if n := (a.Tq-1)*a.OutStride + w; a.Out[n] != canary {
		t.Error("written past the end of out")
	}
	checkWorst(t, "probs", AttentionProbs(nil, a), probs, 1e-7)
	if a.RowTap == nil {
		return
	}
	queries := len(a.RowTapQueries)
	row, col, peak := make([]float64, a.Heads*queries*a.Tk), make([]float64, a.Heads*a.Tk),
		make([]float64, a.Tq*a.Tk)
	for h := range a.Heads {
		for i := range a.Tq {
			k := slices.Index(a.RowTapQueries, int32(i))
			for j, p := range probs[(h*a.Tq+i)*a.Tk:][:a.Tk] {
				col[h*a.Tk+j] += p
				peak[i*a.Tk+j] = max(peak[i*a.Tk+j], p)
				if k >= 0 {
					row[(h*queries+k)*a.Tk+j] = p
				}
			}
		}
	}
	checkWorst(t, "row tap", a.RowTap, row, taps)
	if a.RowTap[len(row)] != canary {
		t.Error("written past the end of the row tap")
	}
	if a.MaxTap != nil {
		checkWorst(t, "max tap", a.MaxTap, peak, taps)
		if a.MaxTap[len(peak)] != canary {
			t.Error("written past the end of the max tap")
		}
		return
	}
	checkWorst(t, "column tap", a.ColTap, col, 2*taps)
	if a.ColTap[len(col)] != canary {
		t.Error("written past the end of the column tap")
	}
}

// TestAttendGolden compares with an independent float64 implementation: rotated queries and keys,
// merged tokens with sizes and original positions, causal by row order except when decoding.
func TestAttendGolden(t *testing.T) {
	type tensor struct {
		Shape []int
		Data  []float32
	}
	var cases map[string]map[string]tensor
	golden.JSON(t, "testdata/attention.json", &cases)
	// rows turns [heads, n, dim] into [n, heads*dim].
	rows := func(x tensor) []float32 {
		h, n, d := x.Shape[0], x.Shape[1], x.Shape[2]
		y := make([]float32, len(x.Data))
		for i := range x.Data {
			y[(i/d%n*h+i/d/n)*d+i%d] = x.Data[i]
		}
		return y
	}
	wide := func(x []float32) []float64 {
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = float64(v)
		}
		return y
	}
	forEachImpl(t, func(t *testing.T) {
		for name, g := range cases {
			q, k := g["q_rot"], g["k_rot"]
			a := &Attention{
				Heads: q.Shape[0], KVHeads: k.Shape[0], HeadDim: q.Shape[2], Tq: q.Shape[1],
				Tk:    k.Shape[1],
				Scale: float32(1 / math.Sqrt(float64(q.Shape[2]))), Causal: true,
				Q: rows(q), K: rows(k), V: rows(g["v"]), Out: make([]float32, len(q.Data))}
			Attend(nil, a)
			checkWorst(t, name+" without bias", a.Out, wide(rows(g["out_without_bias"])),
				attnGoldenTol)
			bias := g["bias"].Data
			a.Bias = &Bias{Row: func(dst []float32, q, k0 int) { copy(dst, bias[q*a.Tk+k0:]) }}
			Attend(nil, a)
			checkWorst(t, name, a.Out, wide(rows(g["out"])), attnGoldenTol)
			if probs, ok := g["probs"]; ok {
				got := AttentionProbs(nil, a)
				checkWorst(t, name+" probs", got, wide(probs.Data), attnGoldenTol)
			}
		}
	})
}

// TestAttendExtremes: keys far below the maximum count as zero, a bias of -Inf hides a key, a NaN
// affects only its own head and query.
func TestAttendExtremes(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(3))
		for _, tq := range []int{1, 40} {
			a := attnCase{heads: 2, kvHeads: 2, dim: 32, tq: tq, tk: 1100, pad: 0}.make(r)
			for i := range a.Q {
				a.Q[i] *= 1e4
			}
			out, _ := attendRef(a)
			Attend(nil, a)
			// scores of 1e5 carry errors of 1e-2
			checkWorst(t, "peaked", a.Out[:len(out)], out, 0.1)
			hidden := float32(math.Inf(-1))
			a = attnCase{heads: 2, kvHeads: 2, dim: 32, tq: tq, tk: 1100, pad: 0}.make(r)
			a.Bias = &Bias{Row: func(dst []float32, q, k0 int) {
				for i := range dst {
					dst[i] = hidden
					if k0+i >= 900 {
						dst[i] = 0
					}
				}
			}}
			out, _ = attendRef(a)
			Attend(nil, a)
			checkWorst(t, "hidden", a.Out[:len(out)], out, attnTol)
			a.Q[0] = float32(math.NaN())
			Attend(nil, a)
			for i, v := range a.Out[:len(out)] {
				if bad := i < a.HeadDim; bad != (v != v) {
					t.Fatalf("element %d is %g with a NaN in the first head of the first query", i,
						v)
				}
			}
		}
	})
}

func TestAttendPanics(t *testing.T) {
	base := attnCase{heads: 2, kvHeads: 1, dim: 4, tq: 3, tk: 5, bias: "both", taps: true}
	for name, change := range map[string]func(a *Attention){
		"heads":    func(a *Attention) { a.KVHeads = 3 },
		"short q":  func(a *Attention) { a.Q = a.Q[:10] },
		"stride":   func(a *Attention) { a.KStride = 3 },
		"table":    func(a *Attention) { a.Bias.Table = a.Bias.Table[:1] },
		"sizes":    func(a *Attention) { a.Bias.LogSize = a.Bias.LogSize[:4] },
		"row tap":  func(a *Attention) { a.RowTapQueries = []int32{0, 3} },
		"rows":     func(a *Attention) { a.RowTapQueries = []int32{1, 1} },
		"max tap":  func(a *Attention) { a.ColTap, a.MaxTap = nil, make([]float32, 14) },
		"two taps": func(a *Attention) { a.MaxTap = make([]float32, 15) },
		"col tap":  func(a *Attention) { a.ColTap = a.ColTap[:9] },
		"segments": func(a *Attention) { a.Segments = []int32{0, 3} },
		"causal":   func(a *Attention) { a.Causal, a.Tk = true, 2 },
		"window":   func(a *Attention) { a.Window = 1 },
		"ends":     func(a *Attention) { a.Causal, a.Ends = true, []int32{3, 4} },
		"own key":  func(a *Attention) { a.Causal, a.Ends = true, []int32{3, 4, 4} },
		"too far":  func(a *Attention) { a.Causal, a.Ends = true, []int32{3, 6, 6} },
		"descends": func(a *Attention) { a.Causal, a.Ends = true, []int32{5, 4, 5} },
		"open":     func(a *Attention) { a.Ends = []int32{5, 5, 5} },
		"no pages": func(a *Attention) { a.ColTap, a.Pages = nil, []*Page{} },
		"page":     func(a *Attention) { a.ColTap, a.Pages = nil, []*Page{{Floats: make([]float32, 9)}} },
		"written":  func(a *Attention) { a.ColTap, a.Pages = nil, []*Page{{Floats: make([]float32, 512)}} },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			a := base.make(rand.New(rand.NewSource(1)))
			a.Bias.KeyPos[4] = a.Bias.KeyPos[0] + 2
			a.Bias.Table = append(a.Bias.Table, make([]float32, 20)...)
			change(a)
			Attend(nil, a)
		})
	}
}

// TestAttendConcurrent runs several calls at once on one pool.
func TestAttendConcurrent(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	c := attnCase{
		heads: 4, kvHeads: 2, dim: 32, tq: 60, tk: 90, causal: true, bias: "both", taps: true,
	}
	one := c.make(rand.New(rand.NewSource(7)))
	Attend(nil, one)
	done := make(chan bool)
	for range 6 {
		go func() {
			a := *one
			a.RowTap, a.ColTap = slices.Clone(a.RowTap), slices.Clone(a.ColTap)
			same := true
			for range 5 {
				a.Out = make([]float32, len(one.Out))
				Attend(pool, &a)
				n := a.Tq * a.Heads * a.HeadDim
				same = same && slices.Equal(a.Out[:n], one.Out[:n]) &&
					slices.Equal(a.ColTap, one.ColTap) && slices.Equal(a.RowTap, one.RowTap)
			}
			done <- same
		}()
	}
	for range 6 {
		if !<-done {
			t.Error("a concurrent call gave another result")
		}
	}
}

func TestAttendDecodeDoesNotAllocate(t *testing.T) {
	racetest.SkipAllocs(t)
	pool := NewPool(2)
	defer pool.Close()
	forEachImpl(t, func(t *testing.T) {
		if Implementation() == "go" {
			t.Skip("the reference allocates its score row")
		}
		attendDoesNotAllocate(t, pool)
	})
}

func attendDoesNotAllocate(t *testing.T, pool *Pool) {
	a := attnCase{heads: 8, kvHeads: 4, dim: 64, tq: 1, tk: 700, causal: true,
		bias: "both"}.make(rand.New(rand.NewSource(2)))
	paged(a, false, 64, a.Tk-1)
	step := func() {
		b := *a
		Attend(pool, &b)
	}
	step()
	if n := testing.AllocsPerRun(50, step); n >= 1 {
		t.Errorf("%g allocations a call, want 0", n)
	}
}

func BenchmarkAttend(b *testing.B) {
	pool := NewPool(2)
	defer pool.Close()
	for _, bc := range []struct {
		name string
		attnCase
	}{
		{"clip", attnCase{heads: 16, kvHeads: 16, dim: 64, tq: 577, tk: 577}},
		{"clip/taps", attnCase{heads: 16, kvHeads: 16, dim: 64, tq: 577, tk: 577, taps: true}},
		{"clip/rounded", attnCase{heads: 16, kvHeads: 16, dim: 64, tq: 577, tk: 577}},
		{"qwen/rounded", attnCase{heads: 16, kvHeads: 16, dim: 64, tq: 4096, tk: 4096}},
		{"siglip/rounded", attnCase{heads: 16, kvHeads: 16, dim: 72, tq: 4096, tk: 4096}},
		{"qwen/words", attnCase{heads: 16, kvHeads: 16, dim: 64, tq: 4096, tk: 4096}},
		{"llama", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true}},
		{"llama/bias", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true, bias: "both"}},
		{"llama/rows", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true}},
		{"llama/peaks", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true}},
		{"llama/bias/peaks", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true, bias: "both"}},
		{"llama124", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true}},
		{"llama124/bias", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true, bias: "both"}},
		{"llama/pages", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true}},
		{"llama/bias/pages", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true, bias: "both"}},
		{"llama124/pages", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true}},
		{"llama124/bias/pages", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true, bias: "both"}},
		{"later/pages", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 24, tk: 660, causal: true}},
		{"llama/pages/rounded", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true}},
		{"llama/bias/pages/rounded", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 636, tk: 636, causal: true, bias: "both"}},
		{"llama124/pages/rounded", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true}},
		{"llama124/bias/pages/rounded", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 124, tk: 124, causal: true, bias: "both"}},
		{"later/pages/rounded", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 24, tk: 660, causal: true}},
		{"long/pages", attnCase{heads: 14, kvHeads: 2, dim: 64, tq: 4096, tk: 4096, causal: true}},
		{"long/pages/rounded", attnCase{heads: 14, kvHeads: 2, dim: 64, tq: 4096, tk: 4096, causal: true}},
		{"decode", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 1, tk: 700, causal: true}},
		{"decode/bias", attnCase{heads: 32, kvHeads: 32, dim: 128, tq: 1, tk: 700, causal: true, bias: "both"}},
	} {
		a := bc.make(rand.New(rand.NewSource(1)))
		if a.Tq == 1 || strings.Contains(bc.name, "/pages") {
			paged(a, true, a.Tk, a.Tk)
		}
		switch {
		case strings.HasSuffix(bc.name, "/pages/rounded"):
			a.Rounding = RoundPairs
		case strings.HasSuffix(bc.name, "/rounded"):
			a.Rounding = RoundBytes
		case strings.HasSuffix(bc.name, "/words"):
			a.Rounding = RoundWords
		// what methods inside the decoder read
		case strings.HasSuffix(bc.name, "/rows"):
			for i := range int32(30) {
				a.RowTapQueries = append(a.RowTapQueries, int32(a.Tq)-30+i)
			}
			a.RowTap = make([]float32, a.Heads*30*a.Tk)
		case strings.HasSuffix(bc.name, "/peaks"):
			a.MaxTap = make([]float32, a.Tq*a.Tk)
		}
		pairs := 0
		for i := range a.Tq {
			if a.Causal {
				pairs += i + 1 + a.Tk - a.Tq
			} else {
				pairs += a.Tk
			}
		}
		for _, p := range []*Pool{nil, pool} {
			b.Run(fmt.Sprintf("%s/%dT", bc.name, p.Threads()), func(b *testing.B) {
				for b.Loop() {
					Attend(p, a)
				}
				b.ReportMetric(4*float64(pairs*a.Heads*a.HeadDim)*float64(
					b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// BenchmarkAttendSteps reports how fast one query reads keys and values that are in no cache.
func BenchmarkAttendSteps(b *testing.B) {
	pool := NewPool(2)
	defer pool.Close()
	var memory Memory
	defer memory.Free()
	for _, heads := range [][2]int{{32, 32}, {16, 8}, {28, 4}} {
		for _, keys := range []int{60, 150, 640, 7400} {
			r := rand.New(rand.NewSource(1))
			bytes := 4 * heads[1] * 128 * keys // of keys and values in float16
			var steps []*Attention
			for len(steps)*bytes < 150<<20 {
				a := attnCase{
					heads: heads[0], kvHeads: heads[1], dim: 128, tq: 1, tk: keys, causal: true,
				}.make(r)
				paged(a, true, a.Tk, a.Tk-1)
				for _, g := range a.Pages {
					halves := g.Halves
					*g = NewPage(&memory, a.KVHeads, a.HeadDim, true)
					copy(g.Halves, halves)
				}
				steps = append(steps, a)
			}
			b.Run(fmt.Sprintf("heads=%d/%d/keys=%d", heads[0], heads[1], keys), func(b *testing.B) {
				for b.Loop() {
					for _, a := range steps {
						Attend(pool, a)
					}
				}
				read := float64(len(steps)*bytes) * float64(b.N)
				b.ReportMetric(read/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}

// paged puts the first rows keys and values of a into pages, in pieces of the given number of rows,
// and leaves it the others; if half is set, rounded to float16. It returns all. The rest of the
// pages is NaN, which must not enter any sum.
func paged(a *Attention, half bool, piece, rows int) (k, v []float32) {
	size, w := PageSize(a.KVHeads, a.HeadDim), a.KVHeads*a.HeadDim
	for range (a.Tk + PageKeys - 1) / PageKeys {
		g := new(Page)
		if half {
			g.Halves = slices.Repeat([]uint16{0x7e00}, size)
		} else {
			g.Floats = slices.Repeat([]float32{float32(math.NaN())}, size)
		}
		a.Pages = append(a.Pages, g)
	}
	pool := NewPool(2)
	defer pool.Close()
	for j := range a.Tk {
		k, v = append(k, a.K[j*a.KStride:][:w]...), append(v, a.V[j*a.VStride:][:w]...)
	}
	if half {
		for _, x := range [][]float32{k, v} {
			bits := make([]uint16, len(x))
			NarrowHalf(bits, x)
			WidenHalf(x, bits)
		}
	}
	for lo := 0; lo < rows; lo += piece {
		hi := min(lo+piece, rows)
		WritePages(pool, a.Pages, lo, k[lo*w:hi*w], v[lo*w:hi*w], hi-lo, a.KVHeads, a.HeadDim)
	}
	a.K, a.V, a.KStride, a.VStride = nil, nil, 0, 0
	if rows < a.Tk {
		a.K, a.V = k[rows*w:], v[rows*w:]
	}
	return k, v
}

// TestAttendPages: keys and values in pages of both types, written in any pieces, give the same
// result as in one slice, also with windows, and if the queries' own are written meanwhile.
func TestAttendPages(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	var cases []attnCase
	for i, c := range attnCases() {
		if c.segments = nil; i < 20 || i%4 == 0 {
			cases = append(cases, c)
		}
	}
	cases = append(cases,
		attnCase{4, 2, 72, 1, 300, true, nil, "both", false, 0, false},
		attnCase{2, 2, 8, 3, 19, true, nil, "", false, 5, false},
		attnCase{2, 1, 128, 1, 5, true, nil, "size", false, 0, false},
		attnCase{2, 1, 64, 3, 1500, true, nil, "both", false, 0, false},
		attnCase{3, 1, 64, 7, 1500, true, nil, "table", false, 0, false})
	for group := 3; group < 10; group++ { // queries that share keys: some sums at once
		cases = append(cases,
			attnCase{2 * group, 2, 20 + 9*group, 1, 60 * group, true, nil, "size", false, 0, false})
	}
	refs := references{}
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(11))
		for i, c := range cases {
			if c.taps {
				c.peaks = true
			}
			windows := []int{0, 0}
			if c.causal {
				windows = append(windows, 1+r.Intn(c.tk+3))
			}
			for j, window := range windows {
				a, half := c.make(r), (i+j)%2 == 0
				if a.Window = window; c.taps && i%2 == 0 {
					a.MaxTap = nil
				}
				rows := a.Tk
				if c.causal && j != 1 {
					rows -= a.Tq
				}
				k, v := paged(a, half, []int{c.tk, 1, 7, 33, 64, 100}[r.Intn(6)], rows)
				all, w := *a, c.kvHeads*c.dim
				all.K, all.V, all.KStride, all.VStride = k, v, w, w
				out, probs := refs.of(fmt.Sprint(i, j), &all)
				Attend(pool, a)
				t.Run(fmt.Sprintf("%v/half=%v/window=%d/rows=%d", c, half, window, rows),
					func(t *testing.T) {
						checkPaged(t, a, out, probs)
						checkPairs(t, a, &all)
						for values, want := range map[bool][]float32{false: k, true: v} {
							got := make([]float32, len(want))
							ReadPages(got, a.Pages, 0, a.Tk, a.KVHeads, a.HeadDim, values)
							if !slices.Equal(got, want) {
								t.Errorf("values %v: the pages differ", values)
							}
						}
					})
			}
		}
	})
}

// TestAttendEach: calls together give the bits of each alone, whatever the number of threads, and
// write the same keys and values. One has too many queries to share a loop, one has a tap.
func TestAttendEach(t *testing.T) {
	pool := NewPool(3)
	defer pool.Close()
	calls := func() (calls []Attention) {
		r := rand.New(rand.NewSource(1))
		for i, keys := range []int{150, 1, 64, 65, 1300, 7, 9, 700, 5} {
			c := attnCase{heads: 6, kvHeads: 2, dim: 20, tq: 1, tk: keys, causal: true}
			switch {
			case i%3 == 0:
				c.bias = "both"
			case i == 4:
				c.tq = 3
			case i == 7:
				c.tq = 9
			}
			a := c.make(r)
			paged(a, true, a.Tk, a.Tk-c.tq)
			if i == 2 {
				a.RowTap, a.RowTapQueries = slices.Repeat([]float32{-1}, 6*keys), []int32{0}
			}
			calls = append(calls, *a)
		}
		return calls
	}
	forEachImpl(t, func(t *testing.T) {
		want := calls()
		for i := range want {
			Attend(nil, &want[i])
		}
		for name, p := range map[string]*Pool{"serial": nil, "3 threads": pool} {
			got := calls()
			AttendEach(p, got)
			for i, a := range got {
				if !slices.Equal(a.Out, want[i].Out) || !slices.Equal(a.RowTap, want[i].RowTap) {
					t.Errorf("%s: call %d differs from the same alone", name, i)
				}
				for g := range a.Pages {
					if !slices.Equal(a.Pages[g].Halves, want[i].Pages[g].Halves) {
						t.Errorf("%s: page %d of call %d differs", name, g, i)
					}
				}
			}
		}
	})
}

// checkPairs checks a, whose keys and values are in pages and also in all, with rounded products,
// if there are as many queries as a prompt has.
func checkPairs(t *testing.T, a, all *Attention) {
	if on := computing(); !on.bf16 || a.HeadDim%2 != 0 || a.Tq <= 3 {
		return
	}
	t.Helper()
	rounded, plain := *a, slices.Clone(a.Out)
	rounded.K, rounded.V, rounded.Rounding = nil, nil, RoundPairs
	Attend(nil, &rounded)
	if slices.Equal(plain, rounded.Out) && a.Tk > 1 {
		t.Error("not rounded")
	}
	b, tol := pairsReference(all)
	b.Pages, b.Out = nil, rounded.Out
	if b.MaxTap == nil { // checkAttention expects one tap of columns
		b.RowTap = nil
	}
	out, probs := attendRef(&b)
	checkAttention(t, &b, out, probs, tol, attnTol)
	copy(a.Out, plain)
}

// ends returns where the queries of a causal call end to see if some rows see each other, too.
func (c attnCase) ends(r *rand.Rand) []int32 {
	out := make([]int32, c.tq)
	end := 0 // of the block of rows
	for i := range out {
		if own := c.tk - c.tq + i; own >= end {
			if end = own + 1; r.Intn(3) == 0 {
				end = min(c.tk, end+r.Intn(c.tq))
			}
		}
		out[i] = int32(end)
	}
	return out
}

// Ensure that queries see the keys before their ends and in their windows, of one slice and of
// pages, to which some are written.
func TestAttendEnds(t *testing.T) {
	pool := NewPool(2)
	defer pool.Close()
	cases := []attnCase{
		{2, 1, 256, 60, 1300, true, nil, "", false, 0, false},
		{2, 1, 64, 3, 1500, true, nil, "both", false, 0, false},
		{4, 2, 72, 2, 300, true, nil, "", false, 0, false},
	}
	for i, c := range attnCases() {
		if c.segments == nil && i%4 == 3 {
			c.causal = true
			cases = append(cases, c)
		}
	}
	refs := references{}
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(13))
		for i, c := range cases {
			a, window := c.make(r), max(0, r.Intn(2*c.tk)-c.tk/2)
			a.Ends, a.Window = c.ends(r), window
			out, probs := refs.of(fmt.Sprint(i), a)
			Attend(pool, a)
			t.Run(fmt.Sprintf("%v/window=%d", c, window), func(t *testing.T) {
				checkAttention(t, a, out, probs, attnTol, attnTol)
			})
			p := *a
			p.ColTap, p.Out = nil, slices.Clone(a.Out)
			k, v := paged(&p, i%2 == 0, 33, (p.Tk-p.Tq)*(i%3/2)+p.Tk*(1-i%3/2))
			all, w := p, c.kvHeads*c.dim
			all.K, all.V, all.KStride, all.VStride, all.Pages = k, v, w, w, nil
			out, probs = refs.of(fmt.Sprint(i, " pages"), &all)
			Attend(pool, &p)
			t.Run(fmt.Sprintf("%v/window=%d/pages", c, window), func(t *testing.T) {
				checkPaged(t, &p, out, probs)
			})
		}
	})
}

// checkPaged is checkAttention for calls that may lack a tap.
func checkPaged(t *testing.T, a *Attention, out, probs []float64) {
	t.Helper()
	if a.RowTap != nil && a.MaxTap == nil {
		a.MaxTap = make([]float32, a.Tq*a.Tk+1)
		a.MaxTap[a.Tq*a.Tk] = canary
		for h := range a.Heads {
			for i := range a.Tq * a.Tk {
				a.MaxTap[i] = max(a.MaxTap[i], float32(probs[h*a.Tq*a.Tk+i]))
			}
		}
	}
	checkAttention(t, a, out, probs, attnTol, attnTol)
}

// Ensure that keys and values written to pages are read back, from any key on.
func TestReadPages(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(4))
		for _, half := range []bool{false, true} {
			for range 20 {
				c := attnCase{heads: 3, kvHeads: 3, dim: 1 + r.Intn(40), tq: 1, tk: 1 + r.Intn(200)}
				a := c.make(r)
				k, v := paged(a, half, 1+r.Intn(80), a.Tk)
				from, w := r.Intn(c.tk), c.kvHeads*c.dim
				for values, want := range map[bool][]float32{false: k, true: v} {
					got := make([]float32, (c.tk-from)*w)
					ReadPages(got, a.Pages, from, c.tk, c.kvHeads, c.dim, values)
					if !slices.Equal(got, want[from*w:c.tk*w]) {
						t.Errorf("%v from %d, half %v, values %v: differ", c, from, half, values)
					}
				}
			}
		}
	})
}

func TestNarrowHalf(t *testing.T) {
	forEachImpl(t, func(t *testing.T) {
		r := rand.New(rand.NewSource(12))
		for n := range 201 {
			x := make([]float32, n)
			for i := range x {
				switch r.Intn(8) {
				case 0:
					x[i] = float32(math.Ldexp(r.Float64()-0.5, -14-r.Intn(14)))
				case 1:
					x[i] = []float32{
						0, 65504, 65519, 65520, -65536, 1 + 0x1p-11, 1 + 0x3p-11, 0x1p-25, float32(math.Inf(-1)), float32(math.NaN()),
					}[r.Intn(10)]
				default:
					x[i] = float32(r.NormFloat64())
				}
			}
			dst := slices.Repeat([]uint16{0x1234}, n+1)
			NarrowHalf(dst, x)
			wide := make([]float32, n)
			WidenHalf(wide, dst[:n])
			for i, v := range x {
				exact := float64(v)
				_, exp := math.Frexp(exact)
				ulp := math.Ldexp(1, max(exp-1, -14)-10)
				want := math.RoundToEven(exact/ulp) * ulp
				if math.Abs(want) > 65504 {
					want = math.Copysign(math.Inf(1), want)
				}
				if got := float64(Half(dst[i])); got != want && (got == got || want == want) {
					t.Fatalf("%d of %d: %v is %v (%#04x), want %v", i, n, v, got, dst[i], want)
				}
				if w := Half(dst[i]); w != wide[i] && w == w {
					t.Fatalf("%d of %d: %#04x widens to %v, want %v", i, n, dst[i], wide[i], w)
				}
			}
			if dst[n] != 0x1234 {
				t.Fatalf("%d: written past the end", n)
			}
		}
	})
}
