package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
)

// modelFlags say which model to open, and with how many threads.
type modelFlags struct {
	files          formats.Files
	threads        int
	quant, encoder string
	cache          string // type of keys and values
	describe       bool   // the model will not run

	pad                  bool
	minPixels, maxPixels int            // 0: the checkpoint's
	fs                   *pflag.FlagSet // of addResize
}

func (m *modelFlags) add(fs *pflag.FlagSet) {
	m.addDir(fs)
	m.addThreads(fs)
	m.addQuant(fs)
	m.addCache(fs)
}

func (m *modelFlags) addDir(fs *pflag.FlagSet) {
	fs.StringVarP(&m.files.Model, "model", "m", "",
		"`folder`, file or ORG/NAME of the model: a Hugging Face folder, a hub-cache "+
			"folder, a GGUF file, a packed file, or the name of what 'restore pull' has "+
			"downloaded; default: the embedded model")
	fs.StringVar(&m.files.Tower, "vision-tower", "",
		"`folder` of the vision tower of an original LLaVA model; none is the one that the "+
			"model names")
	fs.StringVar(&m.files.Projector, "mmproj", "",
		"`file` of encoder and projector of a GGUF model; none is the only one with mmproj "+
			"in its name next to the model")
	fs.Bool("pull", false, "download the model from the Hugging Face hub when it is not in "+
		"the cache")
}

// quantChoices are what --quant takes.
var quantChoices = append(slices.Clone(engine.QuantTypes), engine.QuantAuto)

func (m *modelFlags) addQuant(fs *pflag.FlagSet) {
	fs.StringVar(&m.quant, "quant", "", "keep the language model's weights in this type; q4 "+
		"(its embedding and head stay at q8), q8 and bf16 round activations too; auto takes "+
		"the largest that fits in free memory")
	fs.StringVar(&m.encoder, "encoder-quant", "",
		"keep the weights of vision tower and projector in this type, or as stored; q8, q12 and "+
			"bf16 round activations too")
	fs.Lookup("quant").Annotations = map[string][]string{
		applies: {"as stored"}, choices: {strings.Join(quantChoices, "|")},
	}
	fs.Lookup("encoder-quant").Annotations = map[string][]string{
		applies: {encoderDefault}, choices: {strings.Join(engine.EncoderQuantTypes, "|")},
	}
}

// encoderDefault describes the default of --encoder-quant.
const encoderDefault = "stored; for a big vision tower q8 where the CPU has VNNI and no BF16, " +
	"q12 where it has AVX2 alone"

func (m *modelFlags) addCache(fs *pflag.FlagSet) {
	fs.StringVar(&m.cache, "cache-type", "f32",
		"keep keys and values in this type; f16 rounds them and takes half the memory")
	fs.Lookup("cache-type").Annotations = map[string][]string{
		choices: {strings.Join(engine.CacheTypes, "|")},
	}
}

func (m *modelFlags) addThreads(fs *pflag.FlagSet) {
	fs.IntVarP(&m.threads, "threads", "t", runtime.GOMAXPROCS(0), "compute on `N` threads")
}

// addResize declares the limits for resizing pictures.
func (m *modelFlags) addResize(fs *pflag.FlagSet) {
	fs.IntVar(&m.minPixels, "min-pixels", 0,
		"resize pictures to at least `N` pixels (models that take any size)")
	fs.IntVar(&m.maxPixels, "max-pixels", 0,
		"resize pictures to at most `N` pixels (models that take any size)")
	for _, name := range []string{"min-pixels", "max-pixels"} {
		fs.Lookup(name).Annotations = map[string][]string{applies: {"the checkpoint's"}}
	}
	fs.BoolVar(&m.pad, "pad", false, "pad pictures to a square, as the original LLaVA does, "+
		"instead of cutting their edges off\n        (models that crop)")
	m.fs = fs
}

// checkResize refuses limits that no picture can meet.
func (m *modelFlags) checkResize() error {
	if m.fs == nil {
		return nil
	}
	if m.fs.Changed("min-pixels") && m.minPixels < 1 {
		return usagef("--min-pixels: out of range, got %d, want at least 1", m.minPixels)
	}
	if m.fs.Changed("max-pixels") && m.maxPixels < 1 {
		return usagef("--max-pixels: out of range, got %d, want at least 1", m.maxPixels)
	}
	if m.minPixels > m.maxPixels && m.maxPixels != 0 {
		return usagef("--min-pixels: more than --max-pixels, got %d and %d, want at most as many",
			m.minPixels, m.maxPixels)
	}
	return nil
}

func (m *modelFlags) check() error {
	if m.threads < 1 || m.threads > maxThreads {
		return usagef("--threads: out of range, got %d, want 1 to %d", m.threads, maxThreads)
	}
	for _, c := range []struct {
		flag, got string
		types     []string
	}{
		{"quant", m.quant, quantChoices}, {"encoder-quant", m.encoder, engine.EncoderQuantTypes},
		{"cache-type", m.cache, engine.CacheTypes},
	} {
		if c.got != "" && !slices.Contains(c.types, c.got) {
			return usagef("--%s: got %q, want %s", c.flag, c.got, strings.Join(c.types, "|"))
		}
	}
	return m.checkResize()
}

// maxThreads is the engine's limit.
const maxThreads = 1024

// open opens the model. Warnings, and progress on a terminal, go to a.err.
func (m *modelFlags) open(a *app) (*engine.Engine, error) {
	o, end, err := m.options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	model, err := engine.OpenWith(m.files, o, engine.Hooks{Describe: m.describe})
	if err == nil && !m.describe {
		limitGarbage(model)
	}
	return model, err
}

// limitGarbage limits the garbage of a process with a large model.
func limitGarbage(m *engine.Engine) {
	if m.Info().Resident >= largeModel && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(largeGarbage)
	}
}

// openShape describes a shape as open describes a model.
func (m *modelFlags) openShape(a *app, name string) (*engine.Engine, error) {
	if m.quant == engine.QuantAuto {
		return nil, usagef("--quant and --shape: got auto and %s, want a type: auto is for "+
			"a model's files", name)
	}
	o, end, err := m.options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	s, err := loadShape(name)
	if err != nil {
		return nil, err
	}
	return s.describe(o)
}

// Weights lie outside of the heap, which holds keys, values and buffers that live as long as
// requests. From largeModel bytes of weights on, at most largeGarbage percent of the heap may be
// garbage, to limit peak memory; collections are rare and cheap then.
const (
	largeModel   = 1 << 30
	largeGarbage = 20
)

// options are the options for open. Progress is shown until end is called.
func (m *modelFlags) options(a *app) (_ engine.Options, end func(), err error) {
	if err := m.check(); err != nil {
		return engine.Options{}, nil, err
	}
	o := engine.Options{
		Threads: m.threads, Quant: m.quant, EncoderQuant: m.encoder, CacheType: m.cache,
		MinPixels: m.minPixels, MaxPixels: m.maxPixels, Pad: m.pad,
		Warn: func(s string) { a.note("%s", s) }}
	p := a.meter("loading").bytes()
	o.Progress = p.set
	return o, p.end, nil
}
