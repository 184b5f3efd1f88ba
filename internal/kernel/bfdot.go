package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// A weight in [BF16Dot] is stored in panels of 64 rows, [K/2][64 rows][2 along K] bfloat16, so that
// a vector of 32-bit words holds one pair of every row, as VDPBF16PS reads them. N is rounded up to
// 64 and K to 8, with zeros. Denormals of bfloat16 are stored as zeros, because that instruction
// reads them as zeros.
const (
	pairsPanel = 64
	pairsUnit  = 8 // values of K that a kernel reads at a time
)

func pairsDepth(k int) int { return (k + pairsUnit - 1) &^ (pairsUnit - 1) }

// pairsSize returns the bytes of a packed [n, k] weight.
func pairsSize(n, k int) int {
	return (n + pairsPanel - 1) / pairsPanel * pairsPanel * pairsDepth(k) * 2
}

// roundBF16 rounds to bfloat16, to nearest, ties to even. A denormal becomes a zero of its sign; a
// NaN stays a NaN.
func roundBF16(x float32) uint16 {
	b := math.Float32bits(x)
	switch magnitude := b &^ (1 << 31); {
	case magnitude > 0x7f800000:
		return uint16(b>>16 | 0x40)
	case magnitude < 0x00800000:
		return uint16(b >> 16 & 0x8000)
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// pairInto encodes w in dst, in BF16Dot.
func pairInto(p *Pool, dst, w *Matrix, failed *atomic.Pointer[error]) {
	const infinite = 0x7f800000
	level, depth := impl(), pairsDepth(w.K)
	p.Run((w.N+pairsPanel-1)/pairsPanel, func(panel int) {
		dst := dst.Data[panel*pairsPanel*depth*2:][:pairsPanel*depth*2]
		row, rounded := make([]float32, depth), make([]byte, 4*depth)
		for r := range min(pairsPanel, w.N-panel*pairsPanel) {
			w.Row(row, panel*pairsPanel+r)
			roundActs(level, rounded, row, 4)
			for i := 0; i < depth; i += 2 {
				pair := binary.LittleEndian.Uint64(rounded[4*i:])
				lo, hi := uint32(pair), uint32(pair>>32)
				if lo&infinite == infinite || hi&infinite == infinite {
					err := fmt.Errorf(
						"kernel: encode: row %d, columns %d to %d: a value is not finite in %v",
						panel*pairsPanel+r, i, i+1, BF16Dot)
					failed.CompareAndSwap(nil, &err)
					return
				}
				binary.LittleEndian.PutUint32(dst[4*(i/2*pairsPanel+r):], lo>>16|hi)
			}
		}
	})
}

// pairsRow widens row o.
func (w *Matrix) pairsRow(dst []float32, o int) {
	data := w.Data[o/pairsPanel*pairsPanel*pairsDepth(w.K)*2+o%pairsPanel*4:]
	for i := range dst[:w.K] {
		dst[i] = BFloat(binary.LittleEndian.Uint16(data[i/2*pairsPanel*4+i%2*2:]))
	}
}

// pairsProduct is one product with a weight in BF16Dot. It is recycled.
type pairsProduct struct {
	on       isa
	dst, x   []float32
	m        int
	w        *Matrix
	bias     []float32
	kc       int    // K of a block, a multiple of pairsUnit; the last may be shorter
	unit     int    // bytes of a stored value of x
	acts     []byte // x rounded, [blocks of K][m][kc]
	mBlocks  int
	runActs  func(int)
	runTasks func(int)
}

var pairsProducts = sync.Pool{New: func() any {
	t := new(pairsProduct)
	t.runActs, t.runTasks = t.round, t.task
	return t
}}

const (
	// pairsBlockGo is the K of a block in the reference.
	pairsBlockGo = 512
	// pairsRows is how many rows of x one task rounds.
	pairsRows = 8
	// pairsRowBlock is the most rows that one task computes.
	pairsRowBlock = 960
	// serialWork is the number of multiply-adds below which waking a worker costs more than it
	// saves.
	serialWork = 1 << 17
)

// pairsMatMul rounds x to bfloat16 and sums the products in float32, from the bias on, in ascending
// order of k.
func pairsMatMul(p *Pool, dst, x []float32, m int, w *Matrix, bias []float32) {
	t := pairsProducts.Get().(*pairsProduct)
	t.on, t.dst, t.x, t.m, t.w, t.bias = computing(), dst, x, m, w, bias
	t.kc, t.unit = pairsBlock(t.on, m)
	depth := pairsDepth(w.K)
	if need := m * depth * t.unit; cap(t.acts) < need {
		t.acts = make([]byte, need)
	} else {
		t.acts = t.acts[:need]
	}
	if m*w.N*w.K < serialWork {
		p = nil
	}
	p.Run((m+pairsRows-1)/pairsRows, t.runActs)
	panels := (w.N + pairsPanel - 1) / pairsPanel
	t.mBlocks = p.parts(panels, (m+pairsRowBlock-1)/pairsRowBlock, (m+11)/12)
	p.Run(panels*t.mBlocks, t.runTasks)
	t.dst, t.x, t.w, t.bias = nil, nil, nil, nil
	pairsProducts.Put(t)
}

// act returns the offset of element k of row i of x, for k at the start of a block. ld is the
// distance in bytes to the next row.
func (t *pairsProduct) act(i, k int) (at, ld int) {
	kc := min(t.kc, pairsDepth(t.w.K)-k)
	return (k*t.m + i*kc) * t.unit, kc * t.unit
}

func (t *pairsProduct) round(task int) {
	k := t.w.K
	for i := task * pairsRows; i < min(t.m, (task+1)*pairsRows); i++ {
		for b := 0; b < k; b += t.kc {
			at, ld := t.act(i, b)
			roundActs(t.on.level(), t.acts[at:at+ld], t.x[i*k+b:i*k+min(k, b+t.kc)], t.unit)
		}
	}
}

// roundActsGo rounds x to values of unit bytes, with zeros up to the end of dst.
func roundActsGo(dst []byte, x []float32, unit int) {
	for i, v := range x {
		r := roundBF16(v)
		if unit == 2 {
			binary.LittleEndian.PutUint16(dst[2*i:], r)
		} else {
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(r)<<16)
		}
	}
	clear(dst[unit*len(x):])
}

func (t *pairsProduct) task(task int) {
	panel, block := task/t.mBlocks, task%t.mBlocks
	pairsPanelRows(t, panel, block*t.m/t.mBlocks, (block+1)*t.m/t.mBlocks)
}

// pairsPanelGo computes rows first … end-1 of one panel; x is stored as float32.
func pairsPanelGo(t *pairsProduct, panel, first, end int) {
	n, k := t.w.N, t.w.K
	var row [pairsBlockGo]float32
	for o := panel * pairsPanel; o < min(n, (panel+1)*pairsPanel); o++ {
		for i := first; i < end; i++ {
			t.dst[i*n+o] = 0
			if t.bias != nil {
				t.dst[i*n+o] = t.bias[o]
			}
		}
		data := t.w.Data[panel*pairsPanel*pairsDepth(k)*2+o%pairsPanel*4:]
		for b := 0; b < k; b += t.kc {
			w := row[:min(t.kc, k-b)]
			for j := range w {
				w[j] = BFloat(binary.LittleEndian.Uint16(data[(b+j)/2*pairsPanel*4+j%2*2:]))
			}
			for i := first; i < end; i++ {
				at, _ := t.act(i, b)
				a := t.acts[at:]
				sum := t.dst[i*n+o]
				for j, v := range w {
					sum += float32(v * math.Float32frombits(binary.LittleEndian.Uint32(a[4*j:])))
				}
				t.dst[i*n+o] = sum
			}
		}
	}
}
