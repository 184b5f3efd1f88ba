package quantised

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
)

// example is a module of testdata: its settings, and the SHA-256 of its weight in float32 as
// computed by the libraries' own code.
type example struct {
	Module string
	Config json.RawMessage
	Shape  []int
	SHA256 string
}

// examples reads the modules of testdata with their tensors.
func examples(t testing.TB) ([]example, map[string]*tensor.Tensor) {
	t.Helper()
	var all []example
	tensors := map[string]*tensor.Tensor{}
	for _, file := range []string{"modules", "bitsandbytes"} {
		var list []example
		golden.JSON(t, filepath.Join("testdata", file+".json"), &list)
		all = append(all, list...)
		maps.Copy(tensors, golden.Read(t, filepath.Join("testdata", file+".safetensors")))
	}
	return all, tensors
}

// of returns the tensors of one module as a bundle.
func of(module string, tensors map[string]*tensor.Tensor) *checkpoint.Store {
	s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
	for name, x := range tensors {
		if strings.HasPrefix(name, module+".") {
			s.Weights[name] = &checkpoint.Weight{Tensor: *x}
		}
	}
	return s
}

func always(string) bool { return true }

// Ensure that weights of every layout equal the results of the libraries' code bit for bit, that a
// range equals the same range of the whole, and that blocks hold the same values.
func TestUnpack(t *testing.T) {
	list, tensors := examples(t)
	newer := strings.NewReplacer(`"checkpoint_format"`, `"format"`, `"version"`, `"format"`)
	for _, c := range list { // as transformers 5.24 names the layout
		if config := newer.Replace(string(c.Config)); config != string(c.Config) {
			c.Config = json.RawMessage(config)
			list = append(list, c)
		}
	}
	kept := map[tensor.DType]int{}
	for _, c := range list {
		s := of(c.Module, tensors)
		bias := s.Weights[c.Module+".bias"]
		if err := Unpack(s, c.Config, always); err != nil {
			t.Errorf("%s: %v", c.Module, err)
			continue
		}
		w := s.Weights[c.Module+".weight"]
		if w == nil || !slices.Equal(w.Shape, c.Shape) || len(s.Weights) > 2 ||
			s.Weights[c.Module+".bias"] != bias {
			t.Errorf("%s: left with %v, want a weight %v", c.Module,
				slices.Collect(maps.Keys(s.Weights)), c.Shape)
			continue
		}
		v := c.check(t, w)
		if strings.HasPrefix(w.Stored, "bitsandbytes ") && w.Blocks == nil {
			continue // a table's values
		}
		kept[w.DType]++
		if w.Blocks == nil {
			continue
		}
		if !slices.Equal(held(t, w), v) {
			t.Errorf("%s: blocks hold other values", c.Module)
		}
	}
	if kept[tensor.Q4]*kept[tensor.Q4M]*kept[tensor.Q8] == 0 || kept[tensor.F16] != 0 {
		t.Errorf("kept as %v, want some of each kind of blocks", kept)
	}
}

// check compares the values of w with the library's, and some of its rows with the whole. It
// returns the values.
func (c *example) check(t *testing.T, w *checkpoint.Weight) []float32 {
	t.Helper()
	v, err := w.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != c.SHA256 {
		t.Errorf("%s: other values than the library's", c.Module)
	}
	in := w.Shape[1]
	part := make([]float32, 3*in)
	if err := w.Read(part, 5*in); err != nil || !slices.Equal(part, v[5*in:8*in]) {
		t.Errorf("%s: rows 5 to 7 differ from the whole's: %v", c.Module, err)
	}
	return v
}

// held returns the values in w's blocks before scales and minima are rounded.
func held(t *testing.T, w *checkpoint.Weight) []float32 {
	t.Helper()
	out, in := w.Shape[0], w.Shape[1]
	offset := map[tensor.DType]int{tensor.Q4: 8, tensor.Q8: 128, tensor.Q4M: 0}[w.DType]
	scales, q := make([]float32, in/block), make([]uint8, in)
	minima := make([]float32, in/block)
	if w.DType != tensor.Q4M {
		minima = nil
	}
	v := make([]float32, out*in)
	for o := range out {
		if err := w.Blocks(scales, minima, q, o); err != nil {
			t.Fatal(err)
		}
		for i, x := range q {
			at := i
			if w.Order != nil {
				at = int(w.Order[i])
			}
			v[o*in+at] = float32(int(x)-offset) * scales[i/block]
			if minima != nil {
				v[o*in+at] += minima[i/block]
			}
		}
	}
	return v
}

// packWords packs v, numbers of the given bits, into words along rows (GPTQ's numbers) of [rows,
// cols], or along columns (its zeros).
func packWords(v []int, rows, cols, bits int, alongRows bool) *tensor.Tensor {
	per, width := 32/bits, cols
	shape := []int{rows / per, cols}
	if !alongRows {
		width = (cols + per - 1) / per
		shape = []int{rows, width}
	}
	b := make([]byte, 4*shape[0]*shape[1])
	for r := range rows {
		for c := range cols {
			at, shift := r/per*width+c, r%per*bits
			if !alongRows {
				at, shift = r*width+c/per, c%per*bits
			}
			x := binary.LittleEndian.Uint32(b[4*at:]) | uint32(v[r*cols+c])<<shift
			binary.LittleEndian.PutUint32(b[4*at:], x)
		}
	}
	return &tensor.Tensor{DType: tensor.I32, Shape: shape, Data: b}
}

// Ensure that GPTQ's weights in act order have the values of (1), for any groups, and are kept in
// blocks if the groups fill them: in 4 bits if stored in 4.
func TestActOrder(t *testing.T) {
	const in, out = 256, 40
	for _, c := range []struct {
		bits, size int
		symmetric  bool
		uneven     bool // groups of other sizes
		kept       tensor.DType
	}{
		{4, 32, true, false, tensor.Q4}, {4, 64, false, false, tensor.Q4M},
		{4, 128, true, false, tensor.Q4}, {4, 128, false, false, tensor.Q4M},
		{4, 256, true, false, tensor.Q4}, // one group: no order is needed
		{8, 32, true, false, tensor.Q8}, {8, 128, true, false, tensor.Q8},
		{8, 64, false, false, tensor.F16},
		{4, 16, true, false, tensor.F16}, {4, 64, true, true, tensor.F16},
	} {
		r := rand.New(rand.NewPCG(uint64(c.bits), uint64(c.size)))
		groups := in / c.size
		group := r.Perm(in)
		for i, p := range group {
			group[i] = p / c.size
		}
		if c.uneven {
			group[slices.Index(group, 0)] = 1
		}
		q, less := make([]int, in*out), make([]int, groups*out)
		scales, index := make([]byte, 2*groups*out), make([]byte, 4*in)
		scale := make([]float32, groups*out)
		for i := range q {
			q[i] = r.IntN(1 << c.bits)
		}
		for i := range less {
			less[i] = 1<<(c.bits-1) - 1
			if !c.symmetric {
				less[i] = r.IntN(1<<c.bits - 1)
			}
			h := uint16(0x1c00 + r.IntN(0x1000))
			binary.LittleEndian.PutUint16(scales[2*i:], h)
			scale[i] = tensor.F16ToF32(h)
		}
		for i, g := range group {
			binary.LittleEndian.PutUint32(index[4*i:], uint32(g))
		}
		s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{
			"m.qweight": {Tensor: *packWords(q, in, out, c.bits, true)},
			"m.qzeros":  {Tensor: *packWords(less, groups, out, c.bits, false)},
			"m.scales": {Tensor: tensor.Tensor{
				DType: tensor.F16, Shape: []int{groups, out}, Data: scales,
			}},
			"m.g_idx": {Tensor: tensor.Tensor{DType: tensor.I32, Shape: []int{in}, Data: index}},
		}}
		config := fmt.Sprintf(`{"quant_method": "gptq", "bits": %d, "group_size": %d,
			"desc_act": true}`, c.bits, c.size)
		if err := Unpack(s, []byte(config), always); err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		w := s.Weights["m.weight"]
		v, err := w.Float32s()
		if err != nil || w.DType != c.kept || (w.Order != nil) != (w.Blocks != nil && groups > 1) {
			t.Errorf("%+v: kept as %v, order %v: %v", c, w, w.Order != nil, err)
			continue
		}
		want := make([]float32, in*out)
		for o := range out {
			for i, g := range group {
				want[o*in+i] = float32(q[i*out+o]-less[g*out+o]-1) * scale[g*out+o]
			}
		}
		if !slices.Equal(v, want) {
			t.Errorf("%+v: other values than the formula's", c)
		}
		if w.Blocks == nil {
			continue
		}
		if !slices.Equal(held(t, w), want) {
			t.Errorf("%+v: blocks hold other values", c)
		}
	}
}

// Ensure that a bias of zeros is removed if the model has none there, and stays if it has one.
func TestBias(t *testing.T) {
	list, tensors := examples(t)
	i := slices.IndexFunc(list, func(c example) bool { return strings.Contains(c.Module, "gptq") })
	c := list[i]
	for _, x := range []struct {
		value byte
		has   bool
		stays bool
	}{{0, false, false}, {0, true, true}, {1, false, true}} {
		s := of(c.Module, tensors)
		s.Weights[c.Module+".bias"] = &checkpoint.Weight{
			Tensor: tensor.Tensor{
				DType: tensor.F16,
				Shape: []int{2},
				Data:  []byte{0, 0, 0, x.value},
			},
		}
		if err := Unpack(s, c.Config, func(string) bool { return x.has }); err != nil {
			t.Fatal(err)
		}
		if _, stays := s.Weights[c.Module+".bias"]; stays != x.stays {
			t.Errorf("%+v: stays %v", x, stays)
		}
	}
}

// Ensure that unsupported settings and parts that do not fit are refused with an error that names
// them.
func TestUnpackErrors(t *testing.T) {
	list, tensors := examples(t)
	find := func(kind string) example {
		return list[slices.IndexFunc(list, func(c example) bool {
			return strings.Contains(c.Module, kind)
		})]
	}
	awq, gptq, ct := find("awq"), find("gptq-v1-desc"), find("ct-w4a16-asym")
	nf4, int8 := find("nf4-double"), find("llm-int8")
	less := func(x *tensor.Tensor) *tensor.Tensor {
		n := x.Shape[0] - 1
		size := len(x.Data) / x.Shape[0]
		shape := append([]int{n}, x.Shape[1:]...)
		return &tensor.Tensor{DType: x.DType, Shape: shape, Data: x.Data[:n*size]}
	}
	says := func(old, new string) func(*tensor.Tensor) *tensor.Tensor {
		return func(x *tensor.Tensor) *tensor.Tensor {
			data := bytes.Replace(x.Data, []byte(old), []byte(new), 1)
			return &tensor.Tensor{DType: x.DType, Shape: []int{len(data)}, Data: data}
		}
	}
	const state = "weight.quant_state.bitsandbytes__nf4"
	for _, c := range []struct {
		of       example
		old, new string // in the settings
		tensor   string // the one that is changed
		change   func(x *tensor.Tensor) *tensor.Tensor
		want     string
	}{
		{awq, "awq", "hqq", "", nil, "hqq"}, {awq, "GEMM", "GEMV", "", nil, "gemv"},
		{awq, `"version": "GEMM"`, `"format": "gemv_fast"`, "", nil, "gemv_fast"},
		{awq, `"group_size": 64`, `"group_size": 65`, "", nil, "want groups of 65"},
		{awq, `"bits"`, `"backend": "llm-awq", "bits"`, "", nil, "llm-awq"},
		{awq, `"bits": 4`, `"bits": 3`, "", nil, "bits"}, {gptq, `"bits": 4`, `"bits": 2`, "", nil, "bits"},
		{gptq, `"quant_method"`, `"checkpoint_format": "marlin", "quant_method"`, "", nil, "marlin"},
		{gptq, `"quant_method"`, `"format": "marlin", "quant_method"`, "", nil, "marlin"},
		{ct, `"quant_method"`, `"transform_config": {"config_groups": {"R4": {"apply": [
			{"location": "weight_output"}, {"location": "input"}]}}}, "quant_method"`, "", nil, `"R4": location: got "input"`},
		{ct, "pack-quantized", "float-quantized", "", nil, "float-quantized"}, {ct, `"type": "int"`, `"type": "float"`, "", nil, "float"},
		{ct, `"strategy": "group"`, `"strategy": "block"`, "", nil, "block"},
		{awq, "", "", "qweight", func(*tensor.Tensor) *tensor.Tensor { return nil }, "no weight is quantised"},
		{awq, "", "", "qzeros", func(*tensor.Tensor) *tensor.Tensor { return nil }, "qzeros: missing"},
		{awq, "", "", "scales", func(*tensor.Tensor) *tensor.Tensor { return nil }, "scales: missing"},
		{awq, "", "", "qzeros", half, "qzeros"}, {awq, "", "", "scales", half, "scales"}, {gptq, "", "", "g_idx", half, "g_idx"},
		{gptq, "", "", "g_idx", func(x *tensor.Tensor) *tensor.Tensor {
			return &tensor.Tensor{
				DType: x.DType, Shape: x.Shape,
				Data: append([]byte{0xff, 0xff, 0xff, 0x7f}, x.Data[4:]...),
			}
		}, "group"},
		{gptq, "", "", "qzeros", func(x *tensor.Tensor) *tensor.Tensor {
			return &tensor.Tensor{DType: tensor.F32, Shape: x.Shape, Data: x.Data}
		}, "qzeros"},
		{ct, "", "", "weight_shape", func(*tensor.Tensor) *tensor.Tensor { return tensor.From([]int{2}, []int64{1 << 40, 1 << 40}) }, "weight_shape"},
		{nf4, `"load_in_4bit": true`, `"load_in_4bit": false`, "", nil, "got false and false"},
		{nf4, `"load_in_8bit": false`, `"load_in_8bit": true`, "", nil, "got true and true"},
		{nf4, "", "", state, func(*tensor.Tensor) *tensor.Tensor { return nil }, state}, {nf4, "", "", "weight", less, "weight: got 9215 bytes for shape [72 256]"},
		{nf4, "", "", state, says("bfloat16", "bfloat8"), `dtype: got "bfloat8"`}, {nf4, "", "", state, says("nf4", "fp4"), `quant_type: got "fp4"`},
		{nf4, "", "", state, says(`"blocksize": 64`, `"blocksize": 0`), "blocksize: got 0"}, {nf4, "", "", state, says("[72, 256]", "[-72, -256]"), "shape [-72 -256]"},
		{nf4, "", "", state, says(`"nested_blocksize": 256`, `"nested_blocksize": -1`), "blocks of -1"}, {nf4, "", "", state, says("{", ""), state},
		{nf4, "", "", "weight.absmax", less, "absmax: got 287 numbers"}, {nf4, "", "", "weight.quant_map", less, "quant_map: got 15 numbers"},
		{nf4, "", "", "weight.nested_absmax", less, "nested_absmax: got 1 numbers"}, {nf4, "", "", "weight.nested_quant_map", less, "nested_quant_map: got 255 numbers"},
		{int8, "", "", "SCB", less, "SCB: got 39 numbers, want 40"},
		{ct, "", "", "weight_packed", half, "weight"}, {ct, "", "", "weight_zero_point", half, "weight_zero_point"},
	} {
		s := of(c.of.Module, tensors)
		name := c.of.Module + "." + c.tensor
		if c.change != nil {
			if x := c.change(&s.Weights[name].Tensor); x == nil {
				delete(s.Weights, name)
			} else {
				s.Weights[name] = &checkpoint.Weight{Tensor: *x}
			}
		}
		config := strings.Replace(string(c.of.Config), c.old, c.new, 1)
		err := Unpack(s, []byte(config), always)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %s for %s, %s: got %v, want %q", c.of.Module, c.new, c.old, c.tensor, err,
				c.want)
		}
	}
}

// half returns the first half of x along its last axis.
func half(x *tensor.Tensor) *tensor.Tensor {
	y := &tensor.Tensor{DType: x.DType, Shape: slices.Clone(x.Shape)}
	y.Shape[len(y.Shape)-1] /= 2
	y.Data = x.Data[:y.Len()*y.DType.Size()]
	return y
}

// FuzzUnpack: any settings and sizes are either refused, or give weights that can be read.
func FuzzUnpack(f *testing.F) {
	list, tensors := examples(f)
	for i, c := range list {
		f.Add([]byte(c.Config), uint8(i), uint16(3), uint16(5))
	}
	f.Fuzz(func(t *testing.T, config []byte, which uint8, a, b uint16) {
		c := list[int(which)%len(list)]
		s := of(c.Module, tensors)
		names := slices.Sorted(maps.Keys(s.Weights))
		w := s.Weights[names[int(a)%len(names)]]
		if n := int(b) % 300; b%2 == 0 && len(w.Shape) > 0 { // of another size
			w.Shape = append(slices.Clone(w.Shape[:len(w.Shape)-1]), n)
			w.Data = make([]byte, w.Len()*w.DType.Size())
		}
		if err := Unpack(s, config, always); err != nil {
			return
		}
		for name, w := range s.Weights {
			if _, err := w.Float32s(); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}
