package methods

// SparseVLM: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference"
// (arXiv:2410.04417).

import (
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const (
	sparseRecycled = 0.3 // share of the rows not kept
	sparseCluster  = 10  // recycled rows per cluster
	// raterMargin is the tolerance for float32 sums of a few hundred probabilities: rows that close
	// to the mean do not count as above it.
	raterMargin = 1e-6
)

// sparseLayers are the stages in 32 layers; sparseKept the rows of 576 that the authors keep at
// each for a budget, in addition to recycled ones.
var (
	sparseLayers = []int{2, 6, 15}
	sparseKept   = []struct {
		budget int
		kept   [3]int
	}{
		{192, [3]int{300, 200, 110}}, {128, [3]int{303, 110, 36}}, {96, [3]int{238, 48, 26}},
		{64, [3]int{66, 30, 17}},
	}
)

const (
	sparseOf       = 576 // tokens that sparseKept is for
	sparseOfLayers = 32
)

var sparseVLMMethod = &method{
	Method: reduce.Method{
		Name:    "sparsevlm",
		Title:   "SparseVLM: attention of text that resembles the picture, with recycling",
		Summary: "Drops in a few steps what matters least to the words of the question.",
		Paper:   "https://arxiv.org/abs/2410.04417",
		Site:    reduce.InsideDecoder,
		Minimum: "1 token, and 2 rows entering each stage",
		Text:    true,
		Cost: "N·T·C for T rows of text (raters), and at a stage that drops u rows " +
			"0.045·u²·C (clusters)",
		Notes: reduce.Notes{
			Equations: `
Raters are the rows of text after the picture that resemble it: with Z the picture's embeddings
and E the text's, g is the mean over the picture's rows of softmax(Z·Eᵀ) taken over the text,
and the rows with g above the mean are the raters for all stages.

On the output of each stage's layer the k rows remain to which the raters attended most in that
layer, averaged over heads and raters. Of the u others the q = floor(0.3u)+1 with most attention
are recycled: they form c = floor(q/10)+1 clusters, whose plain means follow the kept rows. A
row's density is exp(-mean of the squares of its c smallest distances to recycled rows, including
itself), where a distance is |x-y|/sqrt(C); its separation is the distance to the nearest denser
row, or the largest distance of all. The c rows of highest density times separation are centres,
and the others join the nearest centre.

Stages are layers 2, 6, 15. n-vis 192, 128, 96 and 64 of 576 tokens in 32 layers are the
authors' lists of k: 300/200/110, 303/110/36, 238/48/26, 66/30/17. Their mean, with clusters,
over layer outputs is 192.0, 128.6, 96.9, 64.8; over layer inputs 206.5, 145.4, 114.1, 82.3. For
any other budget, depth or number of tokens k is interpolated between these lists, as shares of
the tokens, so that the mean over layer inputs is n-vis, and stages are at the same relative
depth. In a schedule "layer:k" counts the kept rows; clusters are additional.

With RESTORE a stage also leaves k + c rows, but anchors replace the recycling.`,
			Departures: `
As in the authors' code (version 1): three stages, raters from embeddings, fixed k, recycling. The
first release's rule that k follows the rank of the attention, and version 2, are not
implemented. No noise is added to densities: ties go to the lower index. If no row is above the
mean, all rows of text are raters (the authors' code yields NaN). Without text after the picture
the last row is the rater. A stage that would keep more rows than enter it is an error. The
authors renumber positions at each stage, with clusters before the text (compat released, or
positions sequential); by default positions stay, and a cluster is at its members' lower median.`,
		},
	},
	parameters: func() own { return new(sparseVLMParams) },
	ops: func(o *Plan, d Dims) float64 {
		text, c, rows := float64(d.Text), float64(d.C), o.N
		sum := float64(o.N) * text * c
		for _, s := range o.Stages {
			sum += text * (float64(rows) + text) * c // the raters' attention
			if !o.Restore {
				q, _ := recycling(rows - s.Kept)
				sum += float64(q) * float64(q) / 2 * c
			}
			rows = s.Rows()
		}
		return sum
	},
	inside: &insideMethod{
		after: 1, sequential: true, begin: beginSparse, looks: ratersLook, score: scoreSparse,
		extra: recycle, plan: planSparse,
		share: func(n int, share float64) int { return int(math.RoundToEven(float64(n) * share)) },
		merge: func(before int, s reduce.Stage) (reduce.Stage, error) {
			_, s.Merged = recycling(before - s.Kept)
			return s, nil
		},
	},
}

// sparseVLMParams are SparseVLM's parameters.
type sparseVLMParams struct{ layers []int }

// Declare implements own.
func (q *sparseVLMParams) Declare(d *reduce.Declaration) {
	declareLayers(d, &q.layers, 0, reduce.Parameter{
		Name: "sparsevlm-layers", Default: commas(sparseLayers) + " of 32",
		Want: fmt.Sprintf("%d ascending layers from 0 on, as in %s", len(sparseLayers),
			commas(sparseLayers)),
		Help: "layers on whose output the three stages act, without a schedule",
	}, len(sparseLayers))
}

// planSparse interpolates the published lists, as shares of the tokens, from all tokens down to
// one.
func planSparse(p *Plan, budget int) ([]reduce.Stage, error) {
	n, depth, given := p.N, p.facts.Layers, p.own.(*sparseVLMParams).layers
	layers := given
	switch last := -1; {
	case given == nil:
		for _, l := range sparseLayers {
			last = max(last+1, int(math.Round(float64(l)*float64(depth)/sparseOfLayers)))
			layers = append(layers, last)
		}
	case given[len(given)-1] > depth-2:
		return nil, refused("sparsevlm-layers", errs.TooLarge, commas(given),
			fmt.Sprintf("layers from 0 to %d", depth-2),
			fmt.Sprintf("the model has %d layers", depth))
	}
	// at returns the stages for a point on the path; whole numbers are the lists.
	at := func(from, to [3]int, t float64) []reduce.Stage {
		var stages []reduce.Stage
		before := n
		for i, l := range layers {
			share := (float64(from[i])*(1-t) + float64(to[i])*t) / sparseOf
			k := min(max(1, int(math.RoundToEven(share*float64(n)))), before-1)
			if k < 1 || l > depth-2 {
				break
			}
			s := reduce.Stage{Layer: l, Kept: k}
			_, s.Merged = recycling(before - k)
			stages, before = append(stages, s), s.Rows()
		}
		return stages
	}
	if depth == sparseOfLayers && n == sparseOf && given == nil {
		for _, list := range sparseKept {
			if list.budget == budget {
				return at(list.kept, list.kept, 0), nil
			}
		}
	}
	return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
		from := [3]int{sparseOf, sparseOf, sparseOf}
		for i := range len(sparseKept) + 1 {
			to := [3]int{}
			if i < len(sparseKept) {
				to = sparseKept[i].kept
			}
			for t := range n + 1 {
				if !yield(at(from, to, float64(t)/float64(n))) {
					return
				}
			}
			from = to
		}
	})
}

// beginSparse chooses the raters.
func beginSparse(s *Inside, p *kernel.Pool, visual, text []float32, width int) error {
	if len(text) == 0 {
		return nil
	}
	score, chosen := raters(p, visual, text, width)
	for i, g := range score {
		if g-g != 0 {
			return fmt.Errorf(
				"methods: sparsevlm: rater score of text row %d is %v, want finite numbers", i, g)
		}
	}
	s.Scores, s.Indices = map[string][]float32{"rater_score": score}, map[string][]int32{
		"raters": chosen,
	}
	return nil
}

// ratersLook reads the raters' attention as the mean over heads; if no text follows the picture,
// the last row's.
func ratersLook(s *Inside, v *Sight) ([]int32, bool) {
	chosen := s.Indices["raters"]
	if chosen == nil {
		return lastRow(s, v)
	}
	rows := make([]int32, len(chosen))
	for i, r := range chosen {
		rows[i] = v.Text[r]
	}
	return rows, false
}

// scoreSparse is the attention of the raters, averaged over them.
func scoreSparse(s *Inside, v *Sight, look []float32) ([]float32, error) {
	rows := len(look) / v.Keys
	sum := s.columns(v, look, 0, rows)
	for j := range sum {
		sum[j] /= float64(rows)
	}
	return float32s(sum), nil
}

// recycle makes clusters of the best rows that the stage does not keep.
func recycle(_ *Inside, p *kernel.Pool, x []float32, width int, r *reduce.StageResult) []mix {
	dropped := others(r.Before, r.Kept)
	q, clusters := recycling(len(dropped))
	score := make([]float64, len(dropped))
	for i, t := range dropped {
		score[i] = float64(r.Score[t])
	}
	rows := topK(score, q)
	for i, t := range rows {
		rows[i] = dropped[t]
	}
	c := densityPeaks(p, x, rows, width, clusters)
	r.Scores = map[string][]float32{
		"cluster_density": float32s(c.density), "cluster_distance": float32s(c.separation),
	}
	r.Indices = map[string][]int32{
		"dropped": dropped, "recycled": rows, "cluster_centre": c.centre,
		"cluster_assign": c.assign,
	}
	mixes := make([]mix, clusters)
	for i, g := range c.groups(rows) {
		mixes[i] = mix{g}
	}
	return mixes
}

// recycling returns how many of u rows that are not kept are recycled, and the number of clusters.
func recycling(u int) (recycled, clusters int) {
	recycled = int(sparseRecycled*float64(u)) + 1
	return recycled, recycled/sparseCluster + 1
}

// raters scores the rows of text [T, width] by their resemblance to the rows of visual [V, width]
// and returns the rows above the mean, or all if none is.
func raters(p *kernel.Pool, visual, text []float32, width int) (score []float32, chosen []int32) {
	v, t := len(visual)/width, len(text)/width
	z := make([]float32, v*t)
	kernel.MatMul(p, z, visual, v, kernel.MatrixF32(t, width, text), nil)
	sum := make([]float64, t)
	row := make([]float64, t)
	for i := range v {
		top, total := slices.Max(z[i*t:(i+1)*t]), 0.0
		for j, x := range z[i*t : (i+1)*t] {
			row[j] = math.Exp(float64(x) - float64(top))
			total += row[j]
		}
		for j, x := range row {
			sum[j] += x / total
		}
	}
	score = make([]float32, t)
	for j, x := range sum {
		g := x / float64(v)
		if score[j] = float32(g); g*float64(t) > 1+raterMargin { // the mean of g is 1/t
			chosen = append(chosen, int32(j))
		}
	}
	if chosen == nil {
		chosen = iota32(t)
	}
	return score, chosen
}

// clustering is the result of density peaks for a list of rows.
type clustering struct {
	density, separation []float64
	centre              []int32 // [clusters] indices into the list, by falling product
	assign              []int32 // cluster of every row of the list
}

// densityPeaks clusters the given rows of x [*, width]. Each pair's squared differences are summed
// once, in float64: with two clusters, two rows that are each other's nearest have equal densities,
// and rounding must not make them differ.
func densityPeaks(p *kernel.Pool, x []float32, rows []int32, width, clusters int) *clustering {
	n := len(rows)
	dist := make([]float64, n*n)
	p.Run(n, func(i int) {
		minus, diff := make([]float32, width), make([]float32, width)
		for k, v := range x[int(rows[i])*width:][:width] {
			minus[k] = -v
		}
		for j := range i {
			copy(diff, x[int(rows[j])*width:][:width])
			kernel.Add(nil, diff, minus)
			dist[i*n+j] = math.Sqrt(kernel.SumSquares(diff) / float64(width))
		}
	})
	largest := 0.0
	for i := range n {
		for j := range i {
			dist[j*n+i] = dist[i*n+j]
			largest = max(largest, dist[i*n+j])
		}
	}
	c := &clustering{
		density: make([]float64, n), separation: make([]float64, n), assign: make([]int32, n),
	}
	near := make([]float64, n)
	for i := range n {
		copy(near, dist[i*n:(i+1)*n])
		slices.Sort(near)
		sum := 0.0
		for _, d := range near[:clusters] {
			sum += d * d
		}
		c.density[i] = math.Exp(-sum / float64(clusters))
	}
	product := make([]float64, n)
	for i := range n {
		c.separation[i] = largest
		for j, d := range dist[i*n : (i+1)*n] {
			if c.density[j] > c.density[i] {
				c.separation[i] = min(c.separation[i], d)
			}
		}
		product[i] = c.density[i] * c.separation[i]
	}
	c.centre = topK(product, clusters)
	for i := range n {
		for k, m := range c.centre {
			if dist[i*n+int(m)] < dist[i*n+int(c.centre[c.assign[i]])] {
				c.assign[i] = int32(k)
			}
		}
	}
	for k, m := range c.centre {
		c.assign[m] = int32(k)
	}
	return c
}

// groups returns the rows of every cluster, its centre first, the others in the order of the list.
func (c *clustering) groups(rows []int32) [][]int32 {
	groups := make([][]int32, len(c.centre))
	for k, m := range c.centre {
		groups[k] = []int32{rows[m]}
	}
	for i, k := range c.assign {
		if int32(i) != c.centre[k] {
			groups[k] = append(groups[k], rows[i])
		}
	}
	return groups
}
