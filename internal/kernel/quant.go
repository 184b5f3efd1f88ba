package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Quantised weights are blocks of 32 values along K with one binary16 scale d and, in Q4M, one
// binary16 minimum m: w = d·q in Q8 and Q4 (as GGUF's Q8_0 and Q4_0), w = d·q + m with q from 0 to
// 15 in Q4M (as Q4_1), and w = d·iq4Values[q] in IQ4 (as IQ4_NL). They are stored in panels of 32
// rows of the weight, a layout that every implementation reads. Block b of panel p is
//
//	[32] binary16 scales, one per row
//	Q4M: [32] binary16 minima, one per row
//	Q8: 8 groups of [32 rows][4 along K] bytes, value + 128
//	Q4, Q4M, IQ4: 4 pairs of groups of [32 rows][4 along K] nibbles: value + 8, value, or
//	    table index; group 2j in the low half of a byte, 2j+1 in the high half
//
// Blocks and panels are consecutive, p outermost. N and K are rounded up to 32 with zeros. A weight
// takes 8.5 bits in Q8, 4.5 in Q4 and IQ4, 5 in Q4M.
const (
	quantBlock = 32
	quantPanel = 32
)

// Activations are also quantised to int8 in blocks. A block takes actBlock bytes: 32 int8, the
// float32 scale, and an int32, −offset·Σ of the int8, which cancels the offset of the stored
// weights. For Q4M, which has no offset, this is a float32 for the minima instead: Σ of the int8,
// times the scale if it is the block's own. With AVX-512 and VNNI, the blocks of a span have one.
const (
	actBlock  = 40
	actScale  = 32
	actOffset = 36
	// actLeast is a lower limit on the magnitude that sets a block's scale, so that its reciprocal
	// is finite.
	actLeast = 1e-30
)

// A span is the activations that share a scale in products of many rows on x86, and in those of few
// rows with AVX-512 and VNNI.
const (
	spanDepth  = 256
	spanBlocks = spanDepth / quantBlock
)

// quantBlockSize returns the bytes of one block of a panel.
func quantBlockSize(f Format) int {
	if f == Q8 {
		return quantHead(f) + quantPanel*quantBlock
	}
	return quantHead(f) + quantPanel*quantBlock/2
}

// quantHead returns the bytes of the scales and minima of a block of a panel.
func quantHead(f Format) int {
	if f == Q4M {
		return 4 * quantPanel
	}
	return 2 * quantPanel
}

// iq4Values are the values of the 4-bit indices of IQ4.
var iq4Values = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// quantOffset returns the number that is added to a value when it is stored or, in IQ4, multiplied.
func quantOffset(f Format) int {
	switch f {
	case Q8, IQ4:
		return 128
	case Q4:
		return 8
	}
	return 0
}

func quantBlocks(k int) int { return (k + quantBlock - 1) / quantBlock }

// quantSize returns the bytes of a packed [n, k] weight.
func quantSize(f Format, n, k int) int {
	return (n + quantPanel - 1) / quantPanel * quantBlocks(k) * quantBlockSize(f)
}

// Quantize returns w, in F32, F16 or BF16, as Q8, Q4, Q4M, BF16Dot or Q12. BF16Dot is rounded to
// nearest, ties to even, denormals to zero. Q12 has blocks of 128 with a float32 scale d =
// max|w|/2047, q = w/d rounded to nearest, ties to even, so |w − d·q| ≤ d/2. For a block of 32 with
// scale d, Q8 is d = max|w|/127, q = w/d rounded half away from zero. Q4 is d = v/−8 for the value
// v of greatest magnitude (the first of equals), q = min(15, ⌊w/d + 8.5⌋) − 8. In both, d is stored
// rounded to binary16. Q4M is m = min w and d = (max w − min w)/15, both first rounded to binary16,
// q = ⌊(w − m)/d + ½⌋ within 0 to 15. A value that is not finite, or a scale or minimum out of the
// range of binary16, is an error that names its row and block. Apart from the rounding of d and m,
// |w − d·q| ≤ d/2 for Q8 and ≤ d for Q4, and |w − d·q − m| ≤ d/2 for Q4M.
func Quantize(p *Pool, w *Matrix, f Format) (*Matrix, error) {
	if !f.packed() || f == IQ4 {
		return nil, fmt.Errorf("kernel: quantize: %v to %v, want F32, F16 or BF16 to Q8, "+
			"Q4, Q4M, BF16Dot or Q12", w.Format, f)
	}
	out := &Matrix{Format: f, N: w.N, K: w.K}
	out.Data = largeBytes(out.Bytes())
	return out, Encode(p, out, w)
}

// quantizeInto quantises w to dst.
func quantizeInto(p *Pool, dst, w *Matrix, failed *atomic.Pointer[error]) {
	f, blocks := dst.Format, quantBlocks(w.K)
	panelSize := blocks * quantBlockSize(f)
	p.Run((w.N+quantPanel-1)/quantPanel, func(panel int) {
		dst := dst.Data[panel*panelSize : (panel+1)*panelSize]
		row := make([]float32, blocks*quantBlock)
		q := make([]uint8, blocks*quantBlock)
		scales, minima := make([]float32, blocks), make([]float32, blocks)
		for r := range quantPanel {
			clear(row)
			if o := panel*quantPanel + r; o < w.N {
				w.Row(row, o)
			}
			if f == Q4M {
				quantizeMinima(q, scales, minima, row)
			} else {
				quantizeWeights(q, scales, row, f)
			}
			for b := range blocks {
				d, m := toHalf(scales[b]), toHalf(minima[b])
				if d&0x7c00 == 0x7c00 || m&0x7c00 == 0x7c00 {
					err := fmt.Errorf(
						"kernel: quantize: row %d, columns %d to %d: a value or its scale "+
							"is not finite in %v", panel*quantPanel+r, b*quantBlock,
						b*quantBlock+quantBlock-1, f)
					failed.CompareAndSwap(nil, &err)
					return
				}
				putQuantBlock(dst[b*quantBlockSize(f):], f, r, d, m, q[b*quantBlock:])
			}
		}
	})
}

// quantizeWeightsGo quantises the blocks of v to stored values (with the offset). A value that is
// not finite makes its block's scale non-finite.
func quantizeWeightsGo(q []uint8, scales, v []float32, f Format) {
	for b := range scales {
		scales[b] = quantizeBlockGo(q[b*quantBlock:], v[b*quantBlock:], f)
	}
}

func quantizeBlockGo(q []uint8, v []float32, f Format) (scale float32) {
	q = q[:quantBlock]
	v = v[:quantBlock]
	var most uint32 // the greatest magnitude as bits, which have the same order; NaN is largest
	at := 0
	for i, x := range v {
		if a := math.Float32bits(x) &^ (1 << 31); a > most {
			most, at = a, i
		}
	}
	if most >= 0x7f800000 {
		return math.Float32frombits(most)
	}
	d := math.Float32frombits(most) / 127
	if f == Q4 {
		d = v[at] / -8
	}
	var inverse float32
	if d != 0 {
		inverse = 1 / d
	}
	if f == Q8 {
		for i, x := range v {
			y := float64(x * inverse)
			q[i] = uint8(int32(y+math.Copysign(0.5, y)) + 128)
		}
	} else {
		for i, x := range v {
			q[i] = uint8(min(15, int32(float32(x*inverse)+8.5))) // not fused
		}
	}
	return d
}

// quantizeMinimaGo quantises the blocks of v in Q4M. A value that is not finite makes its block's
// scale non-finite.
func quantizeMinimaGo(q []uint8, scales, minima, v []float32) {
	for b := range scales {
		q, v := q[b*quantBlock:][:quantBlock], v[b*quantBlock:][:quantBlock]
		least, most, finite := v[0], v[0], float32(0)
		for _, x := range v {
			least, most = min(least, x), max(most, x)
			finite += x * 0
		}
		m, d := Half(toHalf(least))+0, Half(toHalf((most-least+finite)/15))
		var inverse float32
		if d != 0 {
			inverse = 1 / d
		}
		for i, x := range v {
			y := float32(float32(x-m)*inverse) + 0.5
			q[i] = uint8(max(0, min(15, int32(y))))
		}
		scales[b], minima[b] = d, m
	}
}

// putQuantBlock stores a block as row r of a panel's block. Only Q4M has a minimum m.
func putQuantBlock(dst []byte, f Format, r int, d, m uint16, q []uint8) {
	binary.LittleEndian.PutUint16(dst[2*r:], d)
	if f == Q4M {
		binary.LittleEndian.PutUint16(dst[2*quantPanel+2*r:], m)
	}
	const row = 4 * quantPanel
	dst, q = dst[quantHead(f)+4*r:], q[:quantBlock]
	if f == Q8 {
		dst = dst[:7*row+4]
		for g := range quantBlock / 4 {
			word := binary.LittleEndian.Uint32(q[4*g:])
			binary.LittleEndian.PutUint32(dst[g*row:], word)
		}
		return
	}
	dst = dst[:3*row+4]
	for pair := range quantBlock / 8 {
		pairs := binary.LittleEndian.Uint64(q[8*pair:]) // low in the first four bytes, then high
		binary.LittleEndian.PutUint32(dst[pair*row:], uint32(pairs|pairs>>28))
	}
}

// quantRow reads one block of one row of the weight: values without offset, scale and minimum.
func quantRow(q *[quantBlock]int8, src []byte, f Format, r int) (d, m float32) {
	d = Half(binary.LittleEndian.Uint16(src[2*r:]))
	if f == Q4M {
		m = Half(binary.LittleEndian.Uint16(src[2*quantPanel+2*r:]))
	}
	src = src[quantHead(f):]
	for i := range q {
		g, j := i/4, i%4
		if f == Q8 {
			q[i] = int8(int(src[(g*quantPanel+r)*4+j]) - 128)
			continue
		}
		bits := src[(g/2*quantPanel+r)*4+j] >> (4 * (g % 2)) & 15
		if f == IQ4 {
			q[i] = iq4Values[bits]
		} else {
			q[i] = int8(int(bits) - quantOffset(f))
		}
	}
	return d, m
}

// quantBlockOf returns the bytes of block b of the panel that holds row o.
func (w *Matrix) quantBlockOf(o, b int) []byte {
	size := quantBlockSize(w.Format)
	at := (o/quantPanel*quantBlocks(w.K) + b) * size
	return w.Data[at : at+size]
}

// dequantizeRow widens row o.
func (w *Matrix) dequantizeRow(dst []float32, o int) {
	var q [quantBlock]int8
	for b := range quantBlocks(w.K) {
		d, m := quantRow(&q, w.quantBlockOf(o, b), w.Format, o%quantPanel)
		for i := range min(quantBlock, w.K-b*quantBlock) {
			v := float32(q[i]) * d
			if w.Format == Q4M {
				v = float32(float64(q[i])*float64(d) + float64(m)) // rounded once
			}
			if at := b*quantBlock + i; w.Order == nil {
				dst[at] = v
			} else {
				dst[w.Order[at]] = v
			}
		}
	}
}

// toHalf rounds to binary16, to nearest, ties to even; NaN stays NaN.
func toHalf(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x47800000: // 65536 and more
		return sign | 0x7c00
	case b < 0x38800000: // below 2⁻¹⁴: a multiple of 2⁻²⁴
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(b))*0x1p24))
	}
	b += 0xfff + b>>13&1
	return sign | uint16((b-0x38000000)>>13)
}

// quantizeRowGo quantises whole blocks of activations, with one scale for each span blocks: s =
// max|x|/127, q = x·(127/max|x|) rounded to even. A value that is not finite makes the scale
// non-finite, and so every output of the row.
func quantizeRowGo(dst []byte, x []float32, blocks, span, offset int) {
	for b := range blocks {
		first := b / span * span
		most := math.Float32bits(actLeast)
		for _, y := range x[first*quantBlock : min(first+span, blocks)*quantBlock] {
			most = max(most, math.Float32bits(y)&0x7fffffff) // NaNs are above +Inf
		}
		amax := math.Float32frombits(most)
		scale, inverse := amax/127, 127/amax
		d, sum := dst[b*actBlock:(b+1)*actBlock], 0
		for i, y := range x[b*quantBlock : (b+1)*quantBlock] {
			n := -127
			if r := math.RoundToEven(float64(y * inverse)); r == r {
				n = int(r)
			}
			d[i] = uint8(int8(n))
			sum += n
		}
		binary.LittleEndian.PutUint32(d[actScale:], math.Float32bits(scale))
		last := uint32(int32(-offset * sum))
		if offset == 0 {
			s := float32(sum)
			if span == 1 {
				s *= scale
			}
			last = math.Float32bits(s)
		}
		binary.LittleEndian.PutUint32(d[actOffset:], last)
	}
}

// quantProduct is one product with a quantised weight. It is recycled.
type quantProduct struct {
	on       isa
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	blocks   int
	acts     []byte // [m][blocks] blocks of actBlock bytes
	rows     int    // of x that a task quantises
	panels   int    // of a task
	mBlocks  int
	runActs  func(int)
	runTasks func(int)
}

var quantProducts = sync.Pool{New: func() any {
	t := new(quantProduct)
	t.runActs, t.runTasks = t.quantize, t.task
	return t
}}

// quantMatMul quantises x and computes the product block by block: exact integer sums, scaled and
// added in float32 in ascending order of k, those of a span first where it has one scale.
func quantMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	if m*w.N*w.K < quantSerialWork {
		p = nil
	}
	t := quantProducts.Get().(*quantProduct)
	t.on, t.dst, t.x, t.m, t.w, t.bias = computing(), dst, x, m, w, bias
	t.blocks, t.rows = quantBlocks(w.K), p.share(m, quantRows)
	t.acts = growWork(t.acts, m*t.blocks*actBlock)
	p.Run((m+t.rows-1)/t.rows, t.runActs)
	panels := (w.N + quantPanel - 1) / quantPanel
	most := max(quantTaskPanels, quantTaskBytes/(t.blocks*quantBlockSize(w.Format)+1))
	t.panels = max(1, min(most, panels/(4*p.Threads())))
	tasks := (panels + t.panels - 1) / t.panels
	t.mBlocks = p.parts(tasks, 1, (m+13)/14)
	p.Run(tasks*t.mBlocks, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	quantProducts.Put(t)
}

const (
	// quantRows is the most rows of x that one task quantises.
	quantRows = 8
	// quantTaskPanels is the most panels that one task computes; small panels may be more, up to
	// quantTaskBytes.
	quantTaskPanels = 4
	quantTaskBytes  = 512 << 10
	// quantSerialWork is serialWork for integer products, which are faster.
	quantSerialWork = 1 << 18
)

// quantize fills acts for some rows.
func (t *quantProduct) quantize(task int) {
	k := t.w.K
	spans := k / spanDepth
	whole := spans * spanBlocks
	offset := quantOffset(t.w.Format)
	for i := task * t.rows; i < min(t.m, (task+1)*t.rows); i++ {
		x := t.x[i*k : (i+1)*k]
		dst := t.acts[i*t.blocks*actBlock : (i+1)*t.blocks*actBlock]
		if t.w.Order != nil {
			t.quantizeOrdered(dst, x, offset)
			continue
		}
		quantizeRow(t.on, dst, x, whole, offset)
		if whole < t.blocks {
			var last [spanDepth]float32
			copy(last[:], x[spans*spanDepth:])
			quantizeRow(t.on, dst[whole*actBlock:], last[:], t.blocks-whole, offset)
		}
	}
}

// quantizeOrdered quantises one row of x for a weight with an order, a few blocks at a time, so
// that copies of x stay in the first-level cache.
func (t *quantProduct) quantizeOrdered(dst []byte, x []float32, offset int) {
	var part [orderedPart]float32
	for from := 0; from < t.w.K; from += orderedPart {
		n := len(t.w.gather(&part, x, from, min(orderedPart, t.w.K-from)))
		blocks := quantBlocks(n)
		clear(part[n : blocks*quantBlock])
		quantizeRow(t.on, dst[from/quantBlock*actBlock:], part[:], blocks, offset)
	}
}

func (t *quantProduct) task(task int) {
	first, end := task%t.mBlocks*t.m/t.mBlocks, (task%t.mBlocks+1)*t.m/t.mBlocks
	panel := task / t.mBlocks * t.panels
	panels := min(t.panels, (t.w.N+quantPanel-1)/quantPanel-panel)
	if t.on.impl == implGo || t.blocks == 0 {
		for i := range panels {
			quantPanelGo(t, panel+i, first, end)
		}
		return
	}
	f := t.w.Format
	size := t.blocks * quantBlockSize(f) // of a panel
	data := t.w.Data[panel*size:]
	if f != IQ4 {
		quantPanelRows(t, f, data, panel, panels, first, end)
		return
	}
	wide := widePanels.Get().(*[]byte)
	*wide = growWork(*wide, t.blocks*quantBlockSize(Q8))
	for i := range panels {
		widenIQ4(*wide, data[i*size:], t.blocks)
		quantPanelRows(t, Q8, *wide, panel+i, 1, first, end)
	}
	widePanels.Put(wide)
}

// widePanels holds panels of IQ4 widened to Q8, which has kernels.
var widePanels = sync.Pool{New: func() any { return new([]byte) }}

// widenIQ4Go writes blocks in IQ4 as blocks in Q8 with the same values.
func widenIQ4Go(dst, src []byte, blocks int) {
	for ; blocks > 0; blocks-- {
		head, size := quantHead(IQ4), quantBlockSize(IQ4)
		copy(dst[:head], src)
		for i, b := range src[head:size] {
			at := head + i/128*256 + i%128 // 128 bytes per group
			dst[at], dst[at+128] = uint8(iq4Values[b&15])^128, uint8(iq4Values[b>>4])^128
		}
		dst, src = dst[quantBlockSize(Q8):], src[size:]
	}
}

// quantPanelGo computes rows first … end-1 of one panel.
func quantPanelGo(t *quantProduct, panel, first, end int) {
	n := t.w.N
	var q [quantBlock]int8
	for o := panel * quantPanel; o < min(n, (panel+1)*quantPanel); o++ {
		for i := first; i < end; i++ {
			t.dst[i*n+o] = 0
			if t.bias != nil {
				t.dst[i*n+o] = t.bias[o]
			}
		}
		for b := range t.blocks {
			d, m := quantRow(&q, t.w.quantBlockOf(o, b), t.w.Format, o%quantPanel)
			for i := first; i < end; i++ {
				a := t.acts[(i*t.blocks+b)*actBlock:][:actBlock]
				var sum int32
				for j, v := range q {
					sum += int32(v) * int32(int8(a[j]))
				}
				scale := math.Float32frombits(binary.LittleEndian.Uint32(a[actScale:]))
				t.dst[i*n+o] += float32(float32(float32(sum)*d) * scale)
				if t.w.Format == Q4M {
					t.dst[i*n+o] += float32(m * math.Float32frombits(binary.LittleEndian.Uint32(
						a[actOffset:])))
				}
			}
		}
	}
}
