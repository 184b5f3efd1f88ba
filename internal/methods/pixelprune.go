package methods

// PixelPrune: "PixelPrune: Pixel-Level Adaptive Visual Token Reduction via Predictive Coding"
// (arXiv:2604.00886).

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var pixelPruneMethod = &method{
	Method: reduce.Method{
		Name:     "pixelprune",
		Title:    "PixelPrune: tokens that their neighbours predict are not encoded",
		Summary:  "Leaves out what the patches next to it already show, before encoding.",
		Paper:    "https://arxiv.org/abs/2604.00886",
		Site:     reduce.BeforeEncoder,
		Needs:    []reduce.Need{reduce.Pixels},
		Adaptive: true,
		Minimum:  "the picture's number: it takes no budget",
		Cost:     "none (at most 3 comparisons of pixels a token; the encoder runs on n tokens)",
		Notes: reduce.Notes{
			Equations: `
A token's cell is the square of pixels that it shows of the picture as the encoder sees it, resized.
Two cells are alike if no channel of a pixel differs by more than 255·tau levels, rounded down. Row
by row, every cell gets an owner o. The first cell is its own. In the first row the guess is
o(y,x-1), in the first column o(y-1,x). Elsewhere A = o(y,x-1), B = o(y-1,x), C = o(y-1,x-1), and
the guess is B if C is like A and not like B, else A. A cell that is like its guess gets it as owner
and is dropped; any other cell is its own owner and kept. Only owners' pixels are compared, so no
cell differs by more than tau from its owner.

The encoder sees the patches of kept cells at their own places: rotary angles and learned positions
are the original ones, windows stay where they were, and windows without a kept patch vanish. Tokens
keep their positions in the decoder, and text continues as after the whole picture.

Under RESTORE a row is a kept cell, and its size is the number of cells that it owns, as with join
count; there are no anchors. Alone all sizes are 1. Before another base (before pixelprune), the base
chooses among the kept cells, and with RESTORE a row's size is the number of cells that its members
own; its feature is the plain mean of the kept ones.`,
			Departures: `
The authors have this for an encoder whose blocks see the whole picture; windows, and other bases
after it, are ours. Their code compares numbers after normalising, so at a difference of exactly 255·tau levels rounding may
decide; bytes do not round. Their metrics mae and rmse and their other scans are left out.

At tau 0 every pixel is kept exactly, but features are not: attention inside the encoder loses the
weight of the copies. Proportional attention (ours, off) adds ln(size) to each key. A cell is
dropped if it equals its guess, so copies may remain. A video is refused, because only one frame
is compared; so are encoders with a class token, where nobody tried it. JPEG or scan noise leaves
nothing to drop at tau 0.`,
			Licence: "The authors' code: Apache-2.0.",
		},
	},
	parameters: func() own { return new(pixelPruneParams) },
	before:     pixelPrune,
	ops:        noOps,
}

// pixelPruneParams are PixelPrune's parameters.
type pixelPruneParams struct {
	tau  float64
	cell int
	proportional
}

// Declare implements own.
func (q *pixelPruneParams) Declare(d *reduce.Declaration) {
	d.Float(&q.tau, reduce.Parameter{
		Name: "pixelprune-tau", Unit: "share", Least: new(0.), Most: new(1.),
		Help: "largest difference of a pixel, as a share of white; 0: exact copies only",
	})
	d.Int(&q.cell, reduce.Parameter{
		Name: "pixelprune-cell", Default: "the picture's", Unit: "N", Least: new(1.),
		Help: "pixels along the side of a token's cell, for files of features",
	})
	q.declare(d, false, "false")
}

// pixelPrune returns the owner of each cell.
func pixelPrune(in *reduce.Input, own own) ([]int32, error) {
	q := own.(*pixelPruneParams)
	if q.cell != 0 && q.cell != in.Cell {
		return nil, refused("pixelprune-cell", errs.Conflict, strconv.Itoa(q.cell),
			strconv.Itoa(in.Cell), fmt.Sprintf("the picture has %dx%d tokens", in.GridH, in.GridW))
	}
	r := cellRaster{in, int(255 * q.tau)}
	o, w := make([]int32, in.N), in.GridW
	for i := range o {
		guess := int32(i)
		switch y, x := i/w, i%w; {
		case i == 0:
		case y == 0:
			guess = o[i-1]
		case x == 0:
			guess = o[i-w]
		default:
			guess = o[i-1]
			if b, c := o[i-w], o[i-w-1]; b != guess && r.alike(c, guess) && !r.alike(c, b) {
				guess = b
			}
		}
		if o[i] = int32(i); r.alike(o[i], guess) {
			o[i] = guess
		}
	}
	return o, nil
}

// cellRaster compares the cells of a picture.
type cellRaster struct {
	*reduce.Input
	most int // difference of bytes
}

// alike reports whether no byte of cells a and b differs by more than most.
func (r *cellRaster) alike(a, b int32) bool {
	if a == b {
		return true
	}
	for y := range r.Cell {
		u, v := r.line(a, y), r.line(b, y)
		if bytes.Equal(u, v) {
			continue
		}
		if r.most == 0 {
			return false
		}
		for i := range u {
			if d := int(u[i]) - int(v[i]); d > r.most || -d > r.most {
				return false
			}
		}
	}
	return true
}

// line returns the bytes of row y of cell i.
func (r *cellRaster) line(i int32, y int) []byte {
	row, col := int(i)/r.GridW, int(i)%r.GridW
	n := 3 * r.Cell
	return r.Pixels[((row*r.Cell+y)*r.GridW+col)*n:][:n]
}
