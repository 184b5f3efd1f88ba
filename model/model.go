package model

import (
	"context"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
)

// Run is what one forward pass is given besides its data: the worker pool, a
// workspace reused between calls, cancellation, and a trace. A Run must not be
// used by two goroutines at once.
type Run struct {
	Pool    *nn.Pool
	Context context.Context
	// Trace, when not nil, receives every intermediate. data is only valid
	// during the call. Tracing computes what the fast path never builds
	// (attention matrices).
	Trace func(name string, shape []int, data []float32)
	// TraceInts receives indices and bounds; it is set whenever Trace is.
	TraceInts func(name string, shape []int, data []int32)

	buffers map[string]*[]float32
	passage Passage
}

// Buffer returns a workspace slice of n elements under name; its content is
// undefined and lives until the next call with that name.
func (r *Run) Buffer(name string, n int) []float32 {
	if r.buffers == nil {
		r.buffers = map[string]*[]float32{}
	}
	b := r.buffers[name]
	if b == nil {
		b = new([]float32)
		r.buffers[name] = b
	}
	return nn.Buffer(b, n)
}

// Bytes returns the memory of all buffers.
func (r *Run) Bytes() int64 {
	n := int64(0)
	for _, b := range r.buffers {
		n += 4 * int64(cap(*b))
	}
	return n
}

// Err returns the context's error, so that long passes can stop between layers.
func (r *Run) Err() error {
	if r.Context == nil {
		return nil
	}
	return r.Context.Err()
}

// Span is one sequence's rows in a batch: Rows new tokens that follow what
// Cache holds.
type Span struct {
	Pos       []nn.Pos    // [rows] rotary positions
	Size      []float32   // [rows] patches each row stands for; nil: all 1
	FirstSize []float32   // sizes that layer 0 uses instead (the released code's habit); nil: Size
	Cache     *nn.KVCache // appended to
	Calib     *nn.Calibration
	Decoding  bool     // rows are generated tokens, not prompt
	Staged    []Staged // pictures in the rows, in order, that layers shrink; Pos and Size end as those of the rows that are left
}

// Decoder is a language model's stack of blocks.
type Decoder interface {
	// Embed writes the rows of ids into dst [len(ids), Hidden].
	Embed(dst []float32, ids []int32) error
	// Forward runs all blocks over x [Σ rows, Hidden] in place and appends to
	// every span's cache. x ends as the last block's output, before the final
	// norm; where spans shrank, it holds the rows that are left of each.
	Forward(r *Run, x []float32, spans []Span) error
	// Logits writes the final norm and head of rows rows of x into dst [rows, Vocab].
	Logits(r *Run, dst, x []float32, rows int)
	// Shape returns the decoder's sizes.
	Shape() DecoderShape
}

// DecoderShape is what the engine must know of a decoder.
type DecoderShape struct {
	Hidden, Layers, Heads, KVHeads, HeadDim, MLP, Vocab int
	MaxPositions                                        int // context, in positions
	RoPE                                                *nn.RoPE
}

// CacheBytes is the memory of the keys and values of n tokens in all layers, in
// float16 where half is set, else in float32.
func (s *DecoderShape) CacheBytes(n int, half bool) int64 {
	size := 4
	if half {
		size = 2
	}
	return 2 * int64(size*s.Layers) * int64(n) * int64(s.KVHeads*s.HeadDim)
}

// ForwardBytes is the memory of the buffers of a forward of rows rows.
func (s *DecoderShape) ForwardBytes(rows int) int64 {
	return 4 * int64(rows) * int64(s.Hidden+2*s.Heads*s.HeadDim+2*s.KVHeads*s.HeadDim+2*s.MLP+s.HeadDim)
}

// Needs says which by-products of the encoder a reducer reads.
type Needs struct {
	ClsAttn, Keys bool
	Last          bool // query and keys of the last layer
	Later         bool // nothing but Again: X, Hidden and all by-products may stay nil where Again.Whole makes up for it
}

// Visual is one picture after the encoder and projector. Where the encoder has
// no class token, row 0 of Hidden and Keys is zeros, column 0 of ClsAttn 0, and
// ClsAttn is the attention that tokens receive.
type Visual struct {
	N, C         int
	X            []float32 // [N, C] after the projector
	Pos          []nn.Pos  // [N] rotary positions counted from the picture's start; nil: 0, 1, 2, … on all axes
	Span         float64   // positions that the picture takes, so that text after it starts there; 0: N
	GridH, GridW int       // of the N tokens; 0 where they are not a grid
	Video        bool      // the tokens are a video's, moment after moment
	NoClass      bool      // the encoder has no class token
	Heads        int
	ClsAttn      []float32 // [Heads, T] class-token attention of the feature layer, T = tokens with the class token
	T, Cv        int
	Hidden       []float32 // [T, Cv] features before the projector, row 0 the class token
	KeyDim       int
	Keys         []float32 // [Heads, T, KeyDim] keys of the feature layer, with bias, unscaled
	LastQuery    []float32 // [W] class token's query of the encoder's last layer, heads side by side, with bias, unscaled
	LastKeys     []float32 // [T, W] that layer's keys; both nil where there is no class token
	Views        *Views    // of a picture that was encoded in parts: what follows Span then holds each view's, one after another
	Again        Again
}

// Again encodes a picture anew, otherwise than it was or for the first time.
type Again struct {
	// Whole encodes it as it is; set where Needs.Later was honoured.
	Whole func(r *Run) (*Visual, error)
	// Shrink encodes it resized to rows×cols patches and returns their features
	// after the projector [rows·cols, C]; nil where Fixed says why not.
	Shrink func(r *Run, rows, cols int) ([]float32, error)
	Fixed  string
	// Within encodes it with w at work between the encoder's blocks and returns
	// the features before the projector of what is left [rows, Cv], view by view,
	// without class tokens; nil where Closed says why not.
	Within        func(r *Run, w *reduce.Encoding) ([]float32, error)
	Closed        string
	Class         bool // every view starts with a class token
	Blocks, Depth int  // of the encoder, up to the one that hands on features, and in all
}

// Views says how the tokens of a picture come from parts of it that the encoder
// saw on their own. View 0 shows the whole picture. Patch p of view v has the
// number v·(T−1) + p.
type Views struct {
	Count  int
	X      []float32 // [Count, T−1, C] after the projector
	Source []int32   // [N] number of each token's patch, −1 a newline, which shows nothing
	All    []int32   // every patch in reading order, those too that show nothing but padding and are no tokens
	Grids  [][2]int  // rows and columns of the patches of All: view 0's, then those of all other views together
	Side   int       // patches along a view's side
}

// Grid says that the tokens are rows×cols in raster order, each at its row and
// column of one moment, and that what follows starts behind the longer side
// (M-RoPE).
func (v *Visual) Grid(rows, cols int) {
	v.GridH, v.GridW, v.Span = rows, cols, float64(max(rows, cols))
	v.Pos = make([]nn.Pos, rows*cols)
	for i := range v.Pos {
		v.Pos[i] = nn.Pos{0, float64(i / cols), float64(i % cols)}
	}
}

// Moments says that the tokens are a video's: rows×cols in raster order at each
// of times, positions that rise.
func (v *Visual) Moments(times []float64, rows, cols int) {
	v.Video, v.Span = true, max(times[len(times)-1]+1, float64(max(rows, cols)))
	v.Pos = make([]nn.Pos, 0, len(times)*rows*cols)
	for _, t := range times {
		for i := range rows * cols {
			v.Pos = append(v.Pos, nn.Pos{t, float64(i / cols), float64(i % cols)})
		}
	}
}

// At returns the position of token i in a picture that starts at start. Between
// two tokens it lies on the straight line from one to the next.
func (v *Visual) At(start, i float64) nn.Pos {
	if v.Pos == nil {
		return nn.At(start + i)
	}
	lo := int(i)
	a, b, f := v.Pos[lo], v.Pos[min(lo+1, v.N-1)], i-float64(lo)
	for g := range a {
		a[g] += start + f*(b[g]-a[g])
	}
	return a
}

// Extent returns the positions that the picture takes.
func (v *Visual) Extent() float64 {
	if v.Span == 0 {
		return float64(v.N)
	}
	return v.Span
}

// Multimodal is a model that answers questions about pictures.
type Multimodal interface {
	Decoder() Decoder
	// Encode runs the vision encoder and projector on prepared pictures, one
	// Visual a picture.
	Encode(r *Run, px *imageproc.Pixels, need Needs) ([]*Visual, error)
	// EncodeBytes is the memory that Encode takes for px, buffers and results, less
	// what a reducer reads. It looks at px's shapes alone.
	EncodeBytes(px *imageproc.Pixels) int64
	// Project maps rows of encoder features [rows, Cv] into the decoder's space.
	Project(r *Run, features []float32, rows int) []float32
	// ImageToken is the id that stands for a picture in a prompt.
	ImageToken() int32
	// VideoToken is the id that stands for a video, -1 where the model takes none.
	VideoToken() int32
	// PictureTokens returns how many tokens the picture at index i of px takes
	// before reduction.
	PictureTokens(px *imageproc.Pixels, i int) int
	// Info describes the model for `show` and reports.
	Info() Info
}

// Info describes a loaded model.
type Info struct {
	Architecture string
	Params       int64            // numbers in all weights
	Bytes        int64            // their size as stored
	Types        map[string]int64 // numbers per stored type
	Vision, Text []Field          // sizes, in reading order
	EOS          []int32          // end-of-sequence ids that config.json names
	Sizes        *Sizes           // nil where operations are not counted
}

// Sizes are what the number of operations of a forward pass depends on.
type Sizes struct {
	Tokens       int // visual tokens of a picture before reduction
	Views        int // pictures that the encoder makes them from
	Patch        int // numbers in a patch
	Vision, Text Tower
	Projector    []int // widths on the way from the encoder to the decoder
	Vocab        int
}

// Fill sets what o has to know of the model.
func (s *Sizes) Fill(o *reduce.Options) {
	o.Layers, o.EncoderBlocks, o.EncoderDepth = s.Text.Blocks, s.Vision.Run, s.Vision.Blocks
}

// Tower is a stack of transformer blocks.
type Tower struct {
	Blocks     int // as configured
	Run        int // blocks that the features need
	Hidden     int
	Heads      int
	Query, Key int // width of a row's queries, and of its keys
	MLP        int
	Products   int // of Hidden and MLP in a block
}

// Field is one named size.
type Field struct {
	Name  string
	Value any
}
