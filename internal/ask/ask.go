// Package ask has the types of a request and its answer, independent of the API. They are plain
// data, so a backend on another machine can use them too.
package ask

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// Request is one question. All checks that need no model have passed.
type Request struct {
	Messages []Message
	Prompt   *Prompt // text or tokens without a chat template, instead of Messages

	MaxTokens int // 0: the server's default; Unlimited: up to the context's end
	Context   int // in positions; 0: the server's
	Sampling  Sampling
	Stop      []string
	Logprobs  bool
	Top       int // alternatives to each token, with Logprobs
	IgnoreEOS bool
	Format    Format

	Reduction Layer  // for all pictures
	Groups    bool   // report which tokens each row stands for
	NoCache   bool   // neither read nor write a cache
	Salt      string // cache entries are shared with requests of the same salt
	Tenant    string // and of the same tenant, if keys are isolated

	Ignored []string // fields that the server does not use

	// The following fields stay in this process.

	// Arrived is when the last byte of the request arrived. Zero: when a backend gets the request.
	Arrived time.Time `json:"-"`
	// Load fetches the pictures without Data. A backend calls it at most once, when the request has
	// its place in the queue and before it has its place to run. nil: all pictures have Data.
	Load func(ctx context.Context) error `json:"-"`
}

// Pictures returns the pictures in order of appearance.
func (r *Request) Pictures() iter.Seq[*Picture] {
	return func(yield func(*Picture) bool) {
		for _, m := range r.Messages {
			for _, p := range m.Parts {
				if p.Picture != nil && !yield(p.Picture) {
					return
				}
			}
		}
	}
}

// Unlimited is a MaxTokens: the answer ends at the context's end.
const Unlimited = -1

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
}

// Picture is a picture of a request. The server loads its bytes, at once or in Request.Load; a
// backend needs no URL.
type Picture struct {
	URL  []byte // may be part of the request's body
	Path string // path of the field with the URL, for errors
	Data []byte // the file

	Detail     string // auto, low, high or original; "" is auto
	DetailPath string
	Reduction  Layer
}

// Layer is one source of reduction parameters: a JSON object as written.
type Layer struct {
	Object json.RawMessage // nil: no parameters
	Path   string          // path of the object
}

// Prompt is text or tokens without a chat template.
type Prompt struct {
	Text   string
	Tokens []int32 // instead of Text
}

// Sampling says how tokens are chosen; nil fields are the server's defaults.
type Sampling struct {
	Temperature, TopP, MinP *float64
	TopK                    *int
	Seed                    *int64
}

// Format is the required form of the answer.
type Format struct {
	Object bool            // one JSON object
	Schema json.RawMessage // a value that matches this JSON schema
	Path   string          // path of the schema
}

// Finish says why an answer ended.
type Finish string

// The reasons why an answer ends.
const (
	Stop   Finish = "stop"
	Length Finish = "length"
)

// Token is a token of an answer.
type Token struct {
	Bytes   []byte
	Logprob float64
	Top     []Token // likeliest first; their own Top is empty
}

// Event is a piece of an answer.
type Event struct {
	Text   string  // complete UTF-8
	Tokens []Token // of Text, if log probabilities were requested
}

// Answer is the result of a request.
type Answer struct {
	Text   string
	Tokens []Token // of Text, if log probabilities were requested
	Finish Finish
	Seed   *int64 // of the sampling; nil: greedy
	Count
	Completion int // generated tokens, without the end token
	Cached     int // rows of the prompt whose keys and values were cached
	Timings    Timings
	Worker     string // the worker that answered; "" is this process
}

// Count is the number of tokens in a request's prompt.
type Count struct {
	Prompt   int // rows that the decoder reads
	Image    int // of these, rows of pictures
	Pictures []PictureReport
}

// PictureReport says how one picture was reduced.
type PictureReport struct {
	Width, Height        int
	Tokens, Kept, Merged int
	Mean                 float64 // rows that enter a layer, if layers differ; else 0
	Cache                Cache
	Method               string
	Parameters           json.RawMessage
	Rows, Cols           int // of the grid; 0: no grid
	Area                 Area
	Groups               []Group
}

// Cache says where a picture's rows came from.
type Cache string

// The sources of a picture's rows, from nearest to the decoder.
const (
	CachePrefix   Cache = "prefix" // keys and values
	CacheFeatures Cache = "features"
	CacheDisk     Cache = "disk"
	CacheNone     Cache = "none"
)

// Area is the part of a picture that its grid covers, in pixels.
type Area struct {
	X      float64 `json:"x"`
	Y      float64 `json:"y"`
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
}

// Group is the set of tokens that one row stands for.
type Group struct {
	Members  []int
	Position float64
	Kept     bool
}

// Timings are the times of a request's stages; a stage that did not run has 0. All stages up to
// Prefill are part of FirstToken.
type Timings struct {
	Queue                 time.Duration // waiting, from Request.Arrived on
	Prepare               time.Duration // fetching and decoding pictures, and their pixel values
	Encode, Select, Merge time.Duration
	Prefill               time.Duration
	FirstToken            time.Duration // from Request.Arrived to the first token
	Decode                time.Duration // of all tokens after the prompt
}
