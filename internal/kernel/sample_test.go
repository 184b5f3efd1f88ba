package kernel

import (
	"math"
	"testing"
	"time"
)

// Ensure that every short measurement returns a rate, for each format, number of rows and
// implementation.
func TestSamples(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	check := func(what string, rate float64) {
		if !(rate > 0) || math.IsInf(rate, 0) {
			t.Errorf("%s: %v, want a rate", what, rate)
		}
	}
	forEachISA(t, func(t *testing.T) {
		for _, f := range []Format{F32, F16, BF16, Q8, Q4, BF16Dot, Q12} {
			check(f.String()+" peak", SamplePeak(p, f, time.Microsecond))
			for _, m := range []int{1, 3, 32} {
				check(f.String()+" micro", SampleMicro(p, f, m, time.Microsecond))
			}
		}
		check("read", SampleRead(p, make([]byte, 4<<20)))
	})
}
