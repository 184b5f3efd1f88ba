package nn

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Pos is a token's position on the three rotary axes (time, height, width). Models with one axis
// use the same value for all three. Only merged tokens at mean positions have fractions.
type Pos [3]float64

// At returns the position p on every axis.
func At(p float64) Pos { return Pos{p, p, p} }

// RoPE rotates pairs (j, j + HeadDim/2) by the angle p·θ^(−2j/HeadDim), or less if it is stretched:
// half-split rotation, as LLaMA checkpoints in the Hugging Face layout need.
type RoPE struct {
	HeadDim int
	inv     []float64 // [HeadDim/2]
	axis    []uint8   // [HeadDim/2] axis of Pos that pair j follows
}

// NewRoPE returns the rotation for heads of headDim. sections is how many of the headDim/2 pairs
// follow each axis in turn (M-RoPE); nil means one axis.
func NewRoPE(headDim int, base float64, sections []int) *RoPE {
	r := &RoPE{
		HeadDim: headDim, inv: make([]float64, headDim/2),
		axis: make([]uint8, headDim/2),
	}
	for j := range r.inv {
		r.inv[j] = math.Pow(base, -2*float64(j)/float64(headDim))
	}
	j := 0
	for a, n := range sections {
		for ; n > 0 && j < len(r.axis); n-- {
			r.axis[j] = uint8(a)
			j++
		}
	}
	return r
}

// Stretch slows a rotation for contexts that are longer than in training, as Llama 3.1 does: pairs
// whose wavelength is above Original/Low turn Factor times as slowly, those below Original/High as
// before, and those between in part. Source: Hugging Face transformers 4.49
// _compute_llama3_parameters.
type Stretch struct {
	Factor, Low, High, Original float64
	// Pairs is how many times as slowly each pair turns; nil: by the fields above
	Pairs []float64
}

// Uniform slows all pairs. Source: _compute_linear_scaling_rope_parameters.
func Uniform(factor float64) Stretch {
	return Stretch{Factor: factor, Low: math.Inf(1), High: math.Inf(1), Original: 1}
}

// Each slows every pair by a factor of its own. Source: _compute_longrope_parameters.
func Each(pairs []float64) Stretch { return Stretch{Factor: slices.Max(pairs), Pairs: pairs} }

// YaRN slows pairs by up to factor: fully those that turn less than slow times in original
// positions, not at all those that turn more than fast times, for heads of headDim and a rotation
// of that base. whole rounds the pairs between which this changes outwards. Source: arXiv
// 2309.00071, _compute_yarn_parameters.
func YaRN(factor, fast, slow, original, base float64, headDim int, whole bool) Stretch {
	pair := func(turns float64) float64 { // that turns so many times
		return float64(headDim) * math.Log(original/(turns*2*math.Pi)) / (2 * math.Log(base))
	}
	low, high := pair(fast), pair(slow)
	if whole {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(headDim-1))
	if low == high {
		high += 0.001
	}
	pairs := make([]float64, headDim/2)
	for j := range pairs {
		slowed := min(max((float64(j)-low)/(high-low), 0), 1)
		pairs[j] = 1 / (slowed/factor + 1 - slowed)
	}
	return Each(pairs)
}

// Stretch changes r by s.
func (r *RoPE) Stretch(s Stretch) {
	for j, p := range s.Pairs {
		r.inv[j] /= p
	}
	if s.Pairs != nil {
		return
	}
	for j, f := range r.inv {
		wave := 2 * math.Pi / f
		switch {
		case wave > s.Original/s.Low:
			r.inv[j] = f / s.Factor
		case wave >= s.Original/s.High:
			smooth := (s.Original/wave - s.Low) / (s.High - s.Low)
			r.inv[j] = (1-smooth)*f/s.Factor + smooth*f
		}
	}
}

// NewInterleavedRoPE returns the rotation for heads of headDim whose pairs follow the axes in turn:
// time, height, width, time, … as far as the sections of height and width reach, then time.
// sections is how many pairs follow each axis. Source: Qwen3-VL, Hugging Face transformers 5.23
// Qwen3VLTextRotaryEmbedding.
func NewInterleavedRoPE(headDim int, base float64, sections []int) *RoPE {
	r := NewRoPE(headDim, base, nil)
	for a := 1; a < len(sections); a++ {
		for j := a; j < min(3*sections[a], len(r.axis)); j += 3 {
			r.axis[j] = uint8(a)
		}
	}
	return r
}

// NewAxialRoPE returns the rotation for heads of headDim in a plane. The first half of the pairs
// follows the height axis, the second half the width axis, and each half starts with the fastest
// frequency (θ^(−4j/headDim)).
func NewAxialRoPE(headDim int, base float64) *RoPE {
	r := NewRoPE(headDim, base, nil)
	n := headDim / 4
	for j := range r.inv {
		r.inv[j], r.axis[j] = math.Pow(base, -4*float64(j%n)/float64(headDim)), uint8(1+j/n)
	}
	return r
}

// NewInterlacedRoPE returns the rotation for heads of headDim in a plane, whose frequencies are
// those of one axis in turn: the first half of the pairs follows the height axis with every other
// one from the fastest on, the second half the width axis with those between. Source: Pixtral
// (arXiv 2410.07073, §2.2), Hugging Face transformers 5.24 PixtralVisionRotaryEmbedding.
func NewInterlacedRoPE(headDim int, base float64) *RoPE {
	r := NewAxialRoPE(headDim, base)
	for j := headDim / 4; j < len(r.inv); j++ {
		r.inv[j] *= math.Pow(base, -2/float64(headDim))
	}
	return r
}

// Axes returns the number of axes that the pairs follow.
func (r *RoPE) Axes() int {
	n := 0
	for _, a := range r.axis {
		n = max(n, int(a)+1)
	}
	return n
}

// Angles returns every row's angles [len(pos), HeadDim/2], for traces.
func (r *RoPE) Angles(pos []Pos) []float32 {
	out := make([]float32, 0, len(pos)*len(r.inv))
	for _, p := range pos {
		for j, f := range r.inv {
			out = append(out, float32(p[r.axis[j]]*f))
		}
	}
	return out
}

// AxisTables returns cos and sin of all pairs' angles as if all pairs followed one axis, for each
// of the three: [3, len(pos), HeadDim], with two equal halves. For traces.
func (r *RoPE) AxisTables(pos []Pos) (cos, sin []float32) {
	h := len(r.inv)
	cos, sin = make([]float32, 6*len(pos)*h), make([]float32, 6*len(pos)*h)
	at := 0
	for a := range 3 {
		for _, p := range pos {
			for j, f := range r.inv {
				sn, cs := math.Sincos(p[a] * f)
				cos[at+j], cos[at+h+j] = float32(cs), float32(cs)
				sin[at+j], sin[at+h+j] = float32(sn), float32(sn)
			}
			at += 2 * h
		}
	}
	return cos, sin
}

// Tables writes cos and sin of every row's angles, both [len(pos), HeadDim/2], computed in float64.
func (r *RoPE) Tables(cos, sin []float32, pos []Pos) {
	h := len(r.inv)
	for t, p := range pos {
		c, s := cos[t*h:(t+1)*h], sin[t*h:(t+1)*h]
		for j, f := range r.inv {
			sn, cs := math.Sincos(p[r.axis[j]] * f)
			c[j], s[j] = float32(cs), float32(sn)
		}
	}
}

// Apply rotates heads of x [rows, heads·HeadDim] in place with tables of the same rows.
func (r *RoPE) Apply(p *kernel.Pool, x []float32, rows, heads int, cos, sin []float32) {
	kernel.RoPE(p, x, rows, heads, r.HeadDim, heads*r.HeadDim, cos, sin)
}

// ApplyWithin rotates the first heads heads of every row of x [rows, stride] in place.
func (r *RoPE) ApplyWithin(
	p *kernel.Pool, x []float32, stride, rows, heads int, cos, sin []float32,
) {
	kernel.RoPE(p, x, rows, heads, r.HeadDim, stride, cos, sin)
}
