//go:build !(amd64 || arm64) || purego

package kernel

func attend(p *Pool, a *Attention) { attendGo(p, a) }

func attendEach(p *Pool, calls []Attention) {
	for i := range calls {
		Attend(p, &calls[i])
	}
}

func narrowHalf([]uint16, []float32) int { return 0 }

func transposeRows(dst, src []float32, stride, rows, n int) {
	transposeRowsGo(dst, src, stride, rows, n)
}
