package model

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/tensor"
)

// Binder hands out a checkpoint's weights by name and shape, in the types that
// the source's plan names, and keeps account: Finish returns one error with all
// that is missing, mis-shaped, unusable or unused. Nothing is invented for a
// missing weight.
type Binder struct {
	ck     *Source
	prefix string
	role   role
	state  *binding
}

type binding struct {
	used           map[string]bool
	missing, wrong []string
	unusable       []string
	ignored        []string
	converted      map[converted]*tensor.Tensor
	params, bytes  int64
	types          map[string]int64
}

// converted names a weight as it is kept. One that is bound twice is kept once.
type converted struct {
	name string
	as   tensor.DType
}

// NewBinder returns a binder over all tensors of ck, for the weights of the
// encoder and projector; see Decoder.
func NewBinder(ck *Source) *Binder {
	ck.resident, ck.kept, ck.done = 0, map[string]int64{}, 0
	return &Binder{ck: ck, state: &binding{used: map[string]bool{}, types: map[string]int64{}, converted: map[converted]*tensor.Tensor{}}}
}

// Decoder returns the binder for the language model's weights.
func (b *Binder) Decoder() *Binder {
	return &Binder{ck: b.ck, prefix: b.prefix, role: decoder, state: b.state}
}

// In returns a binder that puts prefix before every name; both share one account.
func (b *Binder) In(prefix string) *Binder {
	return &Binder{ck: b.ck, prefix: b.prefix + prefix, role: b.role, state: b.state}
}

// Has reports whether the checkpoint holds a tensor of that name.
func (b *Binder) Has(name string) bool {
	_, ok := b.ck.Tensor(b.prefix + name)
	return ok
}

// Ignore marks tensors whose full name ends in one of suffixes as known and
// not needed (buffers that older exporters wrote).
func (b *Binder) Ignore(suffixes ...string) { b.state.ignored = append(b.state.ignored, suffixes...) }

// get returns the tensor, or nil after noting why it cannot be had. why
// explains the wanted shape in the config's words. as is the type that a source
// which makes weights is asked for.
func (b *Binder) get(name, why string, as tensor.DType, shape ...int) *tensor.Tensor {
	full := b.prefix + name
	t, ok := b.ck.Tensor(full)
	if !ok && b.ck.Make != nil {
		t, ok = b.ck.Make(b.ck.Memory, full, as, shape), true
	}
	if !ok {
		b.state.missing = append(b.state.missing, fmt.Sprintf("%q %v", full, shape))
		return nil
	}
	b.state.used[full] = true
	if !nn.IsWeight(t.DType) {
		b.state.wrong = append(b.state.wrong, fmt.Sprintf("%q: type %s, want F32, F16 or BF16", full, t.DType))
		return nil
	}
	same := len(t.Shape) == len(shape)
	for i := range shape {
		same = same && t.Shape[i] == shape[i]
	}
	if !same {
		b.state.wrong = append(b.state.wrong, fmt.Sprintf("%q: shape %v, want %v (%s)", full, t.Shape, shape, why))
		return nil
	}
	b.state.params += int64(t.Len())
	b.state.bytes += int64(len(t.Data))
	b.state.types[t.DType.String()] += int64(t.Len())
	return t
}

// keep accounts for a weight that is kept as type d and takes n bytes.
func (b *Binder) keep(t *tensor.Tensor, d tensor.DType, n int) {
	b.ck.resident += int64(n)
	b.ck.kept[d.String()] += int64(t.Len())
}

// sink hands t to the source's sink.
func (b *Binder) sink(name string, t *tensor.Tensor) {
	if err := b.ck.Sink(b.prefix+name, t); err != nil {
		b.state.unusable = append(b.state.unusable, err.Error())
	}
	b.ck.Drop()
}

// Vector returns a [n] tensor widened to float32.
func (b *Binder) Vector(name, why string, n int) []float32 { return b.floats(name, why, n) }

// Table returns a [rows, width] tensor widened to float32.
func (b *Binder) Table(name, why string, rows, width int) []float32 {
	return b.floats(name, why, rows, width)
}

func (b *Binder) floats(name, why string, shape ...int) []float32 {
	t := b.get(name, why, tensor.F32, shape...)
	if t == nil {
		return nil
	}
	b.keep(t, tensor.F32, 4*t.Len())
	if b.ck.Dry { // nothing is read: a vector would bring the weights around it along
		return make([]float32, t.Len())
	}
	v, err := t.Float32s()
	if err != nil {
		b.state.wrong = append(b.state.wrong, err.Error())
		return nil
	}
	if b.ck.Sink != nil {
		b.sink(name, t)
	}
	return v
}

// matrix returns a weight as an [out, in] matrix of the type that the plan has
// for r; its tensor has the shape given.
func (b *Binder) matrix(name, why string, r role, out, in int, shape ...int) *nn.Matrix {
	t := b.get(name, why, b.ck.Plan.keep(r, tensor.F16), shape...)
	if t == nil {
		return nil
	}
	full := b.prefix + name
	id := converted{full, b.ck.Plan.keep(r, t.DType)}
	if known := b.state.converted[id]; known != nil {
		return nn.Weights(known, out, in)
	}
	if got, want := len(t.Data), nn.WeightBytes(t.DType, out, in); got != want {
		b.state.wrong = append(b.state.wrong, fmt.Sprintf("%q: %d bytes, want %d for %v", full, got, want, t))
		return nil
	}
	b.keep(t, id.as, nn.WeightBytes(id.as, out, in))
	w := nn.Weights(t, out, in)
	if id.as != t.DType && !b.ck.Dry {
		memory := b.ck.Memory
		if b.ck.Sink != nil {
			memory = nil
		}
		var err error
		if w, err = nn.Convert(b.ck.Pool, memory, w, id.as, b.ck.read); err != nil {
			b.state.unusable = append(b.state.unusable, fmt.Sprintf("%q: %v", full, err))
			return nil
		}
	}
	kept := &tensor.Tensor{DType: id.as, Shape: shape, Data: w.Data}
	if b.ck.Sink != nil {
		b.sink(name, kept)
		kept.Data = nil
	}
	b.state.converted[id] = kept
	return nn.Weights(kept, out, in)
}

// Linear binds name+".weight" [out, in] and, when bias, name+".bias" [out].
func (b *Binder) Linear(name, why string, out, in int, bias bool) *nn.Linear {
	l := &nn.Linear{In: in, Out: out, W: b.matrix(name+".weight", why, b.role, out, in, out, in), Work: b.ck.Work}
	if bias {
		l.B = b.Vector(name+".bias", why, out)
	}
	return l
}

// Head binds name+".weight" [vocab, dim] as the decoder's output layer.
func (b *Binder) Head(name, why string, vocab, dim int) *nn.Linear {
	return &nn.Linear{In: dim, Out: vocab, W: b.matrix(name+".weight", why, table, vocab, dim, vocab, dim), Work: b.ck.Work}
}

// Conv binds a [out, 3, patch, patch] convolution without overlap as one product.
func (b *Binder) Conv(name, why string, out, patch int) *nn.Linear {
	return b.ConvOf(name, why, out, 3, patch, patch)
}

// ConvOf binds a convolution without overlap, [out, window...], as one product
// over the flattened window.
func (b *Binder) ConvOf(name, why string, out int, window ...int) *nn.Linear {
	in := 1
	for _, n := range window {
		in *= n
	}
	return &nn.Linear{In: in, Out: out, W: b.matrix(name+".weight", why, b.role, out, in, append([]int{out}, window...)...), Work: b.ck.Work}
}

// Tied accounts for a tensor that a checkpoint may store beside the one it is
// tied to by config key: one that differs is a problem.
func (b *Binder) Tied(name, to, key string) {
	t, ok := b.ck.Tensor(b.prefix + name)
	if !ok {
		return
	}
	b.state.used[b.prefix+name] = true
	if o, ok := b.ck.Tensor(b.prefix + to); ok && (t.DType != o.DType || !slices.Equal(t.Shape, o.Shape) || !bytes.Equal(t.Data, o.Data)) {
		b.state.wrong = append(b.state.wrong, fmt.Sprintf("%q: differs from %q, want the same values (%s is true)", b.prefix+name, b.prefix+to, key))
	}
}

// Embedding binds name+".weight" [vocab, dim].
func (b *Binder) Embedding(name, why string, vocab, dim int) *nn.Embedding {
	w := b.matrix(name+".weight", why, table, vocab, dim, vocab, dim)
	if w == nil {
		return nil
	}
	return nn.NewEmbedding(w)
}

// RMSNorm binds name+".weight" [n].
func (b *Binder) RMSNorm(name, why string, n int, eps float64) *nn.RMSNorm {
	return &nn.RMSNorm{W: b.Vector(name+".weight", why, n), Eps: float32(eps)}
}

// LayerNorm binds name+".weight" and name+".bias" [n].
func (b *Binder) LayerNorm(name, why string, n int, eps float64) *nn.LayerNorm {
	return &nn.LayerNorm{W: b.Vector(name+".weight", why, n), B: b.Vector(name+".bias", why, n), Eps: float32(eps)}
}

// Finish returns one error that lists everything missing, mis-shaped,
// unusable or unused.
func (b *Binder) Finish() error {
	var unused []string
	for _, name := range b.ck.Names() {
		if b.state.used[name] {
			continue
		}
		known := false
		for _, s := range b.state.ignored {
			known = known || strings.HasSuffix(name, s)
		}
		if !known {
			unused = append(unused, fmt.Sprintf("%q", name))
		}
	}
	var parts []string
	add := func(what string, list []string) {
		if len(list) == 0 {
			return
		}
		sort.Strings(list)
		more := ""
		if n := len(list); n > 12 {
			list, more = list[:12], fmt.Sprintf(" and %d more", n-12)
		}
		parts = append(parts, what+" "+strings.Join(list, ", ")+more)
	}
	add("missing", b.state.missing)
	add("mis-shaped", b.state.wrong)
	add("unusable", b.state.unusable)
	add("unused", unused)
	if len(parts) == 0 {
		return nil
	}
	return fmt.Errorf("model: %s: weights do not fit config.json: %s", b.ck.Name, strings.Join(parts, "; "))
}

// Params returns how many numbers were bound, the bytes they occupy, and the
// count per stored type.
func (b *Binder) Params() (params, bytes int64, types map[string]int64) {
	return b.state.params, b.state.bytes, b.state.types
}
