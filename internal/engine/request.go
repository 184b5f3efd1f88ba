package engine

import (
	"context"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/reduce"
)

// Request asks a model: a question with pictures, a whole dialogue, or tokens.
type Request struct {
	// Prompt is a question. Its pictures stand before its text, or at Places.
	Prompt string
	// system prompt of a conversation, given with its first question; "": the template's default
	System string
	Images []*Image // new pictures that belong to this question
	// ascending byte offsets in Prompt for video and Images, in their order; nil: before the text
	Places []int
	Video  *imageproc.Video // a new video that belongs to this question
	// how many of Images come before Video
	VideoAfter int
	// pictures that were encoded before; Images and Video must then be empty
	Encoded *Encoded

	// Messages are a whole dialogue, used instead of a question. The last message is the user's.
	Messages []Message
	// Tokens are read as given, instead of a question, without a template or a begin token. Each
	// picture token is the place of the next picture of Images or Encoded.
	Tokens []int32

	// for pictures without options of their own; the zero value reads every visual token
	Reduce    methods.Options
	Sample    sample.Options // the zero value is greedy
	MaxTokens int            // at most this many; 0: up to the context's end
	Context   int            // most positions of prompt and answer; 0: the engine's limit
	IgnoreEnd bool           // the model's end tokens are never chosen

	// Stop texts end the answer before them, also across token boundaries. No part of one is ever
	// sent. The first complete one counts; if one token completes several, the one that begins
	// first.
	Stop []string
	// Constraint, when not nil, limits which tokens may come next. The answer ends when the
	// constraint is done.
	Constraint Constraint
	// LogProbs reports the log probability of each token of the text, and Top the most likely
	// tokens in its place, both from the model's own distribution, before temperature, cuts and
	// Constraint.
	LogProbs bool
	Top      int

	// NoCache disables all caches for the request. Requests share cache entries only if they have
	// the same Salt.
	NoCache bool
	Salt    string

	// called with each piece of the answer as it is decoded; may be nil
	OnPiece func(Piece)

	// Background requests take what others leave: they wait while another request waits or runs.
	// One that is being read then ends with errs.ErrYielded and may be asked again.
	Background bool

	// Arrived is when the request arrived, if it waited before the call; zero: at the call.
	Arrived time.Time
	// Load, when not nil, sets the files of the pictures of Messages. Submit and Count call it
	// once, when the request has its place in the queue.
	Load func(ctx context.Context) error
}

// Message is one turn of a dialogue.
type Message struct {
	Role  string // "system", "user" or "assistant"
	Parts []Part
}

// text returns the message's texts, one after another.
func (m *Message) text() string {
	var texts []string
	for _, p := range m.Parts {
		if p.Image == nil && p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// Part is a text or a picture within a message.
type Part struct {
	Text  string
	Image *Image
	// Reduce is the reduction of this picture; nil: the request's.
	Reduce *methods.Options
}

// Constraint follows an answer token by token and limits which token may come next. All calls come
// from one goroutine, one at a time.
type Constraint interface {
	// Mask returns a bit for each allowed token, or nil if all are allowed. Token i is bit i%64 of
	// word i/64. The mask is valid until the next call, and need not be complete once the request's
	// context has ended.
	Mask() []uint64
	// Accept records the token that was chosen.
	Accept(id int32) error
	// Done reports whether no token can follow.
	Done() bool
}

// Preparer is a Constraint with work to do before its first Mask.
type Preparer interface {
	// Prepare does that work in a goroutine of its own, while the request waits in the queue. An
	// error ends the request. ctx ends with the request.
	Prepare(ctx context.Context) error
}

// Reasons why an answer ended.
const (
	FinishStop = "stop" // the model, a stop text or a constraint ended it
	// MaxTokens was reached, or the context or the memory for keys and values was full
	FinishLength = "length"
	// the context was cancelled; the text decoded so far is returned
	FinishCancelled = "cancelled"
)

// Answer is the result of a Request.
type Answer struct {
	Text   string
	Tokens []int32 // all generated tokens, including a stop text's
	Scored []Token // of the text, if the request has LogProbs
	Finish string
	Stop   string // the stop text that ended it; "" if none did
	Report Report
}

// Token is one token of an answer's text.
type Token struct {
	ID      int32
	LogProb float64
	Bytes   []byte // its part of the text: joined, the tokens' bytes are the text
	Top     []TopToken
}

// TopToken is one of the most likely tokens.
type TopToken struct {
	ID      int32
	LogProb float64
	Bytes   []byte
}

// Piece is a part of an answer that is being generated.
type Piece struct {
	Text   string  // complete UTF-8
	Tokens []Token // those that end with the text, if the request has LogProbs

	made int // number of tokens of the answer so far
}

// Report tells what was done and how long it took.
type Report struct {
	Images               []ImageReport // pictures of this question, or of all messages
	Before, Kept, Merged int           // visual tokens of these pictures
	PromptTokens         int           // rows of the whole prompt that enter the decoder
	CachedTokens         int           // of PromptTokens, rows whose keys and values were in memory
	ImageTokens          int           // of PromptTokens, rows of pictures
	// pictures of earlier questions whose tokens a method inside the decoder chose for those
	// questions; the choice stays
	ChosenBefore    int
	GeneratedTokens int
	// from the request's arrival until it starts, without preparation
	Queue time.Duration
	// fetching and decoding pictures, and their pixel values
	Prepare         time.Duration
	Encode          time.Duration
	Select, Merge   time.Duration
	Prefill         time.Duration
	FirstToken      time.Duration // from the request's arrival to the first token: all of the above
	Decode          time.Duration // from the first token to the last
	TokensPerSecond float64       // of the tokens after the first
	PeakRSS         int64         // bytes, of the process; 0 if the platform does not report it
}

// Source of a picture's rows.
const (
	FromNothing  = "none"     // encoder and reduction ran
	FromFeatures = "features" // from memory
	FromDisk     = "disk"     // from Options.Store
	FromShared   = "shared"   // from Options.Shared
	FromPrefix   = "prefix"   // keys and values were in memory
)

// ImageReport is one picture's share of a Report.
type ImageReport struct {
	Video         bool
	Width, Height int // pixels, of the upright picture; 0 for a video
	Tokens        int // before reduction
	Encoded       int // of them, tokens that a method before the encoder left; Tokens without one
	Kept, Merged  int
	Options       reduce.Resolved
	Reduction     *reduce.Reduction // nil when every token was read
	Content       *reduce.Content   // how the picture's content set the budget; nil: it did not
	// where the reduction's tokens lie on the picture; empty if not known
	Grids []imageproc.Grid
	Cache string // FromNothing, …
}

// Mean is how many rows of the picture enter a layer of the decoder, on average; 0 if all layers
// read the same rows.
func (i *ImageReport) Mean() float64 {
	if i.Reduction == nil {
		return 0
	}
	return i.Options.Mean
}

// Read is how many rows of the picture enter a layer, on average.
func (i *ImageReport) Read() float64 {
	if mean := i.Mean(); mean > 0 {
		return mean
	}
	return float64(i.Kept + i.Merged)
}

func (r *Report) add(p *picture) {
	texts := len(p.shape.Texts())
	if len(p.plan.Stages) > 0 { // a method inside the decoder takes them like the others
		texts = 0
	}
	i := ImageReport{
		Video: p.shape.Video, Width: p.width, Height: p.height,
		Tokens: p.shape.Unpruned().N - texts, Encoded: p.shape.N - texts,
		Kept:    p.shape.N - texts,
		Options: p.plan.Resolved, Reduction: p.reduced(), Grids: p.grids(), Cache: p.from,
	}
	// other plans share f without a reduction, or as what happens before the decoder
	if f := p.tokens; f != nil && f.reduction != nil && p.plan.BeforeDecoder() == p.plan {
		i.Options = f.options
	}
	i.Content = i.Options.Content
	if i.Reduction != nil {
		i.Kept, i.Merged = i.Reduction.Counts()
	}
	if p.readNow() {
		r.Select, r.Merge = r.Select+p.inside.SelectTime, r.Merge+p.inside.MergeTime
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
