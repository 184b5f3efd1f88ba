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
	// Pixels is the picture as the encoder sees it, in bytes.
	Pixels Need = "pixels"
	// ClsAttnShallow is ClsAttn of a block in the encoder's first quarter.
	ClsAttnShallow Need = "cls_attn_shallow"
	// ReceivedMid is the attention that each token receives, averaged over all queries, in a block
	// in the encoder's middle; ReceivedDeep, in the block of ClsAttn.
	ReceivedMid  Need = "received_mid"
	ReceivedDeep Need = "received_deep"
	// Cells are features before the projector, one row for each token, of every encoder. In a file,
	// hidden has them if there is a class token.
	Cells Need = "hidden_cells"
	// PromptText are the decoder's embeddings of all text of the prompt, QuestionText only of the
	// question. Both are Input.Text, and a method needs at most one of them. In a file their
	// name is text. A choice that reads them holds only for that text.
	PromptText   Need = "text"
	QuestionText Need = "question"
)

// ReadsText reports whether the need is a text, so that a choice holds only for it.
func (n Need) ReadsText() bool { return n == PromptText || n == QuestionText }

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

	// [heads, N+1] for any number of heads, like ClsAttn: the class token's attention in a shallow
	// block, and what rows receive from all queries, the class token's included, in a block in the
	// middle and in the one of ClsAttn. With NoClass, ClsAttnShallow too is what patches receive.
	ClsAttnShallow, ReceivedMid, ReceivedDeep []float32

	// Cells [N, CellDim] are features before the projector where they are not in Hidden, because
	// the encoder has no class token. Where several patches make a token, they are means.
	CellDim int
	Cells   []float32

	// Text [M, C] are the decoder's embeddings of a text; nil: not known. It may have no rows.
	Text []float32

	// ClipImage [N, ClipDim] and ClipText [M, ClipDim] are picture and question in CLIP's common
	// space. Only files have them.
	ClipDim             int
	ClipImage, ClipText []float32

	// Padding [N] tells which tokens show nothing of the picture; nil: none.
	Padding []bool

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

	// Pixels [GridH*Cell, GridW*Cell, 3] are the bytes of the picture as the encoder sees it. Each
	// token shows a cell: a square of Cell pixels a side.
	Cell   int
	Pixels []byte

	// Pruned tells which tokens a method before the encoder left out. All other fields describe
	// only those that were encoded, and there is no grid. nil: none was left out.
	Pruned *Pruned

	Seed int64 // of this picture; random methods also use the request's seed
}

// Pruned tells which tokens of a picture were encoded, and which token stands for each.
type Pruned struct {
	N     int     // tokens of the picture
	Kept  []int32 // those that were encoded, ascending
	Group []int32 // [N] index in Kept of the token that stands for each
}

// View is a part of a picture that the encoder processed separately.
type View struct {
	Tokens []int32 // indices into the picture's tokens, ascending
	H, W   int     // rows and columns of Tokens; 0: they are not known to form a grid

	Class     []float32 // [Cv] its class token before the projector
	LastQuery []float32 // [width] its class token's query of the last layer
	LastClass []float32 // [width] its class token's key of the last layer
}

// Cut is one of several grids of a picture's tokens.
type Cut struct {
	H, W   int
	Tokens []int32 // [H*W] in raster order
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

// At returns the place among the picture's tokens of place i among the encoded ones. Between two
// tokens it is interpolated linearly.
func (p *Pruned) At(i float64) float64 {
	lo := int(i)
	a, b := float64(p.Kept[lo]), float64(p.Kept[min(lo+1, len(p.Kept)-1)])
	return a + (i-float64(lo))*(b-a)
}

// Encoded returns, of tokens of the picture, the index in Kept of each that was encoded.
func (p *Pruned) Encoded(tokens []int32) []int32 {
	var out []int32
	for _, t := range tokens {
		if g := p.Group[t]; p.Kept[g] == t {
			out = append(out, g)
		}
	}
	return out
}
