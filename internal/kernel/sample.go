package kernel

import (
	"sync/atomic"
	"time"
)

// Each function of this file takes one short measurement, so that a benchmark can alternate between
// a product, its inner kernel and the machine's limits. On a shared machine, only measurements
// close in time can be compared. All run on all threads of p for about d, and return 10⁹ operations
// per second, two per multiply-add.

// SamplePeak measures multiply-adds on registers only, with the instructions that a product of many
// rows with a weight of format f uses, the upper limit of its rate: of 8 bits into 32-bit sums
// (VPDPBUSD, SDOT, or three instructions of AVX2 for 32 products) for Q8 and IQ4; the same of 4
// bits, of which a block's sums fit 16 bits without VPDPBUSD (two instructions), for Q4 and Q4M; of
// bfloat16 into float32 sums (VDPBF16PS, or what replaces it) for BF16Dot; of 16 bits (VPDPWSSD, or
// two instructions of AVX2) for Q12; and of float32 for the others. The reference in Go measures
// its float32 rate for all.
func SamplePeak(p *Pool, f Format, d time.Duration) float64 {
	switch f {
	case Q8, IQ4:
		return sampleRegisters(p, dotPerRound(), d, dotLoop)
	case Q4, Q4M:
		return sampleRegisters(p, nibblePerRound(), d, nibbleLoop)
	case BF16Dot:
		return sampleRegisters(p, bf16PerRound(), d, bf16Loop)
	case Q12:
		return sampleRegisters(p, wordPerRound(), d, wordLoop)
	}
	return sampleRegisters(p, fmaPerRound(), d, fmaLoop)
}

func sampleRegisters(p *Pool, perRound int, d time.Duration, loop func(rounds int)) float64 {
	const rounds = 1 << 16
	return sample(p, 2*rounds*perRound, d, func(int) { loop(rounds) })
}

// SampleMicro measures the inner kernel of [MatMul] with m rows and a weight of format f, at its
// best height if there are several. Each thread has its own operands, which fit its first caches.
func SampleMicro(p *Pool, f Format, m int, d time.Duration) float64 {
	loops := make([]func(), p.Threads())
	var ops int
	for i := range loops {
		loops[i], ops = microLoop(computing(), p.steps(), f, m)
	}
	return sample(p, ops, d, func(i int) { loops[i]() })
}

// sample runs one, which does ops operations, again and again on every thread for about d and adds
// up the threads' rates. No thread's time starts before all have arrived, so waking them is not
// counted.
func sample(p *Pool, ops int, d time.Duration, one func(thread int)) float64 {
	var arrived atomic.Int32
	rates := make([]float64, p.Threads())
	p.Run(p.Threads(), func(i int) {
		arrived.Add(1)
		late := time.Now().Add(longestWake)
		for int(arrived.Load()) < p.Threads() && time.Now().Before(late) {
		}
		start := time.Now()
		for total := 0; ; {
			one(i)
			total += ops
			if spent := time.Since(start); spent >= d {
				rates[i] = float64(total) / spent.Seconds() / 1e9
				return
			}
		}
	})
	var sum float64
	for _, r := range rates {
		sum += r
	}
	return sum
}

// longestWake is the longest time that a thread waits for the others: if the pool is busy
// elsewhere, they may never arrive.
const longestWake = 20 * time.Millisecond

// SampleRead measures how fast all threads of p read b once, in GB/s. b should be larger than the
// caches and must be at least 2 MiB.
func SampleRead(p *Pool, b []byte) float64 {
	const part = 1 << 20
	start := time.Now()
	p.Run(len(b)/part, func(i int) { readLoop(b[i*part : (i+1)*part]) })
	return float64(len(b)/part*part) / time.Since(start).Seconds() / 1e9
}

// microDepth is the k of the operands of a microLoop, and microCalls its number of calls of the
// kernel, enough to outweigh the cost of waking a thread.
const (
	microDepth = 512
	microCalls = 200
)

// microLoopGo is microLoop for the reference, with a weight of one panel.
func microLoopGo(f Format, m int) (loop func(), ops int) {
	const n = 64
	w := MatrixF32(n, microDepth, make([]float32, n*microDepth))
	switch f {
	case Q8, Q4, Q4M, IQ4, BF16Dot, Q12:
		w, _ = Quantize(nil, w, f) // zeros are finite
	default:
		w = &Matrix{Format: f, N: n, K: microDepth, Data: make([]byte, n*microDepth*f.Size())}
	}
	m = min(m, 8)
	x, dst := make([]float32, m*microDepth), make([]float32, m*n)
	return func() { MatMul(nil, dst, x, m, w, nil) }, 2 * m * n * microDepth
}
