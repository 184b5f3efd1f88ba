package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// Run is the context of one pass: the worker pool, a workspace that calls reuse, and a trace of the
// encoder. Two goroutines must not use one Run at once.
type Run struct {
	Pool *nn.Pool
	// Between, when not nil, is called between blocks, and between the products of a decoder's
	// layer. Other sequences may pass through the model during the call, with another Run. If it
	// returns an error, the pass ends at the next block.
	Between func() error
	// Trace, when not nil, receives every intermediate of the encoder and of Logits. data is valid
	// only during the call.
	Trace func(name string, shape []int, data []float32)
	// NoMaps leaves the attention matrices out of a trace: most of its time and memory.
	NoMaps bool
	// TraceInts receives indices and bounds. It is set whenever Trace is.
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

// Buffer returns a workspace slice of n elements under name. Its content is undefined, and it is
// valid until the next call with that name.
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

// Release frees all buffers.
func (r *Run) Release() { r.buffers = nil }

// Bytes returns the memory of all buffers.
func (r *Run) Bytes() int64 {
	n := int64(0)
	for _, b := range r.buffers {
		n += 4 * int64(cap(*b))
	}
	return n
}

// Span is one sequence's rows in a batch: new tokens that follow those in Cache. An error in one
// span, or its end, does not affect the others.
type Span struct {
	Pos       []nn.Pos    // [rows] rotary positions
	Size      []float32   // [rows] patches that each row stands for; nil: all 1
	FirstSize []float32   // sizes in layer 0 (the released code has its own); nil: Size
	Cache     *nn.KVCache // appended to
	Calib     *nn.Calibration
	Decoding  bool // rows are generated tokens, not prompt
	// LastOnly says that only the last row's output is read. If the span is alone in its batch, the
	// last block may leave the others undefined.
	LastOnly bool
	// pictures in the rows, in order, that layers reduce; afterwards, Pos and Size describe the
	// remaining rows
	Staged []Staged
	Deep   []Deep // rows that pictures add to theirs after the first layers, in order
	// rows that see each other, in order; afterwards of the remaining rows
	Blocks []nn.Block

	// Context ends the span between layers; nil: never.
	Context context.Context
	// Trace, when not nil, receives every intermediate of the span in the decoder, as Run's Trace
	// does for the encoder.
	Trace func(name string, shape []int, data []float32)
	// Err is set if the span failed or was ended: the cause of Context, a *Panic, or a reducer's
	// error. Its rows and the last keys of its cache are then undefined.
	Err error
}

// Deep are a picture's rows that are added to those in a span.
type Deep struct {
	First  int         // the picture's first row in the span
	Levels [][]float32 // [rows, Hidden] for each of the decoder's first layers
}

// Panic is the error of a span whose part of a pass panicked.
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
	// Forward runs all blocks over x [Σ rows, Hidden] in place and appends to every span's cache.
	// Then x is the last block's output, before the final norm; of spans that were reduced, it
	// holds the remaining rows, and of one with LastOnly the last row. If a span fails, its Err is
	// set; the others are not affected.
	Forward(r *Run, x []float32, spans []Span)
	// Logits writes the final norm and head of rows rows of x to dst [rows, Vocab].
	Logits(r *Run, dst, x []float32, rows int)
	// Shape returns the decoder's sizes.
	Shape() DecoderShape
}

// DecoderShape is what the engine needs to know about a decoder.
type DecoderShape struct {
	Hidden, Layers, Heads, KVHeads, HeadDim, MLP, Vocab int
	MaxPositions                                        int // context, in positions
	Deep                                                int // layers after which pictures add rows

	RoPE   []*nn.RoPE // of each layer
	Blocks bool       // the rows of a picture see each other: spans have them in Blocks
}

// CacheBytes returns the memory of the keys and values of n tokens in all layers, in whole pages,
// in float16 if half is set, otherwise in float32.
func (s *DecoderShape) CacheBytes(n int, half bool) int64 {
	return int64(s.Layers) * int64(nn.PagesOf(n)) * nn.NewKVPool(s.KVHeads, s.HeadDim,
		half).PageBytes()
}

// ForwardBytes returns the memory of the buffers of a forward of rows rows.
func (s *DecoderShape) ForwardBytes(rows int) int64 {
	return 4 * int64(rows) * int64(s.Hidden+2*s.Heads*s.HeadDim+2*s.KVHeads*s.HeadDim+2*s.MLP+
		len(s.Rotations())*s.HeadDim)
}

// Rotations returns the layers' different rotations, each once.
func (s *DecoderShape) Rotations() []*nn.RoPE {
	var out []*nn.RoPE
	for _, r := range s.RoPE {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// Needs lists the by-products of the encoder that a reducer reads.
type Needs struct {
	ClsAttn, Keys bool
	Last          bool // query and keys of the last layer
	Cells         bool // of an encoder that joins patches: features before that
	// blocks whose attention is read: the class token's, and what all rows receive
	Class, Received []int
}

// Cover reports whether n has everything of m.
func (n *Needs) Cover(m *Needs) bool {
	all := func(have, want []int) bool {
		return !slices.ContainsFunc(want, func(b int) bool { return !slices.Contains(have, b) })
	}
	return (n.ClsAttn || !m.ClsAttn) && (n.Keys || !m.Keys) && (n.Last || !m.Last) &&
		(n.Cells || !m.Cells) && all(n.Class, m.Class) && all(n.Received, m.Received)
}

// With returns everything of n and m.
func (n Needs) With(m Needs) Needs {
	both := func(a, b []int) []int {
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
	}
	return Needs{
		ClsAttn: n.ClsAttn || m.ClsAttn, Keys: n.Keys || m.Keys, Last: n.Last || m.Last,
		Cells: n.Cells || m.Cells, Class: both(n.Class, m.Class),
		Received: both(n.Received, m.Received),
	}
}

// Picture is one prepared picture or video before it is encoded.
type Picture interface {
	// Shape returns its description, which must not be changed.
	Shape() *Shape
	// Shrink encodes the picture resized to rows×cols patches and returns their
	// features after the projector [rows·cols, C], and the rows of Visual.Deep. Shape().Fixed must
	// be empty.
	Shrink(r *Run, rows, cols int) (x []float32, deep [][]float32, err error)
	// Within encodes the picture with w between the encoder's blocks. It returns the remaining
	// features before the projector [rows, Cv], view by view, without class tokens. Shape().Closed
	// must be empty.
	Within(r *Run, w *methods.Encoding) ([]float32, error)
}

// Rigid is the part of a [Picture] that is encoded in one way, for the reasons that its shape has.
type Rigid struct{ Of *Shape }

// Shape implements Picture.
func (p Rigid) Shape() *Shape { return p.Of }

// Within implements Picture: it returns the reason why no method acts inside the encoder.
func (p Rigid) Within(*Run, *methods.Encoding) ([]float32, error) {
	return nil, fmt.Errorf("model: %s", p.Of.Closed)
}

// Shrink implements Picture: it returns the reason why the picture has one size.
func (p Rigid) Shrink(*Run, int, int) (x []float32, deep [][]float32, err error) {
	return nil, nil, fmt.Errorf("model: %s", p.Of.Fixed)
}

// Divisible is implemented by pictures of which tokens can be left out before the encoder.
type Divisible interface {
	// Only returns the picture of which only s.Pruned.Kept are encoded; s is Shape().Only of them.
	// logSize [s.N], when not nil, is added to the scores of their keys in the encoder's attention.
	Only(s *Shape, logSize []float32) Picture
}

// Shape describes a picture before it is encoded.
type Shape struct {
	N, C int // tokens, and their width after the projector
	// [N] rotary positions relative to the picture's start; nil: 0, 1, 2, … on all axes
	Pos []nn.Pos
	// positions that the picture takes, after which text continues; 0: N
	Span         float64
	GridH, GridW int  // of the N tokens; 0 if they are not a grid
	Video        bool // the tokens are a video's, moment after moment
	// texts around a moment of a video that is a picture of its own
	Before, After string
	Views         *Views // of a picture that is encoded in parts
	// of a picture whose other tokens were left out before the encoder; nil: none were
	Pruned *Pruned

	Class   bool // every view starts with a class token
	NoClass bool // the encoder has no class token
	// tokens of a view including the class token, and their width before the projector
	T, Cv         int
	Blocks, Depth int    // blocks up to the features, and all blocks
	Full          []int  // blocks that see the whole picture, ascending; nil: all
	FrameH        int    // rows of each moment of a video whose moments are one list; 0: none
	FrameW        int    // columns
	Fixed         string // why the picture cannot be shrunk; empty if it can
	Closed        string // why nothing can act between the encoder's blocks; empty if it can
}

// Visual is one picture after the encoder and projector. If the encoder has no class token, row 0
// of Hidden and Keys is zeros, column 0 of ClsAttn is 0, and ClsAttn is the attention that tokens
// receive. For a picture in views, the fields after X hold each view's data, concatenated.
type Visual struct {
	*Shape
	X       []float32 // [N, C] after the projector
	ViewsX  []float32 // [views, T−1, C] after the projector; nil without views
	Heads   int
	ClsAttn []float32 // [Heads, T] class-token attention of the feature layer
	Hidden  []float32 // [T, Cv] features before the projector; row 0 is the class token
	KeyDim  int
	Keys    []float32 // [Heads, T, KeyDim] keys of the feature layer, with bias, unscaled
	// [W] class token's query of the encoder's last layer, heads concatenated, with bias, unscaled
	LastQuery []float32
	LastKeys  []float32 // [T, W] that layer's keys; both nil without a class token
	// [Heads, T] of each block in Needs: the class token's attention, and the attention that rows
	// receive from all queries, the class token's included
	Class, Received map[int][]float32
	// [N, CellDim] features before patches are joined, the mean of those of each token; nil unless
	// needed or in Hidden too
	CellDim int
	Cells   []float32
	Needs   Needs // what the encoder was asked for
	// [N, C] for each of the decoder's first layers: what is added to the tokens after it
	Deep [][]float32
}

// Views tells how the tokens of a picture come from parts that the encoder processed separately.
// View 0 shows the whole picture. Patch p of view v has index v·(T−1) + p.
type Views struct {
	Count  int
	Source []int32 // [N] index of each token's patch; −1: a newline or a text, which shows nothing
	// ids of the texts among the tokens, in order, which stay when a picture is reduced before the
	// decoder; nil: there are none, and tokens that show nothing are newlines
	Texts []int32
	// every patch in reading order, including those that show only padding and are no tokens
	All []int32
	// rows and columns of the patches of All: of view 0, then of all other views together
	Grids [][2]int
	Side  int // patches along a view's side; 0: the grids show no views
	// view of each row if several patches make one: indexes then count rows, whose data lie as in
	// one view; nil: indexes count patches
	Of []int32
}

// Rows returns for each token its row among the rows rows of all views and, after these, the texts.
func (v *Views) Rows(rows int) []int32 {
	out, text := slices.Clone(v.Source), int32(rows)
	for i, s := range out {
		if s < 0 {
			out[i] = text
			text++
		}
	}
	return out
}

// Padded reports whether some patches show only padding and are no tokens.
func (v *Views) Padded() bool {
	tokens := 0
	for _, s := range v.Source {
		if s >= 0 {
			tokens++
		}
	}
	return tokens < len(v.All)
}

// Pruned tells which tokens of a picture are encoded. The picture's Shape counts only those.
type Pruned struct {
	*reduce.Pruned
	Whole *Shape // with all tokens
}

// Only returns the shape of the picture of which only p.Kept are encoded. They keep their
// positions, and text continues as after all tokens.
func (s *Shape) Only(p *reduce.Pruned) *Shape {
	out := *s
	out.N, out.T = len(p.Kept), len(p.Kept)+s.T-s.N
	out.Span, out.GridH, out.GridW = s.Extent(), 0, 0
	out.Pos = make([]nn.Pos, out.N)
	for i, t := range p.Kept {
		out.Pos[i] = s.Pos[t]
	}
	out.Fixed = "tokens were left out before the encoder"
	out.Pruned = &Pruned{p, s}
	return &out
}

// Unpruned returns the shape of the picture with all tokens.
func (s *Shape) Unpruned() *Shape {
	if s.Pruned == nil {
		return s
	}
	return s.Pruned.Whole
}

// Texts returns the ids of the texts among the picture's tokens, which are no visual tokens.
func (s *Shape) Texts() []int32 {
	if s.Views == nil {
		return nil
	}
	return s.Views.Texts
}

// View returns the view of the patch or row with index i.
func (s *Shape) View(i int32) int {
	if s.Views.Of != nil {
		return int(s.Views.Of[i])
	}
	return int(i) / (s.T - 1)
}

// IDs returns the tokens of the picture in a prompt, token for each that is no text of its own.
func (s *Shape) IDs(token int32) []int32 {
	out, texts := slices.Repeat([]int32{token}, s.N), s.Texts()
	if len(texts) == 0 {
		return out
	}
	for i, source := range s.Views.Source {
		if source < 0 && len(texts) > 0 {
			out[i], texts = texts[0], texts[1:]
		}
	}
	return out
}

// Grid declares the tokens as rows×cols in raster order, each at its row and column of one moment.
// Text continues after the longer side (M-RoPE).
func (s *Shape) Grid(rows, cols int) {
	s.GridH, s.GridW, s.Span = rows, cols, float64(max(rows, cols))
	s.Pos = make([]nn.Pos, rows*cols)
	for i := range s.Pos {
		s.Pos[i] = nn.Pos{0, float64(i / cols), float64(i % cols)}
	}
}

// Moments declares the tokens as a video: rows×cols in raster order at each of times, which are
// ascending positions.
func (s *Shape) Moments(times []float64, rows, cols int) {
	s.Video, s.Span = true, max(times[len(times)-1]+1, float64(max(rows, cols)))
	s.Pos = make([]nn.Pos, 0, len(times)*rows*cols)
	for _, t := range times {
		for i := range rows * cols {
			s.Pos = append(s.Pos, nn.Pos{t, float64(i / cols), float64(i % cols)})
		}
	}
}

// At returns the position of token i in a picture that starts at start. Between two tokens, it is
// interpolated linearly.
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

// Extent returns the number of positions that the picture takes.
func (s *Shape) Extent() float64 {
	if s.Span == 0 {
		return float64(s.N)
	}
	return s.Span
}

// Multimodal is a model that answers questions about pictures.
type Multimodal interface {
	Decoder() Decoder
	// Pictures checks prepared pixel values and returns their pictures, which use px's memory.
	Pictures(px *imageproc.Pixels) ([]Picture, error)
	// Encode runs the vision encoder and projector on pictures of this model as one batch.
	Encode(r *Run, pics []Picture, need Needs) ([]*Visual, error)
	// EncodeBytes returns the memory that Encode takes for px, buffers and results, without the
	// by-products for reducers. It reads only px's shapes. share of the patches are encoded: 1
	// unless pictures are Divisible.
	EncodeBytes(px *imageproc.Pixels, share float64) int64
	// EncodeWork returns the work of Encode for px: the rows of its products, and the operations
	// of its attention, two per multiply-add. share and px are as for EncodeBytes.
	EncodeWork(px *imageproc.Pixels, share float64) (rows int, attention float64)
	// Project maps rows of encoder features [rows, Cv] into the decoder's space.
	Project(r *Run, features []float32, rows int) []float32
	// ImageToken is the id that stands for a picture in a prompt.
	ImageToken() int32
	// VideoToken is the id that stands for a video or its moments, -1 if the model takes none. It
	// may be a picture's.
	VideoToken() int32
	// Info describes the model for `show` and reports.
	Info() Info
}

// Token returns the id that stands in m's prompts for a picture or a video of shape s.
func Token(m Multimodal, s *Shape) int32 {
	if s.Video {
		return m.VideoToken()
	}
	return m.ImageToken()
}

// Timed is implemented by models that read each moment of a video as a picture of its own, between
// texts (Shape's Before and After).
type Timed interface {
	// Clip returns what the chat template writes for a video, and the chat template of dialogues
	// with videos, "" if it is the model's own.
	Clip() (place, template string)
}

// Spelled is implemented by models whose pictures have text between their parts.
type Spelled interface {
	// Spell is called once, before the first picture. ids returns the tokens of a text, control
	// tokens among them.
	Spell(ids func(text string) ([]int32, error))
}

// Framed is implemented by models around whose pictures the processor writes tokens, which the chat
// template does not.
type Framed interface {
	// Frame returns what the template writes at a picture's place, "" if it is the picture's token,
	// and the texts before and after that token, each with one token that says only that there is a
	// picture.
	Frame() (place, before, after string)
}

// Marked is implemented by models whose pictures stand between two tokens of their own.
type Marked interface {
	// Marks returns the tokens before and after a picture.
	Marks() (before, after int32)
}

// Info describes a loaded model.
type Info struct {
	Architecture string
	Params       int64            // number of values in all weights
	Bytes        int64            // their size as stored
	Types        map[string]int64 // number of values by stored type
	Vision, Text []Field          // sizes, in reading order
	EOS          []int32          // end-of-sequence ids in config.json
	Sizes        *Sizes           // nil if they depend on the picture, or are not counted
	// SizesOf returns the sizes for a picture of that many visual tokens, if a picture may have any
	// number; nil if it may not, or if operations are not counted.
	SizesOf func(tokens int) *Sizes
}

// Sizes are the quantities that determine the number of operations of a forward pass.
type Sizes struct {
	Tokens  int  // visual tokens of a picture before reduction
	Views   int  // number of pictures that the encoder processes for them
	NoClass bool // the encoder has no class token
	Patch   int  // values in a patch
	Cell    int  // patches that make a visual token; 0: one
	// width of the features that methods read; 0: the encoder's, or the decoder's with cells
	Features     int
	Vision, Text Tower
	Projector    []int // widths from the encoder to the decoder
	Projectors   int   // products with Projector's widths for a token; 0: one
	Vocab        int
}

// Facts returns the facts about the model that a reduction depends on.
func (s *Sizes) Facts() methods.Facts {
	return methods.Facts{
		Tokens: s.Tokens, Layers: s.Text.Blocks,
		EncoderBlocks: s.Vision.Run, EncoderDepth: s.Vision.Blocks, NoClass: s.NoClass,
	}
}

// Tower is a stack of transformer blocks.
type Tower struct {
	Blocks     int // in the config
	Run        int // those needed for the features
	Hidden     int
	Heads      int
	Query, Key int // width of a row's queries and of its keys
	MLP        int
	Products   int // number of products between Hidden and MLP in a block
	Window     int // rows that a row attends to, but in Whole of the blocks; 0: to all
	Whole      int
}

// Field is one named size.
type Field struct {
	Name  string
	Value any
}
