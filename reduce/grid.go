package reduce

// Grid is the control that looks at nothing: k tokens spread evenly over rows and columns. About sqrt(k·H/W) rows at equal steps, the
// tokens shared among them so that their counts differ by at most one, each row's tokens at equal steps. With 24x24 and k = 64: 8 rows
// of 8, every third token.

import "math"

var gridMethod = &Method{
	Name: "grid", Title: "tokens spread evenly over rows and columns (a control)", Site: AfterEncoder, Needs: []Need{Grid}, Minimum: "1 token",
	pick: func(w *work, k int) (*selection, error) {
		return &selection{kept: gridTokens(w.in.GridH, w.in.GridW, k)}, nil
	},
}

func gridTokens(h, w, k int) []int32 {
	rows := int(math.Round(math.Sqrt(float64(k) * float64(h) / float64(w))))
	rows = max(min(rows, h, k), (k+w-1)/w, 1)
	// Longer rows are spread among the others: row i ends where floor((i+1)k/rows) tokens are placed.
	kept := make([]int32, 0, k)
	for i, y := range spread(h, rows) {
		for _, x := range spread(w, (i+1)*k/rows-i*k/rows) {
			kept = append(kept, int32(y*w+x))
		}
	}
	return kept
}
