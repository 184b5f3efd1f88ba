package kernel

import "math"

const (
	log2e     = 1 / math.Ln2
	expMin    = -87.33654 // below it, e^x is not a normal float32
	expMax    = 89        // above, it is +Inf
	roundBias = 0x1.8p52  // adding it rounds a small float64 to an integer
)

// expGo returns e^x to within one unit in the last place: x = n·ln2 + r with |r| <= ln2/2, and a
// Taylor polynomial of degree 8 in float64 for e^r. NaN gives NaN, large x gives +Inf, and a result
// that would be subnormal is 0, as in the assembly.
func expGo(x float32) float32 {
	v := float64(x)
	switch {
	case v != v:
		return x
	case v > expMax:
		return float32(math.Inf(1))
	case v < expMin:
		return 0
	}
	n := v*log2e + roundBias - roundBias
	r := v - n*math.Ln2
	p := 1 + r*(1+r*(1.0/2+r*(1.0/6+r*(1.0/24+r*(1.0/120+r*(1.0/720+r*(1.0/5040+r*(1.0/40320))))))))
	return float32(p * math.Float64frombits(uint64(1023+int64(n))<<52))
}
