package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Bundle is a model, in files of any format. Names, shapes and configuration are Hugging Face's:
// each format undoes its own renaming, permutation and packing. A Bundle is immutable and safe for
// concurrent use until Close, which invalidates the bytes of weights.
type Bundle interface {
	// About describes the origin of the model. The caller must not change it.
	About() *About
	// Parts returns everything but the weights. The caller must not change it.
	Parts() *Parts
	// Names returns the names of all weights, sorted. The caller must not change it.
	Names() []string
	// Tensor returns the weight called name.
	Tensor(name string) (*Weight, bool)
	// Drop frees the pages of mapped files that were read so far. They remain in the system's cache
	// and are read again when used.
	Drop()
	// Close releases the files.
	Close() error
}

// About describes the files of a model.
type About struct {
	Name   string   // last element of the path, or org/name for a folder of the hub's cache
	Format string   // for people, such as "Hugging Face folder"
	Names  string   // for people: which program wrote the weights' names; "" if there is only one
	Size   int64    // bytes of the weights in the files
	Files  []string // absolute paths of opened files; none if the model is in memory
	Packed *Packed  // nil unless it is a packed file
}

// Packed describes the types of a packed file's weights.
type Packed struct {
	// names the layout of quantised data, so that a program with another layout refuses it
	Layout       string `json:"layout"`
	Quant        string `json:"quant"`         // the plan for the decoder
	EncoderQuant string `json:"encoder_quant"` // for encoder and projector
}

// Part is one document of a model.
type Part struct {
	Data []byte // nil if the model has none
	From string // file name for errors and reports, even if there is no such file
}

// Parts are the documents of a model, in the form of Hugging Face folders.
type Parts struct {
	// Config is config.json. Its first architecture is one of Hugging Face's.
	Config Part
	// Tokenizer is tokenizer.json, or a SentencePiece tokenizer.model.
	Tokenizer Part
	// Settings is tokenizer_config.json. It is used with a tokenizer.model and includes all added
	// tokens; without data, the tokenizer.model is used alone. To a tokenizer.json it adds tokens.
	Settings Part
	// Template is the text of the chat template.
	Template Part
	// Processor is preprocessor_config.json.
	Processor Part
	// Video is video_preprocessor_config.json.
	Video Part
	// Generation is generation_config.json.
	Generation Part
	// Specials is a JSON object of the special tokens' texts by name: bos_token, eos_token, ….
	Specials Part
	// Recipe is FitPrune's recipe for this model.
	Recipe Part
	// Budgets are the thresholds for budgets by content.
	Budgets Part
}

// Each calls f for every part with its name, including absent parts.
func (p *Parts) Each(f func(name string, part *Part)) {
	f("config", &p.Config)
	f("tokenizer", &p.Tokenizer)
	f("settings", &p.Settings)
	f("template", &p.Template)
	f("processor", &p.Processor)
	f("video", &p.Video)
	f("generation", &p.Generation)
	f("specials", &p.Specials)
	f("recipe", &p.Recipe)
	f("budgets", &p.Budgets)
}

// Weight is one tensor of a bundle.
type Weight struct {
	// Tensor has the default type of the weight in memory. Its Data is nil if the file holds the
	// values in another form.
	tensor.Tensor
	// Stored is the file's name of its type, if that is not DType.
	Stored string
	// Raw is the weight's bytes in the file if Data is nil.
	Raw [][]byte
	// Sum is the checksum of the weight that the file records; nil if there is none.
	Sum []byte
	// Read writes the exact values of the elements from at on, widened to float32. at and len(dst)
	// are multiples of the last axis. Calls may run in parallel. Read is nil if Data holds
	// contiguous numbers of DType.
	Read func(dst []float32, at int) error
	// Blocks, when not nil, reads a row as blocks of 32 in the form of DType, which is Q8, Q4, Q4M
	// or IQ4: scales, in Q4M also minima, and values, with 128 (Q8) or 8 (Q4) added, or table
	// indices (IQ4). Columns are in Order, if there is one. The weight is then kept unchanged.
	// Calls may run in parallel.
	Blocks func(scales, minima []float32, q []uint8, row int) error
}

// Size returns the weight's size in the file in bytes.
func (w *Weight) Size() int64 {
	n := int64(len(w.Data))
	for _, b := range w.Raw {
		n += int64(len(b))
	}
	return n
}

// TypeName returns the file's name of the type.
func (w *Weight) TypeName() string {
	if w.Stored != "" {
		return w.Stored
	}
	return w.DType.String()
}

// Floats writes the values of the elements from at on, widened or rounded to float32. at and
// len(dst) are multiples of the last axis.
func (w *Weight) Floats(dst []float32, at int) error {
	if w.Read != nil {
		return w.Read(dst, at)
	}
	return tensor.Widen(dst, w.DType, w.Data, at)
}

// Rows returns rows lo to hi-1 of w, whose first axis is not 0. Of weights that are read, Raw stays
// w's.
func (w *Weight) Rows(lo, hi int) *Weight {
	out := &Weight{Stored: w.Stored, Raw: w.Raw}
	out.DType, out.Shape = w.DType, append([]int{hi - lo}, w.Shape[1:]...)
	if w.Read == nil {
		row := len(w.Data) / w.Shape[0]
		out.Data = w.Data[lo*row : hi*row : hi*row]
		return out
	}
	row := w.Len() / w.Shape[0]
	out.Read = func(dst []float32, at int) error { return w.Read(dst, lo*row+at) }
	if w.Blocks != nil {
		out.Order = w.Order
		out.Blocks = func(scales, minima []float32, q []uint8, row int) error {
			return w.Blocks(scales, minima, q, lo+row)
		}
	}
	return out
}

// Same reports whether the files hold the same values in the same type for w and o.
func (w *Weight) Same(o *Weight) bool {
	return w.TypeName() == o.TypeName() && slices.Equal(w.Shape, o.Shape) &&
		bytes.Equal(w.Data, o.Data) && slices.EqualFunc(w.Raw, o.Raw, bytes.Equal)
}

// Float32s returns a copy of all values.
func (w *Weight) Float32s() ([]float32, error) {
	v := make([]float32, w.Len())
	return v, w.Floats(v, 0)
}

// Checked is a Bundle whose weights must be checked by Check before use.
type Checked interface {
	Bundle
	// Check compares the bytes of the weight called name with their checksum and returns them. If
	// alloc is not nil and the weight is in a mapped file, they are a copy in memory from alloc.
	// Check calls ended after every megabyte or so, and returns ErrEnded once that returns true.
	// Other errors name file and weight.
	Check(name string, alloc func(n int) []byte, ended func() bool) ([]byte, error)
}

// ErrEnded is the error of a check that its caller ended.
var ErrEnded = errors.New("checkpoint: ended")

// CheckAll checks all weights of c in place. It calls run for n tasks, which may run in parallel,
// and progress, which may be nil, with the bytes read.
func CheckAll(
	c Checked, run func(n int, task func(i int)), progress func(done, total int64),
) error {
	var mu sync.Mutex
	var failed error
	var done int64
	names := c.Names()
	run(len(names), func(i int) {
		b, err := c.Check(names[i], nil, func() bool { return false })
		mu.Lock()
		defer mu.Unlock()
		if err != nil && failed == nil {
			failed = err
		}
		if done += int64(len(b)); progress != nil {
			progress(done, c.About().Size)
		}
	})
	return failed
}

// CheckNow checks all weights of b if b is Checked.
func CheckNow(b Bundle) error {
	c, ok := b.(Checked)
	if !ok {
		return nil
	}
	inTurn := func(n int, task func(i int)) {
		for i := range n {
			task(i)
		}
	}
	return CheckAll(c, inTurn, nil)
}

// Store is a Bundle that a format fills.
type Store struct {
	What    About
	Docs    Parts
	Weights map[string]*Weight
	Maps    []*Mapping // released by Close

	names []string
}

// Seal sorts the names and adds up the weights' sizes, once Weights is complete.
func (s *Store) Seal() {
	s.names, s.What.Size = make([]string, 0, len(s.Weights)), 0
	for name, w := range s.Weights {
		s.names = append(s.names, name)
		s.What.Size += w.Size()
	}
	slices.Sort(s.names)
}

// About implements Bundle.
func (s *Store) About() *About { return &s.What }

// Parts implements Bundle.
func (s *Store) Parts() *Parts { return &s.Docs }

// Names implements Bundle.
func (s *Store) Names() []string { return s.names }

// Tensor implements Bundle.
func (s *Store) Tensor(name string) (*Weight, bool) {
	w, ok := s.Weights[name]
	return w, ok
}

// Drop implements Bundle.
func (s *Store) Drop() {
	for _, m := range s.Maps {
		m.Drop()
	}
}

// Close implements Bundle.
func (s *Store) Close() error {
	var errs []error
	for _, m := range s.Maps {
		errs = append(errs, m.Close())
	}
	s.Maps = nil
	return errors.Join(errs...)
}

// FromConfig returns a bundle with only a configuration, for benchmarks of a shape. config is not
// copied.
func FromConfig(name string, config []byte) (*Store, error) {
	if err := CheckObject(config); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: config.json: %w", name, err)
	}
	s := &Store{What: About{Name: name}}
	s.Docs.Each(func(name string, part *Part) { part.From = name })
	s.Docs.Config = Part{config, "config.json"}
	return s, nil
}

// finitePart is about how many bytes one task of Finite checks.
const finitePart = 4 << 20

// Finite returns an errs.ErrNotFinite if a value of the weight is NaN or infinite. It calls run for
// n tasks, which may run in parallel.
func (w *Weight) Finite(run func(n int, task func(i int))) error {
	if w.Data != nil && w.Read != nil {
		return nil // quantised by this program, which checks values during quantisation
	}
	n, width, size := w.Len(), 1, 4
	if axes := len(w.Shape); axes > 0 {
		width = max(1, w.Shape[axes-1])
	}
	if w.Data != nil {
		width, size = 1, max(1, w.DType.Size())
	}
	step := max(1, finitePart/(size*width)) * width
	tasks := (n + step - 1) / step
	bad, failed := make([]int, tasks), make([]error, tasks)
	run(tasks, func(i int) {
		at, end := i*step, min((i+1)*step, n)
		bad[i] = -1
		if w.Data != nil {
			bad[i] = tensor.NotFinite(w.DType, w.Data[at*size:end*size])
			return
		}
		v := make([]float32, end-at)
		failed[i] = w.Read(v, at)
		bad[i] = slices.IndexFunc(v, func(x float32) bool { return x-x != 0 })
	})
	for i, at := range bad {
		if failed[i] != nil {
			return failed[i]
		}
		if at >= 0 {
			return fmt.Errorf("element %v: %w (NaN or an infinity)", place(i*step+at, w.Shape),
				errs.ErrNotFinite)
		}
	}
	return nil
}

// place returns the index of element i along each axis.
func place(i int, shape []int) []int {
	at := make([]int, len(shape))
	for k, n := range slices.Backward(shape) {
		at[k], i = i%n, i/n
	}
	return at
}

// Finite checks all weights of b with Weight's Finite. progress, which may be nil, is called with
// the bytes read.
func Finite(b Bundle, run func(n int, task func(i int)), progress func(done, total int64)) error {
	done := int64(0)
	for _, name := range b.Names() {
		w, _ := b.Tensor(name)
		if err := w.Finite(run); err != nil {
			return fmt.Errorf("checkpoint: %s: weight %q: %w", b.About().Name, name, err)
		}
		b.Drop()
		if done += w.Size(); progress != nil {
			progress(done, b.About().Size)
		}
	}
	return nil
}
