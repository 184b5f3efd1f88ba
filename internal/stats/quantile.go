package stats

import (
	"cmp"
	"math"
	"slices"
)

// Upper returns the q-th quantile of v; between two values, the larger one. It is one of the
// values, so that a rare long wait is not averaged away. It is 0 if v is empty.
func Upper[T cmp.Ordered](v []T, q float64) T {
	if len(v) == 0 {
		var zero T
		return zero
	}
	s := slices.Sorted(slices.Values(v))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// Interpolated returns the q-th quantile of v; between two values, in proportion. It is NaN if v is
// empty.
func Interpolated(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// Median returns the median of v; NaN if v is empty.
func Median(v []float64) float64 { return Interpolated(v, 0.5) }
