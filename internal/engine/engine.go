package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Options configure an Engine.
type Options struct {
	Threads  int                     // worker threads; 0: all cores that Go may use
	Progress func(done, total int64) // bytes read while loading; may be nil
	// called for every difference from what the checkpoint says; may be nil
	Warn func(message string)

	// Quant is the type of the decoder's weights in memory: "q4", "q8", "bf16", "f16" or "f32".
	// EncoderQuant is the type for the vision tower and the projector: "q8", "q12", "bf16", "f16"
	// or "f32", or "stored". "" keeps weights as stored, except that an encoder may become q8 or
	// q12 (model.EncoderDefault), which Warn and Info tell; for Quant "auto" see QuantAuto. With
	// q4, the decoder's embedding and head are q8. Weights are converted while loading. Products
	// with q8 and q4 round activations to 8 bits in blocks of 32, products with q12 to 14 bits in
	// blocks of 128, products with bf16 to bfloat16; all others compute in float32. For a packed
	// file, both are "" or the type it was packed with.
	Quant, EncoderQuant string
	// CacheType is the type of stored keys and values: "f16", "f32", or "" for f16 if all products
	// of the decoder's blocks round activations, else f32. f16 rounds keys and values to 11 bits
	// and takes half the memory.
	CacheType string

	// Parallel is the most sequences that run at once, 0: 8. Queue is the most that wait, 0: any
	// number, -1: none.
	Parallel, Queue int
	// Throughput is for answers that nobody reads while they are generated. The engine reads the
	// prompts of all requests that have a place before running sequences continue. More sequences
	// then decode together, and each waits longer between two tokens.
	Throughput bool
	// Context is the most positions that a prompt and its answer may span, 0: the limit in the
	// model's configuration.
	Context int
	// MemoryBytes limits the memory for weights, keys and values together. 0: the free memory.
	MemoryBytes int64
	// KVBytes limits the memory for keys and values, of running requests and of prompt prefixes
	// kept for reuse. 0: a quarter of the free memory, or 2 GiB if the system does not report it.
	KVBytes int64
	// FeatureBytes limits the memory for encoded and reduced pictures, 0: 256 MB, -1: only those in
	// use. EncodedBytes limits the memory for pictures as the encoder returns them, for requests
	// that reduce them in other ways, 0: none are kept.
	FeatureBytes, EncodedBytes int64
	// Store, when not nil, keeps encoded and reduced pictures across restarts; Shared does for
	// several processes.
	Store, Shared Store
	// Panicked, when not nil, is called when a panic ends a request with errs.ErrInternal.
	Panicked func(value any, stack []byte)

	// Limits on the pixels of a resized picture, for models that take pictures of any size. 0: the
	// model's limit.
	MinPixels, MaxPixels int

	// Pad pads pictures to a square, for models that would crop them.
	Pad bool

	// Defaults are options, as in "pad", that are ignored for a model that has no use for them.
	Defaults []string
}

// Values of Quant and EncoderQuant in addition to "".
var (
	QuantTypes        = model.PlanTypes
	EncoderQuantTypes = model.EncoderTypes
)

// CacheTypes are the values of CacheType in addition to "".
var CacheTypes = []string{"f32", "f16"}

// instructions is [kernel.InUse]; tests replace it.
var instructions = kernel.InUse

// source returns the model source that binds ck with these options.
func (o *Options) source(ck checkpoint.Bundle, h Hooks) *model.Source {
	return &model.Source{
		Bundle: ck, Name: ck.About().Name, Plan: model.Plan{
			Decoder: o.Quant, Encoder: o.EncoderQuant,
		},
		Memory: new(kernel.Memory), Progress: o.Progress, Dry: h.Describe, Make: h.Weights,
		Work: h.Work, Features: instructions(),
	}
}

// Engine is a loaded model with its tokenizer, chat template and picture processor.
type Engine struct {
	ck        *model.Source
	m         model.Multimodal
	reading   *model.Reading // of a packed file's weights; nil for other files
	shape     model.DecoderShape
	pool      *kernel.Pool
	cacheType string // as in Options
	program   int64  // memory of the process without weights, if the model is only described
	pages     *nn.KVPool
	warn      func(string)
	tok       *tokenizer.Tokenizer // nil if the model has none
	template  *chat.Template
	clips     *chat.Template      // of dialogues with videos; nil: template
	source    string              // where the template came from
	proc      imageproc.Processor // nil if the model has none
	several   imageproc.Processor // for pictures that are not alone in their prompt; nil: proc
	noVideos  error               // why settings of videos are refused; nil: they are not
	special   map[string]string   // bos_token, eos_token, … for the template
	eos       map[int32]bool

	context   int // positions
	together  int // most sequences in one forward that still give the same bits as alone
	pagesMost int
	device    *scheduler // nil in an engine that only describes
	prefixes  *prefixCache
	cached    *featureCache
	store     Store
	common    Store  // Options.Shared
	digest    Key    // of the model
	made      []byte // everything else that features depend on
	saving    saver
	panicked  func(value any, stack []byte)
	closed    atomic.Bool
	marks     atomic.Uint64 // counter for unique

	mu      sync.Mutex
	images  map[Key]*image       // descriptions of pictures that were prepared
	shared  map[Key]*preparation // pictures that requests are preparing, or have not encoded
	encoded keptPictures         // of shared
	room    room                 // for pictures that are being prepared
	// the calibration's distance term of each rotation, built at the first use
	distance func() map[*nn.RoPE]*nn.Distances

	anyPicture func() (*anyPicture, error) // described at the first use
}

// New binds ck. Configuration and weights are enough. A request that needs another part, such as a
// tokenizer, returns an error if the model lacks it.
func New(ck checkpoint.Bundle, o Options, h Hooks) (*Engine, error) {
	return newEngine(ck, o, h, nil)
}

// Verify reads the weights of an engine that was opened with Hooks.Describe and returns any error
// that New would return: a value that is NaN or infinite, or a packed file that does not match its
// checksums. progress, which may be nil, receives the number of bytes read.
func (e *Engine) Verify(progress func(done, total int64)) error {
	if err := e.Closed(); err != nil {
		return err
	}
	return shortened(e.ck.Name, func() error {
		if c, ok := e.ck.Bundle.(checkpoint.Checked); ok {
			return checkpoint.CheckAll(c, e.pool.Run, progress)
		}
		return checkpoint.Finite(e.ck, e.pool.Run, progress)
	})
}

// shortened calls f. If f faults while it reads a mapped file, because someone cut the model's file
// short, it returns an error.
func shortened(name string, f func() error) error {
	err := checkpoint.Guard(f)
	if errors.Is(err, checkpoint.ErrCut) {
		return cutShort(name)
	}
	return err
}

// cutShort is the error for a fault in a mapped file.
func cutShort(name string) error {
	return fmt.Errorf("engine: %s: a file of the model was cut short while it was in use: %w",
		name, errs.ErrDamaged)
}

// newEngine binds ck. sink, when not nil, receives the weights.
func newEngine(
	ck checkpoint.Bundle, o Options, h Hooks, sink func(string, *tensor.Tensor) error,
) (e *Engine, err error) {
	err = shortened(ck.About().Name, func() error {
		e, err = bound(ck, o, h, sink)
		return err
	})
	return e, err
}

func bound(
	ck checkpoint.Bundle, o Options, h Hooks, sink func(string, *tensor.Tensor) error,
) (*Engine, error) {
	if err := kernel.ImplementationError(); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	if o.Quant == QuantAuto || sink == nil && !h.Describe {
		if err := o.fitMemory(ck, h); err != nil {
			return nil, err
		}
	}
	src := o.source(ck, h)
	src.Sink = sink
	if err := src.Plan.Check(); err != nil {
		return nil, err
	}
	if err := packedAs(ck, src.Plan); err != nil {
		return nil, err
	}
	e := &Engine{
		ck: src, warn: o.Warn, eos: map[int32]bool{},
		special: map[string]string{}, pool: kernel.NewPool(o.Threads),
		store: o.Store, common: o.Shared, panicked: o.Panicked, images: map[Key]*image{},
		shared: map[Key]*preparation{}, room: newRoom(), prefixes: newPrefixCache(),
		saving: saver{most: savingMost},
	}
	e.anyPicture = sync.OnceValues(e.describePicture)
	src.Pool = e.pool
	if err := e.load(&o, h); err != nil {
		e.reading.Stop()
		e.pool.Close()
		return nil, errors.Join(err, src.Memory.Free())
	}
	if h.Describe {
		e.program = machine.PeakRSS()
	} else if sink == nil {
		e.device = newScheduler(e, &o)
	}
	return e, nil
}

// load binds the weights, starts to read those of a packed file, and reads the documents.
func (e *Engine) load(o *Options, h Hooks) (err error) {
	if e.m, err = families.Open(e.ck); err != nil {
		return err
	}
	if name, why := e.ck.Encoder(); why != "" && h.Weights == nil && !h.Describe {
		o.Warn(fmt.Sprintf("encoder-quant: %s, because %s; %q keeps the types of the files", name,
			why, model.Stored))
	}
	e.reading = e.ck.Reading()
	e.reading.Start(o.Threads)
	e.shape = e.m.Decoder().Shape()
	e.cacheType = o.CacheType
	e.pages = nn.NewKVPool(e.shape.KVHeads, e.shape.HeadDim, e.halves(e.ck))
	if err := e.documents(); err != nil {
		return err
	}
	if err := e.processors(o, h); err != nil {
		return err
	}
	if o.Progress != nil && !h.Describe {
		size := e.ck.About().Size // buffers are not read, packed weights later
		o.Progress(size, size)
	}
	e.distance = sync.OnceValue(func() map[*nn.RoPE]*nn.Distances {
		out := map[*nn.RoPE]*nn.Distances{}
		for _, r := range e.shape.Rotations() {
			out[r] = nn.NewDistances(r, e.shape.MaxPositions+1)
		}
		return out
	})
	return e.limits(o)
}

// processors sets the picture processors that the options ask for.
func (e *Engine) processors(o *Options, h Hooks) (err error) {
	if e.proc == nil {
		e.proc = h.Processor
	}
	adjust := imageproc.Adjust{
		Pad: o.Pad, MinPixels: o.MinPixels, MaxPixels: o.MaxPixels, Defaults: o.Defaults,
	}
	if e.proc, err = adjust.To(e.proc); err != nil {
		return err
	}
	if c, ok := e.proc.(imageproc.CrowdProcessor); ok {
		e.several = c.Several()
	}
	return nil
}

// halves reports whether keys and values are float16 with the weights of source.
func (e *Engine) halves(source *model.Source) bool {
	return e.cacheType == "f16" || e.cacheType == "" && source.Rounds()
}

// check validates the options that no file decides.
func (o *Options) check() error {
	if o.CacheType != "" && !slices.Contains(CacheTypes, o.CacheType) {
		return fmt.Errorf("engine: %w", &errs.OptionError{Name: "cache-type",
			Got: strconv.Quote(o.CacheType), Want: strings.Join(CacheTypes, " or ")})
	}
	for _, c := range []struct {
		name       string
		got, least int64
	}{
		{"threads", int64(o.Threads), 0},
		{"parallel", int64(o.Parallel), 0}, {"queue", int64(o.Queue), -1},
		{"ctx-size", int64(o.Context), 0},
		{"memory", o.MemoryBytes, 0}, {"kv-mb", o.KVBytes, 0},
		{"cache-mb", o.FeatureBytes, -1}, {"encoded-bytes", o.EncodedBytes, 0},
	} {
		if c.got < c.least {
			return fmt.Errorf("engine: %w", &errs.OptionError{
				Name: c.name, Got: fmt.Sprint(c.got), Want: fmt.Sprintf("at least %d", c.least),
				Fault: errs.TooSmall,
			})
		}
	}
	for _, c := range []struct {
		name      string
		got, most int
	}{{"threads", o.Threads, threadsMost}, {"parallel", o.Parallel, parallelMost}} {
		if c.got > c.most {
			return fmt.Errorf("engine: %w", &errs.OptionError{
				Name: c.name, Got: fmt.Sprint(c.got), Want: fmt.Sprintf("at most %d", c.most),
				Fault: errs.TooLarge,
			})
		}
	}
	return nil
}

// Limits of options, and defaults for what they leave at 0.
const (
	threadsMost  = 1024
	parallelMost = 256
	parallelHere = 8
	featuresHere = 256e6                     // bytes
	keysUnknown  = min(2<<30, math.MaxInt/4) // bytes: 512 MiB on 32 bits
)

// leastRead is the fewest rows of a prompt that are read together. Attention computes fewer rows as
// decoding steps, which add in another order.
const leastRead = 4

// limits sets the limits on context and memory.
func (e *Engine) limits(o *Options) error {
	if e.context = e.shape.MaxPositions; o.Context > e.context {
		return fmt.Errorf("engine: %w", &errs.OptionError{
			Name: "ctx-size", Got: fmt.Sprint(o.Context),
			Want: fmt.Sprintf("at most %d", e.context),
			Why:  "the model's context", Fault: errs.TooLarge,
		})
	}
	if o.Context > 0 {
		e.context = o.Context
	}
	kv, err := o.keysValues(e.Info().Resident)
	if err != nil {
		return err
	}
	e.pagesMost = int(min(kv/e.pages.PageBytes(), math.MaxInt))
	features := o.FeatureBytes
	switch features {
	case 0:
		features = featuresHere
	case -1:
		features = 0
	}
	e.cached = newFeatureCache(features)
	e.encoded.most = o.EncodedBytes
	e.together = parallelMost
	for _, p := range e.ck.Products() {
		if p.Decoder {
			e.together = min(e.together, kernel.FewRows(nn.FormatOf(p.Type)))
		}
	}
	e.digest = Key(checkpoint.Digest(e.ck))
	e.made = fmt.Append(nil, o.MinPixels, o.MaxPixels, o.Pad, e.ck.Plan, e.ck.About().Packed,
		kernel.Layout(), kernel.Implementation())
	return nil
}

// unique returns a new key.
func (e *Engine) unique() Key {
	return keyOf([]byte("unique"), binary.LittleEndian.AppendUint64(nil, e.marks.Add(1)))
}

// packedAs returns an error if a packed file has other types than the plan, or a layout that this
// program does not support.
func packedAs(ck checkpoint.Bundle, plan model.Plan) error {
	p := ck.About().Packed
	if p == nil {
		return nil
	}
	if got := kernel.Layout(); p.Layout != got {
		return fmt.Errorf("engine: %s: packed in the layout %q, this program computes with "+
			"%q: pack the checkpoint again", ck.About().Name, p.Layout, got)
	}
	for _, c := range []struct{ what, got, want string }{
		{"quant", plan.Decoder, p.Quant}, {"encoder-quant", plan.Encoder, p.EncoderQuant},
	} {
		if c.got != "" && c.got != c.want && !(c.got == model.Stored && c.want == "") {
			if c.want == "" {
				c.want = "as stored"
			}
			return fmt.Errorf("engine: %w", &errs.OptionError{Name: c.what, Got: c.got,
				Want: "none or the packed type of " + ck.About().Name + ", " + c.want})
		}
	}
	return nil
}

// Pack writes ck to w as a packed file, with the weight types of o's plan. It converts and writes
// weights one by one. It does not close ck.
func Pack(ck checkpoint.Bundle, o Options, w io.Writer) error {
	if o.Quant == QuantAuto {
		if o.Warn == nil {
			o.Warn = func(string) {}
		}
		if err := o.fitMemory(ck, Hooks{}); err != nil {
			return err
		}
	}
	src, err := boundAs(ck, o, Hooks{})
	if err != nil {
		return err
	}
	how := checkpoint.Packed{Layout: kernel.Layout(), Quant: o.Quant}
	if name, _ := src.Encoder(); name != model.Stored {
		how.EncoderQuant = name
	}
	if p := ck.About().Packed; p != nil {
		how = *p
	}
	out, err := formats.NewWriter(w, ck, how)
	if err != nil {
		return err
	}
	e, err := newEngine(ck, o, Hooks{}, out.Add)
	if err != nil {
		return err
	}
	e.pool.Close()
	return errors.Join(out.Close(), e.ck.Memory.Free())
}

// Resolve validates o for a picture of this model and fills in every default, as a request does. It
// returns an error if the number of tokens depends on the picture.
func (e *Engine) Resolve(o methods.Options) (*methods.Plan, error) {
	p, err := e.anyPicture()
	if err != nil {
		return nil, err
	}
	if b, err := methods.NewBefore(&o); err != nil {
		return nil, err
	} else if b != nil && p.whole {
		return nil, cannotBefore(b, needsAll)
	}
	planned, err := e.plan(p.shape, o)
	return planned.plan, err
}

// anyPicture describes the pictures of a model that all have as many tokens.
type anyPicture struct {
	shape *model.Shape
	whole bool // the encoder needs all patches
}

func (e *Engine) describePicture() (*anyPicture, error) {
	if s := e.m.Info().Sizes; s == nil || s.Views != 1 {
		return nil, fmt.Errorf("engine: %s: the number of tokens depends on the picture", e.ck.Name)
	}
	_, pic, err := e.blank(1, 1)
	if err != nil {
		return nil, err
	}
	_, divisible := pic.(model.Divisible)
	return &anyPicture{pic.Shape(), !divisible}, nil
}

// recipe returns the model's own recipe, or nil if it has none.
func (e *Engine) recipe() (*methods.Recipe, error) {
	part := &e.ck.Parts().Recipe
	if part.Data == nil {
		return nil, nil
	}
	r, err := methods.ReadRecipe(bytes.NewReader(part.Data))
	if err != nil {
		return nil, fmt.Errorf("engine: %s: %s: %w", e.ck.Name, part.From, err)
	}
	return r, nil
}

// budgets returns the model's own thresholds for budgets by content, or nil if it has none.
func (e *Engine) budgets() (*methods.Budgets, error) {
	part := &e.ck.Parts().Budgets
	if part.Data == nil {
		return nil, nil
	}
	b, err := methods.ReadBudgets(bytes.NewReader(part.Data))
	if err != nil {
		return nil, fmt.Errorf("engine: %s: %s: %w", e.ck.Name, part.From, err)
	}
	return b, nil
}

// Close ends running and waiting requests with errs.ErrClosed, stops the workers, and frees all
// memory. It may be called at any time, and more than once.
func (e *Engine) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	e.reading.Stop()
	if e.device != nil {
		e.device.close()
	}
	e.saving.ended.Wait()
	e.pool.Close()
	return errors.Join(e.pages.Free(), e.ck.Memory.Free(), e.ck.Close())
}

// Checked returns when all weights of a packed file are checked, with the error of the first that
// was damaged, or when ctx ends, with its cause. For other files it returns at once.
func (e *Engine) Checked(ctx context.Context) error {
	if err := e.Closed(); err != nil {
		return err
	}
	return e.reading.Wait(ctx)
}

// Closed returns errs.ErrClosed after Close, and nil before.
func (e *Engine) Closed() error {
	if e.closed.Load() {
		return fmt.Errorf("engine: %w", errs.ErrClosed)
	}
	return nil
}

// Stats counts cache activity and sequences.
type Stats struct {
	Features, Prefixes CacheStats
	Unsaved            int64 // pictures that the store did not get, because too many waited
	KVBytes, KVLimit   int64
	Running, Waiting   int
}

// Stats returns the current numbers.
func (e *Engine) Stats() Stats {
	page := e.pages.PageBytes()
	s := Stats{
		Features: e.cached.numbers(), Unsaved: e.saving.numbers(),
		KVBytes: int64(e.pages.Used()) * page,
		KVLimit: int64(e.pagesMost) * page,
		Prefixes: CacheStats{
			Hits: e.prefixes.hits.Load(), Misses: e.prefixes.misses.Load(),
			Evictions: e.prefixes.evictions.Load(),
		},
	}
	if e.device != nil {
		s.Running, s.Waiting = e.device.depth()
	}
	return s
}

// documents reads the parts of the model other than its weights.
func (e *Engine) documents() (err error) {
	p := e.ck.Parts()
	if p.Tokenizer.Data != nil {
		if e.tok, err = tokenizer.Open(p.Tokenizer.Data, p.Settings.Data); err != nil {
			return fmt.Errorf("%s: %s: %w", e.ck.Name, p.Tokenizer.From, err)
		}
		if n := e.tok.VocabSize(); n > e.shape.Vocab {
			return fmt.Errorf("engine: %s: %s: %d ids, want at most the %d of the model's "+
				"vocabulary", e.ck.Name, p.Tokenizer.From, n, e.shape.Vocab)
		}
		if id := e.m.ImageToken(); id < 0 {
			e.tok.Place(PicturePlace, id)
		}
		if m, ok := e.m.(model.Spelled); ok {
			if _, err := e.spell(""); err != nil {
				return err
			}
			m.Spell(e.spell)
		}
	}
	if p.Processor.Data != nil {
		if e.proc, e.noVideos, err = families.Prepares(e.ck.Name, p); err != nil {
			return err
		}
	}
	if p.Specials.Data != nil {
		if err = json.Unmarshal(p.Specials.Data, &e.special); err != nil {
			return fmt.Errorf("engine: %s: %s: %w", e.ck.Name, p.Specials.From, err)
		}
	}
	e.source = p.Template.From
	if p.Template.Data == nil {
		e.template, e.source = chat.Fallback()
		if e.tok != nil {
			e.warn("the checkpoint has no chat template: using " + e.source)
		}
	} else if e.template, err = chat.Parse(string(p.Template.Data)); err != nil {
		return fmt.Errorf("%s: %s: %w", e.ck.Name, e.source, err)
	}
	if m, ok := e.m.(model.Timed); ok {
		if _, own := m.Clip(); own != "" {
			if e.clips, err = chat.Parse(own); err != nil {
				return err
			}
		}
	}
	return e.endTokens()
}

// spell returns the ids of a text in a picture. It is encoded without the picture's tokens and the
// text around the picture, so none of its tokens may depend on them.
func (e *Engine) spell(text string) ([]int32, error) {
	ids, err := e.tok.EncodeSegments([]tokenizer.Segment{{Text: text}}, tokenizer.EncodeOptions{})
	for _, id := range append(slices.Clone(ids), e.m.ImageToken()) {
		if err == nil && !e.tok.StandsAlone(id) {
			of, _ := e.tok.Token(id)
			err = fmt.Errorf("engine: %s: %s: token %q: got lstrip, rstrip or single_word, "+
				"want none of them for a token in a picture", e.ck.Name,
				e.ck.Parts().Tokenizer.From, of)
		}
	}
	return ids, err
}

// PicturePlace is the text that templates write for a picture if the vocabulary has no token for
// it.
const PicturePlace = "<image>"

// lacks returns the error for a request that needs a part which the model lacks.
func (e *Engine) lacks(part *checkpoint.Part, need string) error {
	return fmt.Errorf("engine: %s: no %s, %s", e.ck.Name, part.From, need)
}

// endTokens collects the ids that end an answer: from the generation settings, or else from the
// configuration, plus the tokenizer's eos_token.
func (e *Engine) endTokens() error {
	if part := &e.ck.Parts().Generation; part.Data != nil {
		v, err := model.ParseDocument(part.From, part.Data)
		if err != nil {
			return fmt.Errorf("engine: %s: %w", e.ck.Name, err)
		}
		for _, id := range v.IDs("eos_token_id") {
			e.eos[id] = true
		}
		if err := v.Err(); err != nil {
			return fmt.Errorf("engine: %s: %w", e.ck.Name, err)
		}
	}
	if len(e.eos) == 0 {
		for _, id := range e.m.Info().EOS {
			e.eos[id] = true
		}
	}
	if e.tok != nil {
		if id, ok := e.tok.TokenID(e.special["eos_token"]); ok {
			e.eos[id] = true
		}
	}
	return nil
}

type (
	// Sizes are the quantities that determine the number of operations.
	Sizes = model.Sizes
	// Tower is a stack of transformer blocks in Sizes.
	Tower = model.Tower
)

// Info describes the loaded model.
type Info struct {
	model.Info
	Name   string
	Format string // format of the files
	// bytes of all files; for a model in memory, of the weights only
	Disk      int64
	Encoder   *Encoder         // nil if the model has none
	Kept      map[string]int64 // number of values by type in memory
	Resident  int64            // bytes that weights take in memory
	Threads   int
	Kernel    string // implementation of the arithmetic in use
	Template  string // where the chat template came from
	Processor string // picture processor; "" if the model has none
	Videos    string // video processor; "" if the model takes no videos
	NoVideos  string // the setting of videos for which they are refused; "" if there is none
	Tokens    int    // number of tokenizer ids; 0 if the model has none
	End       []int32
	// settings of generation that have no effect here, with their values
	Unused []string
}

// Encoder describes the weights of the vision tower and the projector.
type Encoder struct {
	Type string `json:"type"` // of EncoderQuantTypes
	// Why says why the program chose the type; "" if it is the caller's or the files'.
	Why string `json:"why,omitempty"`
}

// String returns the type and why it was chosen.
func (e *Encoder) String() string {
	if e.Why == "" {
		return e.Type
	}
	return e.Type + ", because " + e.Why
}

// Info returns the description that `show` prints.
func (e *Engine) Info() Info {
	i := Info{
		Info: e.m.Info(), Name: e.ck.Name, Threads: e.pool.Threads(),
		Kernel: kernel.Implementation(), Template: e.source,
	}
	i.Resident, i.Kept = e.ck.Resident()
	if name, why := e.ck.Encoder(); name != "" {
		i.Encoder = &Encoder{name, why}
	}
	about := e.ck.About()
	i.Format = about.Format
	for _, file := range about.Files {
		if info, err := os.Stat(file); err == nil {
			i.Disk += info.Size()
		}
	}
	if len(about.Files) == 0 {
		i.Disk = about.Size
	}
	if e.proc != nil {
		i.Processor = e.proc.Name()
	}
	i.Videos, i.NoVideos = e.aboutVideos()
	i.Unused = e.aboutGeneration()
	if e.tok != nil {
		i.Tokens = e.tok.VocabSize()
	}
	i.End = slices.Sorted(maps.Keys(e.eos))
	return i
}

// calibration returns the attention bias for a prompt about pics. It is nil if no picture loses a
// token, so that a budget of all tokens equals no reduction exactly.
func (e *Engine) calibration(pics []*picture) (*nn.Calibration, error) {
	var c *nn.Calibration
	for _, p := range pics {
		o := &p.plan.Resolved
		if !o.Restore || o.Calibrate == "off" || p.whole() && len(o.Stages) == 0 {
			continue
		}
		own := nn.Calibration{
			Size:           o.Calibrate == "full" || o.Calibrate == "size",
			Distance:       o.Calibrate == "full" || o.Calibrate == "distance",
			DecodeDistance: o.DecodeDistance,
			Truncate:       o.TruncateDistances,
		}
		if len(o.Stages) > 0 {
			own.From = p.plan.FirstReduced()
		}
		if c == nil {
			c = &own
			continue
		}
		if c.Distance != own.Distance || c.DecodeDistance != own.DecodeDistance ||
			c.Truncate != own.Truncate {
			return nil, fmt.Errorf("engine: %w", &errs.OptionError{
				Name: "calibrate", Got: o.Calibrate, Fault: errs.Conflict,
				Want: "the same distance terms for all pictures",
				Why:  "they act on every row of a prompt",
			})
		}
		c.Size, c.From = c.Size || own.Size, min(c.From, own.From)
	}
	if c != nil && c.Distance {
		e.measure(c)
	}
	return c, nil
}

// measure sets the distance term of c, in each layer by its rotation.
func (e *Engine) measure(c *nn.Calibration) {
	distance, ropes := e.distance(), e.shape.RoPE
	c.Distances = distance[ropes[0]]
	if len(distance) == 1 {
		return
	}
	by := map[*nn.RoPE]*nn.Calibration{}
	for rope, d := range distance {
		own := *c
		own.Distances, by[rope] = d, &own
	}
	for _, rope := range ropes {
		c.Layers = append(c.Layers, by[rope])
	}
}

// Context returns the most positions that a prompt and its answer may span.
func (e *Engine) Context() int { return e.context }
