package kernel

import "testing"

func TestPeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine")
	}
	p := NewPool(2)
	defer p.Close()
	fma, dot, bf16, read := PeakFMA(p), min(PeakDot(p), PeakNibble(p)), PeakBF16(p), PeakRead(p)
	t.Logf("%s: %.0f GFLOP/s, %.0f GOP/s, %.0f GFLOP/s in bf16, %.1f GB/s", Implementation(), fma,
		dot, bf16, read)
	if !(fma > 0.1 && dot > 0.1 && bf16 > 0.1 && read > 0.1) {
		t.Errorf("%v GFLOP/s, %v GOP/s, %v GFLOP/s in bf16, %v GB/s: not a machine's rates", fma,
			dot, bf16, read)
	}
}
