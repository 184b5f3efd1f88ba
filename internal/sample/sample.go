// Package sample turns a row of logits into the next token.
//
// With temperature 0 the choice is greedy: the largest logit, the lowest index among equals. With a
// temperature above 0 the candidates are filtered in llama.cpp's order, top-k, then top-p, then
// min-p, by the probabilities before the temperature. One of the remaining ones is drawn from
// softmax(logits/temperature). The draw depends only on the seed and the logits, so a run can be
// repeated.
package sample

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/restore-vlm/restore/errs"
)

// Options says how to choose. Its zero value is greedy.
type Options struct {
	Temp float64 // temperature, 0 = greedy; the fields up to Seed then have no effect
	TopK int     // keep the k likeliest, 0 = all
	// keep the fewest likeliest tokens whose probabilities sum to at least p, in (0, 1]; 0 or 1 =
	// all
	TopP float64
	// keep tokens with at least this share of the likeliest one's probability, in [0, 1]; 0 = all
	MinP float64
	Seed int64
	// Penalties come first, with any temperature.
	Penalties
}

// check names the first field out of its range. The negated comparisons refuse NaN.
func (o Options) check() error {
	switch {
	case !(o.Temp >= 0) || math.IsInf(o.Temp, 0):
		return refused("temp", o.Temp, "0 (greedy) or a finite positive number")
	case o.TopK < 0:
		return refused("top-k", o.TopK, "0 (all) or more")
	case !(o.TopP >= 0 && o.TopP <= 1):
		return refused("top-p", o.TopP, "a number from 0 to 1 (1 keeps all)")
	case !(o.MinP >= 0 && o.MinP <= 1):
		return refused("min-p", o.MinP, "a number from 0 to 1 (0 keeps all)")
	}
	return o.Penalties.check()
}

func refused(name string, got any, want string) error {
	return fmt.Errorf("sample: %w",
		&errs.OptionError{Name: name, Got: fmt.Sprint(got), Want: want})
}

// candidate is a remaining token; p is its unnormalised probability, exp(logit - largest).
type candidate struct {
	id    int32
	logit float32
	p     float64
}

// before orders candidates from likely to unlikely, the lower index first among equals.
func before(a, b candidate) int {
	if c := cmp.Compare(b.logit, a.logit); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}

// Sampler draws tokens of one sequence. It is not safe for concurrent use.
type Sampler struct {
	o    Options
	rng  *rand.Rand
	cand []candidate

	history  []int32       // of prompt and answer, if repeats count
	counts   map[int32]int // of the answer
	adjusted []float32
	masked   []float32
}

// New checks o and returns a sampler seeded with o.Seed.
func New(o Options) (*Sampler, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Sampler{o: o, rng: rand.New(rand.NewPCG(uint64(o.Seed), 0x9e3779b97f4a7c15))}, nil
}

// Next returns the index of the chosen logit, -1 for an empty row. A NaN counts as -Inf. It only
// reads logits. It allocates on the first call and when the row is longer than any before.
func (s *Sampler) Next(logits []float32) int32 {
	return s.next(s.adjust(logits))
}

// next is Next after the penalties.
func (s *Sampler) next(logits []float32) int32 {
	best := argMax(logits)
	if s.o.Temp == 0 || best < 0 || math.IsInf(float64(logits[best]), 0) {
		return best
	}
	c := s.topK(logits)
	c = topP(c, s.o.TopP)
	c = minP(c, s.o.MinP)
	return s.draw(c)
}

// NextOf is Next among the tokens of mask: token i is bit i%64 of word i/64. It returns -1 if mask
// is empty.
func (s *Sampler) NextOf(logits []float32, mask []uint64) int32 {
	if cap(s.masked) < len(logits) {
		s.masked = make([]float32, len(logits))
	}
	m, any := s.masked[:len(logits)], false
	for i, v := range s.adjust(logits) {
		if i/64 < len(mask) && mask[i/64]>>(i%64)&1 == 1 && v == v {
			m[i], any = v, true
		} else {
			m[i] = float32(math.Inf(-1))
		}
	}
	if !any {
		return -1
	}
	return s.next(m)
}

// Finite reports whether no logit is NaN or infinite.
func Finite(logits []float32) bool {
	const exponent = 0xff << 23
	for _, v := range logits {
		if math.Float32bits(v)&exponent == exponent {
			return false
		}
	}
	return true
}

// LogSum is ln of the sum of e^logits: a token's log probability is its logit minus LogSum.
func LogSum(logits []float32) float64 {
	top := float64(logits[argMax(logits)])
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// Top returns the k likeliest tokens, likeliest first, the lower index first among equals.
func Top(logits []float32, k int) []int32 {
	s := Sampler{o: Options{TopK: k}}
	if k == 0 || len(logits) == 0 {
		return nil
	}
	var out []int32
	for _, c := range s.topK(logits) {
		out = append(out, c.id)
	}
	return out
}

// argMax returns the index of the largest value, the lowest among equals; NaN counts as -Inf, and
// -1 means that x is empty.
func argMax(x []float32) int32 {
	if len(x) == 0 {
		return -1
	}
	best, top := 0, math.Inf(-1)
	for i, v := range x {
		if float64(v) > top {
			best, top = i, float64(v)
		}
	}
	return int32(best)
}

// topK returns the k likeliest candidates (all when k is 0), likeliest first, with p filled in.
// While scanning, the kept k form a heap whose root is the least likely, so a row of n logits costs
// O(n log k).
func (s *Sampler) topK(logits []float32) []candidate {
	k := s.o.TopK
	if k == 0 || k > len(logits) {
		k = len(logits)
	}
	if cap(s.cand) < k {
		s.cand = make([]candidate, k)
	}
	h := s.cand[:0]
	for i, v := range logits {
		if v != v {
			v = float32(math.Inf(-1))
		}
		x := candidate{id: int32(i), logit: v}
		switch {
		case len(h) < k:
			h = append(h, x)
			if len(h) == k && k < len(logits) {
				for j := k/2 - 1; j >= 0; j-- {
					sink(h, j)
				}
			}
		case before(x, h[0]) < 0:
			h[0] = x
			sink(h, 0)
		}
	}
	slices.SortFunc(h, before)
	top := float64(h[0].logit)
	for i := range h {
		h[i].p = math.Exp(float64(h[i].logit) - top)
	}
	return h
}

// sink restores the heap below node i, whose parent is never likelier than its children.
func sink(h []candidate, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && before(h[c+1], h[c]) > 0 {
			c++
		}
		if before(h[i], h[c]) > 0 {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// topP cuts sorted candidates after the one with which their share of the sum reaches p; at least
// one stays.
func topP(c []candidate, p float64) []candidate {
	if p == 0 || p == 1 {
		return c
	}
	var sum, run float64
	for _, x := range c {
		sum += x.p
	}
	for i, x := range c {
		if run += x.p; run >= p*sum {
			return c[:i+1]
		}
	}
	return c
}

// minP removes the sorted candidates from the first on whose probability is below p times the
// likeliest one's.
func minP(c []candidate, p float64) []candidate {
	for i, x := range c {
		if x.p < p*c[0].p {
			return c[:i]
		}
	}
	return c
}

// draw picks from softmax(logit/temp) with one number from the generator.
func (s *Sampler) draw(c []candidate) int32 {
	top, sum := float64(c[0].logit), 0.0
	for i := range c {
		c[i].p = math.Exp((float64(c[i].logit) - top) / s.o.Temp)
		sum += c[i].p
	}
	u, run := s.rng.Float64()*sum, 0.0
	for _, x := range c {
		if run += x.p; u < run {
			return x.id
		}
	}
	return c[0].id
}
