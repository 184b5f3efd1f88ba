package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Binder returns a checkpoint's weights by name and shape, in the types of the source's plan, and
// keeps account. Finish returns one error with everything missing, mis-shaped, unusable or unused.
// A missing weight is never invented.
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
	cause          error // of the first unusable weight
	converted      map[converted]*tensor.Tensor
	params, bytes  int64
	types          map[string]int64
}

// converted identifies a weight and its type in memory. A weight that is bound twice is kept once.
type converted struct {
	name string
	as   tensor.DType
}

// NewBinder returns a binder over all tensors of ck, for the weights of the encoder and projector.
// For others see Decoder.
func NewBinder(ck *Source) *Binder {
	ck.resident, ck.kept, ck.done, ck.products = 0, map[string]int64{}, 0, nil
	if c, ok := ck.Bundle.(checkpoint.Checked); ok && !ck.Dry && ck.Sink == nil {
		ck.reading = newReading(c, ck.Memory)
	}
	return &Binder{
		ck: ck, state: &binding{
			used: map[string]bool{}, types: map[string]int64{},
			converted: map[converted]*tensor.Tensor{},
		},
	}
}

// Decoder returns the binder for the language model's weights.
func (b *Binder) Decoder() *Binder {
	return &Binder{ck: b.ck, prefix: b.prefix, role: decoder, state: b.state}
}

// In returns a binder that puts prefix before every name. Both share one account.
func (b *Binder) In(prefix string) *Binder {
	return &Binder{ck: b.ck, prefix: b.prefix + prefix, role: b.role, state: b.state}
}

// Has reports whether the checkpoint holds a tensor of that name.
func (b *Binder) Has(name string) bool {
	_, ok := b.ck.Tensor(b.prefix + name)
	return ok
}

// Unread accepts weights that files may have and that no model here computes with: all whose names
// begin with prefix.
func (b *Binder) Unread(prefix string) {
	for _, name := range b.ck.Names() {
		if strings.HasPrefix(name, b.prefix+prefix) {
			b.state.used[name] = true
		}
	}
}

// get returns the tensor, or nil after it has recorded the problem. why explains the wanted shape
// in the config's words. as is the type to request if the source makes weights.
func (b *Binder) get(name, why string, as tensor.DType, shape ...int) *checkpoint.Weight {
	full := b.prefix + name
	t, ok := b.ck.Tensor(full)
	var size int64
	switch {
	case ok:
		size = t.Size()
	case b.ck.Make != nil:
		t = &checkpoint.Weight{Tensor: *b.ck.Make(b.ck.Memory, full, as, shape)}
		size = int64(t.Len() * t.DType.Size()) // a described one has no data
	default:
		b.state.missing = append(b.state.missing, fmt.Sprintf("%q %v", full, shape))
		return nil
	}
	again := b.state.used[full] // for a head that is tied to the embedding
	b.state.used[full] = true
	if !nn.IsWeight(t.DType) {
		b.state.wrong = append(b.state.wrong,
			fmt.Sprintf("%q: type %s, want F32, F16 or BF16", full, t.TypeName()))
		return nil
	}
	same := len(t.Shape) == len(shape)
	for i := range shape {
		same = same && t.Shape[i] == shape[i]
	}
	if !same {
		b.state.wrong = append(b.state.wrong,
			fmt.Sprintf("%q: shape %v, want %v (%s)", full, t.Shape, shape, why))
		return nil
	}
	if !again {
		b.state.params += int64(t.Len())
		b.state.bytes += size
		b.state.types[t.TypeName()] += int64(t.Len())
	}
	return t
}

// keep accounts for count numbers of type d in n bytes.
func (b *Binder) keep(count int, d tensor.DType, n int) {
	b.ck.resident += int64(n)
	b.ck.kept[d.String()] += int64(count)
}

// sink passes t to the source's sink.
func (b *Binder) sink(name string, t *tensor.Tensor) {
	if err := b.ck.Sink(b.prefix+name, t); err != nil {
		b.state.unusable = append(b.state.unusable, err.Error())
	}
	b.ck.Drop()
}

// Vector returns a [n] tensor as float32.
func (b *Binder) Vector(name, why string, n int) []float32 { return b.floats(name, why, n) }

// Table returns a tensor of the given shape, [rows, width] after axes of 1, as float32.
func (b *Binder) Table(name, why string, shape ...int) []float32 {
	return b.floats(name, why, shape...)
}

func (b *Binder) floats(name, why string, shape ...int) []float32 {
	t := b.get(name, why, tensor.F32, shape...)
	if t == nil {
		return nil
	}
	b.keep(t.Len(), tensor.F32, 4*t.Len())
	if b.ck.Dry { // nothing is read: reading a vector would also page in the weights around it
		return make([]float32, t.Len())
	}
	err := b.ck.check(b.prefix + name)
	var v []float32
	if err == nil {
		v, err = t.Float32s()
	}
	if err == nil {
		err = b.finite(t)
	}
	if err != nil {
		b.unusable(b.prefix+name, err)
		return nil
	}
	if b.ck.Sink != nil {
		kept := &t.Tensor
		if t.Data == nil {
			kept = tensor.From(shape, v)
		}
		b.sink(name, kept)
	}
	return v
}

// matrix returns a weight as an [out, in] matrix, of the plan's type for r, and the gate before it.
// Its tensor has the given shape. often says whether every token reads all of it.
func (b *Binder) matrix(
	name, why string, r role, often bool, out, in int, shape ...int,
) (*nn.Matrix, *nn.Gate) {
	t := b.get(name, why, b.ck.Plan.keep(r, tensor.F16), shape...)
	if t == nil {
		return nil, nil
	}
	full := b.prefix + name
	id := converted{full, b.ck.Plan.keep(r, t.DType)}
	later := b.ck.reading != nil && id.as == t.DType // it is checked before its first use
	if known := b.state.converted[id]; known != nil {
		return b.gated(full, known, later, often, out, in)
	}
	if got, want := len(t.Data), nn.WeightBytes(t.DType, out, in); t.Data != nil && got != want {
		b.state.wrong = append(b.state.wrong,
			fmt.Sprintf("%q: %d bytes, want %d for %v", full, got, want, t))
		return nil, nil
	}
	var w *nn.Matrix
	var err error
	if !later {
		err = b.ck.check(full)
	}
	if err == nil {
		w, err = b.convert(t, id.as, out, in)
	}
	if err != nil {
		b.unusable(full, err)
		return nil, nil
	}
	b.keep(t.Len(), id.as, nn.WeightBytes(id.as, out, in)+4*len(w.Order))
	kept := &tensor.Tensor{DType: id.as, Shape: shape, Data: w.Data, Order: w.Order}
	if b.ck.Sink != nil {
		b.sink(name, kept)
		kept.Data = nil
	}
	b.state.converted[id] = kept
	return b.gated(full, kept, later, often, out, in)
}

// gated returns t as an [out, in] matrix, and a gate before it if it is checked later.
func (b *Binder) gated(
	full string, t *tensor.Tensor, later, often bool, out, in int,
) (*nn.Matrix, *nn.Gate) {
	w := nn.Weights(t, out, in)
	if !later {
		return w, nil
	}
	return w, b.ck.reading.add(full, w, often)
}

// convert returns t as an [out, in] matrix of type d. It uses the bundle's memory if the type is
// the same, otherwise a copy.
func (b *Binder) convert(t *checkpoint.Weight, d tensor.DType, out, in int) (*nn.Matrix, error) {
	if b.ck.Dry || t.Data != nil && d == t.DType {
		w := nn.Weights(&t.Tensor, out, in)
		if d != t.DType {
			w.Order = nil
		}
		return w, b.finite(t)
	}
	memory := b.ck.Memory
	if b.ck.Sink != nil {
		memory = nil
	}
	if t.Read == nil {
		return nn.Convert(b.ck.Pool, memory, nn.Weights(&t.Tensor, out, in), d, b.ck.read)
	}
	each := float64(t.Size()) / float64(max(1, out))
	done := func(rows int) { b.ck.read(int(each * float64(rows))) }
	if t.Blocks != nil && d == t.DType {
		return nn.Blocks(b.ck.Pool, memory, out, in, d, t.Order, t.Blocks, done)
	}
	read := func(dst []float32, row int) error { return t.Read(dst, row*in) }
	return nn.Read(b.ck.Pool, memory, out, in, d, read, done)
}

// Refuse records a size that weights may fit, but no computation.
func (b *Binder) Refuse(format string, args ...any) {
	b.state.unusable = append(b.state.unusable, fmt.Sprintf(format, args...))
}

// unusable records a weight that cannot be used.
func (b *Binder) unusable(name string, err error) {
	b.state.unusable = append(b.state.unusable, fmt.Sprintf("%q: %v", name, err))
	if b.state.cause == nil {
		b.state.cause = err
	}
}

// bindError is a text with a cause that callers may check for.
type bindError struct {
	text  string
	cause error
}

func (e *bindError) Error() string { return e.text }
func (e *bindError) Unwrap() error { return e.cause }

// finite returns an error if a weight that is kept as stored holds NaN or an infinity. Converted
// weights are checked during conversion. Weights of a packed file were checked when it was made,
// and have checksums.
func (b *Binder) finite(t *checkpoint.Weight) error {
	if b.ck.Dry || b.ck.Make != nil || b.ck.About().Packed != nil {
		return nil
	}
	err := t.Finite(b.ck.Pool.Run)
	b.ck.seen(int(t.Size()))
	return err
}

// Linear binds name+".weight" [out, in] and, if bias is set, name+".bias" [out].
func (b *Binder) Linear(name, why string, out, in int, bias bool) *nn.Linear {
	l := b.linear(name, why, b.role, out, in, out, in)
	if bias {
		l.B = b.Vector(name+".bias", why, out)
	}
	return l
}

// Transposed binds name [in, out] as an [out, in] layer in float32.
func (b *Binder) Transposed(name, why string, out, in int) *nn.Linear {
	l := &nn.Linear{In: in, Out: out, Work: b.ck.Work}
	if v := b.floats(name, why, in, out); v != nil {
		l.W = nn.Weights(tensor.From([]int{out, in}, nn.Transposed(v, out)), out, in)
		b.ck.products = append(b.ck.products, Product{tensor.F32, out, in, false, false})
	}
	return l
}

// Head binds name+".weight" [vocab, dim] as the decoder's output layer.
func (b *Binder) Head(name, why string, vocab, dim int) *nn.Linear {
	return b.linear(name, why, table, vocab, dim, vocab, dim)
}

// linear binds name+".weight", a tensor of the given shape, as an [out, in] layer.
func (b *Binder) linear(name, why string, r role, out, in int, shape ...int) *nn.Linear {
	w, gate := b.matrix(name+".weight", why, r, r != encoder, out, in, shape...)
	if w != nil {
		b.ck.products = append(b.ck.products, Product{
			nn.TypeOf(w), out, in, r != encoder, r == table,
		})
	}
	return &nn.Linear{In: in, Out: out, W: w, Work: b.ck.Work, Gate: gate}
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
	return b.linear(name, why, b.role, out, in, append([]int{out}, window...)...)
}

// Tied accounts for a tensor that may be stored in addition to the one it is tied to by a config
// key. It is a problem if they differ.
func (b *Binder) Tied(name, to, key string) {
	t, ok := b.ck.Tensor(b.prefix + name)
	if !ok {
		return
	}
	b.state.used[b.prefix+name] = true
	o, ok := b.ck.Tensor(b.prefix + to)
	if !ok {
		return
	}
	for _, full := range []string{b.prefix + name, b.prefix + to} {
		if err := b.ck.check(full); err != nil {
			b.unusable(full, err)
			return
		}
	}
	if !t.Same(o) {
		b.state.unusable = append(b.state.unusable,
			fmt.Sprintf("%q: differs from %q, want the same values (%s is true)", b.prefix+name,
				b.prefix+to, key))
	}
}

// Embedding binds name+".weight" [vocab, dim].
func (b *Binder) Embedding(name, why string, vocab, dim int) *nn.Embedding {
	w, gate := b.matrix(name+".weight", why, table, false, vocab, dim, vocab, dim)
	if w == nil {
		return nil
	}
	return nn.NewEmbedding(w, gate)
}

// RMSNorm binds name+".weight" [n].
func (b *Binder) RMSNorm(name, why string, n int, eps float64) *nn.RMSNorm {
	return &nn.RMSNorm{W: b.Vector(name+".weight", why, n), Eps: float32(eps)}
}

// OffsetRMSNorm binds name+".weight" [n], which is stored as its difference from 1.
func (b *Binder) OffsetRMSNorm(name, why string, n int, eps float64) *nn.RMSNorm {
	l := b.RMSNorm(name, why, n, eps)
	l.W = slices.Clone(l.W) // which may be the file's memory
	for i := range l.W {
		l.W[i]++
	}
	return l
}

// LayerNorm binds name+".weight" and name+".bias" [n].
func (b *Binder) LayerNorm(name, why string, n int, eps float64) *nn.LayerNorm {
	return &nn.LayerNorm{
		W: b.Vector(name+".weight", why, n), B: b.Vector(name+".bias", why, n), Eps: float32(eps),
	}
}

// Finish returns one error that lists everything missing, mis-shaped,
// unusable or unused.
func (b *Binder) Finish() error {
	var unused []string
	for _, name := range b.ck.Names() {
		if !b.state.used[name] {
			unused = append(unused, fmt.Sprintf("%q", name))
		}
	}
	var parts []string
	add := func(what string, list []string) {
		if len(list) == 0 {
			return
		}
		slices.Sort(list)
		list = slices.Compact(list)
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
	if names := b.ck.About().Names; names != "" && len(b.state.missing)+len(unused) > 0 {
		parts = slices.Insert(parts, 0, names)
	}
	return &bindError{
		fmt.Sprintf("model: %s: weights do not fit config.json: %s", b.ck.Name,
			strings.Join(parts, "; ")), b.state.cause,
	}
}

// Params returns the number of bound values, their size in bytes, and the count per stored type.
func (b *Binder) Params() (params, bytes int64, types map[string]int64) {
	return b.state.params, b.state.bytes, b.state.types
}
