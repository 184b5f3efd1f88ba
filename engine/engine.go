package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/kernel"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/model/all"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
	"github.com/restore-vlm/restore/tokenizer"
	"github.com/restore-vlm/restore/tokenizer/chat"
)

// Options configure an Engine.
type Options struct {
	Threads  int                     // worker threads; 0: all cores that Go may use
	Progress func(done, total int64) // bytes read while loading; may be nil
	Warn     func(message string)    // told of everything that is done otherwise than the checkpoint says; may be nil

	// Quant keeps the decoder's weights as "q4", "q8", "bf16", "f16" or "f32", and
	// EncoderQuant those of vision tower and projector as "q8", "bf16", "f16" or
	// "f32"; "" keeps them as they are stored. With q4 the decoder's embedding and
	// head are kept at q8. Weights are converted while loading. Products with q8 and
	// q4 round activations to 8 bits in blocks of 32, those with bf16 to bfloat16; all
	// others compute in float32. Of a packed file they are "" or what it is packed as.
	Quant, EncoderQuant string
	// CacheType is the type in which keys and values are kept: "f16", or "f32" and
	// "", which mean the same. f16 rounds them and takes half the memory.
	CacheType string
	// Describe binds the weights without converting them: Info is all that works.
	Describe bool

	// Limits on the pixels of a resized picture, for models that take pictures of any size; 0 is what preprocessor_config.json says.
	MinPixels, MaxPixels int

	// Weights, when not nil, makes the weights that the checkpoint lacks, for
	// benchmarks of a shape whose checkpoint is [checkpoint.FromConfig]'s: a tensor
	// of that shape, of type d (F16 where the plan names none), in which it is kept
	// as it is, or of another floating type, from which it is converted to d. Vectors
	// are asked for as F32. Calls come one at a time; blocks of m are in huge pages
	// and live as long as the engine.
	Weights func(m *kernel.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor
	// Work counts the products of all layers, for benchmarks; may be nil.
	Work *nn.Work
	// Processor prepares pictures where the checkpoint has no
	// preprocessor_config.json, for benchmarks of a shape; may be nil.
	Processor imageproc.Processor
}

// What Quant and EncoderQuant may be, besides "".
var (
	QuantTypes        = model.PlanTypes
	EncoderQuantTypes = model.EncoderTypes
)

// CacheTypes is what CacheType may be, besides "".
var CacheTypes = []string{"f32", "f16"}

// source says how ck is bound.
func (o *Options) source(ck *checkpoint.Checkpoint) *model.Source {
	return &model.Source{
		Checkpoint: ck, Plan: model.Plan{Decoder: o.Quant, Encoder: o.EncoderQuant},
		Memory: new(kernel.Memory), Progress: o.Progress, Dry: o.Describe, Make: o.Weights, Work: o.Work,
	}
}

// Engine is a loaded model with its tokenizer, chat template and picture
// processor.
type Engine struct {
	ck       *model.Source
	m        model.Multimodal
	shape    model.DecoderShape
	pool     *kernel.Pool
	half     bool // keys and values are kept in float16
	warn     func(string)
	tok      *tokenizer.Tokenizer // nil when the directory has none
	template *chat.Template
	source   string              // where the template came from
	proc     imageproc.Processor // nil when the directory has none
	special  map[string]string   // bos_token, eos_token, … for the template
	eos      map[int32]bool
	runs     spare[*model.Run]  // workspaces
	caches   spare[*nn.KVCache] // empty

	distance func() *nn.Distances // the calibration's distance term, built at the first use
}

// New binds ck. A directory with config.json and weights alone is enough for
// Trace on token ids and pixel values; what Ask needs besides is asked for then.
func New(ck *checkpoint.Checkpoint, o Options) (*Engine, error) {
	return newEngine(ck, o, nil)
}

// newEngine binds ck; sink, when not nil, takes the weights.
func newEngine(ck *checkpoint.Checkpoint, o Options, sink func(string, *tensor.Tensor) error) (_ *Engine, err error) {
	if err := kernel.ImplementationError(); err != nil {
		return nil, err
	}
	if o.Threads < 0 || o.Threads > 1024 {
		return nil, fmt.Errorf("engine: threads: got %d, want 1 to 1024 (0: all cores)", o.Threads)
	}
	if o.CacheType != "" && !slices.Contains(CacheTypes, o.CacheType) {
		return nil, fmt.Errorf("engine: cache type: got %q, want %s", o.CacheType, strings.Join(CacheTypes, " or "))
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	src := o.source(ck)
	src.Sink = sink
	if err := src.Plan.Check(); err != nil {
		return nil, err
	}
	if err := packedAs(ck, src.Plan); err != nil {
		return nil, err
	}
	e := &Engine{ck: src, warn: o.Warn, half: o.CacheType == "f16", eos: map[int32]bool{}, special: map[string]string{}, pool: kernel.NewPool(o.Threads)}
	src.Pool = e.pool
	defer func() {
		if err != nil {
			e.pool.Close()
			err = errors.Join(err, src.Memory.Free())
		}
	}()
	if !o.Describe {
		if err = ck.Load(src.Memory.Bytes, e.pool.Run, o.Progress); err != nil {
			return nil, err
		}
	}
	if e.m, err = all.Open(src); err != nil {
		return nil, err
	}
	e.shape = e.m.Decoder().Shape()
	if err := e.files(); err != nil {
		return nil, err
	}
	if e.proc == nil {
		e.proc = o.Processor
	}
	if o.MinPixels != 0 || o.MaxPixels != 0 {
		if e.proc == nil {
			return nil, fmt.Errorf("engine: %s: min-pixels and max-pixels: got %d and %d, which have no effect without preprocessor_config.json", ck.Name, o.MinPixels, o.MaxPixels)
		}
		if e.proc, err = imageproc.LimitPixels(e.proc, o.MinPixels, o.MaxPixels); err != nil {
			return nil, err
		}
	}
	if o.Progress != nil && ck.Packed() == nil && !o.Describe {
		if src.Plan == (model.Plan{}) {
			src.Warm(o.Progress)
		} else {
			o.Progress(src.Bytes(), src.Bytes()) // what is not converted is read when it is needed
		}
	}
	e.distance = sync.OnceValue(func() *nn.Distances {
		return nn.NewDistances(e.shape.RoPE, reduce.C0, e.shape.MaxPositions+1)
	})
	return e, nil
}

// packedAs refuses a packed file of other types than the plan's, or of a form
// that this program does not compute with.
func packedAs(ck *checkpoint.Checkpoint, plan model.Plan) error {
	p := ck.Packed()
	if p == nil {
		return nil
	}
	if got := kernel.Layout(); p.Layout != got {
		return fmt.Errorf("engine: %s: packed in the layout %q, this program computes with %q: pack the checkpoint again", ck.Name, p.Layout, got)
	}
	for _, c := range []struct{ what, got, want string }{{"quant", plan.Decoder, p.Quant}, {"encoder-quant", plan.Encoder, p.EncoderQuant}} {
		if c.got != "" && c.got != c.want {
			if c.want == "" {
				c.want = "as stored"
			}
			return fmt.Errorf("engine: %s: got %q, want none or what %s is packed as, %s", c.what, c.got, ck.Name, c.want)
		}
	}
	return nil
}

// Pack writes ck with its weights as o's plan keeps them to w, in the form that
// [checkpoint.Open] opens as ready to run. Weights are converted and written one by
// one. It does not close ck.
func Pack(ck *checkpoint.Checkpoint, o Options, w io.Writer) error {
	how := checkpoint.Packed{Layout: kernel.Layout(), Quant: o.Quant, EncoderQuant: o.EncoderQuant}
	if p := ck.Packed(); p != nil {
		how = *p
	}
	pack, err := ck.NewPackWriter(w, how)
	if err != nil {
		return err
	}
	e, err := newEngine(ck, o, pack.Add)
	if err != nil {
		return err
	}
	e.pool.Close()
	return errors.Join(pack.Close(), e.ck.Memory.Free())
}

// Resolve checks o for a picture of this model and fills in every default, as a request does. Models whose pictures have no number of
// tokens of their own are refused.
func (e *Engine) Resolve(o reduce.Options) (reduce.Resolved, error) {
	s := e.m.Info().Sizes
	if s == nil || s.Views != 1 {
		return reduce.Resolved{}, fmt.Errorf("engine: %s: the number of tokens depends on the picture", e.ck.Name)
	}
	s.Fill(&o)
	if o.WantsRecipe() {
		var err error
		if o.FitPruneRecipe, err = e.recipe(); err != nil {
			return reduce.Resolved{}, err
		}
	}
	return o.Resolve(s.Tokens)
}

// recipeFile is the file beside the weights that holds the model's own recipe.
const recipeFile = "fitprune.json"

// recipe returns the model's own recipe, nil where it has none.
func (e *Engine) recipe() (*reduce.Recipe, error) {
	data, ok, err := e.ck.File(recipeFile)
	if err != nil || !ok {
		return nil, err
	}
	r, err := reduce.ReadRecipe(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("engine: %s: %s: %w", e.ck.Name, recipeFile, err)
	}
	return r, nil
}

// Close stops the workers, gives converted weights back and unmaps the others. No
// request may be running.
func (e *Engine) Close() error {
	e.pool.Close()
	return errors.Join(e.ck.Memory.Free(), e.ck.Close())
}

// files reads what lies beside the weights.
func (e *Engine) files() error {
	data, ok, err := e.ck.File("tokenizer.json")
	if err != nil {
		return err
	}
	if ok {
		if e.tok, err = tokenizer.Parse(data); err != nil {
			return fmt.Errorf("%s: tokenizer.json: %w", e.ck.Name, err)
		}
		if n := e.tok.VocabSize(); n > e.shape.Vocab {
			return fmt.Errorf("engine: %s: tokenizer.json: %d ids, want at most config.json's vocab_size %d", e.ck.Name, n, e.shape.Vocab)
		}
	}
	if data, ok, err = e.ck.File("preprocessor_config.json"); err != nil {
		return err
	}
	if ok {
		if e.proc, err = imageproc.ParseProcessor(data); err != nil {
			return fmt.Errorf("%s: preprocessor_config.json: %w", e.ck.Name, err)
		}
	}
	if err := e.specials(); err != nil {
		return err
	}
	text, source, err := chat.Find(e.ck.File)
	if err != nil {
		return err
	}
	e.source = source
	if text == "" {
		e.template, e.source = chat.Fallback()
		if e.tok != nil {
			e.warn("the checkpoint has no chat template: using " + e.source)
		}
	} else if e.template, err = chat.Parse(text); err != nil {
		return fmt.Errorf("%s: %s: %w", e.ck.Name, source, err)
	}
	return e.endTokens()
}

// specials reads bos_token, eos_token, … as templates see them.
func (e *Engine) specials() error {
	for _, name := range []string{"special_tokens_map.json", "tokenizer_config.json"} {
		data, ok, err := e.ck.File(name)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return fmt.Errorf("engine: %s: %s: %w", e.ck.Name, name, err)
		}
		for _, key := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
			var s string
			var o struct{ Content string }
			if json.Unmarshal(fields[key], &s) == nil && s != "" {
				e.special[key] = s
			} else if json.Unmarshal(fields[key], &o) == nil && o.Content != "" {
				e.special[key] = o.Content
			}
		}
	}
	return nil
}

// endTokens collects the ids that end an answer: generation_config.json's,
// else config.json's, and the tokenizer's eos_token.
func (e *Engine) endTokens() error {
	data, ok, err := e.ck.File("generation_config.json")
	if err != nil {
		return err
	}
	if ok {
		v, err := model.ParseConfig(data)
		if err != nil {
			return fmt.Errorf("engine: %s: generation_config.json: %w", e.ck.Name, err)
		}
		for _, id := range v.Ints("eos_token_id", nil) {
			e.eos[int32(id)] = true
		}
		if err := v.Err(); err != nil {
			return fmt.Errorf("engine: %s: generation_config.json: %w", e.ck.Name, err)
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
	// Sizes are what the number of operations depends on.
	Sizes = model.Sizes
	// Tower is a stack of transformer blocks in Sizes.
	Tower = model.Tower
)

// Info describes the loaded model.
type Info struct {
	model.Info
	Name      string
	Kept      map[string]int64 // numbers by the type in which they are kept
	Resident  int64            // bytes that weights take in memory
	Threads   int
	Kernel    string // implementation of the arithmetic in use
	Template  string // where the chat template came from
	Processor string // picture processor, empty when the directory has none
	Tokens    int    // ids of the tokenizer, 0 when the directory has none
	End       []int32
}

// Info returns what `show` prints.
func (e *Engine) Info() Info {
	i := Info{Info: e.m.Info(), Name: e.ck.Name, Threads: e.pool.Threads(), Kernel: kernel.Implementation(), Template: e.source}
	i.Resident, i.Kept = e.ck.Resident()
	if e.proc != nil {
		i.Processor = e.proc.Name()
	}
	if e.tok != nil {
		i.Tokens = e.tok.VocabSize()
	}
	for id := range e.eos {
		i.End = append(i.End, id)
	}
	sort.Slice(i.End, func(a, b int) bool { return i.End[a] < i.End[b] })
	return i
}

// calibration returns the bias of one request, nil when none acts. identity
// says that no picture lost a token: then nothing is calibrated, so that a
// budget of all tokens is exactly no reduction.
func (e *Engine) calibration(o *reduce.Resolved, identity bool) *nn.Calibration {
	if o == nil || !o.Restore || identity || o.Calibrate == "off" {
		return nil
	}
	c := &nn.Calibration{
		Size:           o.Calibrate == "full" || o.Calibrate == "size",
		Distance:       o.Calibrate == "full" || o.Calibrate == "distance",
		DecodeDistance: o.DecodeDistance,
		Truncate:       o.TruncateDistances,
	}
	if c.Distance {
		c.Distances = e.distance()
	}
	return c
}

// run takes a workspace; the caller gives it back with e.runs.put.
func (e *Engine) run() *model.Run {
	if r, ok := e.runs.take(); ok {
		return r
	}
	return &model.Run{Pool: e.pool}
}
