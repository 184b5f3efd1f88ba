package gguf

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
)

// kernelFormats are the formats of weights in memory.
var kernelFormats = map[tensor.DType]kernel.Format{
	tensor.Q8: kernel.Q8, tensor.Q4: kernel.Q4, tensor.Q4M: kernel.Q4M, tensor.IQ4: kernel.IQ4,
}

// losses are the largest losses of each type in memory: the root mean square of the difference to
// the exact values, divided by the values' root mean square, for weights as ggml's
// quantisers write them. 0 means no bit differs.
var losses = map[string]float64{
	"Q4_0": 0, "Q5_0": 0, "Q8_0": 0, "IQ4_NL": 0, // the kernels' own blocks
	"Q4_1": 1e-7, "Q4_K": 8e-4, "IQ4_XS": 4e-4, // with rounded sums or scales
	"Q5_1": .006, "Q2_K": .006, "Q3_K": .006, "Q5_K": .006, "Q6_K": .006, // quantised again
}

// Ensure that weights in memory have at most the stated loss, and that every value that is
// quantised again differs by at most half a step: a block's greatest value over 254, plus the
// rounding of the scale.
func TestKept(t *testing.T) {
	want := golden.Read(t, filepath.Join("testdata", "blocks.safetensors"))
	for _, typ := range blockTypes {
		if typ.plain {
			continue
		}
		for _, kind := range []string{"random", "quantised"} {
			blocks := want[typ.name+"."+kind+".blocks"]
			n := len(blocks.Data) / typ.bytes * typ.values
			rows := []int{n / typ.values, typ.values} // a row of one block
			x := (&tensorInfo{name: "x", shape: rows, typ: typ, data: blocks.Data}).weight()
			exact, err := x.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			m := &kernel.Matrix{Format: kernelFormats[x.DType], N: rows[0], K: rows[1]}
			m.Data = make([]byte, m.Bytes())
			if x.Blocks != nil {
				err = kernel.PackBlocks(nil, m, x.Blocks)
			} else {
				err = kernel.Encode(nil, m, kernel.MatrixF32(rows[0], rows[1], exact))
			}
			if err != nil && losses[typ.name] > 0 && kind == "random" {
				continue // scales out of binary16's range, which no weight has
			}
			if err != nil {
				t.Fatalf("%s, %s: %v", typ.name, kind, err)
			}
			got := make([]float32, n)
			for r := range rows[0] {
				m.Row(got[r*rows[1]:(r+1)*rows[1]], r)
			}
			var off, all float64
			for i := 0; i < n; i += 32 {
				var most float64
				for _, v := range exact[i : i+32] {
					most = max(most, math.Abs(float64(v)))
				}
				for j, v := range exact[i : i+32] {
					d := math.Abs(float64(got[i+j]) - float64(v))
					if x.Blocks == nil && !(d <= most/254+most/2048) {
						t.Fatalf("%s, %s: value %d: got %v, want %v", typ.name, kind, i+j, got[i+j],
							v)
					}
					off, all = off+d*d, all+float64(v)*float64(v)
				}
			}
			loss := math.Sqrt(off / all)
			t.Logf("%s, %s: %.2g", typ.name, kind, loss)
			most := losses[typ.name]
			if (kind == "quantised" || most == 0) && !(loss <= most) {
				t.Errorf("%s, %s: kept with a loss of %.2g, want at most %.2g", typ.name, kind,
					loss, most)
			}
		}
	}
}

// BenchmarkKept measures how fast weights are converted for the kernels.
func BenchmarkKept(b *testing.B) {
	for _, name := range []string{"Q4_0", "Q8_0", "Q5_0", "IQ4_NL", "Q4_K", "Q6_K", "Q2_K"} {
		for _, typ := range blockTypes {
			if typ.name != name {
				continue
			}
			b.Run(name, func(b *testing.B) {
				const n, k = 256, 4096
				x := (&tensorInfo{name: "x", shape: []int{n, k}, typ: typ,
					data: make([]byte, n*k/typ.values*typ.bytes)}).weight()
				m := &kernel.Matrix{Format: kernelFormats[x.DType], N: n, K: k}
				m.Data = make([]byte, m.Bytes())
				b.SetBytes(n * k)
				values := make([]float32, n*k)
				for b.Loop() {
					if x.Blocks != nil {
						if err := kernel.PackBlocks(nil, m, x.Blocks); err != nil {
							b.Fatal(err)
						}
						continue
					}
					if err := x.Floats(values, 0); err != nil {
						b.Fatal(err)
					}
					if err := kernel.Encode(nil, m, kernel.MatrixF32(n, k, values)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
