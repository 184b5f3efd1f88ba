package imageproc

// Grid is a grid of patches over a part of a picture, and their visual tokens.
type Grid struct {
	Rows, Cols int
	// the part of the picture, in its pixels; it may extend beyond the picture. Empty means the
	// whole picture
	Frame Frame
	// patches along the side of the square tiles of the grid; 0: no tiles
	Tile   int
	Tokens []int32 // [Rows*Cols] token of each patch, -1 none; nil: 0, 1, 2, …
	// [Rows] the newline token after each row's last patch, -1 none; nil: no row has one
	Ends []int32
}

// nearlyInside is the part of a pixel that rounding may add to a patch.
const nearlyInside = 1e-6

// Outside reports whether patch k shows only the padding around a picture of width×height pixels.
func (g *Grid) Outside(k, width, height int) bool {
	if g.Frame.W <= 0 || g.Frame.H <= 0 || width == 0 {
		return false
	}
	w, h := g.Frame.W/float64(g.Cols), g.Frame.H/float64(g.Rows)
	x, y := g.Frame.X0+float64(k%g.Cols)*w, g.Frame.Y0+float64(k/g.Cols)*h
	return x+w <= nearlyInside || y+h <= nearlyInside || x >= float64(width)-nearlyInside ||
		y >= float64(height)-nearlyInside
}
