package restore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/diskcache"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
)

// WeightType is a type of weights, or of keys and values.
type WeightType string

// The types of weights. Products with Q8 and Q4 round activations to 8 bits in blocks of 32;
// products with Q12 to 14 bits in blocks of 128; products with BF16 round them to bfloat16; all
// others compute in float32.
const (
	Default  WeightType = ""       // see Options
	AsStored WeightType = "stored" // the types in the model's files
	Auto     WeightType = "auto"   // of a decoder: the widest that fits into free memory
	F32      WeightType = "f32"    // 32 bits
	F16      WeightType = "f16"    // IEEE half precision
	BF16     WeightType = "bf16"   // bfloat16
	Q12      WeightType = "q12"    // blocks of 128 with a scale, 12 bits in 16.25; for encoders
	Q8       WeightType = "q8"     // blocks of 32 with a scale, 8.5 bits
	Q4       WeightType = "q4"     // blocks of 32 with a scale, 4.5 bits; embedding, head stay Q8
)

// Options say how [Open] loads a model. The zero value has every default.
type Options struct {
	// Projector is what a model's own files lack. For a GGUF model it is the file with the encoder
	// and the projector (mmproj). The default is the only file next to the model with mmproj in its
	// name; if there is none, the model takes no pictures. For an original LLaVA it is the folder
	// of the vision tower: its configuration, and its weights unless the checkpoint has them. The
	// default is the folder that the model's configuration names.
	Projector string
	// Getenv returns the variables that say where the hub's cache is; nil is os.Getenv.
	Getenv func(string) string

	// Weights is the type of the language model's weights in memory, Encoder the type of the vision
	// tower's and the projector's; they are converted while they are loaded. Encoder cannot be Q4,
	// and Weights not Q12. By default they are as stored, except that a vision tower of 1024 or
	// wider becomes Q8 on processors with VNNI and without BF16, which multiply it twice as fast,
	// and Q12 on those with AVX2 alone, where it is a third faster; Warn is told.
	Weights, Encoder WeightType
	// KeysValues is F32, or F16, which rounds keys and values to 11 bits and takes half the memory.
	// The default is F16 if all products of the language model's blocks round activations, as with
	// Q4, Q8 and BF16, else F32.
	KeysValues WeightType

	// Threads to compute on, 1 to 1024. 0 uses all cores that Go may use. Results do not depend on
	// it.
	Threads int
	// MinPixels and MaxPixels limit the pixels of resized pictures, for models that take any size
	// and for some that cut pictures into tiles, whose number they limit; 0 takes the limit in the
	// model's files. Pad pads pictures to a square, for models that would
	// crop them.
	MinPixels, MaxPixels int
	Pad                  bool

	// Parallel is the most requests that run at once, 0: 8. Queue is the most that wait, 0: any
	// number, -1: none. Throughput is for answers that nobody reads while they are generated.
	Parallel, Queue int
	Throughput      bool
	// Context is the most positions of a prompt and its answer, 0: the model's.
	Context int
	// MemoryBytes limits the memory of weights, keys and values together, and is the free memory
	// that other limits start from; 0: what the system has.
	MemoryBytes int64
	// KVBytes limits the memory of keys and values, 0: a quarter of the free memory. FeatureBytes
	// limits the memory of encoded and reduced pictures, 0: 256 MB, -1: only those in use.
	// EncodedBytes limits the memory of pictures as the encoder returns them, so that requests with
	// other reductions need not encode them again, 0: none are kept.
	KVBytes, FeatureBytes, EncodedBytes int64
	// CacheFolder keeps reduced pictures across restarts, at most CacheBytes of them; 0: 10 GB.
	CacheFolder string
	CacheBytes  int64
	// Shared keeps reduced pictures for several processes; nil: none.
	Shared FeatureStore

	// Defaults are options that are ignored for a model that has no use for them; others are
	// refused then. They are named "mmproj" (Projector), "pad", "min-pixels" and "max-pixels".
	Defaults []string
	// Describe only describes the model: no weights are converted, and requests are refused.
	Describe bool

	// Progress is called while the model is loaded, with the bytes done and the total.
	Progress func(done, total int64)
	// Warn is called with one line for each point where the program departs from the model's files,
	// for example when they have no chat template, and for each fault of CacheFolder.
	Warn func(message string)
	// Panicked is called when a bug in this program ends a request with [errs.ErrInternal].
	Panicked func(value any, stack []byte)
}

// FeatureStore keeps reduced pictures by a hash of picture, processor, model and reduction. It
// returns exactly the bytes that it was given, or nothing. Several goroutines call Load at once,
// one calls Save. With wait set, Load may wait for another process that will save the same key
// soon.
type FeatureStore interface {
	Load(key [32]byte, wait bool) (data []byte, ok bool)
	Save(key [32]byte, data []byte)
}

// shared adapts a FeatureStore to the engine.
type shared struct{ FeatureStore }

// Load implements engine.Store.
func (s shared) Load(key engine.Key, wait bool) ([]byte, bool) {
	return s.FeatureStore.Load(key, wait)
}

// Save implements engine.Store.
func (s shared) Save(key engine.Key, data []byte) { s.FeatureStore.Save(key, data) }

// cacheBytes is the default of Options.CacheBytes.
const cacheBytes = 10e9

// files are the files of the model at path.
func (o *Options) files(path string) formats.Files {
	return formats.Files{Model: path, Projector: o.Projector, Getenv: o.Getenv,
		Defaults: o.Defaults}
}

// engine is the type of a decoder's weights for the engine.
func (t WeightType) engine() string {
	if t == AsStored {
		return ""
	}
	return string(t)
}

// engine are the options for the engine, without the store.
func (o *Options) engine() engine.Options {
	return engine.Options{
		Threads: o.Threads, Quant: o.Weights.engine(), EncoderQuant: string(o.Encoder),
		CacheType: string(o.KeysValues), MinPixels: o.MinPixels, MaxPixels: o.MaxPixels, Pad: o.Pad,
		Parallel: o.Parallel, Queue: o.Queue, Throughput: o.Throughput, Context: o.Context,
		MemoryBytes: o.MemoryBytes, KVBytes: o.KVBytes, FeatureBytes: o.FeatureBytes,
		EncodedBytes: o.EncodedBytes, Defaults: o.Defaults,
		Progress: o.Progress, Warn: o.Warn, Panicked: o.Panicked,
	}
}

// check refuses a limit of no folder, and defaults that no model leaves without use.
func (o *Options) check() error {
	if o.CacheFolder == "" && o.CacheBytes != 0 {
		return &errs.OptionError{Name: "cache-dir-mb", Got: fmt.Sprint(o.CacheBytes),
			Why: "without a folder for reduced pictures", Fault: errs.Useless}
	}
	for _, name := range o.Defaults {
		if !slices.Contains(formats.Optional, name) {
			return &errs.OptionError{Name: "defaults", Got: strconv.Quote(name),
				Want: "some of " + strings.Join(formats.Optional, ", "), Fault: errs.Unknown}
		}
	}
	return nil
}

// store opens CacheFolder; nil if there is none.
func (o *Options) store() (*diskcache.Cache, error) {
	if o.CacheFolder == "" {
		return nil, nil
	}
	most := o.CacheBytes
	switch {
	case most < 0:
		return nil, &errs.OptionError{Name: "cache-dir-mb", Got: fmt.Sprint(most),
			Want: "at least 0", Fault: errs.TooSmall}
	case most == 0:
		most = cacheBytes
	}
	c, err := diskcache.Open(o.CacheFolder, most, func(err error) {
		if o.Warn != nil {
			o.Warn("cache: " + err.Error())
		}
	})
	if err != nil {
		return nil, &errs.OptionError{Name: "cache-dir", Got: o.CacheFolder,
			Want: "a folder for reduced pictures", Why: err.Error()}
	}
	return c, nil
}

// store adapts a folder on disk to the engine.
type store struct{ *diskcache.Cache }

// Load implements engine.Store.
func (s store) Load(key engine.Key, _ bool) ([]byte, bool) { return s.Cache.Load(key) }

// Save implements engine.Store.
func (s store) Save(key engine.Key, data []byte) { s.Cache.Save(key, data) }

// modelError wraps an error about the files of the model at path.
func modelError(path string, err error) error {
	var option *errs.OptionError
	var model *errs.ModelError
	if err == nil || errors.As(err, &option) || errors.As(err, &model) {
		return err
	}
	if path == "" {
		path = "the embedded model"
	}
	return &errs.ModelError{Path: path, Err: err}
}
