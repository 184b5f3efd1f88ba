package kernel

import "testing"

func TestPeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine")
	}
	p := NewPool(2)
	defer p.Close()
	fma, dot, read := PeakFMA(p), PeakDot(p), PeakRead(p)
	t.Logf("%s: %.0f GFLOP/s, %.0f GOP/s, %.1f GB/s", Implementation(), fma, dot, read)
	if !(fma > 0.1 && dot > 0.1 && read > 0.1) {
		t.Errorf("%v GFLOP/s, %v GOP/s, %v GB/s: not a machine's rates", fma, dot, read)
	}
}
