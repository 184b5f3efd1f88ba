// Package ask holds what a request asks and what comes back, whatever API it came by.
// The types are plain data: a backend on another machine takes them too.
package ask

import (
	"encoding/json"
	"time"
)

// Request is one question, checked as far as that needs no model.
type Request struct {
	Messages []Message
	Prompt   *Prompt // instead of Messages: text or tokens without a chat template

	MaxTokens int // 0: the server's default; Unlimited: up to the context's end
	Context   int // positions; 0: the server's
	Sampling  Sampling
	Stop      []string
	Logprobs  bool
	Top       int // alternatives to each token, with Logprobs
	IgnoreEOS bool
	Format    Format

	Reduction Layer  // of all pictures
	Groups    bool   // report which tokens each row stands for
	NoCache   bool   // neither read nor write a cache
	Salt      string // entries of caches are shared with requests of the same salt
	Tenant    string // and of the same tenant, where keys are isolated

	Ignored []string // fields that have no meaning here
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

// Picture is a picture of a request. The server loads its bytes; a backend needs no URL.
type Picture struct {
	URL  string
	Path string // of the field that holds the URL, for errors
	Data []byte // the file

	Detail     string // auto, low, high or original; "" is auto
	DetailPath string
	Reduction  Layer
}

// Layer is one source of reduction parameters: an object as it was written.
type Layer struct {
	Object json.RawMessage // nil: says nothing
	Path   string          // of the object
}

// Prompt is text or tokens that the decoder reads as they are.
type Prompt struct {
	Text   string
	Tokens []int32 // instead of Text
}

// Sampling says how tokens are chosen; nil is the server's default.
type Sampling struct {
	Temperature, TopP, MinP *float64
	TopK                    *int
	Seed                    *int64
}

// Format says what the answer looks like.
type Format struct {
	Object bool            // one JSON object
	Schema json.RawMessage // a value of this JSON schema
	Path   string          // of the schema
}

// Finish says how an answer ended.
type Finish string

// The ends of an answer.
const (
	Stop   Finish = "stop"
	Length Finish = "length"
)

// Token is a token of an answer.
type Token struct {
	Bytes   []byte
	Logprob float64
	Top     []Token // likeliest first; without Top of their own
}

// Event is a piece of an answer.
type Event struct {
	Text   string  // whole UTF-8
	Tokens []Token // that Text ends with, where log probabilities were asked for
}

// Answer is what came of a request.
type Answer struct {
	Text   string
	Tokens []Token // of Text, where log probabilities were asked for
	Finish Finish
	Seed   *int64 // of what was drawn; nil: nothing was
	Count
	Completion int // tokens that were generated, without the end token
	Cached     int // rows of the prompt whose keys and values were kept from before
	Timings    Timings
	Worker     string // that answered; "" is this process
}

// Count is what a request takes before anything is decoded.
type Count struct {
	Prompt   int // rows that the decoder reads
	Image    int // of them pictures'
	Pictures []PictureReport
}

// PictureReport is what became of one picture.
type PictureReport struct {
	Width, Height        int
	Tokens, Kept, Merged int
	Cache                Cache
	Method               string
	Parameters           json.RawMessage
	Rows, Cols           int // of the grid; 0: tokens have none
	Area                 Area
	Groups               []Group
}

// Cache says where a picture's rows came from.
type Cache string

// The places, from nearest to the decoder.
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

// Group is the tokens that one row stands for.
type Group struct {
	Members  []int
	Position float64
	Kept     bool
}

// Timings are the times of a request's stages; one that did not run is 0.
type Timings struct {
	Queue, Prepare, Encode, Select, Merge time.Duration
	Prefill                               time.Duration
	FirstToken                            time.Duration // from the call of a backend's Run
	Decode                                time.Duration // of all tokens after the prompt
}
