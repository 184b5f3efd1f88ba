package cli

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/formats"
)

// ModelFlags say which model to open, and with how many threads.
type ModelFlags struct {
	Path           string // folder, file or name; "" is the embedded model
	projector      string
	getenv         func(string) string // nil: os.Getenv
	Threads        int
	Quant, Encoder string
	Cache          string // type of keys and values
	Describe       bool   // the model will not run

	Pad                  bool
	MinPixels, MaxPixels int // 0: the checkpoint's
	Flags                *pflag.FlagSet
	sized                bool // addResize declared its flags
}

// Add declares all flags of a model.
func (m *ModelFlags) Add(fs *pflag.FlagSet) {
	m.AddDir(fs)
	m.AddThreads(fs)
	m.AddQuant(fs)
	m.addCache(fs)
}

// AddModel declares --model.
func AddModel(fs *pflag.FlagSet, path *string) {
	fs.StringVarP(path, "model", "m", "",
		"`folder`, file or ORG/NAME of the model: a Hugging Face folder, a hub-cache "+
			"folder, a GGUF file, a packed file, or the name of what 'restore pull' has "+
			"downloaded")
	ShowDefault(fs, "model", "the embedded model")
}

// AddDir declares which model to open.
func (m *ModelFlags) AddDir(fs *pflag.FlagSet) {
	m.Flags = fs
	AddModel(fs, &m.Path)
	fs.StringVar(&m.projector, "mmproj", "",
		"`path` of the file with encoder and projector of a GGUF model; none is the only one with "+
			"mmproj in its name next to the model. Or of the folder of an original LLaVA's "+
			"vision tower; none is the one that the model names")
	fs.Bool("pull", false, "download the model from the Hugging Face hub when it is not in "+
		"the cache")
}

// The types that --quant, --encoder-quant and --cache-type take.
var quantChoices, encoderChoices, cacheChoices = func() (quant, encoder, cache []string) {
	names := func(types []restore.WeightType) (out []string) {
		for _, t := range types {
			out = append(out, string(t))
		}
		return out
	}
	q, e, c := restore.WeightTypes()
	return names(append(q, restore.Auto)), names(e), names(c)
}()

// AddQuant declares the types of weights.
func (m *ModelFlags) AddQuant(fs *pflag.FlagSet) {
	fs.StringVar(&m.Quant, "quant", "", "keep the language model's weights in this type; q4 "+
		"(its embedding and head stay at q8), q8 and bf16 round activations too; auto takes "+
		"the largest that fits in free memory")
	fs.StringVar(&m.Encoder, "encoder-quant", "",
		"keep the weights of vision tower and projector in this type, or as stored; q8, q12 and "+
			"bf16 round activations too")
	ShowDefault(fs, "quant", "as stored")
	OneOf(fs, "quant", quantChoices...)
	ShowDefault(fs, "encoder-quant", EncoderDefault)
	OneOf(fs, "encoder-quant", encoderChoices...)
}

// EncoderDefault describes the default of --encoder-quant.
const EncoderDefault = "stored; for a big vision tower q8 where the CPU has VNNI, " +
	"q12 where it has AVX2 alone"

// CacheDefault describes the default of --cache-type.
const CacheDefault = "f16 where products with the weights round activations, else f32"

func (m *ModelFlags) addCache(fs *pflag.FlagSet) {
	fs.StringVar(&m.Cache, "cache-type", "",
		"keep keys and values in this type; f16 rounds them and takes half the memory")
	ShowDefault(fs, "cache-type", CacheDefault)
	OneOf(fs, "cache-type", cacheChoices...)
}

// AddThreads declares the number of threads.
func (m *ModelFlags) AddThreads(fs *pflag.FlagSet) {
	fs.IntVarP(&m.Threads, "threads", "t", runtime.GOMAXPROCS(0), "compute on `N` threads")
	Within(fs, 1, MaxThreads, "threads")
}

// AddResize declares the limits for resizing pictures.
func (m *ModelFlags) AddResize(fs *pflag.FlagSet) {
	fs.IntVar(&m.MinPixels, "min-pixels", 0,
		"resize pictures to at least `N` pixels (where the model's processor can)")
	fs.IntVar(&m.MaxPixels, "max-pixels", 0,
		"resize pictures to at most `N` pixels (where the model's processor can)")
	for _, name := range []string{"min-pixels", "max-pixels"} {
		ShowDefault(fs, name, "the checkpoint's")
		Within(fs, 1, math.Inf(1), name)
	}
	fs.BoolVar(&m.Pad, "pad", false, "pad pictures to a square, as the original LLaVA does, "+
		"instead of cutting their edges off (models that crop)")
	m.Flags, m.sized = fs, true
}

// CheckResize refuses limits that no picture can meet.
func (m *ModelFlags) CheckResize() error {
	if !m.sized {
		return nil
	}
	if m.MinPixels > m.MaxPixels && m.MaxPixels != 0 {
		return Flagf("min-pixels", "more than --max-pixels, got %d and %d, want at most as many",
			m.MinPixels, m.MaxPixels)
	}
	return nil
}

// MaxThreads is the engine's limit.
const MaxThreads = 1024

// Open opens the model. Warnings, and progress on a terminal, go to a.err.
func (m *ModelFlags) Open(ctx context.Context, a *App) (*restore.Model, error) {
	o, end, err := m.Options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	return m.Opened(ctx, o)
}

// Opened opens the model with o.
func (m *ModelFlags) Opened(ctx context.Context, o *restore.Options) (*restore.Model, error) {
	model, err := restore.Open(ctx, m.Path, o)
	if err == nil && !o.Describe {
		LimitGarbage(model.Info().Bytes)
		limitHeap(model, o.MemoryBytes)
	}
	return model, ModelCause(err)
}

// ModelCause returns the cause of an error about a model's files, which names them itself.
func ModelCause(err error) error {
	var model *errs.ModelError
	if errors.As(err, &model) {
		return model.Err
	}
	return err
}

// LimitGarbage limits the garbage of a process with so many bytes of weights.
func LimitGarbage(bytes int64) {
	if bytes >= largeModel && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(largeGarbage)
	}
}

// leastHeap is the least limit of the heap: with less, garbage collection would take most of the
// time.
const leastHeap = 128 * MB

// limitHeap makes garbage collection keep the heap in what memory leaves next to the weights, keys
// and values, unless GOMEMLIMIT says more exactly. On Linux these lie outside of the heap.
func limitHeap(m *restore.Model, memory int64) {
	if memory == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if runtime.GOOS == "linux" {
		memory -= m.Info().Bytes + m.Stats().KVLimit
	}
	debug.SetMemoryLimit(max(memory, leastHeap))
}

// OpenShape describes a shape as open describes a model.
func (m *ModelFlags) OpenShape(a *App, name string) (*restore.Model, error) {
	o, end, err := m.Options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	config, err := ShapeFlag(name)
	if err != nil {
		return nil, err
	}
	model, err := restore.DescribeShape(name, config, o)
	return model, ModelCause(err)
}

// Weights lie outside of the heap, which holds keys, values and buffers that live as long as
// requests. From largeModel bytes of weights on, at most largeGarbage percent of the heap may be
// garbage, to limit peak memory; collections are rare and cheap then.
const (
	largeModel   = 1 << 30
	largeGarbage = 20
)

// Options are the options for open. Progress is shown until end is called.
func (m *ModelFlags) Options(a *App) (_ *restore.Options, end func(), err error) {
	if err := m.CheckResize(); err != nil {
		return nil, nil, err
	}
	p := a.Meter("loading").bytes()
	return &restore.Options{
		Projector: m.projector, Getenv: m.getenv, Describe: m.Describe,
		Threads: m.Threads, Weights: restore.WeightType(m.Quant),
		Encoder: restore.WeightType(m.Encoder), KeysValues: restore.WeightType(m.Cache),
		MinPixels: m.MinPixels, MaxPixels: m.MaxPixels, Pad: m.Pad,
		Defaults: m.Defaults(),
		Warn:     func(s string) { a.Note("%s", s) }, Progress: p.Set,
	}, p.End, nil
}

// Paths are the files and folders that the flags name.
func (m *ModelFlags) Paths() []string { return []string{m.Path, m.projector} }

// Defaults are the flags that variables set and for which some models have no use.
func (m *ModelFlags) Defaults() []string {
	return slices.DeleteFunc(fromVariables(m.Flags), func(name string) bool {
		return !slices.Contains(formats.Optional, name)
	})
}

// Files are the model's files.
func (m *ModelFlags) Files() formats.Files {
	return formats.Files{Model: m.Path, Projector: m.projector, Getenv: m.getenv,
		Defaults: m.Defaults()}
}

// Bundle opens the model's files, after checking that they are a model.
func (m *ModelFlags) Bundle(ctx context.Context, a *App) (checkpoint.Bundle, error) {
	checked := *m
	checked.Describe, checked.Threads = true, 1
	model, err := checked.Open(ctx, a)
	if err != nil {
		return nil, err
	}
	if err := model.Close(); err != nil {
		return nil, err
	}
	return m.Files().Open()
}
