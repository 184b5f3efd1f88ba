package nn

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that layers of a model decide between the plans of one row, by the shape of their own
// weights, after a measurement with other shapes, and that the plan changes no bit.
func TestLayersDecidePlan(t *testing.T) {
	setPlan := func(name string) {
		if err := kernel.SetPlan(name); err != nil {
			t.Fatal(err)
		}
	}
	setPlan("")
	t.Cleanup(func() { setPlan(os.Getenv("KERNEL_PLAN")) })
	if !kernel.HasPlan("turns", kernel.Q8, 1) {
		t.Skip("one row has one plan here")
	}
	const n, k, other = 1024, 2080, 1056
	data := make([]byte, WeightBytes(tensor.Q8, other, k))
	for i := range data {
		data[i] = byte(i*167+i>>8) & 0x9f // finite scales
	}
	threads := kernel.NewPool(2)
	defer threads.Close()
	p := threads.Step()
	x, y := make([]float32, k), make([]float32, other)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	measured := kernel.Matrix{Format: kernel.Q8, N: other, K: k, Data: data}
	l := Linear{In: k, Out: n, W: Weights(&tensor.Tensor{
		DType: tensor.Q8, Shape: []int{n, k}, Data: data[:WeightBytes(tensor.Q8, n, k)],
	}, n, k)}
	var first []float32
	for i := range 200 {
		kernel.MatMul(p, y, x, 1, &measured, nil)
		l.Apply(p, y, x, 1)
		if i == 0 {
			first = slices.Clone(y[:n])
		}
		if !slices.Equal(y[:n], first) {
			t.Fatalf("product %d has other bits", i)
		}
	}
	if list := kernel.Plans(); !slices.ContainsFunc(list, func(p kernel.PlanTrial) bool {
		return p.Format == "q8, 1 or 2 rows" && p.N == n && p.K == k
	}) {
		t.Errorf("plans %+v, want one that was measured with weights [%d %d]", list, n, k)
	}
}
