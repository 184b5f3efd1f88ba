package reduce

// SparseVLM: "SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference" (arXiv:2410.04417).
//
// Raters are the text rows behind the picture whose embeddings resemble it: with Z the picture's embeddings and E those of the text, g is the
// mean over the rows of softmax(Z·Eᵀ), taken over the text; rows with g above the mean are raters, in all stages. On the output of a
// stage's layer the k rows stay that the raters attended to most in that layer, averaged over heads and raters. Of the u others the q = floor(0.3u)+1
// best are recycled: density peaks make c = floor(q/10)+1 clusters of them, whose plain means follow the kept rows.
//
// Density of a row is exp(-mean of the c smallest squared distances to the recycled rows, itself included), distances being |x-y|/sqrt(width);
// its separation the distance to the nearest row that is denser (the largest distance there is for the densest). The c rows of highest
// product are centres, by falling product; the others join the nearest.

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/kernel"
)

const (
	sparseRecycled = 0.3 // share of the rows not kept
	sparseCluster  = 10  // recycled rows a cluster
	// raterMargin is what float32 sums of a few hundred probabilities may differ by: rows that far from the mean are not above it.
	raterMargin = 1e-6
)

// recycling returns how many of u rows that are not kept are recycled, and the clusters they make.
func recycling(u int) (recycled, clusters int) {
	recycled = int(sparseRecycled*float64(u)) + 1
	return recycled, recycled/sparseCluster + 1
}

// raters scores the rows of text [T, width] by how much those of visual [V, width] resemble them and returns the rows above the mean: all
// where none is.
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

// clustering is what density peaks make of a list of rows.
type clustering struct {
	density, separation []float64
	centre              []int32 // [clusters] places in the list, by falling product
	assign              []int32 // cluster of every row of the list
}

// densityPeaks makes clusters of the given rows of x [*, width]. Distances are taken in float64: two rows that are each other's nearest
// have equal densities when there are two clusters, and must keep them.
func densityPeaks(p *kernel.Pool, x []float32, rows []int32, width, clusters int) *clustering {
	n := len(rows)
	dist := make([]float64, n*n)
	p.Run(n, func(i int) {
		a := x[int(rows[i])*width:][:width]
		for j := range i {
			dist[i*n+j] = math.Sqrt(squaredDistance(a, x[int(rows[j])*width:][:width]) / float64(width))
		}
	})
	largest := 0.0
	for i := range n {
		for j := range i {
			dist[j*n+i] = dist[i*n+j]
			largest = max(largest, dist[i*n+j])
		}
	}
	c := &clustering{density: make([]float64, n), separation: make([]float64, n), assign: make([]int32, n)}
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

// squaredDistance is |a-b|², summed in eight interleaved parts.
func squaredDistance(a, b []float32) float64 {
	var r [8]float64
	k := 0
	for ; k+8 <= len(a); k += 8 {
		x, y := a[k:k+8:k+8], b[k:k+8:k+8]
		for j := range r {
			d := float64(x[j]) - float64(y[j])
			r[j] += d * d
		}
	}
	s := ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
	for ; k < len(a); k++ {
		d := float64(a[k]) - float64(b[k])
		s += d * d
	}
	return s
}
