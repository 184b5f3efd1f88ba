// Package restore answers questions about pictures with multimodal LLMs. It reads
// 64 visual tokens where the model makes 576: a published criterion keeps some
// tokens, the others are merged into distinctive anchors, every token keeps its
// original position, and the attention is calibrated for group size and distance
// (RESTORE, ICML 2026).
//
//	m, err := restore.Open(ctx, "", nil) // the embedded model
//	defer m.Close()
//	pic, err := restore.OpenPicture("cat.jpg", nil)
//	ans, err := m.Ask(ctx, restore.Request{
//		Prompt:    "What is there?",
//		Pictures:  []*restore.Picture{pic},
//		Reduction: &restore.Reduction{Base: "holov", NVis: 64},
//	})
//	fmt.Println(ans.Text)
//
// The main types are [Model], [Request] with its [Reduction], [Answer], and [Conversation], which
// keeps what it has read between questions. Pictures come from [OpenPicture], [NewPicture],
// [PictureFrom] or [FromImage]. [Service] is what a program needs of a model, wherever it is.
//
// # Errors
//
// Package errs holds the errors that callers branch on. A call whose context ends returns the
// answer so far, with Finish "cancelled", and [context.Cause] of the context. No value is clamped
// or ignored: an option that cannot be honoured is an [errs.OptionError] that names it.
//
// # Concurrency
//
// A Model serves any number of requests at once, from any number of goroutines; the
// answer to one does not depend on the others. A Conversation belongs to one caller.
package restore

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/diskcache"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// Open loads the model at path: a Hugging Face folder, a folder of the hub's cache, a GGUF file, an
// original LLaVA folder, or a file written by [Pack]. An empty path is the small model embedded in
// the program, which knows only drawn scenes. o may be nil.
//
// The files stay in use until Close. If one of them is cut short before that, requests fail with
// [errs.ErrDamaged]; if weights are overwritten, requests compute with the new bytes. The weights
// of a packed file are checked while the first requests run. If one does not match its checksum,
// every request fails with [errs.ErrDamaged], before its first token.
//
// Every weight is bound by name and shape. The error is an [errs.ModelError] when the files do not
// make a model (it lists everything that does not fit), an [errs.OptionError] when an option is
// refused, an [errs.MemoryError] when the weights do not fit into memory, or the cause of ctx.
func Open(ctx context.Context, path string, o *Options) (*Model, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if o == nil {
		o = new(Options)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	disk, err := o.store()
	if err != nil {
		return nil, err
	}
	eo := o.engine()
	if disk != nil {
		eo.Store = store{disk}
	}
	if o.Shared != nil {
		eo.Shared = shared{o.Shared}
	}
	open := engine.Open
	if o.Describe {
		open = engine.Describe
	}
	e, err := open(o.files(path), eo)
	if err != nil {
		return nil, modelError(path, err)
	}
	return newModel(e, disk, o), nil
}

func newModel(e *engine.Engine, disk *diskcache.Cache, o *Options) *Model {
	m := &Model{e: e, disk: disk}
	m.info = describe(e, o)
	if tok := e.Tokenizer(); tok != nil {
		m.formats = newGrammars(tok, e.Info().End)
	}
	return m
}

// Pack writes the model at path, which is a path for Open, to w as one file that opens quickly: its
// weights already have the types that the options set. Open refuses a packed file that is cut short
// or older than its source files. Pack returns the errors of Open and of w.
func Pack(ctx context.Context, path string, w io.Writer, o *Options) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if o == nil {
		o = new(Options)
	}
	if err := o.check(); err != nil {
		return err
	}
	return modelError(path, engine.PackFiles(o.files(path), o.engine(), w))
}

// Model is a loaded model with its tokenizer, chat template and picture processor. It is a
// [Service].
type Model struct {
	e       *engine.Engine
	disk    *diskcache.Cache // nil: none
	info    *Info
	formats *grammars // nil without a tokenizer

	mu   sync.Mutex
	took time.Duration // recent time of a request
}

// Close ends the running requests, which return [errs.ErrClosed], and frees the model's memory. It
// may be called at any time and more than once. Every later request, Checked and Verify return
// ErrClosed; what describes the model stays.
func (m *Model) Close() error { return m.e.Close() }

// Checked returns when all weights of a packed file are checked, with an error if one was damaged,
// or when ctx ends, with its cause. For other files it returns at once.
func (m *Model) Checked(ctx context.Context) error { return m.e.Checked(ctx) }

// Info describes the model.
func (m *Model) Info() *Info { return m.info }

// Stats returns the model's gauges and counters.
func (m *Model) Stats() Stats {
	s := m.e.Stats()
	out := Stats{
		Running: s.Running, Queued: s.Waiting, KVBytes: s.KVBytes, KVLimit: s.KVLimit,
		FeatureMisses: s.Features.Misses, FeatureEvicted: s.Features.Evictions,
		FeatureUnsaved: s.Unsaved, PrefixHits: s.Prefixes.Hits, PrefixMisses: s.Prefixes.Misses,
		Features: map[string]CacheStats{"memory": {
			Hits:  s.Features.Hits - s.Features.DiskHits - s.Features.SharedHits,
			Bytes: s.Features.Bytes, Entries: s.Features.Entries,
		}, "shared": {Hits: s.Features.SharedHits}},
	}
	if m.disk != nil {
		n := m.disk.Stats()
		out.FeatureCorrupt = n.Corrupt
		out.FeatureEvicted += n.Evicted
		out.FeatureUnsaved += n.Unsaved
		out.Features["disk"] = CacheStats{
			Hits: s.Features.DiskHits, Bytes: n.Bytes, Entries: int(n.Entries),
		}
	}
	return out
}

// Tokenize returns the tokens of a text with their bytes. special adds the tokens that stand before
// and after a text; parse reads control tokens in the text as such.
func (m *Model) Tokenize(text string, special, parse bool) ([]Token, error) {
	tok := m.e.Tokenizer()
	if tok == nil {
		return nil, errNoTokenizer
	}
	if err := m.e.CheckText(len(text)); err != nil {
		return nil, err
	}
	how := tokenizer.EncodeOptions{AddSpecial: special, SpecialsAsText: !parse}
	enc, err := tok.Encode(text, how)
	if err != nil {
		return nil, err
	}
	out := make([]Token, len(enc.IDs))
	for i, id := range enc.IDs {
		out[i] = Token{ID: id, Bytes: tok.Piece(id, false)}
		if tok.IsSpecial(id) {
			name, _ := tok.Token(id)
			out[i].Bytes = []byte(name)
		}
	}
	return out, nil
}

// Detokenize returns the text of tokens.
func (m *Model) Detokenize(ids []int32) string {
	if tok := m.e.Tokenizer(); tok != nil {
		return tok.Decode(ids, false)
	}
	return ""
}

// errNoTokenizer is the error for text without a tokenizer.
var errNoTokenizer = errors.New("the model has no tokenizer")
