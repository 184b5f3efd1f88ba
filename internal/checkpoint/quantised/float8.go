package quantised

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// rounded returns what reader does for compressed-tensors' float-quantized layout.
func (c *settings) rounded() (func(*parts) (*checkpoint.Weight, error), string, error) {
	var block []int
	for _, g := range c.Groups {
		w := g.Weights
		if w == nil || w.Type != "float" || w.Bits != 8 {
			return nil, "", fmt.Errorf("compressed-tensors: float-quantized: weights: got %+v, "+
				"want float of 8 bits", w)
		}
		if w.Block != nil {
			block = w.Block
		}
	}
	return float8("weight_scale", "input_scale", block), ".weight_scale", nil
}

// float8 returns the function that reads a weight [out, in] of floating numbers of 8 bits (F8_E4M3)
//
//	w[o,i] = f[o,i]·s[o/b0, i/b1]
//
// with a tensor called scale: one number for all, one for each output, or one for each block of b0
// outputs and b1 inputs. inputs is the scale of rounded activations. The last block of an axis may
// be smaller, which transformers does not read. Source: transformers 5.24 Fp8Dequantize, which it
// uses without a GPU, and compressed-tensors 0.20.
func float8(scale, inputs string, block []int) func(*parts) (*checkpoint.Weight, error) {
	return func(p *parts) (*checkpoint.Weight, error) {
		t, err := p.take("weight", 2, tensor.F8)
		if err != nil {
			return nil, err
		}
		var s *tensor.Tensor
		if w := p.weights[p.module+"."+scale]; w != nil {
			s, err = p.take(scale, len(w.Shape), floats...)
		} else {
			err = fmt.Errorf("%s: missing", scale)
		}
		if err != nil {
			return nil, err
		}
		p.ignore(inputs)
		f := &rounded{data: t.Data, out: t.Shape[0], in: t.Shape[1]}
		if f.scales, err = s.Float32s(); err != nil {
			return nil, err
		}
		if err := f.grid(s.Shape, block); err != nil {
			return nil, fmt.Errorf("%s: %w", scale, err)
		}
		return &checkpoint.Weight{
			Tensor: tensor.Tensor{DType: tensor.BF16, Shape: t.Shape},
			Stored: t.DType.String(), Raw: p.raw, Read: f.read,
		}, nil
	}
}

// rounded is a weight of floating numbers of 8 bits.
type rounded struct {
	data       []byte // [out, in]
	out, in    int
	scales     []float32 // [blocks along out, across]
	rows, cols int       // of a block
	across     int
}

// grid finds the blocks that have a scale each.
func (f *rounded) grid(shape, block []int) error {
	switch n := len(f.scales); {
	case f.out < 1 || f.in < 1:
		return fmt.Errorf("for a weight [%d %d], want at least one number", f.out, f.in)
	case n == 1:
		f.rows, f.cols = f.out, f.in
	case n == f.out && shape[0] == n:
		f.rows, f.cols = 1, f.in
	case len(block) == 2 && block[0] > 0 && block[1] > 0:
		f.rows, f.cols = min(block[0], f.out), min(block[1], f.in)
	default:
		return fmt.Errorf("shape %v, want one number, one for each of %d outputs, or blocks", shape,
			f.out)
	}
	down := (f.out + f.rows - 1) / f.rows
	f.across = (f.in + f.cols - 1) / f.cols
	if down*f.across != len(f.scales) || len(shape) > 2 || len(shape) == 2 && shape[0] != down {
		return fmt.Errorf("shape %v, want [%d %d] for blocks of %d by %d", shape, down, f.across,
			f.rows, f.cols)
	}
	return nil
}

// read implements [checkpoint.Weight]'s Read.
func (f *rounded) read(dst []float32, at int) error {
	for ; len(dst) > 0; at += f.in {
		scales := f.scales[at/f.in/f.rows*f.across:]
		for i, b := range f.data[at : at+f.in] {
			dst[i] = e4m3[b] * scales[i/f.cols]
		}
		dst = dst[f.in:]
	}
	return nil
}

// e4m3 are the numbers of F8_E4M3: a sign, 4 bits of an exponent above -7 and 3 of a fraction.
var e4m3 = func() (table [256]float32) {
	for b := range table {
		exponent, fraction := b>>3&15, float64(b&7)/8
		v := math.Ldexp(1+fraction, exponent-7)
		if exponent == 0 {
			v = math.Ldexp(fraction, -6)
		}
		if b&127 == 127 {
			v = math.NaN()
		}
		table[b] = float32(math.Copysign(v, 1-2*float64(b>>7)))
	}
	return table
}()
