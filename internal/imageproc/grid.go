package imageproc

// Grid is a grid of patches over a part of a picture, and the visual tokens that
// they make.
type Grid struct {
	Rows, Cols int
	// the part of the picture, in its pixels; it may reach outside of it. An empty one is the whole
	// picture
	Frame Frame
	// patches along the side of the square tiles that it is cut into; 0: it is not
	Tile   int
	Tokens []int32 // [Rows*Cols] token of each patch, -1 none; nil: 0, 1, 2, …
	// [Rows] token after the last patch of each row, which shows nothing, -1 none; nil: no row has
	// one
	Ends []int32
}
