package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
)

// A weight in [Q12] has blocks of 128 values along K, int16 with one float32 scale d: w = d·q. It
// is stored in panels of 16 rows; block b of panel p is
//
//	[16] float32 scales, one per row
//	[64 pairs][16 rows][2 along K] int16
//
// Blocks and panels are consecutive, p outermost. N is rounded up to 16 and K to 128, with zeros. A
// weight takes 16.25 bits.
const (
	wordsBlock = 128
	wordsPanel = 16
	// wordMost and wordActMost are the greatest magnitudes of the int16 of weights and of
	// activations. A sum of wordsBlock products then fits 32 bits.
	wordMost    = 2047
	wordActMost = 8191

	// wordActs is the bytes of a rounded block of one row: values and scale.
	wordActs = 2*wordsBlock + 4

	wordsHead      = 4 * wordsPanel
	wordsBlockSize = wordsHead + 2*wordsPanel*wordsBlock
)

func wordsBlocks(k int) int { return (k + wordsBlock - 1) / wordsBlock }

// wordsSize returns the bytes of a packed [n, k] weight.
func wordsSize(n, k int) int {
	return (n + wordsPanel - 1) / wordsPanel * wordsBlocks(k) * wordsBlockSize
}

// wordsInto encodes w in dst, in Q12.
func wordsInto(p *Pool, dst, w *Matrix, failed *atomic.Pointer[error]) {
	blocks := wordsBlocks(w.K)
	size := blocks * wordsBlockSize
	p.Run((w.N+wordsPanel-1)/wordsPanel, func(panel int) {
		dst := dst.Data[panel*size : (panel+1)*size]
		row := make([]float32, blocks*wordsBlock)
		q := make([]byte, blocks*wordActs)
		for r := range min(wordsPanel, w.N-panel*wordsPanel) {
			w.Row(row, panel*wordsPanel+r)
			quantizeWords(q, 2*wordsBlock, wordActs, row, blocks, wordMost)
			for b := range blocks {
				q, to := q[b*wordActs:], dst[b*wordsBlockSize:]
				d := binary.LittleEndian.Uint32(q[2*wordsBlock:])
				if d&0x7f800000 == 0x7f800000 {
					err := fmt.Errorf("kernel: encode: row %d, columns %d to %d: a value is not "+
						"finite in %v", panel*wordsPanel+r, b*wordsBlock,
						min(w.K, (b+1)*wordsBlock)-1, Q12)
					failed.CompareAndSwap(nil, &err)
					return
				}
				binary.LittleEndian.PutUint32(to[4*r:], d)
				to = to[wordsHead+4*r:]
				for pair := range wordsBlock / 2 {
					word := binary.LittleEndian.Uint32(q[4*pair:])
					binary.LittleEndian.PutUint32(to[4*wordsPanel*pair:], word)
				}
			}
		}
	})
}

// wordsRow widens row o from column from on.
func (w *Matrix) wordsRow(dst []float32, o, from int) {
	panel := w.Data[o/wordsPanel*wordsBlocks(w.K)*wordsBlockSize:]
	for i := range dst {
		k := from + i
		block := panel[k/wordsBlock*wordsBlockSize:]
		d := math.Float32frombits(binary.LittleEndian.Uint32(block[4*(o%wordsPanel):]))
		pair := block[wordsHead+4*(k%wordsBlock/2*wordsPanel+o%wordsPanel):]
		dst[i] = float32(int16(binary.LittleEndian.Uint16(pair[2*(k%2):]))) * d
	}
}

// quantizeWordsGo rounds blocks of x to int16: scale s = max|x|/most, q = x·(most/max|x|) rounded
// to even. A value that is not finite makes the scale non-finite. Blocks are step bytes apart in
// dst, and so are scales, the first of which is at byte scale.
func quantizeWordsGo(dst []byte, scale, step int, x []float32, blocks, most int) {
	for b := range blocks {
		v, d := x[b*wordsBlock:(b+1)*wordsBlock], dst[b*step:]
		bits := math.Float32bits(actLeast)
		for _, y := range v {
			bits = max(bits, math.Float32bits(y)&0x7fffffff) // NaNs are above +Inf
		}
		amax := math.Float32frombits(bits)
		inverse := float32(most) / amax
		for i, y := range v {
			n := math.MinInt16
			if r := math.RoundToEven(float64(y * inverse)); r == r {
				n = int(r)
			}
			binary.LittleEndian.PutUint16(d[2*i:], uint16(int16(n)))
		}
		binary.LittleEndian.PutUint32(d[scale:], math.Float32bits(amax/float32(most)))
	}
}
