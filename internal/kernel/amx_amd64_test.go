//go:build !purego

package kernel

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

// TestTilesUnderSignals: products in several goroutines keep their bits while the garbage collector
// interrupts their threads with signals and moves them to other threads.
func TestTilesUnderSignals(t *testing.T) {
	if choice() != implAMX {
		t.Skip("no AMX")
	}
	r := rand.New(rand.NewPCG(45, 46))
	m, n, k := 50, 256, 1024
	w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), Q4)
	if err != nil {
		t.Fatal(err)
	}
	x, want := randomVector(r, m*k), make([]float32, m*n)
	MatMul(nil, want, x, m, w, nil)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			got := make([]float32, m*n)
			for range 60 {
				MatMul(nil, got, x, m, w, nil)
				for i, v := range got {
					if v != want[i] {
						t.Errorf("element %d = %v, %v alone", i, v, want[i])
						return
					}
				}
				runtime.GC()
			}
		})
	}
	wg.Wait()
}
