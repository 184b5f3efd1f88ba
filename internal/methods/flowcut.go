package methods

// FlowCut: "Rethinking Redundancy via Information Flow for Efficient Vision-Language Models"
// (arXiv:2505.19536), in every second block of the encoder.

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

var flowCutMethod = &method{
	Method: reduce.Method{
		Name: "flowcut",
		Title: "FlowCut: class attention, likeness of values and their size, accumulated " +
			"over the encoder's blocks",
		Summary: "Drops what matters little, step by step, while the picture is encoded.",
		Paper:   "https://arxiv.org/abs/2505.19536",
		Site:    reduce.InsideEncoder,
		Minimum: "1 token",
		Cost: "L·N·C (products of the class token's values with all others in each of " +
			"the L blocks)",
		Notes: reduce.Notes{
			Equations: `
Every block scores the remaining patches: S = (a + b)·d, where a is the class token's
attention and b the softmax of the products of its value vector with all others' (both: mean
over heads, divided by their sum over patches), and d the L1 norm of a patch's value vector
averaged over heads. Scores accumulate by halves: C = S in the first block, then (C + S)/2.

With rho blocks left (0 in the last but one before the features), every block with even rho
removes patches after its MLP: (N - n)/sqrt(rho) · (1 - (H/ln N)²) of them, rounded,
where H is the entropy of a; at rho = 0 all but n. The patches with the highest C stay.`,
			Departures: `
As in the authors' code, the class token takes part in both softmaxes, and products of values are
not scaled. An attention of 0 adds nothing to the entropy, where the code fails. Among equal
scores the lower index stays. By default patches keep their positions; compat released gives
them consecutive ones. Blocks are counted from the one whose output is the features, where the
authors count from the encoder's last block.

A picture in views divides the budget among them; patches that show only padding take part.
Each view removes its own number; compat released removes the largest of these numbers in every
view, as the authors' code does. The authors' second cut, inside the decoder, is not implemented.

Under RESTORE a block that leaves n' rows keeps floor(gamma·n') by C and chooses anchors among
the others from the block's output; a merged row's C is the mean of its rows', weighted by size.
The encoder's attention then adds ln(size) to every key's score, but not with compat, because
nobody published that.`,
			Licence: "FlowCut's code is Apache-2.0.",
		},
	},
	parameters: func() own { return new(flowCutParams) },
	ops: func(o *Plan, d Dims) float64 {
		return float64(max(0, o.EncoderBlocks-1)) * float64(o.N+1) * float64(d.Cv)
	},
	encoder: &encoderMethod{
		place: Behind, raster: true, class: (*Encoding).flowing, act: flowCutAct,
		resolve: func(r *Plan, views []int) error {
			if r.NVis == r.N {
				return nil
			}
			if r.EncoderBlocks < 2 {
				return refused("base", errs.Conflict, r.Base, "another base", fmt.Sprintf(
					"the encoder has %d block up to its features, and the last but one cuts",
					r.EncoderBlocks))
			}
			for i, n := range shares(r.NVis, views, 1) {
				if n < 1 {
					return refused("n-vis", errs.TooSmall, strconv.Itoa(r.NVis),
						fmt.Sprintf("at least %d", len(views)),
						fmt.Sprintf("one a view; view %d would get none", i))
				}
			}
			return nil
		},
	},
}

// flowCutParams are FlowCut's parameters.
type flowCutParams struct{ proportional }

// Declare implements own.
func (f *flowCutParams) Declare(d *reduce.Declaration) {
	f.declare(d, false, "true with RESTORE, false with compat")
}

// complete makes attention proportional only under RESTORE, where rows stand for several patches.
// On the built-in benchmark (716 questions on 60 drawn pictures, n = 64) RESTORE keeps 88.1 of 89.9
// percent with it, 81.6 without.
func (f *flowCutParams) complete(p *Plan, d *reduce.Declaration) error {
	switch given := d.Given(proportionalName); {
	case !p.Restore && given:
		return useless(proportionalName, strconv.FormatBool(f.on),
			"with restore=false (nothing is merged)")
	case !given:
		f.on = p.Restore && p.Compat == ""
	}
	return nil
}

// remaining is the number of blocks before the last cut.
func (e *Encoding) remaining(block int) int { return e.plan.EncoderBlocks - 2 - block }

// flowing reports whether a view still has patches to remove.
func (e *Encoding) flowing(block int) bool {
	for _, s := range e.views {
		if len(s.rows)-e.class > s.target && e.remaining(block) >= 0 {
			return true
		}
	}
	return false
}

func flowCutAct(e *Encoding, p *kernel.Pool, block int, views []EncoderView) ([][]nn.Mix, error) {
	if !e.flowing(block) {
		return nil, nil
	}
	rho := e.remaining(block)
	cut := make([]int, len(views))
	most := 0
	for v, s := range e.views {
		n := len(s.rows) - 1
		if n <= s.target {
			continue
		}
		f := newFlow(p, &views[v], n)
		if s.score == nil {
			s.score = f.score
		} else {
			s.score = slices.Clone(s.score) // a trace may still use it
			for i, x := range f.score {
				s.score[i] = 0.5*s.score[i] + 0.5*x
			}
		}
		for i, x := range s.score {
			if !finite(x) {
				return nil, fmt.Errorf("score of row %d is %v, want finite numbers", i, x)
			}
		}
		at := e.at(v, block)
		e.floats(at+"attention", f.attention)
		e.floats(at+"semantic", f.semantic)
		e.floats(at+"density", f.density)
		e.floats(at+"score", f.score)
		e.floats(at+"cumulative", s.score)
		if rho%2 == 0 {
			cut[v] = flowCutCount(f.attention, s.target, rho)
			most = max(most, cut[v])
		}
	}
	var out [][]nn.Mix
	for v, s := range e.views {
		n, at := len(s.rows)-1, e.at(v, block)
		if e.plan.Compat == "released" && !e.plan.Restore {
			cut[v] = most
		}
		if left := max(n-cut[v], s.target); left < n {
			mixes, err := e.flowCut(p, v, block, &views[v], left)
			if err != nil {
				return nil, err
			}
			if out == nil {
				out = make([][]nn.Mix, len(views))
			}
			out[v] = mixes
			if e.plan.Restore {
				e.groups(at+"sizes", at, s.rows[1:], 0)
			}
		}
		if !e.plan.Restore && e.Trace != nil {
			var alive []int32
			for i := range s.rows[1:] {
				alive = append(alive, s.rows[i+1].Anchor)
			}
			e.ints(at+"alive", alive)
		}
	}
	return out, nil
}

// flowCut returns the mixes for the n+1 rows of a view when left of the patches remain, and updates
// the view's scores.
func (e *Encoding) flowCut(
	p *kernel.Pool, v, block int, view *EncoderView, left int,
) ([]nn.Mix, error) {
	s, o, at := e.views[v], e.plan, e.at(v, block)
	n := len(s.rows) - 1
	keep := left
	if o.Restore {
		keep = int(o.Gamma * float64(left))
	}
	kept := topK(s.score, keep)
	slices.Sort(kept)
	groups := make([][]int32, 0, left) // of patch rows; the first is the one that the others join
	for _, i := range kept {
		groups = append(groups, []int32{i})
	}
	counted := map[int32][]int32{} // by kept row: rows that only add to its size
	if !o.Restore {
		e.ints(at+"keep", kept)
	} else {
		e.ints(at+"kept", kept)
	}
	if o.merges() {
		r := &reduce.StageResult{
			Stage: reduce.Stage{Layer: block, Kept: keep, Merged: left - keep}, Before: n,
			Kept: kept,
		}
		merged, joined, err := chooseGroups(r, *o, p, view.X[view.Width:(n+1)*view.Width],
			view.Width)
		if err != nil {
			return nil, err
		}
		for j, rows := range joined {
			if o.Join == "count" {
				counted[kept[j]] = rows
			} else {
				groups[j] = append(groups[j], rows...)
			}
		}
		groups = append(groups, merged...)
		e.ints(at+"pool", r.Pool)
		e.ints(at+"anchors", r.Anchors)
		e.ints(at+"assign", r.Assign)
		if r.Merit != nil && e.Trace != nil {
			e.floats(at+"represent", widen(r.Density))
			e.floats(at+"anchor_score", widen(r.Merit))
		}
	}
	order := s.byFirst(groups)
	if o.Restore {
		e.ints(at+"order", order)
	}
	return s.join(groups, order, counted), nil
}

// byFirst returns groups of patch rows in the order of their first patches.
func (s *viewRows) byFirst(groups [][]int32) []int32 {
	first := make([]int32, len(groups))
	for j, g := range groups {
		first[j] = math.MaxInt32
		for _, i := range g {
			first[j] = min(first[j], s.rows[i+1].Members[0])
		}
	}
	order := iota32(len(groups))
	slices.SortFunc(order, func(a, b int32) int { return int(first[a]) - int(first[b]) })
	return order
}

// join makes a row of each group, in the given order and after the class token's, and returns how.
// A group's score is the mean over its patches. counted lists rows that only add to a size, by the
// first row of the group that counts them.
func (s *viewRows) join(groups [][]int32, order []int32, counted map[int32][]int32) []nn.Mix {
	mixes := []nn.Mix{{From: []int32{0}}}
	score, also := make([]float64, len(groups)), make([][]int32, len(groups)+1)
	for k, j := range order {
		for _, i := range counted[groups[j][0]] {
			also[k+1] = append(also[k+1], i+1)
		}
		m, size := nn.Mix{}, 0
		for _, i := range groups[j] {
			m.From = append(m.From, i+1)
			score[k] += float64(s.rows[i+1].Size) * s.score[i]
			size += s.rows[i+1].Size
		}
		score[k] /= float64(size)
		mixes = append(mixes, m)
	}
	s.score = score
	s.replace(mixes, also)
	return mixes
}

// flow holds one block's scores of its patches.
type flow struct{ attention, semantic, density, score []float64 }

// newFlow scores the n patches of a view, whose row 0 is the class token.
func newFlow(p *kernel.Pool, v *EncoderView, n int) *flow {
	f := &flow{attention: make([]float64, n), semantic: make([]float64, n)}
	wide := v.Heads * v.HeadDim
	like := make([]float64, v.Heads*(n+1))
	p.Run(v.Heads, func(h int) {
		row, class := like[h*(n+1):(h+1)*(n+1)], v.Values[h*v.HeadDim:][:v.HeadDim]
		for j := range row {
			row[j] = float64(kernel.Dot(class, v.Values[j*wide+h*v.HeadDim:][:v.HeadDim]))
		}
		softmax64(row)
	})
	for i := range n {
		for h := range v.Heads {
			f.attention[i] += float64(v.Class[h*(n+1)+1+i]) / float64(v.Heads)
			f.semantic[i] += like[h*(n+1)+1+i] / float64(v.Heads)
		}
	}
	f.weigh(headMean(v.Values[wide:], n, v.Heads, v.HeadDim), v.HeadDim)
	return f
}

// weigh computes density and score from the patches' mean values [n, dim].
func (f *flow) weigh(values []float32, dim int) {
	n := len(f.attention)
	f.density, f.score = make([]float64, n), make([]float64, n)
	var sumA, sumB float64
	for i := range n {
		sumA, sumB = sumA+f.attention[i], sumB+f.semantic[i]
	}
	for i := range n {
		for _, x := range values[i*dim:][:dim] {
			f.density[i] += math.Abs(float64(x))
		}
		f.score[i] = (part(f.attention[i], sumA) + part(f.semantic[i], sumB)) * f.density[i]
	}
}

// part is x as a share of sum, 0 if sum is 0.
func part(x, sum float64) float64 {
	if sum == 0 {
		return 0
	}
	return x / sum
}

// flowCutCount is how many of the patches, whose attention is a, are removed, when target will
// remain at the end and rho blocks are left.
func flowCutCount(a []float64, target, rho int) int {
	n := len(a)
	if rho == 0 || n < 2 {
		return n - target
	}
	sum, entropy := 0.0, 0.0
	for _, x := range a {
		sum += x
	}
	if sum == 0 {
		return 0
	}
	for _, x := range a {
		if x > 0 {
			entropy -= x / sum * math.Log(x/sum)
		}
	}
	ratio := entropy / math.Log(float64(n))
	return max(0, int(math.RoundToEven(float64(n-target)/math.Sqrt(float64(rho))*(1-ratio*ratio))))
}

// softmax64 turns scores into probabilities in place.
func softmax64(v []float64) {
	top, sum := slices.Max(v), 0.0
	for i, x := range v {
		v[i] = math.Exp(x - top)
		sum += v[i]
	}
	for i := range v {
		v[i] /= sum
	}
}
