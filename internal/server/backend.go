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
	// Submit takes a request whose pictures are loaded, or says why not: everything that
	// can be refused is refused here. The request ends with ctx, whose cause is then its
	// error.
	Submit(ctx context.Context, r *ask.Request) (Job, error)
	// Count says what a request takes, and decodes nothing. It refuses what Submit does.
	Count(ctx context.Context, r *ask.Request) (*ask.Count, error)
	// Tokenize and Detokenize turn text into tokens and back.
	Tokenize(text string, o TokenizeOptions) ([]Token, error)
	Detokenize(ids []int32) string
	// State returns gauges and counters for the metrics.
	State() State
}

// Job is a request that was not refused: it waits or runs.
type Job interface {
	// Next waits for the next piece of the answer; false: the answer is complete.
	Next() (*ask.Event, bool)
	// Answer waits for the whole answer.
	Answer() (*ask.Answer, error)
}

// TokenizeOptions are the choices of /tokenize.
type TokenizeOptions struct {
	AddSpecial   bool // tokens that stand before and after a text
	ParseSpecial bool // control tokens in the text are read as such
}

// Token is an id and the bytes that it stands for.
type Token struct {
	ID    int32
	Bytes []byte
}

// Info describes a model.
type Info struct {
	ID          string
	Aliases     []string
	Created     time.Time // of its files
	Params      int64
	Vocab       int
	Size        int64 // bytes of its weights in memory
	Context     int   // positions
	Family      string
	Format      string // of its files
	Quant       string // of its weights
	Digest      string // 64 hexadecimal digits
	Template    string // of chats
	Fingerprint string // "fp_" and 12 hexadecimal digits

	VisualTokens int // of a picture; 0: that depends on the picture
	Methods      []string
	Parameters   []string // of reductions, in JSON
	KVPerToken   int64    // bytes of keys and values
	Parallel     int      // requests that run together
	Queue        int      // that wait

	Defaults Defaults
}

// Defaults are what a request that says nothing gets.
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
	PrefixHits, PrefixMisses      int64
	Fleet                         *FleetState // nil: the model is in this process
}

// FleetState is what a backend on other machines says besides.
type FleetState struct {
	Workers int           // that live
	Oldest  time.Duration // since the oldest request came that has no result
}

// TierState is a tier of the cache of features.
type TierState struct {
	Hits    int64
	Bytes   int64
	Entries int
}
