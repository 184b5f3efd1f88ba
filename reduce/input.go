package reduce

// Need is a part of Input that a method reads in addition to X.
type Need string

// What a method may need. Tensors in a file of features have the same names.
const (
	ClsAttn Need = "cls_attn"
	Hidden  Need = "hidden"
	Keys    Need = "keys"
	Grid    Need = "grid"
	// LastKeys means the class token's query and all keys of the encoder's last layer.
	LastKeys Need = "pm_k"
	// Shrunk is the picture encoded at a smaller size.
	Shrunk Need = "shrunk"
)

// Input is one picture's tokens and everything that criteria read of them. Slices are read-only. A
// slice that no method of the request needs may be nil.
type Input struct {
	N, C int // tokens, and features of each
	// X [N, C] holds features after the projector, in the decoder's space. It may be nil if the
	// method reads Shrunk.
	X []float32

	GridH, GridW int   // rows and columns of patches; 0 if unknown
	Grids        []Cut // or several grids: the small whole picture's, and the tiles'

	Heads int // of the encoder's attention
	// ClsAttn [Heads, N+1] is the attention of the class token's query; column 0 is the class token
	// itself. With NoClass, it is the attention that each patch receives.
	ClsAttn []float32

	Cv     int       // width of the encoder
	Hidden []float32 // [N+1, Cv] features before the projector; row 0 is the class token

	KeyDim int       // width of a key of one head
	Keys   []float32 // [Heads, N+1, KeyDim] keys of the layer that made Hidden

	// LastQuery [width] is the class token's query of the encoder's last layer, heads concatenated,
	// with bias, unscaled. LastKeys [N+1, width] are that layer's keys.
	LastQuery, LastKeys []float32

	// NoClass says that the encoder has no class token: row 0 of Hidden and Keys is zeros.
	NoClass bool

	Views []View // parts of the picture that the encoder processed separately; nil: none

	ShrunkH, ShrunkW int       // rows and columns of patches of the smaller picture
	Shrunk           []float32 // [ShrunkH*ShrunkW, C] features of the shrunk picture

	Seed int64 // of this picture; random methods also use the request's seed
}

// View is a part of a picture that the encoder processed separately.
type View struct {
	Tokens []int32 // indices into the picture's tokens, ascending

	Class     []float32 // [Cv] its class token before the projector
	LastQuery []float32 // [width] its class token's query of the last layer
	LastClass []float32 // [width] its class token's key of the last layer
}

// Cut is one of several grids of a picture's tokens.
type Cut struct {
	H, W   int
	Tokens []int32 // [H*W] in raster order, ascending
}

// ViewSizes returns the number of tokens of each view. It is nil if the picture was
// encoded in one piece.
func (in *Input) ViewSizes() []int {
	var out []int
	for i := range in.Views {
		out = append(out, len(in.Views[i].Tokens))
	}
	return out
}
