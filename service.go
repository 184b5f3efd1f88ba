package restore

import (
	"context"
	"time"
)

// Service answers questions: a [Model] in this process, or one elsewhere. It is safe for concurrent
// use.
type Service interface {
	// Info describes the model. It does not change.
	Info() *Info
	// Submit accepts a request or returns why it is refused; every check happens here, except that
	// of a schema, which ends the answer. When it returns, it needs the request's pictures no
	// longer. The request ends when ctx ends.
	Submit(ctx context.Context, r *Request) (Job, error)
	// Count returns the answer that Submit would give without its text: Usage.Prompt, Usage.Image
	// and Pictures are set. It refuses what Submit refuses.
	Count(ctx context.Context, r *Request) (*Answer, error)
}

// Job is an accepted request: it waits or runs. The answer is made at its own pace and kept,
// however slowly its pieces are taken; its place and its memory are free when it is made.
type Job interface {
	// Next waits for the next piece of the answer. It returns false when the answer is complete.
	Next() (*Piece, bool)
	// Ready reports whether the next piece is there, so that Next would not wait.
	Ready() bool
	// Answer waits for the whole answer. If the context of Submit ended, it returns the answer so
	// far, if there is one, and the cause.
	Answer() (*Answer, error)
}

// Info describes a model.
type Info struct {
	ID           string    // name under which it is served: Name without a file's extension
	Name         string    // folder, repository or file
	Created      time.Time // when its files were made
	Architecture string    // as the model's configuration names it
	Family       string    // model_type of its configuration
	Format       string    // of its files: "safetensors" or "gguf"
	Quant        string    // type of most weights, in capitals
	Digest       string    // of its files, in 64 hexadecimal digits
	Template     string    // chat template
	Fingerprint  string    // of everything that answers depend on besides the request

	Params       int64            // numbers in all weights
	Bytes        int64            // that weights take in memory
	Weights      map[string]int64 // numbers by type in memory
	Vocab        int              // ids of its tokenizer
	Context      int              // positions
	VisualTokens int              // of a picture before reduction; 0: depends on the picture
	Encoder      *Encoder         // nil if the model takes no pictures
	KVPerToken   int64            // bytes of keys and values per token
	Parallel     int              // requests that run together
	Queue        int              // requests that may wait; 0: none, or any number
	Threads      int
	Kernel       string // implementation of the arithmetic in use

	// Settings are what answers depend on besides the request, by the name of the option. Workers
	// that share requests have the same.
	Settings map[string]any
}

// Encoder describes the weights of the vision tower and the projector.
type Encoder struct {
	Type string `json:"type"`
	Why  string `json:"why,omitempty"` // the program chose the type; "" if it did not
}

// Stats are gauges, and counters since the start.
type Stats struct {
	Running, Queued               int
	KVBytes, KVLimit              int64
	Features                      map[string]CacheStats // by tier: memory, disk, shared
	FeatureMisses, FeatureEvicted int64
	FeatureCorrupt                int64
	FeatureUnsaved                int64 // not written to disk
	PrefixHits, PrefixMisses      int64
	Fleet                         *FleetStats // nil: the model runs in this process
}

// CacheStats is a tier of the cache of reduced pictures.
type CacheStats struct {
	Hits    int64
	Bytes   int64
	Entries int
}

// FleetStats is the additional state of a model on other machines.
type FleetStats struct {
	Workers int           // live workers
	Oldest  time.Duration // age of the oldest request without a result
}
