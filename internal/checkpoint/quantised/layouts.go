package quantised

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/tensor"
)

// place is AWQ's order of the columns in a word: number i of eight is column (0, 2, 4, 6, 1, 3, 5,
// 7)[i], so column c is number place[c].
var place = [8]int{0, 4, 1, 5, 2, 6, 3, 7}

// floats are the possible types of scales.
var floats = []tensor.DType{tensor.F16, tensor.BF16, tensor.F32}

// awq reads a module of AWQ's GEMM layout.
func (c *settings) awq(p *parts) (*module, error) {
	q, z, err := p.numbers()
	if err != nil {
		return nil, err
	}
	m := &module{name: "AWQ", bits: 4, in: q.rows, out: 8 * q.cols, groups: z.rows}
	if err := z.check("qzeros", m.groups, q.cols); err != nil {
		return nil, err
	}
	if err := m.scales(p, "scales", true); err != nil {
		return nil, err
	}
	m.q = func(dst []uint8, o, from int) {
		col, shift := o/8, 4*place[o%8]
		for i := range dst {
			dst[i] = uint8(q.at(from+i, col)>>shift) & 15
		}
	}
	m.zero = func(o, g int) int { return int(z.at(g, o/8)>>(4*place[o%8])) & 15 }
	size := max(c.Size, c.OldSize)
	if size > 0 && size*m.groups != m.in { // no group is smaller than the others
		return nil, fmt.Errorf("%d groups for %d inputs, want groups of %d", m.groups, m.in, size)
	}
	return m, m.contiguous(size)
}

// numbers reads the words of AWQ and GPTQ: weights and zeros.
func (p *parts) numbers() (q, z *words, err error) {
	if q, err = p.ints("qweight", 2); err != nil {
		return nil, nil, err
	}
	z, err = p.ints("qzeros", 2)
	return q, z, err
}

// gptq reads a module of GPTQ's layout.
func (c *settings) gptq(p *parts) (*module, error) {
	per := 32 / c.Bits
	mask := uint32(1)<<c.Bits - 1
	q, z, err := p.numbers()
	if err != nil {
		return nil, err
	}
	m := &module{name: "GPTQ", bits: c.Bits, in: q.rows * per, out: q.cols, groups: z.rows}
	if err := z.check("qzeros", m.groups, (m.out+per-1)/per); err != nil {
		return nil, err
	}
	if err := m.scales(p, "scales", true); err != nil {
		return nil, err
	}
	m.q = func(dst []uint8, o, from int) {
		for i := range dst {
			dst[i] = uint8(q.at((from+i)/per, o) >> (c.Bits * ((from + i) % per)) & mask)
		}
	}
	m.zero = func(o, g int) int { return int((z.at(g, o/per)>>(c.Bits*(o%per)) + c.less) & mask) }
	if p.has("g_idx") {
		index, err := p.ints("g_idx", 1)
		if err != nil {
			return nil, err
		}
		return m, m.index("g_idx", index)
	}
	return m, m.contiguous(c.Size)
}

// packed reads a module of compressed-tensors' pack-quantized layout.
func (c *settings) packed(p *parts) (*module, error) {
	q, err := p.ints("weight_packed", 2)
	if err != nil {
		return nil, err
	}
	t, err := p.take("weight_shape", 1, tensor.I64, tensor.I32)
	if err != nil {
		return nil, err
	}
	shape, err := t.Int64s()
	if err != nil {
		return nil, err
	}
	const most = 1 << 30
	if len(shape) != 2 || shape[0] != int64(q.rows) || shape[1] < 1 || shape[1] > most {
		return nil, fmt.Errorf("weight_shape: got %v, want [%d inputs]", shape, q.rows)
	}
	m := &module{name: "compressed-tensors", in: int(shape[1]), out: q.rows}
	switch q.cols { // the settings may differ from group to group
	case (m.in + 7) / 8:
		m.bits = 4
	case (m.in + 3) / 4:
		m.bits = 8
	default:
		return nil, fmt.Errorf("weight_packed: %d words for %d inputs, want 4 or 8 bits each",
			q.cols, m.in)
	}
	s, ok := p.weights[p.module+".weight_scale"]
	if !ok || len(s.Shape) != 2 {
		return nil, fmt.Errorf("weight_scale: missing, or not of two axes")
	}
	m.groups = s.Shape[1]
	if err := m.scales(p, "weight_scale", false); err != nil {
		return nil, err
	}
	per, mask, half := 32/m.bits, uint32(1)<<m.bits-1, 1<<(m.bits-1)
	m.q = func(dst []uint8, o, from int) {
		for i := range dst {
			dst[i] = uint8(q.at(o, (from+i)/per) >> (m.bits * ((from + i) % per)) & mask)
		}
	}
	m.zero = func(int, int) int { return half }
	if err := m.ctZeros(p, per, mask, half); err != nil {
		return nil, err
	}
	if p.has("weight_g_idx") {
		index, err := p.ints("weight_g_idx", 1)
		if err != nil {
			return nil, err
		}
		if !index.unset() {
			return m, m.index("weight_g_idx", index)
		}
	}
	return m, m.contiguous(-1)
}

// plain reads a module of compressed-tensors' int-quantized layout: a byte for each number.
func (c *settings) plain(p *parts) (*module, error) {
	m, err := signed(p, "compressed-tensors")
	if err != nil {
		return nil, err
	}
	s := p.weights[p.module+".weight_scale"]
	if len(s.Shape) != 2 {
		return nil, fmt.Errorf("weight_scale: shape %v, want two axes", s.Shape)
	}
	m.groups = s.Shape[1]
	if err := m.scales(p, "weight_scale", false); err != nil {
		return nil, err
	}
	if z := p.weights[p.module+".weight_zero_point"]; z != nil && z.DType != tensor.I8 {
		return nil, fmt.Errorf("weight_zero_point: got %v, want bytes", &z.Tensor)
	}
	if err := m.ctZeros(p, 1, 0, signedZero); err != nil {
		return nil, err
	}
	p.ignore("input_scale", "input_zero_point")
	return m, m.contiguous(-1)
}

// signedZero is the zero of numbers that are bytes with a sign.
const signedZero = 128

// signed reads the numbers of a weight of bytes with a sign.
func signed(p *parts, format string) (*module, error) {
	t, err := p.take("weight", 2, tensor.I8)
	if err != nil {
		return nil, err
	}
	m := &module{name: format, bits: 8, out: t.Shape[0], in: t.Shape[1]}
	m.q = func(dst []uint8, o, from int) {
		for i := range dst {
			// Less the zero, this is the byte with its sign.
			dst[i] = t.Data[o*m.in+from+i] ^ signedZero
		}
	}
	m.zero = func(int, int) int { return signedZero }
	return m, nil
}

// ctZeros reads weight_zero_point: packed like the numbers along out, or as bytes.
func (m *module) ctZeros(p *parts, per int, mask uint32, half int) error {
	const name = "weight_zero_point"
	if !p.has(name) {
		return nil
	}
	if w := p.weights[p.module+"."+name]; w.DType == tensor.I8 {
		t, err := p.take(name, 2, tensor.I8)
		if err != nil {
			return err
		}
		if t.Shape[0] != m.out || t.Shape[1] != m.groups {
			return fmt.Errorf("%s: shape %v, want [%d %d]", name, t.Shape, m.out, m.groups)
		}
		m.zero = func(o, g int) int { return int(int8(t.Data[o*m.groups+g])) + half }
		return nil
	}
	z, err := p.ints(name, 2)
	if err != nil {
		return err
	}
	if err := z.check(name, (m.out+per-1)/per, m.groups); err != nil {
		return err
	}
	m.zero = func(o, g int) int { return int(z.at(o/per, g) >> (m.bits * (o % per)) & mask) }
	return nil
}
