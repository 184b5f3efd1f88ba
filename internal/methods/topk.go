package methods

import (
	"cmp"
	"slices"
)

// rank returns the list positions 0..len(v)-1 by falling value; among equal values the lower
// position first.
func rank(v []float64) []int32 {
	order := iota32(len(v))
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(v[b], v[a]), cmp.Compare(a, b))
	})
	return order
}

// topK returns the positions of the k highest values, highest first.
func topK(v []float64, k int) []int32 { return rank(v)[:k] }

// others returns, ascending, the tokens of 0..n-1 that are not in kept.
func others(n int, kept []int32) []int32 {
	in := make([]bool, n)
	for _, i := range kept {
		if i >= 0 {
			in[i] = true
		}
	}
	rest := make([]int32, 0, n)
	for i := range in {
		if !in[i] {
			rest = append(rest, int32(i))
		}
	}
	return rest
}
