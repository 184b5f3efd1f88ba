package quantised

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// block is the number of values along a row that share a scale in the kernels' blocks.
const block = 32

// module is a quantised weight.
type module struct {
	name            string // of its format
	bits            int
	in, out, groups int

	q     func(dst []uint8, o, from int) // the numbers of row o from an input on
	zero  func(o, g int) int
	scale func(o, g int) float32
	group []int32 // of each input; nil: runs of size inputs
	size  int
	order []int32 // inputs sorted by group, in whole blocks of one group; nil: in the given order
}

// scales reads the scales [groups, out], or [out, groups].
func (m *module) scales(p *parts, name string, groupsFirst bool) error {
	t, err := p.take(name, 2, floats...)
	if err != nil {
		return err
	}
	want := [2]int{m.out, m.groups}
	if groupsFirst {
		want = [2]int{m.groups, m.out}
	}
	if [2]int(t.Shape) != want {
		return fmt.Errorf("%s: shape %v, want %v", name, t.Shape, want)
	}
	data := t.Data
	at := func(o, g int) int { return o*m.groups + g }
	if groupsFirst {
		at = func(o, g int) int { return g*m.out + o }
	}
	le := binary.LittleEndian
	switch t.DType {
	case tensor.F16:
		m.scale = func(o, g int) float32 { return tensor.F16ToF32(le.Uint16(data[2*at(o, g):])) }
	case tensor.BF16:
		m.scale = func(o, g int) float32 {
			return math.Float32frombits(uint32(le.Uint16(data[2*at(o, g):])) << 16)
		}
	default:
		m.scale = func(o, g int) float32 {
			return math.Float32frombits(le.Uint32(data[4*at(o, g):]))
		}
	}
	return nil
}

// contiguous declares groups as runs of inputs. size is the value in the settings, -1 if the number
// of groups determines it.
func (m *module) contiguous(size int) error {
	if m.in < 1 || m.groups < 1 || m.in%m.groups != 0 && size < 1 {
		return fmt.Errorf("%d groups for %d inputs, want a divisor", m.groups, m.in)
	}
	if m.size = size; size < 1 {
		m.size = m.in / m.groups
	}
	if (m.in+m.size-1)/m.size != m.groups {
		return fmt.Errorf("%d groups for %d inputs, want groups of %d", m.groups, m.in, size)
	}
	return nil
}

// index reads the groups of inputs and detects whether they are runs.
func (m *module) index(name string, index *words) error {
	if index.cols != m.in || m.in < 1 || m.groups < 1 {
		return fmt.Errorf("%s: %d inputs in %d groups, want %d", name, index.cols, m.groups, m.in)
	}
	m.group = make([]int32, m.in)
	runs := m.in%m.groups == 0
	for i := range m.group {
		g := int32(index.at(0, i))
		if g < 0 || int(g) >= m.groups {
			return fmt.Errorf("%s: input %d is of group %d, want one below %d",
				name, i, g, m.groups)
		}
		m.group[i] = g
		runs = runs && int(g) == i/(m.in/m.groups)
	}
	if runs {
		m.group, m.size = nil, m.in/m.groups
	}
	return nil
}

// byGroup sorts the inputs by group and reports whether every group then fills whole blocks.
func (m *module) byGroup() bool {
	next := make([]int, m.groups+1) // first input of each group
	for _, g := range m.group {
		next[g+1]++
	}
	for g, n := range next {
		if n%block != 0 {
			return false
		}
		if g > 0 {
			next[g] += next[g-1]
		}
	}
	m.order = make([]int32, m.in)
	for i, g := range m.group {
		m.order[next[g]] = int32(i)
		next[g]++
	}
	return true
}

// weight returns the module's weight. It is kept in the kernels' blocks if its groups are whole
// blocks, in the given order or once the inputs are sorted by group. This is without loss if all
// zeros are the blocks' own; otherwise minima are rounded to binary16.
func (m *module) weight(raw [][]byte) *checkpoint.Weight {
	w := &checkpoint.Weight{
		Tensor: tensor.Tensor{DType: tensor.F16, Shape: []int{m.out, m.in}},
		Stored: fmt.Sprintf("%s %d bits", m.name, m.bits), Raw: raw, Read: m.read,
	}
	whole := m.in%block == 0 && m.size%block == 0
	if m.group != nil {
		w.Stored += " in act order"
		whole = m.byGroup()
	}
	if !whole {
		return w
	}
	least, most := m.zeros()
	switch {
	case m.bits == 4 && least == 8 && most == 8:
		w.DType, w.Blocks = tensor.Q4, m.blocks
	case m.bits == 4:
		w.DType, w.Blocks = tensor.Q4M, m.blocks
	case least == 128 && most == 128:
		w.DType, w.Blocks = tensor.Q8, m.blocks
	}
	if w.Blocks != nil {
		w.Order = m.order
	}
	return w
}

// zeros returns the smallest and the greatest zero.
func (m *module) zeros() (least, most int) {
	least, most = 1<<m.bits, 0
	for o := range m.out {
		for g := range m.groups {
			z := m.zero(o, g)
			least, most = min(least, z), max(most, z)
		}
	}
	return least, most
}

// blocks implements [checkpoint.Weight]'s Blocks: numbers are stored as in the blocks, and a zero
// that is not the blocks' own becomes a minimum, −z·s.
func (m *module) blocks(scales, minima []float32, q []uint8, row int) error {
	if m.order == nil {
		m.q(q[:m.in], row, 0)
	} else {
		all := make([]uint8, m.in)
		m.q(all, row, 0)
		for i, at := range m.order {
			q[i] = all[at]
		}
	}
	for b := range m.in / block {
		g := b * block / max(1, m.size)
		if m.order != nil {
			g = int(m.group[m.order[b*block]])
		}
		scales[b] = m.scale(row, g)
		if minima != nil {
			minima[b] = float32(-m.zero(row, g)) * scales[b]
		}
	}
	return nil
}

// read implements [checkpoint.Weight]'s Read (1).
func (m *module) read(dst []float32, at int) error {
	q := make([]uint8, m.in)
	zero, scale := make([]int, m.groups), make([]float32, m.groups)
	for o := at / m.in; len(dst) > 0; o++ {
		m.q(q, o, 0)
		for g := range zero {
			zero[g], scale[g] = m.zero(o, g), m.scale(o, g)
		}
		for i, v := range q {
			g := i / max(1, m.size)
			if m.group != nil {
				g = int(m.group[i])
			}
			dst[i] = float32(int(v)-zero[g]) * scale[g]
		}
		dst = dst[m.in:]
	}
	return nil
}
