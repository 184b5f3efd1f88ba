package kernel

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
