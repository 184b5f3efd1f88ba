package methods

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

// Hausdorff returns the weighted Hausdorff distance between the picture's tokens and the decoder's
// rows (the paper's Table 18), a measure of the loss; 0 means no loss:
//
//	h = max over tokens x of min over rows y of (1 - cos(x, y)) / size of y
//
// in is the input of r; its features must be in the same space as r's. A row of zeros has cosine 0.
// It is an error if r holds no features, as after methods inside the decoder.
func Hausdorff(r *reduce.Reduction, in *reduce.Input, pool *kernel.Pool) (float64, error) {
	x := in.X
	if r.Space == reduce.Encoder && len(in.Hidden) > 0 {
		x = in.Hidden[in.Cv:]
	}
	if len(r.Rows) == 0 || len(r.Features) != len(r.Rows)*r.Width {
		return 0, fmt.Errorf("methods: hausdorff: got %d feature values, want %d rows of %d",
			len(r.Features), len(r.Rows), r.Width)
	}
	if len(x) != r.N*r.Width {
		return 0, fmt.Errorf("methods: hausdorff: got %d values of the unreduced tokens, "+
			"want %d tokens of %d", len(x), r.N, r.Width)
	}
	length := make([]float64, len(r.Rows))
	for i := range length {
		length[i] = norm(r.Features[i*r.Width:][:r.Width])
	}
	near := make([]float64, r.N)
	pool.Run(r.N, func(t int) {
		a := x[t*r.Width:][:r.Width]
		na := norm(a)
		near[t] = math.Inf(1)
		for i := range r.Rows {
			cos := 0.0
			if na > 0 && length[i] > 0 {
				for k, v := range r.Features[i*r.Width:][:r.Width] {
					cos += float64(a[k]) * float64(v)
				}
				cos /= na * length[i]
			}
			near[t] = min(near[t], max(0, 1-cos)/float64(r.Rows[i].Size))
		}
	})
	h := 0.0
	for _, v := range near {
		h = max(h, v)
	}
	return h, nil
}
