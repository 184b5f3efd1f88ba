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
