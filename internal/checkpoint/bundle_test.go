package checkpoint

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/tensor"
)

func inTurn(n int, task func(int)) {
	for i := range n {
		task(i)
	}
}

// Ensure that a value that is not finite is found and named by its place, both in stored weights
// and in weights that are read.
func TestFinite(t *testing.T) {
	v := make([]float32, 3<<20)
	good := func() *Store {
		s := &Store{What: About{Name: "m"}, Weights: map[string]*Weight{
			"stored": {Tensor: *tensor.From([]int{3, 1 << 20}, v)},
			"read": {
				Tensor: tensor.Tensor{DType: tensor.F16, Shape: []int{3, 1 << 20}},
				Read: func(dst []float32, at int) error {
					copy(dst, v[at:])
					return nil
				},
			},
			"packed": {
				Tensor: tensor.Tensor{DType: tensor.Q8, Shape: []int{1}, Data: []byte{0xff}},
				Read:   func([]float32, int) error { panic("read") },
			},
			"index": {
				Tensor: *tensor.From([]int{1}, []int64{-1}),
			}, "none": {Tensor: tensor.Tensor{Shape: []int{0}}},
		}}
		s.Seal()
		return s
	}
	calls := 0
	if err := Finite(good(), inTurn, func(done, total int64) { calls++ }); err != nil ||
		calls != 5 {
		t.Errorf("%v, progress told %d times", err, calls)
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
		v[2<<20+7] = bad
		err := Finite(good(), inTurn, nil)
		if !errors.Is(err, errs.ErrNotFinite) || !strings.Contains(err.Error(), `"read"`) ||
			!strings.Contains(err.Error(), "[2 7]") {
			t.Errorf("%v: %v", bad, err)
		}
		s := good()
		delete(s.Weights, "read")
		s.Seal()
		if err = Finite(s, inTurn, nil); !errors.Is(err, errs.ErrNotFinite) ||
			!strings.Contains(err.Error(), `"stored"`) ||
			!strings.Contains(err.Error(), "[2 7]") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Ensure that a part of a weight is dumped in each type, and that a value out of a type's range is
// an error.
func TestDump(t *testing.T) {
	v := []float32{1, -2.5, 65504, 1.0001}
	s := &Store{
		Weights: map[string]*Weight{
			"w": {
				Tensor: tensor.Tensor{DType: tensor.F16, Shape: []int{2, 2}},
				Read: func(dst []float32, at int) error {
					copy(dst, v[at:])
					return nil
				},
			},
			"i": {Tensor: *tensor.From([]int{1}, []int64{7})},
		},
	}
	s.Seal()
	for d, want := range map[tensor.DType]float32{
		tensor.F32: 1.0001, tensor.F16: 1, tensor.BF16: 1,
	} {
		var b strings.Builder
		if err := Dump(&b, s, s.Names(), d, nil); err != nil {
			t.Fatal(err)
		}
		m, err := ReadSafetensors([]byte(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		w := &Weight{Tensor: *m["w"]}
		got, err := w.Float32s()
		if err != nil || w.DType != d || got[3] != want || got[1] != -2.5 || m["i"].DType != d {
			t.Errorf("%v: %v %v", d, got, err)
		}
	}
	v[2] = 65520
	if err := Dump(&strings.Builder{}, s, s.Names(), tensor.F16, nil); err == nil ||
		!strings.Contains(err.Error(), "65504") {
		t.Errorf("beyond float16: %v", err)
	}
	if err := Dump(&strings.Builder{}, s, []string{"x"}, tensor.F16, nil); err == nil {
		t.Error("a tensor that is not there is written")
	}
}
