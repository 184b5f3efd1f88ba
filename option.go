package restore

import (
	"errors"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
)

// Option says how [Open] loads a model.
type Option func(*settings)

// settings are what options set.
type settings struct {
	files  formats.Files
	engine engine.Options
}

func apply(options []Option) settings {
	var o settings
	for _, set := range options {
		set(&o)
	}
	return o
}

// WeightType is a type of weights, or of keys and values.
type WeightType string

// The types of weights. Products with Q8 and Q4 round activations to 8 bits in blocks of 32;
// products with Q12 to 14 bits in blocks of 128; products with BF16 round them to bfloat16; all
// others compute in float32.
const (
	AsStored WeightType = ""     // the types in the model's files
	F32      WeightType = "f32"  // 32 bits
	F16      WeightType = "f16"  // IEEE half precision
	BF16     WeightType = "bf16" // bfloat16
	Q12      WeightType = "q12"  // blocks of 128 with a scale, 12 bits in 16.25; for encoders
	Q8       WeightType = "q8"   // blocks of 32 with a scale, 8.5 bits
	Q4       WeightType = "q4"   // blocks of 32 with a scale, 4.5 bits; embedding and head stay Q8
)

// WithWeights converts the language model's weights to type decoder, and the weights of vision
// tower and projector to type encoder, while they are loaded. encoder cannot be Q4, and decoder
// not Q12. Without this option they are as stored, except that a vision tower of 1024 or wider
// becomes Q8 on processors with VNNI and without BF16, which multiply it twice as fast, and Q12 on
// those with AVX2 alone, where it is a third faster; the function of [WithWarnings] is told.
func WithWeights(decoder, encoder WeightType) Option {
	if encoder == AsStored {
		encoder = "stored"
	}
	return func(o *settings) {
		o.engine.Quant, o.engine.EncoderQuant = string(decoder), string(encoder)
	}
}

// WithCacheType stores keys and values as F32, the default, or F16, which rounds them and takes
// half the memory.
func WithCacheType(t WeightType) Option {
	return func(o *settings) { o.engine.CacheType = string(t) }
}

// WithVisionTower reads the vision tower of an original LLaVA model from the folder at path: its
// configuration, and its weights unless the checkpoint has them. The default is the folder that the
// model's configuration names.
func WithVisionTower(path string) Option {
	return func(o *settings) { o.files.Tower = path }
}

// WithProjector reads the encoder and projector (mmproj) of a GGUF model from the file at path. The
// default is the only file next to the model with mmproj in its name; if there is none, the model
// takes no pictures.
func WithProjector(path string) Option {
	return func(o *settings) { o.files.Projector = path }
}

// WithThreads computes on n threads, 1 to 1024. 0, the default, uses all cores that Go may use.
// Results do not depend on the number of threads.
func WithThreads(n int) Option {
	return func(o *settings) { o.engine.Threads = n }
}

// WithPixelLimits resizes pictures to between least and most pixels, for models that take pictures
// of any size. 0 takes the limit in the model's files.
func WithPixelLimits(least, most int) Option {
	return func(o *settings) { o.engine.MinPixels, o.engine.MaxPixels = least, most }
}

// WithProgress calls f while the model is loaded, with the bytes done and the total.
func WithProgress(f func(done, total int64)) Option {
	return func(o *settings) { o.engine.Progress = f }
}

// WithWarnings calls f with one line for each point where the program departs from the model's
// files, for example when they have no chat template.
func WithWarnings(f func(message string)) Option {
	return func(o *settings) { o.engine.Warn = f }
}

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
