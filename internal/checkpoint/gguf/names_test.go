package gguf

import (
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that queries, keys and values of one shape become one weight with its exact values,
// whatever their types.
func TestStackedTypes(t *testing.T) {
	const rows, k = 2, 32
	part := func(typ uint32, fill byte) *tensorInfo {
		b := blockTypes[typ]
		data := make([]byte, rows*k/b.values*b.bytes)
		for i := range data {
			data[i] = fill
		}
		return &tensorInfo{name: "x", shape: []int{rows, k}, typ: b, data: data}
	}
	const f32, f16, q4, q8 = 0, 1, 2, 8
	for _, c := range []struct {
		types  [3]uint32
		kept   tensor.DType
		stored string
		blocks bool
	}{
		{[3]uint32{q8, q8, q8}, tensor.Q8, "Q8_0", true},
		{[3]uint32{f16, f16, f16}, tensor.F16, "F16", false},
		{[3]uint32{q8, q8, q4}, tensor.Q8, "Q8_0+Q4_0", false},
		{[3]uint32{f16, q8, f16}, tensor.F32, "F16+Q8_0", false},
		{[3]uint32{f32, q4, f16}, tensor.F32, "F32+Q4_0+F16", false},
	} {
		parts := []*tensorInfo{
			part(c.types[0], 0x11), part(c.types[1], 0x22), part(c.types[2], 0x33),
		}
		got, err := stacked(parts)
		if err != nil {
			t.Fatal(err)
		}
		if got.DType != c.kept || got.Stored != c.stored || (got.Blocks != nil) != c.blocks {
			t.Errorf("%v: got %v of %q, blocks %v", c.types, got.DType, got.Stored,
				got.Blocks != nil)
		}
		values, err := got.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		var want []float32
		for _, p := range parts {
			v, err := p.weight().Float32s()
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, v...)
		}
		if !slices.Equal(values, want) {
			t.Errorf("%v: got %v, want %v", c.types, values, want)
		}
	}
	other := part(q8, 0)
	other.shape = []int{1, 2 * k}
	if _, err := stacked([]*tensorInfo{part(q8, 0), other, other}); err == nil {
		t.Error("two shapes: got no error")
	}
}
