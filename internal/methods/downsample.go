package methods

// Downsample is the control that only shrinks the picture.

import (
	"fmt"
	"math"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var downsampleMethod = &method{
	Method: reduce.Method{
		Name:    "downsample",
		Title:   "the picture shrunk before the encoder (a control)",
		Summary: "Shrinks the picture before it is encoded, for comparison.",
		Site:    reduce.BeforeEncoder,
		Needs:   []reduce.Need{reduce.Grid, reduce.Shrunk},
		Minimum: "1 token; a budget of rows times columns, neither side shrunk more than " +
			"twice as much as the other",
		Cost: "none (the encoder itself runs on n tokens)",
		Notes: reduce.Notes{
			Equations: `
The picture, as prepared for the encoder, is resized to a×b patches with a·b = n (bicubic,
antialiased). The encoder's positions are interpolated to that grid, and the a·b features after
the projector are the tokens. Each stands for the cell of the full grid that it covers, and its
position is the token in the cell's middle, as with pool. a and b are the factors of n, not above
the grid's sides, that keep the picture's shape best; one side may shrink at most twice as much
as the other. A budget without such factors is refused.`,
			Departures: `
RESTORE keeps no tokens here, because each token already stands for a group: it only calibrates
the decoder's attention for sizes and distances.`,
			Licence: noCode,
		},
	},
	plain: downsample,
	whole: true,
	ops:   noOps,
	budgets: func(p *Plan) error {
		if p.facts.GridH == 0 { // no grid is refused by name when there are features
			return nil
		}
		_, _, err := ShrunkGrid(p.facts.GridH, p.facts.GridW, p.NVis)
		return err
	},
}

// maxStretch is how much more one side may shrink than the other: 128 tokens of a square are 8×16.
const maxStretch = 2

// ShrunkGrid returns the rows and columns of patches to which a picture of h×w patches is shrunk
// for n tokens. The error names the closest possible budgets.
func ShrunkGrid(h, w, n int) (rows, cols int, err error) {
	if rows, cols = shrunkGrid(h, w, n); rows > 0 {
		return rows, cols, nil
	}
	if h < 1 || w < 1 || n < 1 || n > h*w {
		return 0, 0, fmt.Errorf("methods: n-vis: got %d for a grid of %dx%d tokens, want 1 "+
			"to as many as it has", n, h, w)
	}
	below, above := n, n
	for r := 0; r == 0 && below > 0; {
		below--
		r, _ = shrunkGrid(h, w, below)
	}
	for r := 0; r == 0 && above < h*w; {
		above++
		r, _ = shrunkGrid(h, w, above)
	}
	return 0, 0, refused("n-vis", errs.Invalid, strconv.Itoa(n),
		fmt.Sprintf("%d or %d", below, above),
		fmt.Sprintf("a picture of %dx%d shrinks to no grid of tokens of that number", h, w))
}

// shrunkGrid is ShrunkGrid that returns zeros instead of an error.
func shrunkGrid(h, w, n int) (rows, cols int) {
	least := maxStretch * (1 + 1e-9)
	for a := 1; a <= min(h, n); a++ {
		b := n / a
		if a*b != n || b > w {
			continue
		}
		stretch := float64(a) * float64(w) / (float64(b) * float64(h))
		if stretch = math.Max(stretch, 1/stretch); stretch < least {
			rows, cols, least = a, b, stretch
		}
	}
	return rows, cols
}

func downsample(w *work) (*reduce.Reduction, error) {
	in := w.in
	rows, cols, err := ShrunkGrid(in.GridH, in.GridW, w.o.NVis)
	if err != nil {
		return nil, err
	}
	if in.ShrunkH != rows || in.ShrunkW != cols {
		return nil, fmt.Errorf("methods: downsample: shrunk: got a grid of %dx%d, want %dx%d",
			in.ShrunkH, in.ShrunkW, rows, cols)
	}
	r := w.fromCells(cells(in.GridH, in.GridW, rows, func(int) int { return cols }))
	r.Features = append(r.Features, in.Shrunk...)
	return r, nil
}
