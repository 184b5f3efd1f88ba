package quantised

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// mlxSettings is "quantization" of a config.json that MLX wrote, or one module's in it.
type mlxSettings struct {
	Bits int    `json:"bits"`
	Size int    `json:"group_size"`
	Mode string `json:"mode"`
}

// mlxModes are MLX's modes. The settings may leave out the bits and the size.
var mlxModes = map[string]struct {
	bits, size int
	anyBits    []int // the numbers of bits that there are
	anySize    []int
	values     []float32 // by number
}{
	"affine": {4, 64, []int{2, 3, 4, 5, 6, 8}, []int{32, 64, 128}, wholes},
	"mxfp4":  {4, 32, []int{4}, []int{32}, e2m1},
	"mxfp8":  {8, 32, []int{8}, []int{32}, e4m3[:]},
	"nvfp4":  {4, 16, []int{4}, []int{16}, e2m1},
}

// UnpackMLX replaces the parts of weights in s that MLX quantised by the weights, as described by
// config, which is "quantization" in config.json. Names are as in the files, because config has
// settings of single modules by name. With the mode affine a weight [out, in] is
//
//	w[o,i] = q[o,i]·s[o,g(i)] + b[o,g(i)]                                            (3)
//
// with a scale (scales) and a minimum or maximum (biases) for each group of inputs. In the other
// modes q are floating numbers of 4 (e2m1) or 8 bits (e4m3), scales are bytes, powers of two or, in
// nvfp4, e4m3, and there are no biases. In a row of 32-bit words each number follows the one
// before, the lowest bits first. Source: MLX 0.32 (mlx.core.quantize and dequantize) and what
// mlx-vlm 0.7 reads.
func UnpackMLX(s *checkpoint.Store, config []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return fmt.Errorf("quantization: %w", err)
	}
	var all mlxSettings
	if err := json.Unmarshal(config, &all); err != nil {
		return fmt.Errorf("quantization: %w", err)
	}
	const suffix = ".scales"
	found := false
	for _, name := range slices.Sorted(maps.Keys(s.Weights)) {
		module, ok := strings.CutSuffix(name, suffix)
		if !ok {
			continue
		}
		found = true
		c, err := all.of(module, fields)
		if err != nil {
			return fmt.Errorf("quantization: %w", err)
		}
		p := &parts{weights: s.Weights, module: module}
		w, err := c.weight(p)
		if err != nil {
			return fmt.Errorf("%q: %w", module, err)
		}
		for _, name := range p.used {
			delete(s.Weights, name)
		}
		s.Weights[module+".weight"] = w
	}
	if !found {
		return fmt.Errorf("quantization: got MLX's, but no weight is quantised (%q)",
			"MODULE"+suffix)
	}
	return nil
}

// of returns the settings of a module: its own in fields, which may leave out the decoder's prefix,
// or c.
func (c mlxSettings) of(module string, fields map[string]json.RawMessage) (mlxSettings, error) {
	own := fields[module]
	if own == nil {
		own = fields[strings.TrimPrefix(module, "language_model.")]
	}
	switch string(own) {
	case "", "null", "true":
	case "false":
		return c, fmt.Errorf("%q: got false, but the weight is quantised", module)
	default:
		c = mlxSettings{}
		if err := json.Unmarshal(own, &c); err != nil {
			return c, fmt.Errorf("%q: %w", module, err)
		}
	}
	c.Mode = cmp.Or(c.Mode, "affine")
	m, ok := mlxModes[c.Mode]
	if !ok {
		return c, fmt.Errorf("mode: got %.40q, want one of %s", c.Mode,
			strings.Join(slices.Sorted(maps.Keys(mlxModes)), ", "))
	}
	c.Bits, c.Size = cmp.Or(c.Bits, m.bits), cmp.Or(c.Size, m.size)
	if !slices.Contains(m.anyBits, c.Bits) {
		return c, fmt.Errorf("bits: got %d, want one of %v with mode %s", c.Bits, m.anyBits, c.Mode)
	}
	if !slices.Contains(m.anySize, c.Size) {
		return c, fmt.Errorf("group_size: got %d, want one of %v with mode %s", c.Size, m.anySize,
			c.Mode)
	}
	return c, nil
}

// weight reads a module.
func (c mlxSettings) weight(p *parts) (*checkpoint.Weight, error) {
	t, err := p.take("weight", 2, tensor.U32)
	if err != nil {
		return nil, err
	}
	bytes := 4 * t.Shape[1] // of a row
	m := &module{
		name: "MLX", bits: c.Bits, out: t.Shape[0], in: 8 * bytes / c.Bits, size: c.Size,
	}
	m.groups = m.in / c.Size
	if m.out < 1 || m.groups < 1 || m.groups*c.Size*c.Bits != 8*bytes {
		return nil, fmt.Errorf("weight: shape %v, want rows of whole groups of %d numbers of %d "+
			"bits", t.Shape, c.Size, c.Bits)
	}
	m.q = func(dst []uint8, o, from int) {
		row := t.Data[o*bytes:][:bytes]
		for i := range dst {
			at := (from + i) * c.Bits
			x := uint(row[at/8]) >> (at % 8)
			if at%8+c.Bits > 8 {
				x |= uint(row[at/8+1]) << (8 - at%8)
			}
			dst[i] = uint8(x & (1<<c.Bits - 1))
		}
	}
	n := &numbers{module: m, values: mlxModes[c.Mode].values}
	w := &checkpoint.Weight{
		Tensor: tensor.Tensor{DType: tensor.BF16, Shape: []int{m.out, m.in}},
		Stored: "MLX " + c.Mode, Read: n.read,
	}
	if c.Mode == "affine" {
		w.Stored = fmt.Sprintf("MLX %d bits", c.Bits)
		switch {
		case c.Bits <= 4:
			w.DType, w.Blocks = tensor.Q4M, n.minima
		case c.Bits <= 6:
			w.DType = tensor.Q8
		default:
			w.DType = tensor.F16
		}
		err = n.affine(p)
	} else if scales, e := n.bytes(p, c.Mode); e != nil {
		err = e
	} else if c.Mode == "mxfp4" && halved(scales) {
		w.DType, w.Blocks = tensor.Q8, n.doubled
	}
	w.Raw = p.raw
	return w, err
}

// numbers is a weight v[q]·s + b.
type numbers struct {
	*module
	values []float32              // v
	least  func(o, g int) float32 // b; nil: 0
}

// affine reads scales and b.
func (n *numbers) affine(p *parts) error {
	if err := n.scales(p, "scales", false); err != nil {
		return err
	}
	b := &module{out: n.out, groups: n.groups}
	err := b.scales(p, "biases", false)
	n.least = b.scale
	return err
}

// bytes reads scales that are bytes and returns them.
func (n *numbers) bytes(p *parts, mode string) ([]byte, error) {
	t, err := p.take("scales", 2, tensor.U8)
	if err != nil {
		return nil, err
	}
	if want := [2]int{n.out, n.groups}; [2]int(t.Shape) != want {
		return nil, fmt.Errorf("scales: shape %v, want %v", t.Shape, want)
	}
	table := &powers
	if mode == "nvfp4" {
		table = &e4m3
	}
	n.scale = func(o, g int) float32 { return table[t.Data[o*n.groups+g]] }
	return t.Data, nil
}

// read implements [checkpoint.Weight]'s Read.
func (n *numbers) read(dst []float32, at int) error {
	q := make([]uint8, n.in)
	for o := at / n.in; len(dst) > 0; o++ {
		n.q(q, o, 0)
		for g := range n.groups {
			scale := n.scale(o, g)
			for i := g * n.size; i < (g+1)*n.size; i++ {
				dst[i] = n.values[q[i]] * scale
			}
			if n.least == nil {
				continue
			}
			least := n.least(o, g)
			for i := g * n.size; i < (g+1)*n.size; i++ {
				dst[i] += least
			}
		}
		dst = dst[n.in:]
	}
	return nil
}

// minima implements [checkpoint.Weight]'s Blocks for whole numbers of at most 4 bits. What was a
// maximum is a minimum with a negative scale.
func (n *numbers) minima(scales, minima []float32, q []uint8, row int) error {
	n.q(q[:n.in], row, 0)
	for b := range n.in / block {
		g := b * block / n.size
		scales[b], minima[b] = n.scale(row, g), n.least(row, g)
	}
	return nil
}

// doubled implements [checkpoint.Weight]'s Blocks for e2m1: twice its values are whole numbers.
func (n *numbers) doubled(scales, _ []float32, q []uint8, row int) error {
	n.q(q[:n.in], row, 0)
	for i, v := range q[:n.in] {
		q[i] = uint8(signedZero + int(2*n.values[v]))
	}
	for g := range n.groups {
		scales[g] = n.scale(row, g) / 2
	}
	return nil
}

// wholes are the whole numbers of up to 8 bits.
var wholes = func() []float32 {
	table := make([]float32, 256)
	for q := range table {
		table[q] = float32(q)
	}
	return table
}()

// halved reports whether the halves of all powers are numbers of binary16.
func halved(b []byte) bool {
	const least, most = powerBias - 23, powerBias + 16
	return !slices.ContainsFunc(b, func(x byte) bool { return x < least || x > most })
}

// powerBias is the byte that stands for 1 among powers.
const powerBias = 127

// powers are the scales of mxfp4 and mxfp8: 2 to the power of a byte less 127.
var powers = func() (table [256]float32) {
	for b := range table {
		table[b] = float32(math.Ldexp(1, b-powerBias))
	}
	table[255] = float32(math.NaN())
	return table
}()

// e2m1 are floating numbers of 4 bits: a sign, 2 bits of an exponent and one of a fraction.
var e2m1 = []float32{
	0, 0.5, 1, 1.5, 2, 3, 4, 6,
	float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6,
}
