package restore

import (
	"encoding/json"
	"image"
	"time"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/overlay"
	"github.com/restore-vlm/restore/reduce"
)

// Finish says why an answer ended.
type Finish string

// The ways in which an answer can end.
const (
	FinishStop      Finish = "stop"      // the model, a stop text or the format ended it
	FinishLength    Finish = "length"    // at MaxTokens or the context's end
	FinishCancelled Finish = "cancelled" // the context ended; this is the answer so far
)

// Answer is the result of a [Request].
type Answer struct {
	Text     string
	Tokens   []int32 // all generated tokens
	Logprobs []Token // of Text, if the request has Logprobs
	Finish   Finish
	Stop     string          // the text of Request.Stop that ended it; "" if none did
	Pictures []PictureReport // of the request's pictures and its video, in order
	Usage    Usage
	Timings  Timings
	Worker   string // that answered; "" is this process

	// ChosenBefore is how many pictures of earlier questions of a conversation are read as a method
	// inside the decoder reduced them for those questions.
	ChosenBefore int
}

// Piece is a part of an answer, delivered while the answer is generated.
type Piece struct {
	Text   string  // complete UTF-8
	Tokens []Token // of Text, if the request has Logprobs
	Answer *Answer `json:",omitempty"` // the whole answer, in the last piece of a Stream only
}

// Token is a token of an answer's text.
type Token struct {
	ID      int32
	Bytes   []byte // its part of the text
	Logprob float64
	Top     []Token // likeliest first, in its place; their own Top is empty
}

// Usage counts tokens. Pictures count as the decoder reads them, after their reduction.
type Usage struct {
	Prompt    int // rows of the whole prompt
	Image     int // of these, rows of pictures
	Cached    int // of Prompt, rows whose keys and values were cached
	Generated int
}

// Timings are the times of a request's stages; a stage that did not run has 0. All stages up to
// Prefill are part of FirstToken.
type Timings struct {
	Queue      time.Duration // waiting, from Request.Arrived on
	Prepare    time.Duration // fetching and decoding pictures, and their pixel values
	Encode     time.Duration // vision tower and projector
	Select     time.Duration // choosing the tokens to keep
	Merge      time.Duration // merging the other tokens
	Prefill    time.Duration // reading the prompt
	FirstToken time.Duration // from Request.Arrived to the first token
	Decode     time.Duration // of all tokens after the prompt
}

// PictureReport says how one picture was reduced.
type PictureReport struct {
	Width, Height int     // pixels, of the upright picture; 0 for a video
	Tokens        int     // before the reduction
	Encoded       int     // of them, tokens that a method before the encoder left; else Tokens
	Kept          int     // tokens read unchanged
	Merged        int     // tokens read that each stand for a group of other tokens
	Mean          float64 // tokens that enter a layer of the decoder, if layers differ; else 0

	Cache      Cache
	Method     string          // the reduction in words
	Parameters json.RawMessage // all its parameters
	Content    *reduce.Content // how the picture's content set the budget; nil: it did not

	// Rows and Cols are the size of the picture's grid of tokens, which covers Area; 0: no grid.
	// Groups are the tokens that each row stands for. All are set if the request has Groups.
	Rows, Cols int
	Area       Area
	Groups     []Group

	// Reduction gives, for each token that the decoder reads, its position and the picture's tokens
	// that it stands for. It holds no features. It is read-only: requests share it. It is nil if
	// every token was read, or if another process answered.
	Reduction *reduce.Reduction `json:"-"`

	grids   []imageproc.Grid
	picture *Picture // nil for a video
}

// Cache says where a picture's rows came from.
type Cache string

// The sources of a picture's rows, from nearest to the decoder.
const (
	CachePrefix   Cache = "prefix" // keys and values were in memory
	CacheFeatures Cache = "features"
	CacheDisk     Cache = "disk"
	CacheShared   Cache = "shared" // of several processes: [Options.Shared]
	CacheNone     Cache = "none"   // encoder and reduction ran
)

// Area is a part of a picture, in pixels.
type Area struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// Group is the set of tokens that one row stands for.
type Group struct {
	Members  []int   `json:"members"`
	Position float64 `json:"position"`
	Kept     bool    `json:"kept"`
}

// Read is how many tokens of the picture enter a layer of the decoder, on average: Kept and Merged,
// unless layers read different numbers.
func (r *PictureReport) Read() float64 {
	if r.Mean > 0 {
		return r.Mean
	}
	return float64(r.Kept + r.Merged)
}

// Seen returns the size of the largest part of the picture that the encoder sees at once, in
// pixels; 0 where that is not known.
func (r *PictureReport) Seen() (width, height float64) {
	if r.picture == nil {
		return 0, 0
	}
	whole := &imageproc.Picture{Width: r.Width, Height: r.Height}
	for _, g := range r.grids {
		if w, h := g.Frame.Inside(whole); w*h > width*height {
			width, height = w, h
		}
	}
	return width, height
}

// Draw returns the picture with its patches marked: kept ones are clear, patches merged into one
// token share a tint, dropped ones are dark. It is nil for a video, and if
// another process answered.
func (r *PictureReport) Draw() image.Image { return r.drawn(overlay.Draw) }

// DrawStages is Draw for each stage of a reduction inside the encoder or the decoder, side by side.
// It is nil if there are no stages.
func (r *PictureReport) DrawStages() image.Image {
	if r.Reduction == nil || len(r.Reduction.Stages) == 0 {
		return nil
	}
	return r.drawn(overlay.DrawStages)
}

func (r *PictureReport) drawn(
	draw func(*imageproc.Picture, *reduce.Reduction, []imageproc.Grid) *image.NRGBA,
) image.Image {
	if r.picture == nil {
		return nil
	}
	p, err := r.picture.pixels()
	if err != nil {
		return nil // it was decoded before
	}
	return draw(p, r.Reduction, r.grids)
}
