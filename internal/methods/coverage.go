package methods

import "github.com/restore-vlm/restore/internal/kernel"

// coverage chooses k of n tokens, one after another: each time the unused token of largest gain,
// the first on ties, whose choice take records. gain must not rise with further choices, so only
// gains that may be the largest are computed again. Calls of gain run in parallel. used, which may
// bar tokens from the start, is set for the chosen ones.
func coverage(
	p *kernel.Pool, k int, used []bool, gain func(j int) float64, take func(j int),
) (kept []int32, gains []float64) {
	bound, of := make([]float64, len(used)), make([]int, len(used)) // of how many choices
	if k > 0 {
		p.Run(len(used), func(j int) {
			if !used[j] {
				bound[j] = gain(j)
			}
		})
	}
	for len(kept) < k {
		j := largest(bound, used)
		if of[j] < len(kept) {
			bound[j], of[j] = gain(j), len(kept)
			continue
		}
		used[j] = true
		take(j)
		kept, gains = append(kept, int32(j)), append(gains, bound[j])
	}
	return kept, gains
}

// largest returns the unused element of largest value, the first on ties.
func largest(v []float64, used []bool) int {
	best := -1
	for i, x := range v {
		if !used[i] && (best < 0 || x > v[best]) {
			best = i
		}
	}
	return best
}
