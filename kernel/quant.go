package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// Quantised weights are blocks of 32 values along K with one binary16 scale:
// the values of GGUF's Q8_0 and Q4_0. They are stored in panels of 32 rows of
// the weight, the form that every implementation reads. Block b of panel p is
//
//	[32] binary16 scales, one a row
//	Q8: 8 groups of [32 rows][4 along K] bytes, value + 128
//	Q4: 4 pairs of groups of [32 rows][4 along K] bytes, value + 8; group 2j in
//	    the low half of a byte, 2j+1 in the high
//
// and panels and blocks follow one another, p outermost. N and K are rounded
// up to 32 with zeros. A weight takes 8.5 or 4.5 bits.
const (
	quantBlock = 32
	quantPanel = 32
)

// Activations are quantised to int8 block by block as well, in rows of blocks
// of actBlock bytes: 32 int8, the float32 scale, and −offset·Σ of the int8 as
// an int32, which takes back the offset of the stored weights.
const (
	actBlock  = 40
	actScale  = 32
	actOffset = 36
	// actLeast is the largest magnitude to which a block of activations is
	// scaled at least, so that its reciprocal is finite.
	actLeast = 1e-30
)

// quantBlockSize is the bytes of one block of a panel.
func quantBlockSize(f Format) int {
	if f == Q8 {
		return 2*quantPanel + quantPanel*quantBlock
	}
	return 2*quantPanel + quantPanel*quantBlock/2
}

// quantOffset is what is added to a value to store it.
func quantOffset(f Format) int {
	if f == Q8 {
		return 128
	}
	return 8
}

func quantBlocks(k int) int { return (k + quantBlock - 1) / quantBlock }

// quantSize is the bytes of a packed [n, k] weight.
func quantSize(f Format, n, k int) int {
	return (n + quantPanel - 1) / quantPanel * quantBlocks(k) * quantBlockSize(f)
}

// Quantize returns w, in F32, F16 or BF16, as Q8, Q4 or BF16Dot, the last rounded
// to nearest, ties to even, denormals to zero. With d the scale of a
// block, Q8 is d = max|w|/127, q = w/d rounded half away from zero, and Q4
// d = m/−8 for the value m of greatest magnitude (the first of equals),
// q = min(15, ⌊w/d + 8.5⌋) − 8; d is stored rounded to binary16. A value that is
// not finite, or a scale beyond binary16, is an error that names its row and
// block. |w − d·q| ≤ d/2 for Q8 and ≤ d for Q4, besides the rounding of d.
func Quantize(p *Pool, w *Matrix, f Format) (*Matrix, error) {
	if !f.packed() {
		return nil, fmt.Errorf("kernel: quantize: %v to %v, want F32, F16 or BF16 to Q8, Q4 or BF16Dot", w.Format, f)
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
		scales := make([]float32, blocks)
		for r := range quantPanel {
			clear(row)
			if o := panel*quantPanel + r; o < w.N {
				w.Row(row, o)
			}
			quantizeWeights(q, scales, row, f)
			for b := range blocks {
				d := toHalf(scales[b])
				if d&0x7c00 == 0x7c00 {
					err := fmt.Errorf("kernel: quantize: row %d, columns %d to %d: a value or its scale is not finite in %v",
						panel*quantPanel+r, b*quantBlock, b*quantBlock+quantBlock-1, f)
					failed.CompareAndSwap(nil, &err)
					return
				}
				putQuantBlock(dst[b*quantBlockSize(f):], f, r, d, q[b*quantBlock:])
			}
		}
	})
}

// quantizeWeightsGo quantises the blocks of v to stored (offset) values; a block
// with a value that is not finite has such a scale.
func quantizeWeightsGo(q []uint8, scales, v []float32, f Format) {
	for b := range scales {
		scales[b] = quantizeBlockGo(q[b*quantBlock:], v[b*quantBlock:], f)
	}
}

func quantizeBlockGo(q []uint8, v []float32, f Format) (scale float32) {
	q = q[:quantBlock]
	v = v[:quantBlock]
	var most uint32 // of the magnitudes' bits, which are in their order, NaN last
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
			q[i] = uint8(min(15, int32(x*inverse+8.5)))
		}
	}
	return d
}

// putQuantBlock stores a block as row r of a panel's block.
func putQuantBlock(dst []byte, f Format, r int, d uint16, q []uint8) {
	binary.LittleEndian.PutUint16(dst[2*r:], d)
	dst = dst[2*quantPanel+4*r:]
	if f == Q8 {
		for g := range quantBlock / 4 {
			copy(dst[g*quantPanel*4:][:4], q[4*g:])
		}
		return
	}
	for pair := range quantBlock / 8 {
		low, high := binary.LittleEndian.Uint32(q[8*pair:]), binary.LittleEndian.Uint32(q[8*pair+4:])
		binary.LittleEndian.PutUint32(dst[pair*quantPanel*4:], low|high<<4)
	}
}

// quantRow is one block of one row of the weight: values without offset.
func quantRow(q *[quantBlock]int8, src []byte, f Format, r int) (d float32) {
	d = Half(binary.LittleEndian.Uint16(src[2*r:]))
	src = src[2*quantPanel:]
	for i := range q {
		g, j := i/4, i%4
		if f == Q8 {
			q[i] = int8(int(src[(g*quantPanel+r)*4+j]) - 128)
		} else {
			q[i] = int8(src[(g/2*quantPanel+r)*4+j]>>(4*(g%2))&15) - 8
		}
	}
	return d
}

// quantBlockOf is the bytes of block b of the panel that holds row o.
func (w *Matrix) quantBlockOf(o, b int) []byte {
	size := quantBlockSize(w.Format)
	at := (o/quantPanel*quantBlocks(w.K) + b) * size
	return w.Data[at : at+size]
}

// dequantizeRow widens row o.
func (w *Matrix) dequantizeRow(dst []float32, o int) {
	var q [quantBlock]int8
	for b := range quantBlocks(w.K) {
		d := quantRow(&q, w.quantBlockOf(o, b), w.Format, o%quantPanel)
		for i, v := range q[:min(quantBlock, w.K-b*quantBlock)] {
			dst[b*quantBlock+i] = float32(v) * d
		}
	}
}

// toHalf rounds to binary16, to nearest and ties to even; NaN stays NaN.
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

// quantizeRowGo quantises whole blocks of activations: scale s = max|x|/127,
// q = x·(127/max|x|) rounded to even. A value that is not finite makes the
// scale so, and with it every output of the row.
func quantizeRowGo(dst []byte, x []float32, blocks, offset int) {
	for b := range blocks {
		v, d := x[b*quantBlock:(b+1)*quantBlock], dst[b*actBlock:(b+1)*actBlock]
		most := math.Float32bits(actLeast)
		for _, y := range v {
			most = max(most, math.Float32bits(y)&0x7fffffff) // above +Inf lie the NaNs
		}
		amax := math.Float32frombits(most)
		inverse := 127 / amax
		sum := 0
		for i, y := range v {
			n := -127
			if r := math.RoundToEven(float64(y * inverse)); r == r {
				n = int(r)
			}
			d[i] = uint8(int8(n))
			sum += n
		}
		binary.LittleEndian.PutUint32(d[actScale:], math.Float32bits(amax/127))
		binary.LittleEndian.PutUint32(d[actOffset:], uint32(int32(-offset*sum)))
	}
}

// quantProduct is one product with a quantised weight. It is recycled.
type quantProduct struct {
	level    implementation
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	blocks   int
	acts     []byte // [m][blocks] blocks of actBlock bytes
	panels   int    // a task's
	mBlocks  int
	runActs  func(int)
	runTasks func(int)
}

var quantProducts = sync.Pool{New: func() any {
	t := new(quantProduct)
	t.runActs, t.runTasks = t.quantize, t.task
	return t
}}

// quantMatMul quantises x and computes the product block by block: integer
// sums, exact, scaled and added up in float32 in ascending order of k.
func quantMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	t := quantProducts.Get().(*quantProduct)
	t.level, t.dst, t.x, t.m, t.w, t.bias = impl(), dst, x, m, w, bias
	t.blocks = quantBlocks(w.K)
	if need := m * t.blocks * actBlock; cap(t.acts) < need {
		t.acts = make([]byte, need)
	} else {
		t.acts = t.acts[:need]
	}
	if m*w.N*w.K < quantSerialWork {
		p = nil
	}
	p.Run((m+quantRows-1)/quantRows, t.runActs)
	panels := (w.N + quantPanel - 1) / quantPanel
	most := max(quantTaskPanels, quantTaskBytes/(t.blocks*quantBlockSize(w.Format)+1))
	t.panels = max(1, min(most, panels/(4*p.Threads())))
	tasks := (panels + t.panels - 1) / t.panels
	t.mBlocks = 1
	if want := 4 * p.Threads(); p.Threads() > 1 && tasks < want {
		t.mBlocks = min((want+tasks-1)/tasks, (m+13)/14)
	}
	p.Run(tasks*t.mBlocks, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	quantProducts.Put(t)
}

const (
	// quantRows is the rows of x that one task quantises.
	quantRows = 8
	// quantTaskPanels is the panels that one task computes at most, or more up to
	// quantTaskBytes of them.
	quantTaskPanels = 4
	quantTaskBytes  = 512 << 10
	// quantSerialWork is serialWork for the faster integer products.
	quantSerialWork = 1 << 18
)

func (t *quantProduct) quantize(task int) {
	k := t.w.K
	whole := k / quantBlock
	offset := quantOffset(t.w.Format)
	for i := task * quantRows; i < min(t.m, (task+1)*quantRows); i++ {
		x := t.x[i*k : (i+1)*k]
		dst := t.acts[i*t.blocks*actBlock : (i+1)*t.blocks*actBlock]
		quantizeRow(t.level, dst, x, whole, offset)
		if whole < t.blocks {
			var last [quantBlock]float32
			copy(last[:], x[whole*quantBlock:])
			quantizeRow(t.level, dst[whole*actBlock:], last[:], 1, offset)
		}
	}
}

func (t *quantProduct) task(task int) {
	first, end := task%t.mBlocks*t.m/t.mBlocks, (task%t.mBlocks+1)*t.m/t.mBlocks
	panel := task / t.mBlocks * t.panels
	panels := min(t.panels, (t.w.N+quantPanel-1)/quantPanel-panel)
	quantPanelRows(t, panel, panels, first, end)
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
			d := quantRow(&q, t.w.quantBlockOf(o, b), t.w.Format, o%quantPanel)
			for i := first; i < end; i++ {
				a := t.acts[(i*t.blocks+b)*actBlock:][:actBlock]
				var sum int32
				for j, v := range q {
					sum += int32(v) * int32(int8(a[j]))
				}
				scale := math.Float32frombits(binary.LittleEndian.Uint32(a[actScale:]))
				t.dst[i*n+o] += float32(float32(sum) * float32(d*scale))
			}
		}
	}
}
