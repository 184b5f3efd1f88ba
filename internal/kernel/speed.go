package kernel

import (
	"encoding/binary"
	"runtime"
	"slices"
	"time"
)

// Speed is how fast this machine computes, measured once, to predict durations.
type Speed struct {
	Implementation string
	Threads        int
	Products       map[string][]ProductSpeed // by weight format
	// operations per second with many queries, two per multiply-add, by [Rounding]
	Attention [roundings]float64
	Elements  float64 // activations per second
	Read      float64 // bytes of memory per second
}

// ProductSpeed is the cost per element of a weight in a product with the given number of rows. One
// row reads the weight from memory.
type ProductSpeed struct {
	Rows    int
	Seconds float64
}

// speedRows are the numbers of rows that are measured; between them, the cost is interpolated
// linearly.
var speedRows = []int{1, 4, 16, 64, 192, 640}

// stepRows is the most rows that measurements take for a decoding step.
const stepRows = 32

// Measured returns the pool for measuring a product of this many rows: p, or for few rows p.Step().
func (p *Pool) Measured(rows int) *Pool {
	if rows <= stepRows {
		return p.Step()
	}
	return p
}

// speedFormats are the formats that are measured.
var speedFormats = []Format{F32, F16, BF16, BF16Dot, Q8, Q4, Q4M, IQ4, Q12}

const (
	speedN, speedK = 2048, 2048
	// speedQueries is about as many as a vision tower has: fewer take longer to prepare than to
	// multiply.
	speedQueries = 1024
	// speedMemory is the size of the weight for one row, and speedTime the minimum duration of a
	// measurement, which is made speedTries times.
	speedMemory = 96 << 20
	speedTime   = 4 * time.Millisecond
	speedTries  = 5
	speedMost   = 60 * time.Millisecond
	// speedTaken is the share of the processors below which others have taken them away. Ticks of
	// 4 ms make the share wrong by a tenth.
	speedTaken = 0.8
)

// MeasureSpeed measures with all threads of p. It takes one or two seconds, longer without
// assembly. The machine should be otherwise idle.
func MeasureSpeed(p *Pool) *Speed {
	s := &Speed{Implementation: Implementation(), Threads: p.Threads()}
	s.Products = map[string][]ProductSpeed{}
	var memory Memory
	defer memory.Free()
	data := memory.Bytes(speedMemory)
	// numbers from 10⁻¹³ to 0.1 in every format: zeros would be multiplied faster
	p.Run(len(data)>>20, func(i int) {
		state := uint64(i)*0x9e3779b97f4a7c15 | 1
		for part := data[i<<20 : (i+1)<<20]; len(part) > 0; part = part[8:] {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			binary.LittleEndian.PutUint64(part, state&0x83ff83ff83ff83ff|0x2c002c002c002c00)
		}
	})
	most := slices.Max(speedRows)
	x, dst := make([]float32, most*speedK), make([]float32, most*speedN)
	for i := range x {
		x[i] = float32(i%251)/125 - 1
	}
	n, size, t := speedN, speedMemory, speedQueries
	if choice() == implGo {
		n, size, t = n/32, size/16, t/8
	}
	for _, f := range speedFormats {
		for _, rows := range speedRows {
			w := &Matrix{Format: f, N: n, K: speedK}
			if rows == 1 { // all of the memory
				w.N = size / (&Matrix{Format: f, N: 64, K: speedK}).Bytes() * 64
			}
			on := p.Measured(rows)
			at := 0 // weights come from memory, not from a cache
			seconds := measure(p, func() {
				if at+w.Bytes() > size {
					at = 0
				}
				w.Data = data[at : at+w.Bytes()]
				at += w.Bytes()
				MatMul(on, dst, x, rows, w, nil)
			})
			s.Products[f.String()] = append(s.Products[f.String()], ProductSpeed{
				rows, seconds / float64(w.N*w.K),
			})
		}
	}
	const heads, dim = 8, 64
	a := &Attention{Heads: heads, KVHeads: heads, HeadDim: dim, Tq: t, Tk: t, Scale: 0.125,
		Q: x[:t*heads*dim], K: x[:t*heads*dim], V: x[:t*heads*dim], Out: dst[:t*heads*dim]}
	for a.Rounding = range roundings {
		s.Attention[a.Rounding] = float64(4*t*t*heads*dim) / measure(p, func() { Attend(p, a) })
	}
	half := len(x) / 2
	s.Elements = float64(half) / measure(p, func() {
		SiLUMul(p, x[:half], x[:half], x[half:2*half])
	})
	s.Read = float64(len(data)) / measure(p, func() { SampleRead(p, data) })
	return s
}

// measure returns the time of f in seconds. After speedMost, three tries are enough; the first may
// grow buffers.
func measure(p *Pool, f func()) float64 {
	var tries []float64
	calls, begin := 0, time.Now()
	used, ok := CPUTime()
	for len(tries) <= speedTries {
		n, start := 0, time.Now()
		for ; n == 0 || time.Since(start) < speedTime; n++ {
			f()
		}
		calls += n
		tries = append(tries, time.Since(start).Seconds()/float64(n))
		if time.Since(begin) > speedMost && len(tries) > 2 {
			break
		}
	}
	now, _ := CPUTime()
	threads := min(p.Threads(), runtime.GOMAXPROCS(0), runtime.NumCPU())
	busy := (now - used).Seconds() / float64(threads*calls)
	return typical(tries, busy, ok)
}

// typical returns the median of the tries. If other processes took much of the processors away
// meanwhile, it is busy, the mean processor time of a call, if that is known. A system may count
// the time of other threads only at its ticks, so a single try's processor time would be wrong.
func typical(tries []float64, busy float64, known bool) float64 {
	slices.Sort(tries)
	if m := tries[len(tries)/2]; !known || busy > speedTaken*m {
		return m
	}
	return busy
}

// Product predicts the seconds of a product of m rows with an [n, k] weight.
func (s *Speed) Product(f Format, m, n, k int) float64 {
	points := s.Products[f.String()]
	if len(points) == 0 || m == 0 {
		return 0
	}
	at := 1
	for at < len(points)-1 && points[at].Rows < m {
		at++
	}
	a, b := points[at-1], points[at]
	seconds := a.Seconds + (b.Seconds-a.Seconds)*float64(m-a.Rows)/float64(b.Rows-a.Rows)
	if m > b.Rows { // beyond the last measurement, in proportion
		seconds = b.Seconds * float64(m) / float64(b.Rows)
	}
	return max(seconds, 0) * float64(n) * float64(k)
}
