package methods

import "github.com/restore-vlm/restore/reduce"

// Grid is a control that ignores the picture's content.

var gridMethod = &method{
	Method: reduce.Method{
		Name:    "grid",
		Title:   "tokens at equal steps along the sequence (a control)",
		Summary: "Keeps patches at equal steps, for comparison.",
		Site:    reduce.AfterEncoder,
		Minimum: "1 token",
		Cost:    "none",
		Notes: reduce.Notes{
			Equations: `
k tokens at equal steps along the raster sequence, each in the middle of its k-th:
floor((j+½)·N/k) (the built-in benchmark's definition). With 24x24 and k = 64: every ninth token
from the fourth.`,
			Licence: noCode,
		},
	},
	ops: noOps,
	pick: func(w *work, k int) (*selection, error) {
		return &selection{kept: gridTokens(w.in.N, k)}, nil
	},
}

// gridTokens returns k distinct tokens of n, k <= n.
func gridTokens(n, k int) []int32 {
	kept := make([]int32, k)
	for j := range kept {
		kept[j] = int32((2*j + 1) * n / (2 * k))
	}
	return kept
}
