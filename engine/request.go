package engine

import (
	"time"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/sample"
)

// Request is one question.
type Request struct {
	Prompt    string
	System    string               // the conversation's system prompt, given with its first question; "" is what the template says by itself
	Images    []*imageproc.Picture // new pictures that belong to this question
	Video     *imageproc.Video     // a new video that belongs to this question, before its pictures
	Seen      *Seen                // or pictures that were encoded before; Images and Video must then be empty
	Reduce    reduce.Options       // the zero value reads every visual token
	Sample    sample.Options       // the zero value is greedy
	MaxTokens int                  // at most this many; 0: up to the context's end
	OnText    func(text string)    // called with each piece of the answer as it is decoded, always whole UTF-8; may be nil
}

// How an answer ended.
const (
	FinishStop      = "stop"      // the model ended it
	FinishLength    = "length"    // MaxTokens or the context's end
	FinishCancelled = "cancelled" // the context was cancelled; what was decoded until then is returned
)

// Answer is what came of a Request.
type Answer struct {
	Text   string
	Tokens []int32
	Finish string
	Report Report
}

// Report says what was done and how long it took.
type Report struct {
	Images               []ImageReport // pictures of this question
	Before, Kept, Merged int           // visual tokens of this question
	PromptTokens         int           // rows of the whole prompt that enter the decoder
	CachedTokens         int           // of them, rows whose keys and values were kept from before
	ChosenBefore         int           // pictures of earlier questions whose tokens a method inside the decoder chose for those questions; nothing is chosen again
	GeneratedTokens      int
	Options              reduce.Resolved // of the first picture
	Prepare, Encode      time.Duration
	Select, Merge        time.Duration
	Prefill              time.Duration
	FirstToken           time.Duration // from the start of the request to the first token
	Decode               time.Duration // from the first token to the last
	TokensPerSecond      float64       // of the tokens after the first
	PeakRSS              int64         // bytes, of the process; 0 where the platform does not tell
}

// ImageReport is one picture's share of a Report.
type ImageReport struct {
	Tokens       int // before
	Kept, Merged int
	Reduction    *reduce.Reduction // nil when every token was read
	Grids        []imageproc.Grid  // where the reduction's tokens lie on the picture; empty where that is not known
}

// Seen holds encoded pictures, which any number of requests may share.
type Seen struct {
	visuals         []*model.Visual
	frames          [][]imageproc.Frame // of each picture's grids
	prepare, encode time.Duration
}

// Len returns the number of pictures.
func (s *Seen) Len() int { return len(s.visuals) }
