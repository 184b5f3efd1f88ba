package model

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Source is what a model is bound from: its files, and how its weights are to be
// kept. The zero value of everything else keeps them as the files store them, in
// their own memory.
type Source struct {
	checkpoint.Bundle
	Name     string // the bundle's
	Plan     Plan
	Pool     *nn.Pool                // converts weights; nil: one thread
	Memory   *nn.Memory              // holds converted weights; nil: the heap
	Progress func(done, total int64) // bytes read of weights that are converted; may be nil
	Work     *nn.Work                // counts every product; may be nil

	// Dry binds and accounts without converting: the model cannot run.
	Dry bool
	// Sink, when not nil, takes every bound weight as the plan keeps it, once and
	// in no particular order, instead of the model, which cannot run. The tensor
	// is valid during the call.
	Sink func(name string, t *tensor.Tensor) error
	// Make, when not nil, makes the weights that the checkpoint lacks, for
	// benchmarks: a tensor of that shape, of type d, in which it is kept as it is,
	// or of another floating type, from which it is converted. Blocks of m live as
	// long as the model.
	Make func(m *nn.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor

	products []Product
	resident int64
	kept     map[string]int64
	done     int64
}

// Config returns the model's config.json.
func (s *Source) Config() json.RawMessage { return s.Parts().Config.Data }

// Resident returns the bytes that the bound weights take in memory and their
// numbers by the type in which they are kept.
func (s *Source) Resident() (bytes int64, types map[string]int64) { return s.resident, s.kept }

// Product is a weight that rows are multiplied with, as it is kept.
type Product struct {
	Type    tensor.DType
	Out, In int
	Decoder bool // not of the encoder or projector
	Head    bool // of the decoder, for rows whose next token is wanted
}

// Products returns the bound weights of products.
func (s *Source) Products() []Product { return s.products }

// read notes that n bytes of the checkpoint were converted and will not be read
// again.
func (s *Source) read(n int) {
	s.Drop()
	s.seen(n)
}

// seen notes that n bytes of the checkpoint were read.
func (s *Source) seen(n int) {
	s.done += int64(n)
	if s.Progress != nil {
		s.Progress(s.done, s.About().Size)
	}
}

// Plan names the types in which the weights of products are kept: "f32", "f16",
// "bf16", "q8", "q4", or "" for as they are stored. Vectors and small tables are
// always kept in float32. Products with "bf16", "q8" and "q4" round activations
// too; an embedding and a head at "bf16" do not.
type Plan struct {
	Decoder string // the language model; its embedding and head are kept at q8 where this says q4
	Encoder string // the vision tower and the projector; q4 is refused
}

// PlanTypes and EncoderTypes are what a Plan may name.
var (
	PlanTypes    = []string{"q4", "q8", "bf16", "f16", "f32"}
	EncoderTypes = []string{"q8", "bf16", "f16", "f32"}
)

// Check refuses names that are not types.
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
			return fmt.Errorf("model: %s: got %q, want one of %s", c.what, c.got,
				strings.Join(c.types, ", "))
		}
	}
	return nil
}

// role is what a weight is for, as far as a Plan tells.
type role uint8

const (
	encoder role = iota
	decoder
	table // the decoder's embedding and head
)

// keep returns the type in which a weight that is stored as d is kept.
func (p Plan) keep(r role, d tensor.DType) tensor.DType {
	name := p.Decoder
	switch {
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
