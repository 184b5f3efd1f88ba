package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Source is what a model is bound from: its files, and the types of its weights in memory. With
// zero values for all other fields, weights stay as stored, in the files' memory.
type Source struct {
	checkpoint.Bundle
	Name     string // of the bundle
	Plan     Plan
	Pool     *nn.Pool                // converts weights; nil: one thread
	Memory   *nn.Memory              // holds converted weights; nil: the heap
	Progress func(done, total int64) // bytes read of weights that are converted; may be nil
	Work     *nn.Work                // counts products and attention; may be nil
	Features nn.Features             // of the processor, on which the plan's defaults depend

	// Dry binds and accounts without converting; the model cannot run.
	Dry bool
	// Sink, when not nil, receives every bound weight in the plan's type, once and in no particular
	// order. The model itself cannot run. The tensor is valid during the call.
	Sink func(name string, t *tensor.Tensor) error
	// Make, when not nil, makes the weights that the checkpoint lacks, for benchmarks. It returns a
	// tensor of the given shape, of type d or of another floating type, which is then converted to
	// d. Blocks of m live as long as the model.
	Make func(m *nn.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor

	products []Product
	resident int64
	kept     map[string]int64
	done     int64
	reading  *Reading
	tower    bool   // there is a vision tower
	why      string // the program chose Plan.Encoder; "" if it did not
}

// Reading returns the checks that the bound weights still need; nil if there are none. The caller
// starts them.
func (s *Source) Reading() *Reading { return s.reading }

// check checks a weight now if it needs a check.
func (s *Source) check(name string) error {
	c, ok := s.Bundle.(checkpoint.Checked)
	if !ok || s.Dry {
		return nil
	}
	_, err := c.Check(name, nil, func() bool { return false })
	return err
}

// Config returns the model's config.json.
func (s *Source) Config() json.RawMessage { return s.Parts().Config.Data }

// Resident returns the bytes that the bound weights take in memory and the number of values by type
// in memory.
func (s *Source) Resident() (bytes int64, types map[string]int64) { return s.resident, s.kept }

// Product is a weight that rows are multiplied with, in its type in memory.
type Product struct {
	Type    tensor.DType
	Out, In int
	Decoder bool // false: of the encoder or projector
	Head    bool // the decoder's head, used only for rows whose next token is needed
}

// Products returns the bound weights of products.
func (s *Source) Products() []Product { return s.products }

// Rounds reports whether all products of the decoder's blocks round activations.
func (s *Source) Rounds() bool {
	return !slices.ContainsFunc(s.products, func(p Product) bool {
		return p.Decoder && !p.Head && !nn.FormatOf(p.Type).Rounds()
	})
}

// read records that n bytes of the checkpoint were converted and will not be read again.
func (s *Source) read(n int) {
	s.Drop()
	s.seen(n)
}

// seen records that n bytes of the checkpoint were read.
func (s *Source) seen(n int) {
	s.done += int64(n)
	if s.Progress != nil {
		s.Progress(s.done, s.About().Size)
	}
}

// Plan names the types in which the weights of products are kept: "f32", "f16", "bf16", "q12",
// "q8", "q4", or "" for as stored. Vectors and small tables are always float32. Products with
// "bf16", "q12", "q8" and "q4" round activations too; an embedding or a head in "bf16" does not.
type Plan struct {
	Decoder string // the language model; with q4, its embedding and head are q8
	// Encoder is the vision tower and the projector; q4 is not allowed, q12 only here. "" is
	// completed by the binder's Tower, and Stored is as stored.
	Encoder string

	chosen bool // Encoder is for plain numbers alone: other weights stay as stored
}

// PlanTypes and EncoderTypes are the allowed values of a Plan.
var (
	PlanTypes    = []string{"q4", "q8", "bf16", "f16", "f32"}
	EncoderTypes = []string{"q8", "q12", "bf16", "f16", "f32", Stored}
)

// Check returns an error for names that are not types.
func (p Plan) Check() error {
	for _, c := range []struct {
		what, got string
		types     []string
	}{{"quant", p.Decoder, PlanTypes}, {"encoder-quant", p.Encoder, EncoderTypes}} {
		ok := c.got == ""
		for _, t := range c.types {
			ok = ok || t == c.got
		}
		if !ok {
			return fmt.Errorf("model: %w", &errs.OptionError{Name: c.what,
				Got: strconv.Quote(c.got), Want: "one of " + strings.Join(c.types, ", ")})
		}
	}
	return nil
}

// role is the kind of a weight, as far as a Plan distinguishes them.
type role uint8

const (
	encoder role = iota
	decoder
	table // the decoder's embedding and head
)

// keep returns the type in memory of a weight that is stored as d.
func (p Plan) keep(r role, d tensor.DType) tensor.DType {
	name := p.Decoder
	switch {
	case r == encoder && p.chosen && !number(d):
		return d
	case r == encoder:
		name = p.Encoder
	case r == table && name == "q4":
		name = "q8"
	}
	switch name {
	case "q4":
		return tensor.Q4
	case "q8":
		return tensor.Q8
	case "q12":
		return tensor.Q12
	case "bf16":
		if r == table {
			return tensor.BF16
		}
		return tensor.BF16Dot
	case "f16":
		return tensor.F16
	case "f32":
		return tensor.F32
	}
	return d
}
