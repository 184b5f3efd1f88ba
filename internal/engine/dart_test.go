package engine_test

import (
	"cmp"
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"

	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
)

// Ensure that DART inside the decoder reads the keys of the layer before, of picture and text, and
// the rows that enter its layer, after the final norm.
func TestDARTInsideDecoder(t *testing.T) {
	const first, images, rows, layer = 7, 36, 52, 2
	dir := filepath.Join("testdata", "inmodel-tiny")
	e, in := open(t, dir, 2), golden.Read(t, filepath.Join(dir, "prompt.ref"))
	ck, err := formats.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	norm, ok := ck.Tensor("language_model.model.norm.weight")
	if !ok {
		t.Fatal("no final norm")
	}
	weight, err := norm.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: in})
	if err != nil {
		t.Fatal(err)
	}
	keys, _ := plain["text.layer.1.k"].Float32s() // [heads, rows, dim]
	x, _ := plain["text.layer.1.out"].Float32s()
	dim, width := plain["text.layer.1.k"].Shape[2], len(weight)
	length, hidden := make([]float64, rows), make([][]float64, rows)
	for i, v := range keys {
		length[i/dim%rows] += math.Abs(float64(v))
	}
	for r := range rows {
		sum := 0.0
		hidden[r] = make([]float64, width)
		for k, v := range x[r*width : (r+1)*width] {
			hidden[r][k] = float64(v) * float64(weight[k])
			sum += hidden[r][k] * hidden[r][k]
		}
		for k := range hidden[r] {
			hidden[r][k] /= math.Sqrt(sum)
		}
	}
	top4 := func(lo, hi int) []int64 {
		var all []int64
		for r := lo; r < hi; r++ {
			all = append(all, int64(r))
		}
		slices.SortStableFunc(all, func(a, b int64) int {
			return cmp.Compare(length[b], length[a])
		})
		return all[:4]
	}
	for _, kept := range []int{12, 20, 15} {
		o := methods.Options{
			Base: "dart-text", Schedule: "2:" + map[int]string{12: "12", 20: "20", 15: "15"}[kept],
		}
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: o, Tokens: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		image, text := top4(first, first+images), top4(first+images, rows)
		for name, want := range map[string][]int64{"pivots_image": image, "pivots_text": text} {
			if v, _ := got["stage.0."+name].Int64s(); !slices.Equal(v, want) {
				t.Errorf("%d rows: %s: got %v, want %v", kept, name, v, want)
			}
		}
		taken := map[int64]bool{}
		for _, p := range image {
			taken[p] = true
		}
		turns, _ := got["stage.0.visit_order"].Int64s()
		for i, p := range turns {
			var left []int64
			for r := int64(first); r < first+images; r++ {
				if !taken[r] {
					left = append(left, r)
				}
			}
			cosine := func(r int64) (s float64) {
				for k := range width {
					s += hidden[p][k] * hidden[r][k]
				}
				return s
			}
			slices.SortStableFunc(left, func(a, b int64) int {
				return cmp.Compare(cosine(a), cosine(b))
			})
			n := (kept - 4) / 8
			if i < (kept-4)%8 {
				n++
			}
			for _, r := range left[:n] {
				taken[r] = true
			}
		}
		rowsKept, _ := got["stage.0.keep"].Int64s()
		if len(rowsKept) != kept || len(taken) != kept {
			t.Errorf("%d rows: kept %d, expected %d", kept, len(rowsKept), len(taken))
		}
		for _, r := range rowsKept {
			if !taken[r+first] {
				t.Errorf("%d rows: row %d is kept, want another", kept, r)
			}
		}
		lens, _ := got["cache.len"].Int64s()
		if lens[layer-1] != rows || lens[layer] != int64(rows-images+kept) {
			t.Errorf("%d rows: keys %v", kept, lens)
		}
		o.Restore = true
		if got, err = lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: o,
		}); err != nil {
			t.Fatal(err)
		}
		sizes, _ := got["cache.2.size"].Float32s()
		sum := float32(0)
		for _, s := range sizes {
			sum += s
		}
		if int(sum) != rows {
			t.Errorf("%d rows, RESTORE: sizes add up to %v, want %d", kept, sum, rows)
		}
	}
}
