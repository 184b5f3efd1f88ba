package quantised

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Settings of floating numbers of 8 bits.
const (
	fp8       = `{"quant_method":"fp8","weight_block_size":[4,4]}`
	float8Set = `{"quant_method":"compressed-tensors","format":"float-quantized","config_groups":` +
		`{"group_0":{"weights":{"num_bits":8,"type":"float","strategy":"block",` +
		`"block_structure":[4,4]}}}}`
)

// float8Module returns a module of 8 outputs and 12 inputs whose tensor called scale has a shape.
func float8Module(scale string, shape ...int) *checkpoint.Store {
	const out, in = 8, 12
	data := make([]byte, out*in)
	for i := range data {
		data[i] = byte((i*37 + i/5) % 127)
		if i%3 == 1 {
			data[i] |= 128
		}
	}
	n := 1
	for _, side := range shape {
		n *= side
	}
	scales := make([]byte, 2*n)
	for i := range n { // the bfloat16 next to 0.01, 0.02, …
		bits := math.Float32bits(0.01 * float32(i+1))
		binary.LittleEndian.PutUint16(scales[2*i:], uint16((bits+0x7fff+bits>>16&1)>>16))
	}
	one := tensor.Tensor{DType: tensor.BF16, Shape: []int{}, Data: []byte{0, 0x3f}}
	return &checkpoint.Store{Weights: map[string]*checkpoint.Weight{
		"m.weight": {Tensor: tensor.Tensor{DType: tensor.F8, Shape: []int{out, in}, Data: data}},
		"m." + scale: {Tensor: tensor.Tensor{
			DType: tensor.BF16, Shape: shape, Data: scales,
		}},
		"m.activation_scale": {Tensor: one}, "m.input_scale": {Tensor: one},
		"other.weight": {Tensor: one},
	}}
}

// sum returns the SHA-256 of v.
func sum(v []float32) string {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, v)
	s := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(s[:])
}

// Ensure that floating numbers of 8 bits have PyTorch's values, and weights of them those that
// transformers 5.24's Fp8Dequantize computes, bit for bit, whatever has a scale of its own.
func TestFloat8(t *testing.T) {
	finite := slices.DeleteFunc(slices.Clone(e4m3[:]), func(x float32) bool { return x != x })
	if got := sum(finite); len(finite) != 254 ||
		got != "f275e267d1b70f2c583fa6b5c47be61348a1aa22f7aa676cc5a0fb66798646a5" {
		t.Errorf("other numbers than PyTorch's: %v", finite)
	}
	const (
		one     = "9c1679201e820f3a1149966990c3a3275f0341a8757a2cc86f617d0cac81203c"
		outputs = "9ce77e0b0a79e13f748f2614e0a1fd20b0ab05be0902d556e30086bdc1a0bfeb"
		blocks  = "f65ee985a4de7add0f204b18d615cf9e171bc13842fa8847cb924da2998a972a"
	)
	for _, c := range []struct {
		shape []int
		want  string
	}{
		{[]int{}, one}, {[]int{1}, one}, {[]int{1, 1}, one}, {[]int{8}, outputs},
		{[]int{8, 1}, outputs}, {[]int{2, 3}, blocks},
	} {
		for scale, config := range map[string]string{
			"weight_scale_inv": fp8, "weight_scale": float8Set,
		} {
			s := float8Module(scale, c.shape...)
			if err := Unpack(s, []byte(config), always); err != nil {
				t.Errorf("%s %v: %v", scale, c.shape, err)
				continue
			}
			w := s.Weights["m.weight"]
			v, err := w.Float32s()
			if err != nil || sum(v) != c.want || w.DType != tensor.BF16 || len(s.Weights) != 3 {
				t.Errorf("%s %v: other values than the reference's: %v", scale, c.shape, err)
			}
			part := make([]float32, 24)
			if err := w.Read(part, 36); err != nil || !slices.Equal(part, v[36:60]) {
				t.Errorf("%s %v: rows 3 and 4 differ from the whole's: %v", scale, c.shape, err)
			}
		}
	}
}

// intSet are the settings of bytes.
const intSet = `{"quant_method":"compressed-tensors","format":"int-quantized","config_groups":` +
	`{"group_0":{"weights":{"num_bits":8,"type":"int","strategy":"channel"}}}}`

// Ensure that weights of bytes have the values of compressed-tensors' IntQuantizationCompressor bit
// for bit, with zeros the values of (1), and that other scales and zeros are refused by name.
func TestPlain(t *testing.T) {
	module := func(shape ...int) *checkpoint.Store {
		s := float8Module("weight_scale", shape...)
		s.Weights["m.weight"].DType = tensor.I8
		delete(s.Weights, "m.activation_scale")
		return s
	}
	zeros := func(s *checkpoint.Store, d tensor.DType) {
		s.Weights["m.weight_zero_point"] = &checkpoint.Weight{Tensor: tensor.Tensor{
			DType: d, Shape: []int{8, 1}, Data: []byte{0, 0, 3, 0, 0, 0, 0, 0xff},
		}}
	}
	for _, zero := range []bool{false, true} {
		s := module(8, 1)
		q, scale := s.Weights["m.weight"].Data, s.Weights["m.weight_scale"]
		scales, err := scale.Float32s()
		if err != nil {
			t.Fatal(err)
		}
		if zero {
			zeros(s, tensor.I8)
		}
		if err := Unpack(s, []byte(intSet), always); err != nil {
			t.Fatal(err)
		}
		v, err := s.Weights["m.weight"].Float32s()
		if err != nil || len(s.Weights) != 2 {
			t.Fatal(err, len(s.Weights))
		}
		const want = "ee480c36df18a1bb90c5cecbe01e655cede627c88081c0a80eef70b7c82a6e79"
		if got := sum(v); !zero && got != want {
			t.Errorf("other values than the library's: %v", v)
		}
		for i, x := range v {
			z := map[int]int{2: 3, 7: -1}[i/12]
			if zero && x != float32(int(int8(q[i]))-z)*scales[i/12] {
				t.Errorf("value %d: got %v", i, x)
			}
		}
	}
	for want, change := range map[string]func() *checkpoint.Store{
		"weight_scale: shape [8]":    func() *checkpoint.Store { return module(8) },
		"weight_scale: shape [2 3]":  func() *checkpoint.Store { return module(2, 3) },
		"weight: got F8_E4M3 [8 12]": func() *checkpoint.Store { return float8Module("weight_scale", 8, 1) },
		"weight_zero_point: got U8 [8 1]": func() *checkpoint.Store {
			s := module(8, 1)
			zeros(s, tensor.U8)
			return s
		},
	} {
		if err := Unpack(change(), []byte(intSet), always); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// Ensure that scales that do not fit, and other kinds of numbers, are refused by name.
func TestFloat8Refused(t *testing.T) {
	for _, c := range []struct {
		config string
		shape  []int
		change func(s *checkpoint.Store)
		want   string
	}{
		{fp8, []int{3, 2}, nil, "weight_scale_inv: shape [3 2], want [2 3]"},
		{fp8, []int{1, 6}, nil, "weight_scale_inv: shape [1 6], want [2 3]"},
		{fp8, []int{1, 2, 3}, nil, "weight_scale_inv: shape [1 2 3]"},
		{strings.Replace(fp8, "[4,4]", "null", 1), []int{2, 3}, nil, "want one number, one for each"},
		{strings.Replace(fp8, "[4,4]", "[0,4]", 1), []int{2, 3}, nil, "want one number, one for each"},
		{fp8, []int{1}, func(s *checkpoint.Store) { s.Weights["m.weight"].DType = tensor.F8E5M2 },
			"weight: got F8_E5M2"},
		{fp8, []int{1}, func(s *checkpoint.Store) { delete(s.Weights, "m.weight") },
			"weight: missing"},
		{fp8, []int{2}, func(s *checkpoint.Store) {
			s.Weights["m.weight_scale_inv"].DType = tensor.F8E8M0
		}, "weight_scale_inv: got F8_E8M0"},
		{strings.Replace(float8Set, `"num_bits":8`, `"num_bits":4`, 1), []int{1}, nil,
			"float-quantized: weights"},
		{float8Set, []int{1}, nil, "no weight is quantised"},
	} {
		s := float8Module("weight_scale_inv", c.shape...)
		if c.change != nil {
			c.change(s)
		}
		if err := Unpack(s, []byte(c.config), always); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got %v, want %q", c.config, c.shape, err, c.want)
		}
	}
}

// FuzzFloat8: any settings and shapes are either refused, or give weights that can be read.
func FuzzFloat8(f *testing.F) {
	f.Add(fp8, uint8(2), uint8(3))
	f.Add(float8Set, uint8(8), uint8(1))
	f.Add(intSet, uint8(8), uint8(1))
	f.Fuzz(func(t *testing.T, config string, rows, cols uint8) {
		for _, scale := range []string{"weight_scale_inv", "weight_scale"} {
			s := float8Module(scale, int(rows), int(cols))
			if strings.Contains(config, "int-quantized") {
				s.Weights["m.weight"].DType = tensor.I8
			}
			if err := Unpack(s, []byte(config), always); err != nil {
				continue
			}
			if _, err := s.Weights["m.weight"].Float32s(); err != nil {
				t.Error(err)
			}
		}
	})
}
