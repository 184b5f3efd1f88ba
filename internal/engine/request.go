package engine

import (
	"time"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/reduce"
)

// Request is what a model is asked: a question with pictures, a whole dialogue, or tokens.
type Request struct {
	// A question. Its pictures stand before its text, or at Places.
	Prompt string
	// said before a conversation, given with its first question; "" is what the template says by
	// itself
	System string
	Images []*imageproc.Picture // new pictures that belong to this question
	// byte offsets in Prompt where video and Images stand, ascending; nil: before the text
	Places []int
	Video  *imageproc.Video // a new video that belongs to this question, before its pictures
	// or pictures that were encoded before; Images and Video must then be empty
	Encoded *Encoded

	// Messages are a whole dialogue, whose last message is the user's, instead of a question.
	Messages []Message
	// Tokens are read as they are, instead of a question: no template and nothing put before
	// them. A token that stands for a picture is the place of the next of Images or Encoded.
	Tokens []int32

	// of pictures without options of their own; the zero value reads every visual token
	Reduce    methods.Options
	Sample    sample.Options // the zero value is greedy
	MaxTokens int            // at most this many; 0: up to the context's end
	Context   int            // positions of prompt and answer at most; 0: the engine's
	IgnoreEnd bool           // the model does not end the answer: its end tokens are never chosen

	// Stop are texts that end the answer before them, found across tokens. No part of one
	// is ever sent. The first that is complete counts; of several that one token completes,
	// the one that begins first.
	Stop []string
	// Constraint, when not nil, says which tokens may come next. The answer ends when it is
	// done.
	Constraint Constraint
	// LogProbs reports the log probability of each token of the text, and Top the
	// likeliest tokens in its place, from the model's own distribution: before temperature,
	// cuts and Constraint.
	LogProbs bool
	Top      int

	// NoCache neither reads nor writes a cache. Entries are shared only among requests with
	// the same Salt.
	NoCache bool
	Salt    string

	// called with each piece of the answer as it is decoded, always whole UTF-8; may be nil
	OnText func(text string)
}

// Message is one turn of a dialogue.
type Message struct {
	Role  string // "system", "user" or "assistant"
	Parts []Part
}

// Part is a piece of a message: a text or a picture.
type Part struct {
	Text  string
	Image *Image
	// Reduce says how this picture is reduced; nil is as the request says.
	Reduce *methods.Options
}

// Constraint follows an answer token by token and says which may come next. Its calls come one
// at a time, of one goroutine.
type Constraint interface {
	// Mask returns a bit for each token that may come next: token i is bit i%64 of word
	// i/64, nil where all may. It is read until the next call.
	Mask() []uint64
	// Accept takes the token that was chosen.
	Accept(id int32) error
	// Done reports that nothing can follow.
	Done() bool
}

// How an answer ended.
const (
	FinishStop = "stop" // the model, a stop text or a constraint ended it
	// MaxTokens, the end of the context, or the end of the memory of keys and values
	FinishLength = "length"
	// the context was cancelled; what was decoded until then is returned
	FinishCancelled = "cancelled"
)

// Answer is what came of a Request.
type Answer struct {
	Text   string
	Tokens []int32 // all that were generated, those of a stop text too
	Scored []Token // of the text, where the request wants log probabilities
	Finish string
	Report Report
}

// Token is one token of an answer's text.
type Token struct {
	ID      int32
	LogProb float64
	Bytes   []byte // its part of the text: those of all tokens joined are the text
	Top     []TopToken
}

// TopToken is one of the likeliest tokens.
type TopToken struct {
	ID      int32
	LogProb float64
	Bytes   []byte
}

// Piece is a part of an answer that is being written.
type Piece struct {
	Text   string  // whole UTF-8
	Tokens []Token // those that end with the text, where the request wants log probabilities

	made int // tokens of the answer so far
}

// Report says what was done and how long it took.
type Report struct {
	Images               []ImageReport // pictures of this question, or of all messages
	Before, Kept, Merged int           // visual tokens of these pictures
	PromptTokens         int           // rows of the whole prompt that enter the decoder
	CachedTokens         int           // of them, rows whose keys and values were kept from before
	ImageTokens          int           // of PromptTokens, rows of pictures
	// pictures of earlier questions whose tokens a method inside the decoder chose for those
	// questions; nothing is chosen again
	ChosenBefore    int
	GeneratedTokens int
	Options         reduce.Resolved // of the first picture
	// from the request's arrival until its turn, preparation left out
	Queue           time.Duration
	Prepare, Encode time.Duration
	Select, Merge   time.Duration
	Prefill         time.Duration
	FirstToken      time.Duration // from the start of the request to the first token
	Decode          time.Duration // from the first token to the last
	TokensPerSecond float64       // of the tokens after the first
	PeakRSS         int64         // bytes, of the process; 0 where the platform does not tell
}

// Where the rows of a picture came from.
const (
	FromNothing  = "none"     // encoder and reduction ran
	FromFeatures = "features" // memory: they did not
	FromDisk     = "disk"     // the same, from the store
	FromPrefix   = "prefix"   // keys and values too
)

// ImageReport is one picture's share of a Report.
type ImageReport struct {
	Width, Height int // pixels, of the picture upright; 0 of a video
	Tokens        int // before
	Kept, Merged  int
	Options       reduce.Resolved
	Reduction     *reduce.Reduction // nil when every token was read
	Content       *reduce.Content   // how its content set its budget; nil: it did not
	// where the reduction's tokens lie on the picture; empty where that is not known
	Grids []imageproc.Grid
	Cache string // FromNothing, …
}

func (r *Report) add(p *picture) {
	i := ImageReport{
		Width: p.width, Height: p.height, Tokens: p.shape.N, Kept: p.shape.N,
		Options: p.plan.Resolved, Reduction: p.reduced(), Grids: p.grids(), Cache: p.from,
	}
	if f := p.tokens; f != nil && f.reduction != nil { // else requests with other plans share them
		i.Options = f.options
	}
	i.Content = i.Options.Content
	if i.Reduction != nil {
		i.Kept, i.Merged = i.Reduction.Counts()
	}
	if p.inside != nil && p.chosen == 0 {
		r.Select, r.Merge = r.Select+p.inside.SelectTime, r.Merge+p.inside.MergeTime
	}
	if len(r.Images) == 0 {
		r.Options = i.Options
	}
	r.Prepare += p.spent.prepare
	r.Encode += p.spent.encode
	r.Select += p.spent.choose
	r.Merge += p.spent.merge
	r.Images = append(r.Images, i)
	r.Before += i.Tokens
	r.Kept += i.Kept
	r.Merged += i.Merged
}
