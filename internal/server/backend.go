package server

import (
	"context"
	"time"

	"github.com/restore-vlm/restore/internal/ask"
)

// Backend answers questions: a model in this process, or on another machine. It is
// safe for concurrent use.
type Backend interface {
	// Info describes the model. It does not change.
	Info() *Info
	// Submit accepts a request, or returns why it is refused: every check happens here. It calls
	// r.Load once the request has a place in the queue. When it returns, it needs the pictures no
	// longer. The request ends when ctx ends, with the cause of ctx as its error.
	Submit(ctx context.Context, r *ask.Request) (Job, error)
	// Count returns the tokens that a request takes, without decoding. It refuses what Submit
	// refuses.
	Count(ctx context.Context, r *ask.Request) (*ask.Count, error)
	// Tokenize and Detokenize turn text into tokens and back.
	Tokenize(text string, o TokenizeOptions) ([]Token, error)
	Detokenize(ids []int32) string
	// State returns gauges and counters for the metrics.
	State() State
}

// Job is an accepted request: it waits or runs. The answer is made at its own pace and kept,
// however slowly its pieces are taken; its place and its memory are free when it is made.
type Job interface {
	// Next waits for the next piece of the answer. It returns false when the answer is complete.
	Next() (*ask.Event, bool)
	// Ready reports whether the next piece is there, so that Next would not wait.
	Ready() bool
	// Answer waits for the whole answer.
	Answer() (*ask.Answer, error)
}

// TokenizeOptions are the options of /tokenize.
type TokenizeOptions struct {
	AddSpecial   bool // tokens before and after a text
	ParseSpecial bool // control tokens in the text are read as such
}

// Token is an id and its bytes.
type Token struct {
	ID    int32
	Bytes []byte
}

// Info describes a model.
type Info struct {
	ID          string
	Aliases     []string
	Created     time.Time // when its files were made
	Params      int64
	Vocab       int
	Size        int64 // bytes of its weights in memory
	Context     int   // positions
	Family      string
	Format      string // format of its files
	Quant       string // type of its weights
	Digest      string // 64 hexadecimal digits
	Template    string // chat template
	Fingerprint string // "fp_" and 12 hexadecimal digits

	VisualTokens int      // of a picture; 0: depends on the picture
	Encoder      *Encoder // nil if the model has none
	Methods      []string
	Parameters   []string // JSON fields of reductions
	KVPerToken   int64    // bytes of keys and values per token
	Parallel     int      // requests that run together
	Queue        int      // requests that may wait

	Defaults Defaults
	// Settings are what answers depend on besides the request and Defaults, by the flags that set
	// it: the model, and how it computes. Workers that share requests have the same.
	Settings map[string]any
}

// Encoder describes the weights of the vision tower and the projector.
type Encoder struct {
	Type string `json:"type"`
	Why  string `json:"why,omitempty"` // the program chose the type; "" if it did not
}

// Defaults apply to fields that a request omits.
type Defaults struct {
	Temperature float64 `json:"temperature"`
	TopP        float64 `json:"top_p"`
	TopK        int     `json:"top_k"`
	MinP        float64 `json:"min_p"`
	Restore     any     `json:"restore"`
}

// State are a backend's gauges, and counters since its start.
type State struct {
	Running, Queued               int
	KVBytes, KVLimit              int64
	Features                      map[string]TierState // by tier: memory, disk
	FeatureMisses, FeatureEvicted int64
	FeatureCorrupt                int64
	FeatureUnsaved                int64 // not written to disk
	PrefixHits, PrefixMisses      int64
	Fleet                         *FleetState // nil: the model runs in this process
}

// FleetState is the additional state of a backend on other machines.
type FleetState struct {
	Workers int           // live workers
	Oldest  time.Duration // age of the oldest request without a result
}

// TierState is a tier of the cache of features.
type TierState struct {
	Hits    int64
	Bytes   int64
	Entries int
}
