package kernel

import "time"

// peakTime is the duration of a measurement of the machine. The best of peakTries is reported,
// because other processes can only slow it down.
const (
	peakTime  = 30 * time.Millisecond
	peakTries = 5
	peakBytes = 128 << 20 // beyond the last-level cache of most machines
)

// PeakFMA measures the rate of fused multiply-adds on registers only, with all threads of p and the
// implementation in use, in GFLOP/s: the upper limit of a float32 product. It takes about 0.2 s.
func PeakFMA(p *Pool) float64 { return peak(p, fmaPerRound(), fmaLoop) }

// PeakDot measures the rate of 8-bit multiply-adds into 32-bit sums on registers only, in GOP/s
// (two per multiply-add), with VPDPBUSD, SDOT, or three instructions of AVX2 for 32 products: the
// upper limit of a product of Q8. The reference in Go reports its float32 rate. It takes about
// 0.2 s.
func PeakDot(p *Pool) float64 { return peak(p, dotPerRound(), dotLoop) }

// PeakNibble is PeakDot for products of 4 bits. Without VPDPBUSD, their sums of a block fit 16
// bits, so two instructions of AVX2 are enough for 32 products.
func PeakNibble(p *Pool) float64 { return peak(p, nibblePerRound(), nibbleLoop) }

// PeakWord measures the rate of 16-bit multiply-adds into 32-bit sums on registers only, in GOP/s,
// with VPDPWSSD or two instructions of AVX2: the upper limit of a product of Q12. Without AVX2 it
// is the float32 rate. It takes about 0.2 s.
func PeakWord(p *Pool) float64 { return peak(p, wordPerRound(), wordLoop) }

// PeakBF16 measures the rate of bfloat16 multiply-adds into float32 sums on registers only, in
// GFLOP/s, with VDPBF16PS or the fused multiply-adds that replace it: the upper limit of a product
// of BF16Dot. It takes about 0.2 s.
func PeakBF16(p *Pool) float64 { return peak(p, bf16PerRound(), bf16Loop) }

// peak returns the best rate of loop in 10⁹ operations per second.
func peak(p *Pool, perRound int, loop func(rounds int)) float64 {
	best := 0.0
	for range peakTries {
		best = max(best, sampleRegisters(p, perRound, peakTime, loop))
	}
	return best
}

// PeakRead measures the rate at which all threads of p read memory that is in no cache, in GB/s:
// the upper limit of a product of one row. It takes about 0.3 s and 128 MiB.
func PeakRead(p *Pool) float64 {
	buf := largeBytes(peakBytes)
	for i := 0; i < len(buf); i += 4096 {
		buf[i] = 1 // so that every page has memory of its own
	}
	best := 0.0
	for range peakTries {
		best = max(best, SampleRead(p, buf))
	}
	return best
}

// fmaLoopGo runs rounds of four independent multiply-adds.
func fmaLoopGo(rounds int) float32 {
	var a, b, c, d float32
	x, y := float32(rounds), float32(1e-9)
	for range rounds {
		a += x * y
		b += x * y
		c += x * y
		d += x * y
	}
	return a + b + c + d
}

func readLoopGo(b []byte) (sum byte) {
	for i := 0; i < len(b); i += 64 {
		sum += b[i]
	}
	return sum
}

// sink keeps the compiler from removing the computation of its argument.
//
//go:noinline
func sink(float32) {}
