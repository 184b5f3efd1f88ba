package model

import (
	"context"
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
)

// Run is what one pass needs in addition to its data: the worker pool, a workspace
// reused between calls, and a trace of the encoder. A Run must not be used by two
// goroutines at once.
type Run struct {
	Pool *nn.Pool
	// Between, when not nil, is called between blocks, and between the products of a
	// decoder's layer. Other sequences may pass through the model there, with a Run of
	// their own. Its error ends the pass at the next block.
	Between func() error
	// Trace, when not nil, receives every intermediate of the encoder and of Logits.
	// data is only valid during the call. Tracing computes what the fast path never
	// builds (attention matrices).
	Trace func(name string, shape []int, data []float32)
	// TraceInts receives indices and bounds; it is set whenever Trace is.
	TraceInts func(name string, shape []int, data []int32)

	buffers map[string]*[]float32
	passage Passage
}

// Pause calls Between.
func (r *Run) Pause() error {
	if r.Between == nil {
		return nil
	}
	return r.Between()
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

// Span is one sequence's rows in a batch: Rows new tokens that follow what
// Cache holds. What goes wrong with a span, or ends it, concerns no other.
type Span struct {
	Pos       []nn.Pos    // [rows] rotary positions
	Size      []float32   // [rows] patches each row stands for; nil: all 1
	FirstSize []float32   // sizes that layer 0 uses instead (the released code's habit); nil: Size
	Cache     *nn.KVCache // appended to
	Calib     *nn.Calibration
	Decoding  bool // rows are generated tokens, not prompt
	// pictures in the rows, in order, that layers shrink; Pos and Size end as those of the rows
	// that are left
	Staged []Staged

	// Context ends the span between layers; nil: nothing does.
	Context context.Context
	// Trace, when not nil, receives every intermediate of the span in the decoder, as
	// Run's does of the encoder.
	Trace func(name string, shape []int, data []float32)
	// Err is set where the span failed or was ended: with the cause of Context, a
	// *Panic, or what a reducer says. Its rows and the newest keys of its cache are
	// undefined then.
	Err error
}

// Panic is the error of a span in whose part of a pass a panic was raised.
type Panic struct {
	Value any
	Stack []byte
}

// Error returns the value.
func (p *Panic) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Decoder is a language model's stack of blocks.
type Decoder interface {
	// Embed writes the rows of ids into dst [len(ids), Hidden].
	Embed(dst []float32, ids []int32) error
	// Forward runs all blocks over x [Σ rows, Hidden] in place and appends to
	// every span's cache. x ends as the last block's output, before the final
	// norm; where spans shrank, it holds the rows that are left of each. A span that
	// fails has its Err set; the others are not affected.
	Forward(r *Run, x []float32, spans []Span)
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
// float16 where half is set, else in float32: whole pages.
func (s *DecoderShape) CacheBytes(n int, half bool) int64 {
	return int64(s.Layers) * int64(nn.PagesOf(n)) * nn.NewKVPool(s.KVHeads, s.HeadDim,
		half).PageBytes()
}

// ForwardBytes is the memory of the buffers of a forward of rows rows.
func (s *DecoderShape) ForwardBytes(rows int) int64 {
	return 4 * int64(rows) *
		int64(s.Hidden+2*s.Heads*s.HeadDim+2*s.KVHeads*s.HeadDim+2*s.MLP+s.HeadDim)
}

// Needs says which by-products of the encoder a reducer reads.
type Needs struct {
	ClsAttn, Keys bool
	Last          bool // query and keys of the last layer
}

// Picture is one prepared picture, or video, before it is encoded.
type Picture interface {
	// Shape returns what is known of it. Read-only.
	Shape() *Shape
	// Shrink encodes the picture resized to rows×cols patches and returns their
	// features after the projector [rows·cols, C]. Shape().Fixed must be empty.
	Shrink(r *Run, rows, cols int) ([]float32, error)
	// Within encodes the picture with w between the encoder's blocks and returns the
	// features before the projector of what is left [rows, Cv], view by view, without
	// class tokens. Shape().Closed must be empty.
	Within(r *Run, w *methods.Encoding) ([]float32, error)
}

// Shape is what is known of a picture before it is encoded.
type Shape struct {
	N, C int // tokens, and their width after the projector
	// [N] rotary positions counted from the picture's start; nil: 0, 1, 2, … on all axes
	Pos []nn.Pos
	// positions that the picture takes, so that text after it starts there; 0: N
	Span         float64
	GridH, GridW int    // of the N tokens; 0 where they are not a grid
	Video        bool   // the tokens are a video's, moment after moment
	Views        *Views // of a picture that is encoded in parts

	Class   bool // every view starts with a class token
	NoClass bool // the encoder has no class token
	// tokens of a view with the class token, and their width before the projector
	T, Cv         int
	Blocks, Depth int    // of the encoder, up to the one that hands on features, and in all
	Fixed         string // why the picture cannot be shrunk; empty where it can
	Closed        string // why nothing can act between the encoder's blocks; empty where it can
}

// Visual is one picture after the encoder and projector. Where the encoder has
// no class token, row 0 of Hidden and Keys is zeros, column 0 of ClsAttn 0, and
// ClsAttn is the attention that tokens receive. Of a picture in views, what
// follows X holds each view's, one after another.
type Visual struct {
	*Shape
	X       []float32 // [N, C] after the projector
	ViewsX  []float32 // [views, T−1, C] after the projector; nil without views
	Heads   int
	ClsAttn []float32 // [Heads, T] class-token attention of the feature layer
	Hidden  []float32 // [T, Cv] features before the projector, row 0 the class token
	KeyDim  int
	Keys    []float32 // [Heads, T, KeyDim] keys of the feature layer, with bias, unscaled
	// [W] class token's query of the encoder's last layer, heads side by side, with bias, unscaled
	LastQuery []float32
	LastKeys  []float32 // [T, W] that layer's keys; both nil where there is no class token
}

// Views says how the tokens of a picture come from parts of it that the encoder
// saw on their own. View 0 shows the whole picture. Patch p of view v has the
// number v·(T−1) + p.
type Views struct {
	Count  int
	Source []int32 // [N] number of each token's patch, −1 a newline, which shows nothing
	// every patch in reading order, those too that show nothing but padding and are no tokens
	All []int32
	// rows and columns of the patches of All: view 0's, then those of all other views together
	Grids [][2]int
	Side  int // patches along a view's side
}

// Grid says that the tokens are rows×cols in raster order, each at its row and
// column of one moment, and that what follows starts after the longer side
// (M-RoPE).
func (s *Shape) Grid(rows, cols int) {
	s.GridH, s.GridW, s.Span = rows, cols, float64(max(rows, cols))
	s.Pos = make([]nn.Pos, rows*cols)
	for i := range s.Pos {
		s.Pos[i] = nn.Pos{0, float64(i / cols), float64(i % cols)}
	}
}

// Moments says that the tokens are a video's: rows×cols in raster order at each
// of times, positions that rise.
func (s *Shape) Moments(times []float64, rows, cols int) {
	s.Video, s.Span = true, max(times[len(times)-1]+1, float64(max(rows, cols)))
	s.Pos = make([]nn.Pos, 0, len(times)*rows*cols)
	for _, t := range times {
		for i := range rows * cols {
			s.Pos = append(s.Pos, nn.Pos{t, float64(i / cols), float64(i % cols)})
		}
	}
}

// At returns the position of token i in a picture that starts at start. Between
// two tokens it lies on the straight line from one to the next.
func (s *Shape) At(start, i float64) nn.Pos {
	if s.Pos == nil {
		return nn.At(start + i)
	}
	lo := int(i)
	a, b, f := s.Pos[lo], s.Pos[min(lo+1, s.N-1)], i-float64(lo)
	for g := range a {
		a[g] += start + f*(b[g]-a[g])
	}
	return a
}

// Extent returns the positions that the picture takes.
func (s *Shape) Extent() float64 {
	if s.Span == 0 {
		return float64(s.N)
	}
	return s.Span
}

// Multimodal is a model that answers questions about pictures.
type Multimodal interface {
	Decoder() Decoder
	// Pictures checks prepared pixel values and returns the pictures in them, which
	// use px's memory.
	Pictures(px *imageproc.Pixels) ([]Picture, error)
	// Encode runs the vision encoder and projector on pictures of this model, as one
	// batch.
	Encode(r *Run, pics []Picture, need Needs) ([]*Visual, error)
	// EncodeBytes is the memory that Encode takes for px, buffers and results, less
	// what a reducer reads. It looks at px's shapes alone.
	EncodeBytes(px *imageproc.Pixels) int64
	// EncodeWork is what Encode computes for px: the rows that its products see, and the
	// operations of its attention, two a multiply-add. It looks at px's shapes alone.
	EncodeWork(px *imageproc.Pixels) (rows int, attention float64)
	// Project maps rows of encoder features [rows, Cv] into the decoder's space.
	Project(r *Run, features []float32, rows int) []float32
	// ImageToken is the id that stands for a picture in a prompt.
	ImageToken() int32
	// VideoToken is the id that stands for a video, -1 where the model takes none.
	VideoToken() int32
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

// Facts returns what a reduction has to know of the model.
func (s *Sizes) Facts() methods.Facts {
	return methods.Facts{
		Tokens: s.Tokens, Layers: s.Text.Blocks,
		EncoderBlocks: s.Vision.Run, EncoderDepth: s.Vision.Blocks,
	}
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
