package methods

// ToMe: "Token Merging: Your ViT But Faster" (arXiv:2210.09461), in every block of the encoder.

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

var toMeMethod = &method{
	Method: reduce.Method{
		Name:    "tome",
		Title:   "ToMe: the most similar pairs merged in every block of the encoder",
		Summary: "Merges the patches most alike, pair by pair, while the picture is encoded.",
		Paper:   "https://arxiv.org/abs/2210.09461",
		Site:    reduce.InsideEncoder,
		Minimum: "the number of patches after halving them in every block",
		Cost:    "L·N²·Dh (cosines of head-mean keys in each of the L blocks)",
		Notes: reduce.Notes{
			Equations: `
In each block, between attention and MLP, the rows are split into those at even and at odd
places of the current order. Each even row finds the odd row whose key (mean over heads) has the
highest cosine with its own; the r even rows with the highest cosines are merged into theirs, as
means weighted by size. The remaining even rows come first in the new order, then all odd rows.
The class token stays. Attention adds ln(size) to every key's score (proportional attention).

For a budget, the required merges are spread evenly over the blocks up to the one whose output is
the features, larger numbers first (384 merges in 23 blocks: 17 sixteen times, then 16
seven times).`,
			Departures: `
Equal similarities go to the lower index, and rows that join another are added in order of
similarity, where the authors' sort leaves either open. A key of zeros has cosine 0. No source
states a schedule for models that answer questions: the even one is our choice. By default rows
are put into raster order by the lower median of their patches, which is also their position;
compat released returns them in the order of merging, at consecutive positions.

RESTORE keeps no rows and chooses no anchors here, because every row may already be a group: it
only calibrates the decoder's attention for sizes and positions of the groups. A picture in views
divides the budget among them; patches that show only padding take part.`,
			Licence: "ToMe's code is CC-BY-NC 4.0: this is written from the paper and a " +
				"description of the method, without its code.",
		},
	},
	parameters: func() own { return new(toMeParams) },
	ops: func(o *Plan, d Dims) (sum float64) {
		rows := o.N
		for _, r := range o.own.(*toMeParams).merges {
			sum += float64(rows+1) * float64(rows+1) * float64(d.KeyDim)
			rows, _ = toMeLeft(rows, []int{r})
		}
		return sum
	},
	encoder: &encoderMethod{
		place: Between, partners: true, resolve: toMeResolve, begin: toMeBegin, act: toMeAct,
	},
}

// toMeLeft returns how many of n patches the merges leave, and the possible merges: at most half of
// the current patches can merge.
func toMeLeft(n int, merges []int) (left int, capped []int) {
	capped = make([]int, len(merges))
	for i, r := range merges {
		capped[i] = max(0, min(r, n/2))
		n -= capped[i]
	}
	return n, capped
}

// toMeLeast returns the fewest rows that merges in so many blocks leave of n patches.
func toMeLeast(n, blocks int) int {
	for range blocks {
		n -= n / 2
	}
	return n
}

// toMeSchedule spreads the merges that leave n of the patches as evenly as possible over the
// blocks, larger numbers first.
func toMeSchedule(patches, n, blocks int) ([]int, error) {
	if least := toMeLeast(patches, blocks); n < least {
		return nil, refused("n-vis", errs.TooSmall, strconv.Itoa(n),
			fmt.Sprintf("at least %d", least),
			fmt.Sprintf("of a view's %d patches tome merges at most half in each of %d blocks",
				patches, blocks))
	}
	merges := make([]int, blocks)
	if n == patches {
		return merges, nil
	}
	// one more merge in one block leaves one row less at the end, or the same number: every number
	// occurs
	for r := 1; ; r++ {
		for i := range merges {
			merges[i] = r
			if left, capped := toMeLeft(patches, merges); left == n {
				return capped, nil
			}
		}
	}
}

// toMeParams are ToMe's parameters.
type toMeParams struct {
	proportional
	given  merges
	merges []int // by block, up to the features; for a picture in views the first view's
	behind []int // for blocks after the features, for traces
}

// Declare implements own.
func (t *toMeParams) Declare(d *reduce.Declaration) {
	d.Func(reduce.Parameter{
		Name: "tome-r", Kind: reduce.Text, Unit: "R", Default: "solved for the budget",
		Budget: true,
		Want:   "R, R,R,… or R:I with I from -1 to 1, as in 8, 4,4,4,3,0 or 8:-1",
		Help: "merges per block, instead of a budget: a list R,R,…, the same R in all, or R:I " +
			"with I from -1 (falling to 0) to 1 (rising from 0)",
	}, func(v any) (err error) { t.given, err = parseMerges(v.(string)); return err },
		func() any { return t.merges })
	t.declare(d, true, "true")
}

// merges is the number of merges in every block of an encoder.
type merges struct {
	list  []int    // one per block, the rest 0; a single one for all
	slope *float64 // if set, the first of list with a slope: -1 falls to 0, 1 rises from 0
}

// parseMerges reads "4,4,3" (the rest 0), "4" (in all blocks), or "4:-1".
func parseMerges(text string) (m merges, err error) {
	first, slope, ok := strings.Cut(text, ":")
	if ok {
		i, err := strconv.ParseFloat(strings.TrimSpace(slope), 64)
		if err != nil || !(i >= -1 && i <= 1) {
			return m, fmt.Errorf("%q is no inflection from -1 to 1", slope)
		}
		m.slope = &i
	}
	for part := range strings.SplitSeq(first, ",") {
		r, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || r < 0 || r > maxTokens || m.slope != nil && len(m.list) == 1 {
			return m, fmt.Errorf("%q is no number of merges", part)
		}
		m.list = append(m.list, r)
	}
	return m, nil
}

// blocks returns the merges of each of n blocks.
func (m merges) blocks(n int) ([]int, error) {
	out := make([]int, n)
	switch {
	case m.slope != nil:
		r := float64(m.list[0])
		low := math.Trunc(r * (1 - *m.slope))
		step := 0.0
		if n > 1 {
			step = (2*r - 2*low) / float64(n-1)
		}
		for b := range out {
			out[b] = int(low + float64(step*float64(b))) // rounded twice, not fused
		}
	case len(m.list) == 1:
		for b := range out {
			out[b] = m.list[0]
		}
	case len(m.list) > n:
		return nil, fmt.Errorf("%d entries for an encoder of %d blocks", len(m.list), n)
	default:
		copy(out, m.list)
	}
	return out, nil
}

// String formats m for parseMerges.
func (m merges) String() string {
	s := strings.Trim(strings.ReplaceAll(fmt.Sprint(m.list), " ", ","), "[]")
	if m.slope != nil {
		s += ":" + formatFloat(*m.slope)
	}
	return s
}

func toMeResolve(p *Plan, views []int) error {
	t := p.own.(*toMeParams)
	if t.given.list == nil {
		for i, n := range shares(p.NVis, views, 1) {
			if n == views[i] {
				continue
			}
			merges, err := toMeSchedule(views[i], n, p.EncoderBlocks)
			switch {
			case err != nil && len(views) > 1:
				return p.toMeShares(views, i, n)
			case err != nil:
				return err
			case i == 0:
				t.merges = merges
			}
		}
		return nil
	}
	all, err := t.given.blocks(max(p.facts.EncoderDepth, p.EncoderBlocks))
	if err != nil {
		return refused("tome-r", errs.Invalid, t.given.String(), "fewer entries", err.Error())
	}
	t.merges, t.behind, p.NVis = all[:p.EncoderBlocks], all[p.EncoderBlocks:], 0
	for _, n := range views {
		left, capped := toMeLeft(n, t.merges)
		for b, r := range capped {
			if r < t.merges[b] && p.Compat != "released" {
				return refused("tome-r", errs.TooLarge, t.given.String(),
					fmt.Sprintf("at most %d in block %d", r, b),
					fmt.Sprintf("half of the rows that enter it, of a view of %d", n))
			}
		}
		p.NVis += left
	}
	return nil
}

// toMeShares refuses a budget that leaves view i a share of n rows, fewer than it can merge into.
func (p *Plan) toMeShares(views []int, i, n int) error {
	least, few := p.NVis, true
	for few {
		least, few = least+1, false
		for v, share := range shares(least, views, 1) {
			few = few || share < toMeLeast(views[v], p.EncoderBlocks)
		}
	}
	return refused("n-vis", errs.TooSmall, strconv.Itoa(p.NVis), fmt.Sprintf("at least %d", least),
		fmt.Sprintf("a view gets %d of them, and of its %d patches tome merges at most half in "+
			"each of %d blocks", n, views[i], p.EncoderBlocks))
}

// left returns how many of the rows that enter a block remain.
func (t *toMeParams) left(block, rows int) int {
	if block < len(t.merges) {
		rows, _ = toMeLeft(rows, t.merges[block:block+1])
	}
	return rows
}

func toMeBegin(e *Encoding, s *viewRows, patches, n int) (err error) {
	t := e.plan.own.(*toMeParams)
	if left, _ := toMeLeft(patches, t.merges); left == n && t.merges != nil {
		s.merges = slices.Concat(t.merges, t.behind)
		return nil
	}
	s.merges, err = toMeSchedule(patches, n, e.plan.EncoderBlocks)
	return err
}

// count is how many rows a block merges.
func (s *viewRows) count(block int) int {
	if block >= len(s.merges) {
		return 0
	}
	return s.merges[block]
}

func toMeAct(e *Encoding, p *kernel.Pool, block int, views []EncoderView) ([][]nn.Mix, error) {
	var out [][]nn.Mix
	for v, s := range e.views {
		if s.count(block) == 0 {
			continue
		}
		n := len(s.rows)
		metric := headMean(views[v].Keys, n, views[v].Heads, views[v].HeadDim)
		m, err := toMeMatch(p, metric, n, views[v].HeadDim, s.count(block), e.class == 1)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = make([][]nn.Mix, len(e.views))
		}
		out[v] = m.mixes(n)
		s.replace(out[v], nil)
		at := e.at(v, block)
		if e.Trace != nil {
			e.Trace[at+"metric"] = tensor.From([]int{n, views[v].HeadDim}, metric)
		}
		e.ints(at+"src", m.src)
		e.ints(at+"dst", m.dst)
		e.ints(at+"unm", m.unm)
		e.groups(at+"size", at, s.rows, int32(e.class))
	}
	return out, nil
}

// toMeMatching says which even rows merge into which odd ones: src and unm number even rows, dst
// odd ones.
type toMeMatching struct {
	src, dst []int32 // by falling similarity
	// even rows that stay; ascending with a class token, by falling similarity without
	unm []int32
}

// toMeMatch pairs at most r of the rows of metric [n, width]; class says that row 0 is a class
// token, which is never merged.
func toMeMatch(
	p *kernel.Pool, metric []float32, n, width, r int, class bool,
) (*toMeMatching, error) {
	even, odd := (n+1)/2, n/2
	best, value := make([]int32, even), make([]float64, even)
	if odd > 0 {
		c, err := newCosines(p, metric, n, width, "keys")
		if err != nil {
			return nil, err
		}
		p.Run(even, func(a int) {
			row := c.row(int32(2 * a))
			for b := 1; b < odd; b++ {
				if row[2*b+1] > row[2*int(best[a])+1] {
					best[a] = int32(b)
				}
			}
			value[a] = float64(row[2*int(best[a])+1])
		})
	}
	if class {
		value[0] = math.Inf(-1)
	}
	order := topK(value, even)
	r = max(0, min(r, (n-btoi(class))/2))
	m := &toMeMatching{src: order[:r:r], unm: order[r:]}
	for _, a := range m.src {
		m.dst = append(m.dst, best[a])
	}
	if class {
		slices.Sort(m.unm)
	}
	return m, nil
}

// mixes returns the mixes for n rows.
func (m *toMeMatching) mixes(n int) []nn.Mix {
	out := make([]nn.Mix, 0, n-len(m.src))
	for _, a := range m.unm {
		out = append(out, nn.Mix{From: []int32{2 * a}})
	}
	first := len(out)
	for b := range n / 2 {
		out = append(out, nn.Mix{From: []int32{int32(2*b + 1)}})
	}
	for i, a := range m.src {
		d := &out[first+int(m.dst[i])]
		d.From = append(d.From, 2*a)
	}
	return out
}
