package methods

import (
	"math"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// Ensure that the errors are distances to the basis's span if the basis depends on itself. Tokens
// are a·A + b·B + c·C of orthogonal A = (3,1,2), B = (1,-3,0), C = (3,1,-5), at scales next to
// which the ridge is nothing. Farthest from token 0 is -10A, from both 2B; an error is |c|·√35.
func TestAPETDependentBasis(t *testing.T) {
	const width = 3
	o, err := Resolve(Options{Base: "apet", NVis: 5, Own: map[string]any{"apet-basis": 3}},
		Facts{Tokens: 7})
	if err != nil {
		t.Fatal(err)
	}
	for scale := 1e5; scale <= 3e6; scale += 1e5 {
		hidden := make([]float32, width) // the class token
		for _, v := range []float64{
			30, 10, 20, // 10A
			-30, -10, -20, // -10A
			2, -6, 0, // 2B
			6, 2, -3, // A + C
			5, 5, 4, // 2A - B
			2.5, -2.5, -2.5, // B + C/2
			6, 2, 18, // 4A - 2C
		} {
			hidden = append(hidden, float32(scale*v))
		}
		r, err := Reduce(&reduce.Input{
			N: 7, C: 1, X: make([]float32, 7), Cv: width, Hidden: hidden,
		}, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []float64{0, 0, 0, 1, 0, 0.5, 2} {
			got, want := float64(r.Scores["error"][i]), c*math.Sqrt(35)*scale
			if !(math.Abs(got-want) <= 1e-6*scale) {
				t.Errorf("scale %v: error of token %d: got %v, want %v", scale, i, got, want)
			}
		}
		if want := []int32{0, 1, 2, 6, 3}; !slices.Equal(r.Kept, want) {
			t.Errorf("scale %v: kept %v, want %v", scale, r.Kept, want)
		}
	}
}
