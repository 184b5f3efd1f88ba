package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/sample"
)

// Request is one question: Prompt with Pictures, a whole dialogue in Messages, or Tokens.
type Request struct {
	// Prompt is the question. Bytes that are no UTF-8 are read as U+FFFD, and refused with Raw.
	Prompt string
	// System is the system prompt, read before the first question. Empty means the chat template's
	// own. It is an error if the template has no place for it.
	System string
	// Pictures belong to this question, in order; they come before its text, or at Places:
	// ascending byte offsets in Prompt, of Video and each picture in their order.
	Pictures []*Picture
	Places   []int
	// Video belongs to this question; nil means none. VideoAfter pictures come before it.
	Video      *Video
	VideoAfter int `json:",omitempty"`

	// Messages are a whole dialogue, instead of the fields above. The last message is the user's.
	Messages []Message `json:"-"`

	// Raw reads Prompt as it stands, without the chat template; Tokens are read instead of Prompt,
	// also without it.
	Raw    bool
	Tokens []int32

	// Reduction says how many visual tokens of each picture the decoder reads; nil means all of
	// them. In a [Conversation], nil means the conversation's reduction.
	Reduction *Reduction

	// Sampling says how tokens are chosen. The zero value takes the likeliest token.
	Sampling Sampling
	// MaxTokens is the most tokens to generate; 0 means up to the context's end.
	MaxTokens int
	// Context is the most positions of prompt and answer; 0 means the model's.
	Context int
	// IgnoreEnd never ends the answer at the model's own wish.
	IgnoreEnd bool
	// Stop are texts in UTF-8 that end the answer before them. No part of one is ever sent.
	Stop []string
	// Format is the required form of the answer.
	Format Format

	// Logprobs reports the log probability of each token of the text, and Top the most likely
	// tokens in its place, at most 20. Both are the model's own, before Sampling and Format.
	Logprobs bool
	Top      int
	// Groups reports which tokens of a picture each row stands for.
	Groups bool

	// NoCache neither reads nor writes a cache. Requests share cache entries only if they have the
	// same Salt.
	NoCache bool
	Salt    string

	// Background lets all other requests go first. It waits while one of them waits or runs, and
	// takes no place in the queue. Its answer may be [errs.ErrYielded]: ask again.
	Background bool `json:",omitempty"`

	// Arrived is when the request arrived, if it waited before the call; zero: at the call.
	Arrived time.Time `json:"-"`
}

// Role says who wrote a message.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
)

// Message is one turn of a dialogue.
type Message struct {
	Role  Role
	Parts []Part
}

// Part is a text or a picture.
type Part struct {
	Text    string
	Picture *Picture
	// Reduction is the picture's own; nil means the request's.
	Reduction *Reduction
}

// Format is the required form of an answer; the zero value is any text.
type Format struct {
	Object bool            // one JSON object
	Schema json.RawMessage `json:",omitempty"` // a value that matches this JSON schema
}

// Sampling says how each token is chosen: Penalties change the logits. Then TopK, TopP and MinP, in
// this order, leave tokens out by their probabilities at temperature 1, as llama.cpp does. One of
// the others is drawn at Temperature.
type Sampling struct {
	Temperature float64 // 0 takes the likeliest token; the fields up to Seed must be 0 then
	TopK        int     // draws from the k likeliest tokens; 0: all
	TopP        float64 // draws from the likeliest tokens with this total probability; 0, 1: all
	MinP        float64 // draws from tokens with this share of the highest probability; 0: all
	Seed        int64   // the draw depends only on it and the logits

	// Penalties change what is likely, also at temperature 0.
	Penalties
}

// Penalties change logits before a token is chosen: first Bias, then Repeat of each token among the
// last RepeatLast of the prompt's text and the answer, as llama.cpp does (a logit is divided by it,
// or multiplied below 0), then Frequency for each time that the answer has the token, and Presence
// once, as OpenAI does (subtracted). The zero value changes nothing.
type Penalties struct {
	Frequency, Presence float64 // -2 to 2
	Repeat              float64 // 0.1 to 10; 0, 1: none
	RepeatLast          int     // 0: 64; -1: all
	// Bias is added to the logits of tokens: -100 to 100, or Forbidden.
	Bias map[int32]float64 `json:",omitempty"`
}

// Forbidden is a bias with which a token is never chosen while there is another.
const Forbidden = sample.Forbidden

// Dialogue returns the messages of the request: Messages, or those that System, Prompt and Pictures
// make. A service that is not in this process sends them. A video is an error.
func (r *Request) Dialogue() ([]Message, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if n := len(r.Places); n > 0 && (n != len(r.Pictures) || !slices.IsSorted(r.Places) ||
		r.Places[0] < 0 || r.Places[n-1] > len(r.Prompt)) {
		return nil, &errs.OptionError{Name: "places", Got: fmt.Sprint(r.Places),
			Want: "ascending offsets in the prompt, one for each picture", Fault: errs.Conflict}
	}
	if r.Video != nil {
		return nil, &errs.OptionError{Name: "video", Got: "one", Want: "pictures alone",
			Why: "only a model in this process takes videos"}
	}
	if r.Messages != nil {
		return r.Messages, nil
	}
	var out []Message
	if r.System != "" {
		out = append(out, Message{System, []Part{{Text: r.System}}})
	}
	question, from := Message{Role: User}, 0
	text := func(to int) {
		if to > from {
			question.Parts = append(question.Parts, Part{Text: r.Prompt[from:to]})
			from = to
		}
	}
	for i, p := range r.Pictures {
		if i < len(r.Places) {
			text(r.Places[i])
		}
		question.Parts = append(question.Parts, Part{Picture: p})
	}
	text(len(r.Prompt))
	return append(out, question), nil
}

// pictures returns all pictures in order of appearance.
func (r *Request) pictures() iter.Seq[*Picture] {
	return func(yield func(*Picture) bool) {
		for _, p := range r.Pictures {
			if !yield(p) {
				return
			}
		}
		for _, m := range r.Messages {
			for _, p := range m.Parts {
				if p.Picture != nil && !yield(p.Picture) {
					return
				}
			}
		}
	}
}

// Load loads the pictures that come from [PictureFrom], in parallel. Services call it when the
// request has its place in the queue. It panics if one of the functions that read them does.
func (r *Request) Load(ctx context.Context) error {
	if r == nil {
		return errNoRequest
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	var panicked atomic.Pointer[any]
	for p := range r.pictures() {
		if _, late := p.image(); !late {
			continue
		}
		wait.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					panicked.Store(&v)
					cancel(nil)
				}
			}()
			if err := p.load(ctx); err != nil {
				cancel(err) // of the other loads, which then fail too
			}
		})
	}
	wait.Wait()
	if v := panicked.Load(); v != nil {
		panic(*v)
	}
	return context.Cause(ctx)
}

// Check refuses values out of range.
func (s *Sampling) Check() error {
	_, err := sample.New(s.engine())
	return err
}

func (s *Sampling) engine() sample.Options {
	return sample.Options{
		Temp: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, Seed: s.Seed,
		Penalties: sample.Penalties(s.Penalties),
	}
}

// check refuses fields that have no effect.
func (s *Sampling) check() error {
	if s.Temperature != 0 {
		return nil
	}
	for _, f := range []struct {
		name  string
		value any
		given bool
	}{
		{"top-k", s.TopK, s.TopK != 0}, {"top-p", s.TopP, s.TopP != 0 && s.TopP != 1},
		{"min-p", s.MinP, s.MinP != 0}, {"seed", s.Seed, s.Seed != 0},
	} {
		if f.given {
			return &errs.OptionError{
				Name: f.name, Got: fmt.Sprint(f.value), Why: "at temperature 0",
				Fault: errs.Useless,
			}
		}
	}
	return nil
}

// check refuses fields that exclude each other, and missing pictures.
func (r *Request) check() error {
	if r == nil {
		return errNoRequest
	}
	refuse := func(name, got, why string) error {
		return &errs.OptionError{Name: name, Got: got, Want: "none", Why: why, Fault: errs.Conflict}
	}
	shown := len(r.Pictures) > 0 || r.Video != nil
	question := r.Prompt != "" || r.System != "" || shown || r.Places != nil
	switch {
	case r.Messages != nil && (question || r.Raw || r.Tokens != nil):
		return refuse("messages", "a question too", "they are the whole dialogue")
	case r.Raw && (r.System != "" || shown || r.Places != nil):
		return refuse("raw", "a system prompt or pictures", "a raw prompt is text alone")
	case r.Tokens != nil && (question || r.Raw):
		return refuse("tokens", "a question too", "tokens are read as they stand")
	case r.Format.Object && r.Format.Schema != nil:
		return refuse("format", "a schema for any object", "the schema says what is allowed")
	}
	last := Role("")
	for _, m := range r.Messages {
		if last = m.Role; last != System && last != User && last != Assistant {
			return &errs.OptionError{Name: "messages", Got: fmt.Sprintf("role %q", last),
				Want: "system, user or assistant", Fault: errs.Invalid}
		}
		for _, p := range m.Parts {
			switch {
			case p.Picture != nil && p.Text != "":
				return refuse("messages", "a picture and a text in one part",
					"each has a part of its own")
			case p.Picture == nil && p.Reduction != nil:
				return refuse("messages", "a reduction of a text", "pictures are reduced")
			}
		}
	}
	if r.Messages != nil && last != User {
		return &errs.OptionError{Name: "messages", Got: fmt.Sprintf("role %q at the end", last),
			Want: "a user's message there", Fault: errs.Invalid}
	}
	i := 0
	for p := range r.pictures() {
		if p.missing() {
			return &errs.PictureError{Index: i, Fault: errs.EmptyPicture, Err: errNoPicture.Err}
		}
		i++
	}
	return r.Sampling.check()
}

// errNoRequest is the error for a request that is nil.
var errNoRequest = &errs.OptionError{Name: "request", Want: "one", Fault: errs.Missing}

// errNoPicture is the error for a picture that is nil, zero, or not yet read.
var errNoPicture = &errs.PictureError{Index: -1, Fault: errs.EmptyPicture,
	Err: errors.New("picture: got none")}
