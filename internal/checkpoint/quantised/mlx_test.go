package quantised

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
)

// mlxExamples reads the modules that MLX quantised (tools/fixtures/mlxweights.py).
func mlxExamples(t testing.TB) (list []example, tensors map[string]*tensor.Tensor) {
	t.Helper()
	golden.JSON(t, "testdata/mlx.json", &list)
	return list, golden.Read(t, "testdata/mlx.safetensors")
}

// Ensure that weights of every mode, size and number of bits equal MLX's bit for bit, that a range
// equals the same range of the whole, and that blocks hold the same values.
func TestUnpackMLX(t *testing.T) {
	list, tensors := mlxExamples(t)
	kept := map[string]tensor.DType{}
	for _, c := range list {
		s := of(c.Module, tensors)
		if err := UnpackMLX(s, c.Config); err != nil {
			t.Errorf("%s: %v", c.Module, err)
			continue
		}
		w := s.Weights[c.Module+".weight"]
		if !slices.Equal(w.Shape, c.Shape) || len(s.Weights) != 1 {
			t.Errorf("%s: left with %v", c.Module, slices.Collect(maps.Keys(s.Weights)))
			continue
		}
		v, in := c.check(t, w), w.Shape[1]
		rows := w.Rows(2, 7)
		if got, err := rows.Float32s(); err != nil || !slices.Equal(got, v[2*in:7*in]) {
			t.Errorf("%s: rows 2 to 6 differ from the whole's: %v", c.Module, err)
		}
		kept[c.Module] = w.DType
		if w.Blocks != nil && (!slices.Equal(held(t, w), v) ||
			!slices.Equal(held(t, rows), v[2*in:7*in])) {
			t.Errorf("%s: blocks hold other values", c.Module)
		}
	}
	for module, want := range map[string]tensor.DType{
		"affine-2-32": tensor.Q4M, "affine-3-64": tensor.Q4M, "affine-4-128": tensor.Q4M,
		"affine-5-64": tensor.Q8, "affine-6-32": tensor.Q8, "affine-8-64": tensor.F16,
		"mxfp4-4-32": tensor.Q8, "mxfp8-8-32": tensor.BF16, "nvfp4-4-16": tensor.BF16,
	} {
		if kept[module] != want {
			t.Errorf("%s: kept as %v, want %v", module, kept[module], want)
		}
	}
}

// Ensure that mxfp4's scales which are no numbers of binary16 are not kept in blocks.
func TestMLXScales(t *testing.T) {
	_, tensors := mlxExamples(t)
	for scale, want := range map[byte]tensor.DType{
		103: tensor.BF16, 104: tensor.Q8, 143: tensor.Q8, 144: tensor.BF16, 255: tensor.BF16,
	} {
		s := of("mxfp4-4-32", tensors)
		x := s.Weights["mxfp4-4-32.scales"]
		x.Data = slices.Clone(x.Data)
		x.Data[5] = scale
		if err := UnpackMLX(s, []byte(`{"mode":"mxfp4"}`)); err != nil {
			t.Fatal(err)
		}
		w := s.Weights["mxfp4-4-32.weight"]
		if w.DType != want {
			t.Errorf("scale %d: kept as %v, want %v", scale, w.DType, want)
		}
		v, err := w.Float32s()
		if err != nil || w.Blocks != nil && !slices.Equal(held(t, w), v) {
			t.Errorf("scale %d: blocks hold other values: %v", scale, err)
		}
	}
}

// Ensure that a module's own settings replace all of the model's, as in MLX, under its name with or
// without the decoder's prefix.
func TestMLXOwnSettings(t *testing.T) {
	list, tensors := mlxExamples(t)
	own := list[slices.IndexFunc(list, func(c example) bool { return c.Module == "affine-3-32" })]
	for _, prefix := range []string{"", "language_model."} {
		s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
		for name, w := range of(own.Module, tensors).Weights {
			s.Weights[prefix+name] = w
		}
		for name, w := range of("mxfp8-8-32", tensors).Weights {
			s.Weights[name] = w
		}
		config := `{"group_size": 32, "bits": 8, "mode": "mxfp8", "mxfp8-8-32": true,
			"affine-3-32": {"group_size": 32, "bits": 3}}`
		if err := UnpackMLX(s, []byte(config)); err != nil {
			t.Errorf("%q: %v", prefix, err)
			continue
		}
		if w := s.Weights[prefix+own.Module+".weight"]; w.TypeName() != "MLX 3 bits" {
			t.Errorf("%q: got %s", prefix, w.TypeName())
		}
	}
}

// Ensure that settings and parts that do not fit are refused with an error that names them.
func TestUnpackMLXErrors(t *testing.T) {
	_, tensors := mlxExamples(t)
	for _, c := range []struct {
		module, config string
		tensor         string // the one that is changed
		change         func(x *tensor.Tensor) *tensor.Tensor
		want           string
	}{
		{"affine-4-64", `{"bits":1}`, "", nil, "bits: got 1, want one of [2 3 4 5 6 8]"},
		{"affine-4-64", `{"bits":7}`, "", nil, "bits: got 7"},
		{"affine-4-64", `{"group_size":16}`, "", nil, "group_size: got 16, want one of [32 64 128]"},
		{"affine-4-64", `{"group_size":-1}`, "", nil, "group_size: got -1"},
		{"affine-4-64", `{"mode":"fp3"}`, "", nil, `mode: got "fp3", want one of affine, mxfp4`},
		{"affine-4-64", `{"bits":"4"}`, "", nil, "bits"}, {"affine-4-64", `[]`, "", nil, "quantization"},
		{"affine-4-64", `{"affine-4-64":false}`, "", nil, `"affine-4-64": got false`},
		{"affine-4-64", `{"affine-4-64":4}`, "", nil, `"affine-4-64": json`},
		{"mxfp4-4-32", `{"mode":"mxfp4","bits":8}`, "", nil, "bits: got 8, want one of [4] with mode mxfp4"},
		{"affine-4-64", `{}`, "weight", half, "scales: shape [9 2], want [9 1]"},
		{"affine-5-64", `{}`, "", nil, "weight: shape [9 20], want rows of whole groups"},
		{"affine-4-64", `{"bits":6}`, "", nil, "want rows of whole groups of 64 numbers of 6 bits"},
		{"affine-4-64", `{}`, "scales", half, "scales: shape [9 1]"},
		{"affine-4-64", `{}`, "biases", half, "biases: shape [9 1]"},
		{"affine-4-64", `{}`, "biases", gone, "biases: missing"},
		{"affine-4-64", `{}`, "weight", gone, "weight: missing"},
		{"affine-4-64", `{}`, "scales", gone, "no weight is quantised"},
		{"mxfp4-4-32", `{}`, "", nil, "scales: got"}, {"mxfp8-8-32", `{"mode":"mxfp8"}`, "scales", half, "scales: shape [9 2]"},
		{"affine-4-64", `{"mode":"nvfp4"}`, "", nil, "scales: got"},
	} {
		s := of(c.module, tensors)
		name := c.module + "." + c.tensor
		if c.change != nil {
			if x := c.change(&s.Weights[name].Tensor); x == nil {
				delete(s.Weights, name)
			} else {
				s.Weights[name] = &checkpoint.Weight{Tensor: *x}
			}
		}
		err := UnpackMLX(s, []byte(c.config))
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s, %s: got %v, want %q", c.module, c.config, c.tensor, err, c.want)
		}
	}
}

func gone(*tensor.Tensor) *tensor.Tensor { return nil }

// FuzzUnpackMLX: any settings and sizes are either refused, or give weights that can be read.
func FuzzUnpackMLX(f *testing.F) {
	list, tensors := mlxExamples(f)
	for i, c := range list {
		f.Add([]byte(c.Config), uint8(i), uint16(1), uint16(5))
		own, _ := json.Marshal(map[string]json.RawMessage{c.Module: c.Config})
		f.Add(own, uint8(i), uint16(2), uint16(4))
	}
	f.Fuzz(func(t *testing.T, config []byte, which uint8, a, b uint16) {
		c := list[int(which)%len(list)]
		s := of(c.Module, tensors)
		names := slices.Sorted(maps.Keys(s.Weights))
		w := s.Weights[names[int(a)%len(names)]]
		if n := int(b) % 300; b%2 == 0 { // of another size
			w.Shape = append(slices.Clone(w.Shape[:len(w.Shape)-1]), n)
			w.Data = make([]byte, w.Len()*w.DType.Size())
		}
		if err := UnpackMLX(s, config); err != nil {
			return
		}
		for name, w := range s.Weights {
			v, err := w.Float32s()
			if err != nil {
				t.Errorf("%q: %v", name, err)
			}
			if w.Blocks != nil && len(held(t, w)) != len(v) {
				t.Errorf("%q: other blocks", name)
			}
		}
	})
}
