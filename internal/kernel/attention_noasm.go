//go:build !(amd64 || arm64) || purego

package kernel

import "sync"

func attend(p *Pool, a *Attention) { attendGo(p, a) }

// fewRun computes no calls: all are the reference's.
type fewRun struct{}

var fewRuns = sync.Pool{New: func() any { return new(fewRun) }}

func (*fewRun) take(*Attention) bool { return false }

func (*fewRun) run(*Pool) {}

func narrowHalf([]uint16, []float32) int { return 0 }

func transposeRows(dst, src []float32, stride, rows, n int) {
	transposeRowsGo(dst, src, stride, rows, n)
}
