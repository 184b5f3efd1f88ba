package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// dotTol bounds the error of a quantised product against float64 on the same quantised values, as a
// share of Σ|block sums|: integer sums are exact, scales are rounded twice and every block is added
// once.
func dotTol(k int) float64 { return float64(quantBlocks(k)+4) * 0x1p-23 }

// TestQuantizeWorkedExample: blocks whose arithmetic fits a comment.
func TestQuantizeWorkedExample(t *testing.T) {
	v := make([]float32, 2*quantBlock)
	v[0], v[1], v[2], v[3] = -127, 63.5, 2.4, -0.5 // Q8: d = 1; halves go away from zero
	// Q4: m = -127, d = 15.875; 63.5/d+8.5 = 12.5, 2.4/d+8.5 = 8.65, -0.5/d+8.5 = 8.47
	v[quantBlock] = 8 // Q8: d = 8/127 = 0.06299; Q4: d = -1: 8/d+8.5 = 0.5, stored as 0
	v[quantBlock+1] = -7
	// Q8: -7·127/8 = -111.125; Q4: 7+8.5 = 15.5 -> 15
	for _, c := range []struct {
		format Format
		scales [2]uint16
		first  [4]int8
		second [2]int8
	}{
		{Q8, [2]uint16{0x3c00, toHalf(8. / 127)}, [4]int8{-127, 64, 2, -1}, [2]int8{127, -111}},
		{Q4, [2]uint16{toHalf(15.875), 0xbc00}, [4]int8{-8, 4, 0, 0}, [2]int8{-8, 7}},
	} {
		w, err := Quantize(nil, MatrixF32(1, len(v), v), c.format)
		if err != nil {
			t.Fatal(err)
		}
		for b, scale := range c.scales {
			block := w.quantBlockOf(0, b)
			if got := binary.LittleEndian.Uint16(block); got != scale {
				t.Errorf("%v block %d: scale %#x, want %#x", c.format, b, got, scale)
			}
			var q [quantBlock]int8
			quantRow(&q, block, c.format, 0)
			if b == 0 && [4]int8(q[:4]) != c.first || b == 1 && [2]int8(q[:2]) != c.second {
				t.Errorf("%v block %d: %v, want %v or %v", c.format, b, q[:4], c.first, c.second)
			}
		}
	}
}

func TestQuantizeErrorBound(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	p := NewPool(2)
	defer p.Close()
	for _, f := range []Format{Q8, Q4, Q4M} {
		for _, source := range formats {
			n, k := 37, 165 // neither a multiple of 32
			m, v := randomMatrix(r, n, k, source, true)
			w, err := Quantize(p, m, f)
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Data) != w.Bytes() || w.Bytes() != 2*6*quantBlockSize(f) {
				t.Fatalf("%v: %d bytes", f, len(w.Data))
			}
			row := make([]float32, k)
			for o := range n {
				w.Row(row, o)
				for b := 0; b < k; b += quantBlock {
					var most float64
					for _, x := range v[o*k+b : o*k+min(k, b+quantBlock)] {
						most = max(most, math.Abs(float64(x)))
					}
					bound := most / 254 // half a step
					switch f {
					case Q4:
						bound = most / 8
					case Q4M:
						bound = 2 * most / 30
					}
					bound += most * 0x1p-10 // d in binary16
					for i := b; i < min(k, b+quantBlock); i++ {
						if got, want := float64(row[i]),
							float64(v[o*k+i]); !(math.Abs(got-want) <= bound) {
							t.Fatalf("%v of %v: [%d %d] = %v, want %v ± %v", f, source, o, i, got,
								want, bound)
						}
					}
				}
			}
		}
	}
}

func TestQuantizeRefuses(t *testing.T) {
	for name, bad := range map[string]float32{
		"NaN": float32(math.NaN()), "Inf": float32(math.Inf(1)), "scale": 1e30,
	} {
		for _, f := range []Format{Q8, Q4, Q4M} {
			v := make([]float32, 3*64)
			v[2*64+40] = bad
			_, err := Quantize(nil, MatrixF32(3, 64, v), f)
			if err == nil || !strings.Contains(err.Error(), "row 2, columns 32 to 63") {
				t.Errorf("%s to %v: %v, want an error that names row 2, columns 32 to 63", name, f,
					err)
			}
		}
	}
	if _, err := Quantize(nil, MatrixF32(1, 1, []float32{1}), BF16); err == nil {
		t.Error("to BF16: no error")
	}
	zero, err := Quantize(nil, MatrixF32(1, 40, make([]float32, 40)), Q4)
	if err != nil {
		t.Fatal(err)
	}
	flat, err := Quantize(nil, MatrixF32(1, 32, slices.Repeat([]float32{-3}, 32)), Q4M)
	if err != nil {
		t.Fatal(err)
	}
	same := make([]float32, 32)
	if flat.Row(same, 0); slices.Max(same) != -3 || slices.Min(same) != -3 {
		t.Errorf("a block of -3 in Q4M: %v", same)
	}
	row := []float32{39: 1}
	zero.Row(row, 0)
	for i, v := range row {
		if v != 0 {
			t.Fatalf("a block of zeros: element %d = %v", i, v)
		}
	}
}

func TestToHalf(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		x := Half(h)
		if got := toHalf(x); got != h && !(x != x && got&0x7fff == 0x7e00) {
			t.Fatalf("toHalf(%v) = %#x, want %#x", x, got, h)
		}
		if h&0x7c00 == 0x7c00 || h&0x7fff == 0x7bff {
			continue
		}
		// the midpoint rounds to the even neighbour, a little less or more to the nearer one
		next := Half(h + 1)
		middle := x + (next-x)/2
		toward := func(to float32) float32 { return math.Nextafter32(middle, to) }
		even := h + h&1
		if a, b, c := toHalf(toward(x)), toHalf(middle), toHalf(toward(next)); a != h ||
			b != even || c != h+1 {
			t.Fatalf("around %v: %#x %#x %#x, want %#x %#x %#x", middle, a, b, c, h, even, h+1)
		}
	}
	if toHalf(65519) != 0x7bff || toHalf(65520) != 0x7c00 || toHalf(-1e38) != 0xfc00 {
		t.Error("wrong at the end of the range")
	}
}

// Ensure that Q4 rounds w/d before it adds 8.5, on every processor: with one rounding for both, as
// compilers for arm64 would have it, these values are one less.
func TestQuantizeRoundsTwice(t *testing.T) {
	forEachISA(t, func(t *testing.T) {
		for _, c := range []struct {
			most, v uint32 // bits of float32
			want    uint8
		}{
			{0xbf95ac74, 0x3e6082a9, 10}, {0x400cf577, 0xbf76ad8e, 12}, {0x3ec8bcc7, 0xbd968d92, 10},
		} {
			var block [quantBlock]float32
			block[0], block[1] = math.Float32frombits(c.most), math.Float32frombits(c.v)
			q, scales := make([]uint8, quantBlock), make([]float32, 1)
			quantizeWeights(q, scales, block[:], Q4)
			if q[1] != c.want {
				t.Errorf("%v in a block of %v: got %d, want %d", block[1], block[0], q[1], c.want)
			}
		}
	})
}

// TestQuantizeWeights: every implementation gives the reference's bytes and scales.
func TestQuantizeWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	const blocks = 600
	v := randomVector(r, blocks*quantBlock)
	for b := range blocks {
		d := v[b*quantBlock : (b+1)*quantBlock]
		for i := range d {
			switch b % 6 {
			case 1: // halves and values next to them
				d[i] = math.Nextafter32(float32(r.IntN(254)-127)+0.5, float32(200*r.IntN(3)-200))
				d[0] = 127
			case 2: // both signs of the greatest magnitude
				d[i] = float32(r.IntN(17) - 8)
			case 3:
				d[i] *= float32(math.Pow(10, float64(b%80-44)))
			case 4:
				d[i] = float32(math.Copysign(0, float64(d[i])))
			}
		}
	}
	for _, f := range []Format{Q8, Q4} {
		want, wantScales := make([]byte, blocks*quantBlock), make([]float32, blocks)
		quantizeWeightsGo(want, wantScales, v, f)
		forEachISA(t, func(t *testing.T) {
			got, scales := make([]byte, blocks*quantBlock), make([]float32, blocks)
			quantizeWeights(got, scales, v, f)
			for b := range blocks {
				g, w := got[b*quantBlock:(b+1)*quantBlock], want[b*quantBlock:(b+1)*quantBlock]
				if scales[b] != wantScales[b] || !bytes.Equal(g, w) {
					t.Fatalf("%v block %d %v: scale %v, want %v\n%v, want\n%v", f, b,
						v[b*quantBlock:(b+1)*quantBlock], scales[b], wantScales[b], g, w)
				}
			}
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				var block [quantBlock]float32
				block[17] = float32(bad)
				quantizeWeights(got, scales[:1], block[:], f)
				if s := float64(scales[0]); !math.IsNaN(s) && !math.IsInf(s, 0) {
					t.Errorf("%v: a block with %v has the scale %v", f, bad, s)
				}
			}
		})
	}
}

// TestQuantizeMinima: every implementation gives the reference's bytes, scales and minima.
func TestQuantizeMinima(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	const blocks = 400
	v := randomVector(r, blocks*quantBlock)
	for b := range blocks {
		d := v[b*quantBlock : (b+1)*quantBlock]
		for i := range d {
			switch b % 5 {
			case 1:
				d[i] = float32(r.IntN(31)) / 2 // halves: d is 1, or a little less
			case 2:
				d[i] = float32(math.Copysign(0, float64(d[i])))
			case 3:
				d[i] = 1000 + d[i]*float32(math.Pow(10, float64(b%9-6)))
			case 4:
				d[i] *= float32(math.Pow(10, float64(b%12-8)))
			}
		}
	}
	q, scales, minima := make([]byte, blocks*quantBlock), make([]float32, blocks),
		make([]float32, blocks)
	quantizeMinimaGo(q, scales, minima, v)
	forEachISA(t, func(t *testing.T) {
		got, d, m := make([]byte, len(q)), make([]float32, blocks), make([]float32, blocks)
		quantizeMinima(got, d, m, v)
		for b := range blocks {
			g, w := got[b*quantBlock:(b+1)*quantBlock], q[b*quantBlock:(b+1)*quantBlock]
			if math.Float32bits(d[b]) != math.Float32bits(scales[b]) ||
				math.Float32bits(m[b]) != math.Float32bits(minima[b]) || !bytes.Equal(g, w) {
				t.Fatalf("block %d: scale %v and minimum %v, want %v and %v\n%v, want\n%v", b, d[b],
					m[b], scales[b], minima[b], g, w)
			}
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for at := range quantBlock {
				var block [quantBlock]float32
				block[at] = float32(bad)
				quantizeMinima(got, d[:1], m[:1], block[:])
				if s := float64(d[0]); !math.IsNaN(s) && !math.IsInf(s, 0) {
					t.Errorf("a block with %v at %d has the scale %v", bad, at, s)
				}
			}
		}
	})
}

// TestQuantizeRow: every implementation gives the reference's bytes.
func TestQuantizeRow(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	const blocks = 43 // the last span is shorter
	x := randomVector(r, blocks*quantBlock)
	for b := range blocks { // all magnitudes, ties, zeros, outliers
		for i := range quantBlock {
			switch b % 5 {
			case 1:
				x[b*quantBlock+i] *= float32(math.Pow(10, float64(b-20)))
			case 2:
				x[b*quantBlock+i] = float32(i) + 0.5
			case 3:
				x[b*quantBlock+i] = 0
			}
		}
		if b%5 == 2 {
			x[b*quantBlock] = 127
		}
		if b%5 == 4 {
			x[b*quantBlock+b%quantBlock] = 1e6
		}
	}
	x[5] = math.Float32frombits(1)
	x[7*quantBlock+3] = float32(math.Inf(-1))
	x[8*quantBlock+31] = float32(math.NaN())
	want := make([]byte, blocks*actBlock)
	forEachISA(t, func(t *testing.T) {
		for _, offset := range []int{8, 128, 0} {
			quantizeRowGo(want, x, blocks, actSpan(), offset)
			got := make([]byte, blocks*actBlock+1)
			got[blocks*actBlock] = 0xa5
			quantizeRow(computing(), got, x, blocks, offset)
			if got[blocks*actBlock] != 0xa5 {
				t.Fatal("wrote past the end")
			}
			for b := range blocks {
				g, w := got[b*actBlock:(b+1)*actBlock], want[b*actBlock:(b+1)*actBlock]
				if b == 8 { // a NaN's bits may be anything
					if s := math.Float32frombits(binary.LittleEndian.Uint32(g[actScale:])); s == s {
						t.Fatalf("a NaN gave the scale %v", s)
					}
					continue
				}
				if !bytes.Equal(g, w) {
					t.Fatalf("offset %d block %d:\n%v, want\n%v", offset, b, g, w)
				}
			}
		}
	})
}

// TestQuantExact: integers that quantise to themselves give exact products.
func TestQuantExact(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEachRole(t, p, func(t *testing.T, p *Pool) {
		r := rand.New(rand.NewPCG(15, 16))
		for _, f := range []Format{Q8, Q4, Q4M} {
			for size := range 201 {
				m, n, k := 1+size%17, 1+size*7%75, size
				if size%3 == 0 {
					n, k = size, 1+size*5%100
				}
				for _, extreme := range []bool{false, true} {
					exactProduct(t, r, p, f, m, n, k, extreme)
				}
			}
		}
	})
}

// exactProduct multiplies integers that quantise to themselves, the largest ones if extreme is set.
func exactProduct(t *testing.T, r *rand.Rand, p *Pool, f Format, m, n, k int, extreme bool) {
	lowest, highest := -127, 127
	switch f {
	case Q4:
		lowest, highest = -8, 7
	case Q4M:
		lowest, highest = -6, 9
	}
	w, x := make([]float32, n*k), make([]float32, m*k)
	for o := range n {
		for i := range k {
			v := lowest + r.IntN(highest-lowest+1)
			if extreme || i%quantBlock == 0 {
				v = lowest // fixes the scale at 1
			}
			if f == Q4M && i%quantBlock == 1 {
				v = highest // likewise
			}
			w[o*k+i] = float32(v)
		}
	}
	for i := range x {
		x[i] = float32(r.IntN(255) - 127)
		if extreme || i%k%quantBlock == 0 {
			x[i] = float32(127 - 254*r.IntN(2))
		}
	}
	q, err := Quantize(p, MatrixF32(n, k, w), f)
	if err != nil {
		t.Fatal(err)
	}
	bias := make([]float32, n)
	for o := range bias {
		bias[o] = float32(o)
	}
	const canary = 1234.5
	buf := make([]float32, m*n+40)
	for i := range buf {
		buf[i] = canary
	}
	MatMul(p, buf[20:20+m*n], x, m, q, bias)
	for i := range 20 {
		if buf[i] != canary || buf[20+m*n+i] != canary {
			t.Fatalf("%v m %d n %d k %d: wrote outside dst", f, m, n, k)
		}
	}
	if inSpans(p, q) {
		checkQuantProduct(t, buf[20:20+m*n], x, m, q, bias, true)
	}
	if f != Q8 && inSpans(p, q) { // 4 bits have another scale, which is rounded
		return
	}
	for i := range m {
		for o := range n {
			want := o
			for j := range k {
				want += int(x[i*k+j]) * int(w[o*k+j])
			}
			if got := buf[20+i*n+o]; got != float32(want) {
				t.Fatalf("%v m %d n %d k %d: [%d %d] = %v, want %d", f, m, n, k, i, o, got, want)
			}
		}
	}
}

// TestQuantMatMul compares with float64 on the same quantised values, and compares the bits for
// several numbers of threads and rows.
func TestQuantMatMul(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEachRole(t, p, func(t *testing.T, two *Pool) {
		r := rand.New(rand.NewPCG(17, 18))
		for _, f := range []Format{Q8, Q4, Q4M} {
			for _, m := range []int{1, 2, 5, 7, 8, 31, 37, 65, 1007, 2007, 6007} {
				n, k := 203, 1061
				if m > 1000 { // several whole panels per task
					m, n, k = m/1000, 677, 70
				}
				dense, _ := randomMatrix(r, n, k, F32, false)
				w, err := Quantize(nil, dense, f)
				if err != nil {
					t.Fatal(err)
				}
				x, bias := randomVector(r, m*k), randomVector(r, n)
				got := make([]float32, m*n)
				one := (*Pool)(nil)
				if two.steps() {
					one = one.Step()
				}
				MatMul(one, got, x, m, w, bias)

				checkQuantProduct(t, got, x, m, w, bias, inSpans(two, w))
				again := make([]float32, m*n)
				five := NewPool(5)
				if two.steps() {
					five = five.Step()
				}
				for _, p := range []*Pool{two, five} {
					MatMul(p, again, x, m, w, bias)
					for i := range got {
						if again[i] != got[i] {
							t.Fatalf("%v m %d: element %d = %v with %d threads, %v with one", f, m,
								i, again[i], p.Threads(), got[i])
						}
					}
				}
				five.Close()
				MatMul(one, again, x[(m-1)*k:], 1, w, bias)
				for i, v := range again[:n] {
					if v != got[(m-1)*n+i] {
						t.Fatalf("%v m %d: the last alone differs in bits", f, m)
					}
				}
				x[3] = float32(math.NaN())
				MatMul(one, again, x, m, w, bias)
				for o := range n {
					if again[o] == again[o] || m > 1 && again[n+o] != got[n+o] {
						t.Fatalf("%v m %d: a NaN in the first row: %v, %v", f, m, again[o], got[o])
					}
				}
			}
		}
	})
}

// checkQuantProduct compares a product with float64 on its rounded operands: x rounded to 8 bits,
// and with spans the weights too.
func checkQuantProduct(
	t *testing.T, got, x []float32, m int, w *Matrix, bias []float32, spans bool,
) {
	t.Helper()
	n, k := w.N, w.K
	row, sums := make([]float32, k), make([]float64, quantBlocks(k))
	acts := make([]float64, m*k)
	padded, packed := make([]float32, quantBlocks(k)*quantBlock),
		make([]byte, quantBlocks(k)*actBlock)
	for i := range m {
		if spans {
			spanActs(acts[i*k:(i+1)*k], x[i*k:(i+1)*k], w.Format)
			continue
		}
		copy(padded, x[i*k:(i+1)*k])
		quantizeRowGo(packed, padded, quantBlocks(k), actSpan(), 0)
		for j := range k {
			a := packed[j/quantBlock*actBlock:]
			acts[i*k+j] = float64(int8(a[j%quantBlock])) *
				float64(math.Float32frombits(binary.LittleEndian.Uint32(a[actScale:])))
		}
	}
	for o := range n {
		w.Row(row, o)
		if spans {
			spanWeights(row, w, o)
		}
		for i := range m {
			clear(sums)
			size := math.Abs(float64(bias[o]))
			for j, v := range row {
				p := float64(v) * acts[i*k+j]
				sums[j/quantBlock] += p
				if spans || w.Format == Q4M {
					size += math.Abs(p)
				}
			}
			want := float64(bias[o])
			for _, s := range sums {
				want += s
				if !spans {
					size += math.Abs(s)
				}
			}
			if g := float64(got[i*n+o]); !(math.Abs(g-want) <= dotTol(k)*size) {
				t.Fatalf("%v [%d %d], %d rows: [%d %d] = %v, want %v", w.Format, n, k, m, i, o, g,
					want)
			}
		}
	}
}

// actSpan returns how many blocks of x share a scale in a step.
func actSpan() int {
	if computing().vnni {
		return spanBlocks
	}
	return 1
}

// inSpans reports whether a product with w rounds in spans.
func inSpans(p *Pool, w *Matrix) bool { return !p.steps() && computing().spans(w.Format) }

// forEachRole runs f with every set of instructions of this processor, with the pool p and, where
// steps round differently, with p.Step().
func forEachRole(t *testing.T, p *Pool, f func(t *testing.T, p *Pool)) {
	t.Helper()
	forEachISA(t, func(t *testing.T) {
		f(t, p)
		if on := computing(); on.spans(Q8) || on.tiled(BF16Dot) {
			t.Run("step", func(t *testing.T) { f(t, p.Step()) })
		}
	})
}

// spanLength is the K that shares a scale in a product of many rows.
const spanLength = 256

// inBytes reports whether spans round x and the weights to int8: on machines that multiply bytes.
// Others round x to int8 for 4 bits, whose values they keep, and to int16 for Q8.
func inBytes() bool { return computing().features().VNNI || computing().impl == implAMX }

// spanActs rounds a row of x as products of many rows with weights in f do.
func spanActs(acts []float64, x []float32, f Format) {
	highest := float32(127)
	if !inBytes() && (f == Q8 || f == IQ4) {
		highest = 127 * 32
	}
	for from := 0; from < len(x); from += spanLength {
		part := x[from:min(len(x), from+spanLength)]
		most := float32(1e-30)
		for _, v := range part {
			most = max(most, float32(math.Abs(float64(v))))
		}
		for j, v := range part {
			acts[from+j] = math.RoundToEven(float64(v*(highest/most))) * float64(most/highest)
		}
	}
}

// spanWeights rounds row o of w as products of many rows do. The scale of the span is factor times
// the largest scale or, with minima, value; r is full times the ratio of the scales of the block
// and the span. With bytes the result is the upper byte of q·r + 128. Without, it is q·r for 4
// bits, and q·r / 128 for Q8.
func spanWeights(row []float32, w *Matrix, o int) {
	head := func(j, at int) float32 { // binary16 number at of the block of column j
		block := o/quantPanel*quantBlocks(w.K) + j/quantBlock
		return Half(binary.LittleEndian.Uint16(w.Data[block*quantBlockSize(w.Format)+2*at:]))
	}
	wide, bytes := w.Format == Q8 || w.Format == IQ4, inBytes()
	factor, full := float32(1), float32(256)
	switch {
	case bytes && w.Format == Q4:
		factor = 1. / 15
	case bytes && w.Format == Q4M:
		factor = 1. / 127
	case bytes:
	case wide:
		factor, full = 1./16, 128
	case w.Format == Q4:
		factor, full = 1./4095, 1
	default:
		factor, full = 1./32767, 1
	}
	for from := 0; from < w.K; from += spanLength {
		end, most := min(w.K, from+spanLength), float32(1e-30)
		for j := from; j < end; j += quantBlock {
			d := head(j, o%quantPanel)
			if w.Format != Q4M {
				most = max(most, float32(math.Abs(float64(d))))
				continue
			}
			low := head(j, quantPanel+o%quantPanel)
			high := float32(float64(d)*15 + float64(low))
			most = max(most, float32(math.Abs(float64(low))), float32(math.Abs(float64(high))))
		}
		scale := most * factor
		per := full / scale
		for j := from; j < end; j++ {
			d, low := head(j, o%quantPanel), float32(0)
			if w.Format == Q4M {
				low = head(j, quantPanel+o%quantPanel)
			}
			q := 0
			if d != 0 {
				q = int(math.Round((float64(row[j]) - float64(low)) / float64(d)))
			}
			r := int(math.RoundToEven(float64(d * per)))
			if bytes && wide {
				r = max(r, -254)
			}
			r = q*r + int(math.RoundToEven(float64(low*per)))
			switch {
			case bytes:
				r = (r + 128) >> 8
			case wide:
				r = (r + 64) >> 7
			}
			row[j] = float32(r) * scale
		}
	}
}

// TestQuantError: products of prompts and of steps may round x and weights differently. The error
// is no larger than rounding x to 8 bits causes.
func TestQuantError(t *testing.T) {
	r := rand.New(rand.NewPCG(43, 44))
	m, n, k := 70, 96, 2048
	x := randomVector(r, m*k)
	for i := 0; i < len(x); i += 997 {
		x[i] *= 30
	}
	for _, f := range []Format{Q8, Q4, Q4M, BF16Dot} {
		w, err := Quantize(nil, MatrixF32(n, k, randomVector(r, n*k)), f)
		if err != nil {
			t.Fatal(err)
		}
		exact := make([]float32, m*n)
		row := make([]float32, k)
		power := 0.0
		for o := range n {
			w.Row(row, o)
			for i := range m {
				sum := 0.0
				for j, v := range row {
					sum += float64(v) * float64(x[i*k+j])
				}
				exact[i*n+o] = float32(sum)
				power += sum * sum
			}
		}
		forEachRole(t, nil, func(t *testing.T, p *Pool) {
			got := make([]float32, m*n)
			MatMul(p, got, x, m, w, nil)
			off := 0.0
			for i, v := range got {
				off += math.Pow(float64(v)-float64(exact[i]), 2)
			}
			rms := math.Sqrt(off / power)
			t.Logf("%v: root mean square of the error %.3f %%", f, 100*rms)
			most := 0.012 // 8 bits of x in blocks of 32, some with an outlier
			switch {
			case f == BF16Dot:
				most = 0.0025 // of each operand 2⁻⁹ at most, 2⁻⁹/√3 on average
			case inSpans(p, w) || actSpan() > 1:
				most = 0.03 // 8 bits of x in spans of 256, a quarter of them with an outlier
			}
			if !(rms <= most) {
				t.Errorf("%v: root mean square of the error %v, want at most %v", f, rms, most)
			}
		})
	}
}

// Ensure that the largest values of every format and of x overflow no sum, whatever the signs.
func TestQuantLargest(t *testing.T) {
	r := rand.New(rand.NewPCG(45, 46))
	forEachRole(t, nil, func(t *testing.T, p *Pool) {
		for _, f := range []Format{Q8, Q4, Q4M, IQ4} {
			for _, low := range []byte{0, 0xff} {
				m, n, k := 7, 64, 600
				w := &Matrix{Format: f, N: n, K: k}
				w.Data = bytes.Repeat([]byte{low}, w.Bytes())
				size, head := quantBlockSize(f), quantHead(f)
				for b := 0; b < len(w.Data); b += size {
					for i := 0; i < head; i += 2 { // scales and minima of ±1
						h := uint16(0x3c00) | uint16(r.IntN(2))<<15
						binary.LittleEndian.PutUint16(w.Data[b+i:], h)
					}
				}
				x := make([]float32, m*k)
				for i := range x {
					x[i] = 127
					if i/k == 1 || i/k > 1 && r.IntN(2) > 0 {
						x[i] = -127
					}
				}
				got, bias := make([]float32, m*n), make([]float32, n)
				MatMul(p, got, x, m, w, bias)
				checkQuantProduct(t, got, x, m, w, bias, inSpans(p, w))
			}
		}
	})
}

// BenchmarkQuantMatMul reports the rate of whole products in GOP/s and, for one row, the rate of
// reading the weight and its share of this machine's read rate.
func BenchmarkQuantMatMul(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := NewPool(threads)
		defer p.Close()
		for _, f := range []Format{Q8, Q4, Q4M} {
			for _, shape := range [][2]int{{4096, 4096}, {11008, 4096}, {4096, 11008}} {
				n, k := shape[0], shape[1]
				w := &Matrix{Format: f, N: n, K: k}
				w.Data = make([]byte, w.Bytes())
				for i := range w.Data {
					w.Data[i] = byte(i%7) + 0x20
				}
				for _, m := range []int{1, 4, 8, 32, 124, 252, 636} {
					b.Run(fmt.Sprintf("%v/%dx%d/m%d/t%d", f, n, k, m, threads), func(b *testing.B) {
						x := randomVector(rand.New(rand.NewPCG(1, 1)), m*k)
						dst := make([]float32, m*n)
						for b.Loop() {
							MatMul(p, dst, x, m, w, nil)
						}
						seconds := b.Elapsed().Seconds() / float64(b.N)
						b.ReportMetric(0, "ns/op")
						gops := 2 * float64(m) * float64(n) * float64(k) / seconds / 1e9
						b.ReportMetric(gops, "GOP/s")
						if m == 1 {
							b.ReportMetric(float64(len(w.Data))/seconds/1e9, "GB/s")
						}
					})
				}
			}
		}
	}
}

func BenchmarkQuantize(b *testing.B) {
	p := NewPool(2)
	defer p.Close()
	w, _ := randomMatrix(rand.New(rand.NewPCG(1, 1)), 1024, 4096, F16, false)
	for _, f := range []Format{Q8, Q4, Q4M} {
		b.Run(f.String(), func(b *testing.B) {
			b.SetBytes(int64(len(w.Data)))
			for b.Loop() {
				if _, err := Quantize(p, w, f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
