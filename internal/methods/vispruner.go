package methods

// VisPruner: "Beyond Text-Visual Attention: Exploiting Visual Cues for Effective Token Pruning in
// VLMs" (arXiv:2412.01818).
//
// The order of two similarities decides which tokens are even in the next pass, so a difference in
// the last bit changes the result. A float32 product finds the candidates, and every candidate
// within its error is computed again in float64.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

var visPrunerMethod = &method{
	Method: reduce.Method{
		Name:    "vispruner",
		Title:   "VisPruner: half by attention, half by thinning duplicates",
		Summary: "Keeps what stands out, and of the rest what repeats least.",
		Paper:   "https://arxiv.org/abs/2412.01818",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ClsAttn, reduce.Hidden},
		Minimum: "1 token; under compat released every pass needs a list of even length: with " +
			"576 tokens and ratio 0.5, shares k with k mod 4 of 0 or 1",
		PerView: true,
		Cost:    "N²·Cv (cosines; a pass reads a few neighbours of every remaining token)",
		Notes: reduce.Notes{
			Equations: `
int(k·r) tokens are kept for their class-token attention (mean over heads). The others, by
falling attention, form a list that is thinned in passes: split it into even and odd places,
find for every even token its highest cosine (features before the projector) to any odd one,
drop the 8 most similar even tokens; the new list is the remaining even ones, most similar
first, then the odd ones. Repeat until k tokens remain.`,
			Departures: `
The authors' code cannot thin a list of odd length, unless the pass drops exactly the even half
(there its indexing happens to work): under compat released such a budget is refused. Otherwise
one more token is kept for its attention if the list would be odd (as in a third-party port), and
every pass but the last drops an even number. Where N differs from picture to picture (no class
token, or several views) this holds for every budget. A pass drops at most the even half; the
authors' code fails on more. A row of zeros has cosine 0. Features are float32 where the authors'
are rounded to half precision; without a class token they are those after the projector.`,
		},
	},
	parameters: func() own { return new(visPrunerParams) },
	check:      checkVisPruner, pick: visPruner,
	unit:   4,
	raster: true,
	ops:    func(o *Plan, d Dims) float64 { return float64(o.N) * float64(o.N) * float64(d.Cv) },
}

// visPrunerParams are VisPruner's parameters.
type visPrunerParams struct {
	ratio float64
	step  int
}

// Declare implements own.
func (v *visPrunerParams) Declare(d *reduce.Declaration) {
	v.ratio, v.step = 0.5, 8
	d.Float(&v.ratio, reduce.Parameter{
		Name: "vispruner-ratio", Unit: "share", Least: new(0.), Most: new(1.),
		Help: "share of the kept tokens chosen by attention",
	})
	d.Int(&v.step, reduce.Parameter{
		Name: "vispruner-step", Unit: "N", Least: new(1.), Help: "tokens dropped per pass",
	})
}

// complete refuses a step larger than the first pass can drop: a smaller one gives the same result.
func (v *visPrunerParams) complete(p *Plan, d *reduce.Declaration) error {
	if !d.Given("vispruner-step") || p.NVis == p.N || p.Keep == 0 || p.Compat == "released" {
		return nil
	}
	plans, most := []*Plan{p}, 0
	if len(p.facts.Views) > 1 {
		plans = p.views(p.facts.Views)
	}
	for _, view := range plans {
		evens := view.evens(view.Keep)
		important := visPrunerImportant(view, view.Keep, evens)
		list, diverse := view.N-important, view.Keep-important
		most = max(most, min((list+1)/2, list-diverse))
	}
	if v.step > most {
		return refused("vispruner-step", errs.TooLarge, strconv.Itoa(v.step),
			fmt.Sprintf("at most %d", most), "what the first pass can drop")
	}
	return nil
}

// checkVisPruner refuses a share of k tokens with a pass over a list of odd length.
func checkVisPruner(p *Plan, k int) error {
	evens := p.evens(k)
	list, ok := visPrunerPasses(p, k, evens)
	if ok {
		return nil
	}
	important := visPrunerImportant(p, k, evens)
	return refused("n-vis", errs.Invalid, strconv.Itoa(p.NVis), "even lists in every pass",
		fmt.Sprintf("vispruner: a share of %d of %d tokens, %d by attention, leaves a list of odd "+
			"length %d: change n-vis, gamma, vispruner-ratio or vispruner-step",
			k, p.N, important, list))
}

// evens reports whether a share of k tokens keeps its lists even: if the number of tokens differs
// between pictures, and if the authors' passes would reach an odd list.
func (r *Plan) evens(k int) bool {
	if r.NoClass || r.Compat == "released" {
		return r.NoClass
	}
	_, ok := visPrunerPasses(r, k, false)
	return r.inViews || !ok
}

// visPrunerPasses reports whether all passes to k kept tokens are possible, and the length of the
// first list that cannot be thinned.
func visPrunerPasses(o *Plan, k int, evens bool) (list int, ok bool) {
	important := visPrunerImportant(o, k, evens)
	for list = o.N - important; list > k-important && k > important; {
		drop, ok := visPrunerDrop(o, list, k-important, evens)
		if !ok {
			return list, false
		}
		list -= drop
	}
	return list, true
}

// visPrunerImportant is how many of the k kept tokens are chosen by attention.
func visPrunerImportant(o *Plan, k int, evens bool) int {
	m := int(float64(k) * o.own.(*visPrunerParams).ratio)
	if evens && m < k && (o.N-m)%2 == 1 {
		m++
	}
	return m
}

// visPrunerDrop is how many tokens a pass drops from a list of which diverse will remain, and
// whether the pass is possible.
func visPrunerDrop(o *Plan, list, diverse int, evens bool) (drop int, ok bool) {
	even := (list + 1) / 2
	wanted := min(o.own.(*visPrunerParams).step, list-diverse)
	drop = min(wanted, even)
	if evens && drop < list-diverse {
		drop = max(1, drop&^1)
	}
	return drop, list%2 == 0 || wanted == even
}

func visPruner(w *work, k int) (*selection, error) {
	in, o := w.in, w.o
	a := meanAttention(in)
	order := rank(a)
	evens := o.evens(k)
	important := visPrunerImportant(o, k, evens)
	list := slices.Clone(order[important:])
	var dropped []int32
	if diverse := k - important; diverse > 0 && len(list) > diverse {
		c, err := newCosines(w.pool, in.Hidden[in.Cv:], in.N, in.Cv, "hidden")
		if err != nil {
			return nil, err
		}
		near := newNeighbours(c)
		for len(list) > diverse {
			drop, ok := visPrunerDrop(o, len(list), diverse, evens)
			if !ok {
				return nil, fmt.Errorf("methods: vispruner: list of odd length %d, want "+
					"an even one",
					len(list))
			}
			var even, odd []int32
			for i, t := range list {
				if i%2 == 0 {
					even = append(even, t)
				} else {
					odd = append(odd, t)
				}
			}
			even = bySimilarity(w.pool, near, even, odd)
			dropped = append(dropped, even[:drop]...)
			list = append(slices.Clone(even[drop:]), odd...)
		}
	} else if diverse == 0 {
		list = nil
	}
	sel := &selection{
		kept:   append(slices.Clone(order[:important]), list...),
		scores: map[string][]float32{"attention": float32s(a)},
		indices: map[string][]int32{
			"important": slices.Clone(order[:important]), "diverse": list, "dropped": dropped,
		},
	}
	slices.Sort(sel.kept)
	return sel, nil
}

// neighbours finds the highest cosine of a token to a set that changes from pass to pass, without
// reading the token's whole row each time: it stores the nearest tokens of each, among those that
// remained at its last update.
type neighbours struct {
	cos  *cosines
	near [][]int32 // [n] the nearest tokens, nearest first; nil until needed
	of   []float32 // [n] bound on the cosine of tokens that are not in near
	in   []bool    // [n] whether a token is in the set in this pass
}

// nearestKept is how many neighbours are stored per token. Half of the remaining tokens are in the
// set, so one of the first few is, until most have been dropped: then the list is made again.
const nearestKept = 8

func newNeighbours(c *cosines) *neighbours {
	return &neighbours{
		cos: c, near: make([][]int32, c.n), of: make([]float32, c.n), in: make([]bool, c.n),
	}
}

// top is the highest cosine of token t to any of odd, in float32. even and odd are all remaining
// tokens; in says which are odd.
func (n *neighbours) top(t int32, even, odd []int32) float32 {
	if v, ok := n.first(t); ok {
		return v
	}
	n.renew(t, even, odd)
	if v, ok := n.first(t); ok {
		return v
	}
	row, top := n.cos.row(t), float32(math.Inf(-1))
	for _, j := range odd {
		top = max(top, row[j])
	}
	return top
}

// first is the cosine of token t to the nearest token of the set in its list; ok is false if the
// list has none.
func (n *neighbours) first(t int32) (cosine float32, ok bool) {
	for _, j := range n.near[t] {
		if n.in[j] {
			return n.cos.row(t)[j], true
		}
	}
	return 0, false
}

// renew makes the list of token t from the remaining tokens.
func (n *neighbours) renew(t int32, even, odd []int32) {
	row := n.cos.row(t)
	near, lowest := n.near[t][:0], float32(math.Inf(-1))
	if near == nil {
		near = make([]int32, 0, 2*nearestKept)
	}
	keep := func() {
		slices.SortFunc(near, func(i, j int32) int { return cmp.Compare(row[j], row[i]) })
		if len(near) > nearestKept {
			lowest = row[near[nearestKept]]
			near = near[:nearestKept]
		}
	}
	for _, list := range [2][]int32{even, odd} {
		for _, j := range list {
			if row[j] <= lowest || j == t {
				continue
			}
			if near = append(near, j); len(near) == cap(near) {
				keep()
			}
		}
	}
	keep()
	n.near[t], n.of[t] = near, lowest
}

// highest is the highest cosine of token t to any of odd, exact in float64; top is its float32
// value. Not safe for concurrent use.
func (n *neighbours) highest(t int32, odd []int32, top float32) float64 {
	if n.of[t] >= top-float32Margin {
		return n.cos.highest(t, odd, top)
	}
	row, best := n.cos.row(t), math.Inf(-1)
	for _, j := range n.near[t] {
		if row[j] < top-float32Margin {
			break
		}
		if n.in[j] {
			best = max(best, n.cos.exact(t, j))
		}
	}
	return best
}

// bySimilarity sorts even by falling highest cosine to any of odd, ties in their order. If float32
// cannot tell neighbours in that order apart, float64 decides. even and odd are all remaining
// tokens.
func bySimilarity(p *kernel.Pool, n *neighbours, even, odd []int32) []int32 {
	for _, j := range even {
		n.in[j] = false
	}
	for _, j := range odd {
		n.in[j] = true
	}
	fast := make([]float64, len(even))
	p.Run(len(even), func(i int) { fast[i] = float64(n.top(even[i], even, odd)) })
	order := rank(fast) // indices into even
	for lo := 0; lo < len(order); {
		hi := lo + 1
		for hi < len(order) && fast[order[hi-1]]-fast[order[hi]] <= 2*float32Margin {
			hi++
		}
		if run := order[lo:hi]; len(run) > 1 {
			fine := make(map[int32]float64, len(run))
			for _, i := range run {
				fine[i] = n.highest(even[i], odd, float32(fast[i]))
			}
			slices.SortFunc(run, func(i, j int32) int {
				if d := cmp.Compare(fine[j], fine[i]); d != 0 {
					return d
				}
				return cmp.Compare(i, j)
			})
		}
		lo = hi
	}
	sorted := make([]int32, len(even))
	for i, place := range order {
		sorted[i] = even[place]
	}
	return sorted
}

// patch returns the features before the projector of patch i.
func patch(in *reduce.Input, i int32) []float32 { return in.Hidden[(int(i)+1)*in.Cv:][:in.Cv] }
