package restore

import (
	"image"
	"time"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/overlay"
	"github.com/restore-vlm/restore/reduce"
)

// Finish says why an answer ended.
type Finish string

// The ways in which an answer can end.
const (
	FinishStop      Finish = "stop"      // the model ended it
	FinishLength    Finish = "length"    // at MaxTokens or the context's end
	FinishCancelled Finish = "cancelled" // the context ended; this is the answer so far
)

// Answer is the result of a [Request].
type Answer struct {
	Text     string
	Tokens   []int32 // ids of the text's tokens
	Finish   Finish
	Pictures []PictureReport // of the request's pictures, in order; a video comes first
	Usage    Usage
	Timings  Timings
}

// PictureReport says how one picture was reduced.
type PictureReport struct {
	Tokens int // before the reduction
	Kept   int // tokens read unchanged
	Merged int // tokens read that each stand for a group of other tokens

	// Reduction gives, for each token that the decoder reads, its position and the picture's tokens
	// that it stands for. It is nil if every token was read.
	Reduction *reduce.Reduction

	report  engine.ImageReport
	picture *Picture // nil for a video
}

// Read is how many tokens of the picture enter a layer of the decoder, on average: Kept and Merged,
// unless layers read different numbers.
func (r *PictureReport) Read() float64 { return r.report.Read() }

// Draw returns the picture with its patches marked: kept ones are clear, patches merged
// into one token share a tint, dropped ones are dark. It is nil for a video.
func (r *PictureReport) Draw() image.Image {
	if r.picture == nil {
		return nil
	}
	return overlay.Draw(r.picture.p, r.report.Reduction, r.report.Grids)
}

// Usage counts tokens. Pictures count as the decoder reads them, after their
// reduction.
type Usage struct {
	Prompt    int // rows of the whole prompt
	Cached    int // of these, rows whose keys and values were cached
	Generated int
}

// Timings are the times of a request's stages; a stage that did not run has 0.
type Timings struct {
	Prepare    time.Duration // decoded pictures to pixel values
	Encode     time.Duration // vision tower and projector
	Select     time.Duration // choosing the tokens to keep
	Merge      time.Duration // merging the other tokens
	Prefill    time.Duration // reading the prompt
	FirstToken time.Duration // from the call to the first token
	Decode     time.Duration // from the first token to the last
}

func newAnswer(a *engine.Answer, q *Request) *Answer {
	if a == nil {
		return nil
	}
	r := &a.Report
	out := &Answer{
		Text: a.Text, Tokens: a.Tokens, Finish: Finish(a.Finish),
		Usage: Usage{Prompt: r.PromptTokens, Cached: r.CachedTokens, Generated: r.GeneratedTokens},
		Timings: Timings{Prepare: r.Prepare, Encode: r.Encode, Select: r.Select, Merge: r.Merge,
			Prefill: r.Prefill, FirstToken: r.FirstToken, Decode: r.Decode},
	}
	first := len(r.Images) - len(q.Pictures) // after a video
	for i, p := range r.Images {
		report := PictureReport{
			Tokens: p.Tokens, Kept: p.Kept, Merged: p.Merged, Reduction: p.Reduction, report: p,
		}
		if i >= first {
			report.picture = q.Pictures[i-first]
		}
		out.Pictures = append(out.Pictures, report)
	}
	return out
}
