package imageproc

import (
	"fmt"
	"math"
)

// Crops is GotOcr2ImageProcessor as InternVLProcessor calls it: a picture is squashed to the grid
// of square tiles whose ratio of sides is nearest to its own, and cut row by row; if there are two
// or more, the whole picture follows, squashed to one tile. That processor always cuts, whatever
// crop_to_patches says; max_patches 1 gives one tile.
type Crops struct {
	Square
	class       string
	least, most int // tiles of a grid
}

var _ Limiter = (*Crops)(nil)

// NewCrops makes a [Crops].
func NewCrops(r *Settings) Processor {
	const side = 384
	c := &Crops{
		Square: r.Square(side, true), class: r.class,
		least: r.Int("min_patches", 1, 0, MaxTiles), most: r.Int("max_patches", 12, 1, MaxTiles),
	}
	r.Bool("crop_to_patches", false)
	return c
}

// Name implements Processor.
func (c *Crops) Name() string { return c.class }

// Limit implements [Limiter]: it limits the pixels of all tiles of a picture.
func (c *Crops) Limit(lo, hi int) (Processor, error) {
	out, tile := *c, c.Side*c.Side
	if lo != 0 {
		out.least = (lo + tile - 1) / tile
	}
	if hi != 0 {
		out.most = hi / tile
	}
	switch {
	case lo < 0 || hi < 0 || max(out.least, out.most) > MaxTiles:
		return nil, fmt.Errorf("imageproc: min-pixels and max-pixels: got %d and %d, want 1 to %d "+
			"(%d tiles)", lo, hi, MaxTiles*tile, MaxTiles)
	case out.most == 0:
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want at least %d (one tile of "+
			"%dx%[3]d pixels)", hi, tile, c.Side)
	case out.least > out.most:
		return nil, fmt.Errorf("imageproc: min-pixels: got %d (%d tiles of %dx%[3]d pixels), want "+
			"at most the %d tiles of max-pixels", lo, out.least, c.Side, out.most)
	}
	return &out, nil
}

// CropViews returns the number of views of a picture in rows by cols tiles.
func CropViews(rows, cols int) int {
	if n := rows * cols; n > 1 {
		return n + 1
	}
	return 1
}

// Grid returns the tiles of a picture of w by h pixels. Of two grids that are equally near it is
// the later, in the order of their number of tiles and then of their width, if it covers less than
// twice the picture's pixels. Without any grid, it is one tile.
func (c *Crops) Grid(w, h int) (rows, cols int) {
	ratio, area := float64(w)/float64(h), float64(w)*float64(h)
	nearest := math.Inf(1)
	rows, cols = 1, 1
	for n := c.least; n <= c.most; n++ {
		for across := 1; across <= n; across++ { // narrow before wide
			if n%across != 0 {
				continue
			}
			down := n / across
			d := math.Abs(ratio - float64(across)/float64(down))
			if d < nearest ||
				d == nearest && area > 0.5*float64(c.Side)*float64(c.Side)*float64(n) {
				nearest, rows, cols = d, down, across
			}
		}
	}
	return rows, cols
}

// Process returns [views of all pictures, 3, tile, tile].
func (c *Crops) Process(pics []*Picture) (*Pixels, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	px := &Pixels{}
	n, total := 3*c.Side*c.Side, 0
	for _, p := range pics {
		rows, cols := c.Grid(p.Width, p.Height)
		px.Tiles = append(px.Tiles, CropViews(rows, cols))
		px.CanvasSizes = append(px.CanvasSizes, [2]int{rows * c.Side, cols * c.Side})
		px.ImageSizes = append(px.ImageSizes, [2]int{p.Height, p.Width})
		whole := Frame{W: float64(p.Width), H: float64(p.Height)}
		px.Frames, px.Canvases = append(px.Frames, whole), append(px.Canvases, whole)
		total += CropViews(rows, cols)
	}
	if err := checkOutput(total, n); err != nil {
		return nil, err
	}
	px.Shape, px.Data = []int{total, 3, c.Side, c.Side}, make([]float32, total*n)
	dst := px.Data
	for i, p := range pics {
		size := px.CanvasSizes[i]
		views := [][2]int{size}
		if px.Tiles[i] > 1 {
			views = append(views, [2]int{c.Side, c.Side})
		}
		for _, v := range views {
			view, err := p.resized(v[1], v[0], c.filter)
			if err != nil {
				return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
			}
			dst = c.lut.tiles(dst, view.Pix, v[1], v[0], c.Side)
		}
	}
	return px, nil
}
