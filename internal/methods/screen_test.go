package methods

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// screenTol bounds the rounding of a float32 product of length-1 rows, and of R over hundreds of
// tokens relative to their number.
const screenTol = 1e-5

// screened are features of several kinds: clusters with copies and a row of zeros, as random as can
// be, so alike that few bits cannot tell them apart, with a few large columns, all the same, and
// zeros.
func screened(n, width int) map[string][]float32 {
	rng := rand.New(rand.NewPCG(8, 1))
	copies := clustered(n, width, n/9)
	copy(copies[7*width:9*width], copies[20*width:])
	clear(copies[30*width : 31*width])
	random, alike, tall := make([]float32, n*width), make([]float32, n*width),
		clustered(n, width, n/3)
	for i := range random {
		random[i] = float32(rng.NormFloat64())
		alike[i] = 1 + 1e-3*random[i]
		if i%width == 5 || i%width == 77 {
			tall[i] += 60
		}
	}
	return map[string][]float32{
		"copies": copies, "random": random, "alike": alike, "tall": tall,
		"same": slices.Repeat(random[:width], n), "zeros": make([]float32, n*width),
	}
}

// cosine is the cosine of two rows in float64, 0 with a row of zeros.
func cosine(x []float32, width int, i, j int32) float64 {
	dot, a, b := 0.0, 0.0, 0.0
	for k, v := range x[int(i)*width:][:width] {
		w := float64(x[int(j)*width+k])
		dot, a, b = dot+float64(v)*w, a+float64(v)*float64(v), b+w*w
	}
	if a*b == 0 {
		return 0
	}
	return dot / math.Sqrt(a*b)
}

// pairwise are the cosines of all pairs of n rows: row i starts at i*n.
func pairwise(x []float32, n, width int) []float64 {
	out := make([]float64, n*n)
	for i := range n {
		for j := range i + 1 {
			c := cosine(x, width, int32(i), int32(j))
			out[i*n+j], out[j*n+i] = c, c
		}
	}
	return out
}

// Ensure that R, redundancy and the nearest heads are what Eqs. 5-7 say, in float64 token by token,
// whatever the features are, for either direction of the mask and a part of the tokens.
func TestScreen(t *testing.T) {
	const n, width = 420, 640
	pool := kernel.NewPool(2)
	defer pool.Close()
	features, want := screened(n, width), map[string][]float64{}
	for name, x := range features {
		want[name] = pairwise(x, n, width)
	}
	eachScreen(t, func(t *testing.T) {
		for name, x := range features {
			list := make([]int32, 0, n)
			for i := range int32(n) {
				if i%11 != 4 {
					list = append(list, i)
				}
			}
			c, err := newColumns(pool, x, n, width, n, "X")
			if err != nil || c.fine {
				t.Fatal(err, c.fine)
			}
			R, sum := c.density(list)
			cosine := func(i, j int32) float64 { return want[name][int(i)*n+int(j)] }
			for _, i := range list {
				total := 0.0
				for _, j := range list {
					total += cosine(i, j)
				}
				if !(math.Abs(R[i]-total) <= screenTol*n) {
					t.Fatalf("%s: R of %d: got %v, want %v", name, i, R[i], total)
				}
			}
			f, _ := screenFormat()
			s, err := newScreen(c, f, R, sum, list)
			if err != nil {
				t.Fatal(err)
			}
			for _, higher := range []bool{false, true} {
				got, err := s.highest(list, R, higher)
				if err != nil {
					t.Fatal(err)
				}
				for _, i := range list {
					most := math.Inf(-1)
					for _, j := range list {
						if higher && R[j] > R[i] || !higher && R[j] < R[i] {
							most = max(most, cosine(i, j))
						}
					}
					if got[i] != most && !(math.Abs(got[i]-most) <= screenTol) {
						t.Errorf("%s, higher %v: token %d: got %v, want %v", name, higher, i,
							got[i], most)
					}
				}
			}
			heads := gridTokens(n, 150)
			got, err := s.nearestHeads(list, heads)
			if err != nil {
				t.Fatal(err)
			}
			for k, i := range list {
				own := func(h int32) float64 { return cosine(i, h) }
				best := slices.MaxFunc(heads, func(a, b int32) int {
					return cmp.Compare(own(a), own(b))
				})
				if !(own(heads[got[k]]) >= own(best)-screenTol) {
					t.Errorf("%s: token %d: got head %d of cosine %v, want %d of %v", name, i,
						heads[got[k]], own(heads[got[k]]), best, own(best))
				}
			}
			if name == "copies" && (R[7] != R[20] || R[8] != R[21]) {
				t.Errorf("copies have R %v and %v, %v and %v", R[7], R[20], R[8], R[21])
			}
		}
	})
}

// Ensure that anchors and groups do not depend on whether the processor has products of few bits.
func TestScreenedReduction(t *testing.T) {
	const n = screenTokens + 26
	in := benchInput(n, 30, 35)
	in.C = 256
	in.X = clustered(n, in.C, 90)
	pool := kernel.NewPool(2)
	defer pool.Close()
	restoreKernel(t)
	for _, anchors := range []string{"released", "paper"} {
		res, err := resolve(Options{
			Base: "random", NVis: 150, Restore: true, Anchors: anchors,
		}, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := kernel.SetImplementation("go"); err != nil {
			t.Fatal(err)
		}
		want, err := Reduce(in, res, pool)
		if err != nil {
			t.Fatal(err)
		}
		eachScreen(t, func(t *testing.T) {
			got, err := Reduce(in, res, pool)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Anchors, want.Anchors) || !slices.Equal(got.Group, want.Group) {
				t.Errorf("%s: got anchors %v, want %v", anchors, got.Anchors, want.Anchors)
			}
		})
	}
}

// eachScreen runs a test with each implementation that has products of few bits.
func eachScreen(t *testing.T, test func(t *testing.T)) {
	restoreKernel(t)
	for _, name := range kernel.Implementations() {
		if err := kernel.SetImplementation(name); err != nil {
			t.Fatal(err)
		}
		if _, ok := screenFormat(); ok {
			t.Run(name, test)
		}
	}
}

// restoreKernel restores the implementation in use when the test ends.
func restoreKernel(t *testing.T) {
	use := kernel.Implementation()
	t.Cleanup(func() {
		if err := kernel.SetImplementation(use); err != nil {
			t.Error(err)
		}
	})
}
