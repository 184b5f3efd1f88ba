package torch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// storageTypes are the classes that may occur in a persistent id. They are never called.
var storageTypes = map[global]tensor.DType{
	"torch.FloatStorage": tensor.F32, "torch.HalfStorage": tensor.F16,
	"torch.BFloat16Storage": tensor.BF16,
	"torch.DoubleStorage":   tensor.F64, "torch.LongStorage": tensor.I64,
	"torch.IntStorage":   tensor.I32,
	"torch.ShortStorage": tensor.I16, "torch.CharStorage": tensor.I8,
	"torch.ByteStorage": tensor.U8, "torch.BoolStorage": tensor.Bool,
}

// maxAxes is the largest number of axes of a tensor.
const maxAxes = 16

// storage is an array of count elements that tensors view.
type storage struct {
	dtype tensor.DType
	count int
	data  []byte // set when the pickle has been read
}

// array is a tensor of the pickle.
type array struct {
	of             *storage
	offset         int
	shape, strides []int
	contiguous     bool
}

// reader makes the storages and tensors of one file.
type reader struct {
	file     int // bytes
	storages map[string]*storage
}

// storage returns the value of a persistent id: ("storage", class, key, place, count) and, in the
// older format, a view, which must be None.
func (r *reader) storage(id any) (any, error) {
	t, ok := id.(tuple)
	if !ok || len(t) < 5 || len(t) > 6 || t[0] != any("storage") || len(t) == 6 && t[5] != nil {
		return nil, errors.New(`persistent id: want ("storage", class, key, place, count)`)
	}
	class, _ := t[1].(global)
	d, ok := storageTypes[class]
	if !ok {
		return nil, fmt.Errorf("persistent id: got %s as the class, want a storage of numbers",
			kind(t[1]))
	}
	key, ok := t[2].(string)
	count, also := t[4].(int64)
	if !ok || !also {
		return nil, fmt.Errorf("persistent id: got a %s and a %s, want a key and a count",
			kind(t[2]), kind(t[4]))
	}
	if count < 0 || count > int64(r.file/d.Size()) {
		return nil, fmt.Errorf(
			"storage %.80q: got %d elements, want as many as the file's %d bytes hold",
			key, count, r.file)
	}
	if s := r.storages[key]; s != nil {
		if s.dtype != d || s.count != int(count) {
			return nil, fmt.Errorf("storage %.80q: got %d of %v, before it was %d of %v", key,
				count, d, s.count, s.dtype)
		}
		return s, nil
	}
	s := &storage{dtype: d, count: int(count)}
	r.storages[key] = s
	return s, nil
}

// fill sets the storage's bytes.
func (s *storage) fill(b []byte) error {
	if want := s.count * s.dtype.Size(); len(b) != want {
		return fmt.Errorf("got %d bytes, want %d for %d of %v", len(b), want, s.count, s.dtype)
	}
	s.data = b
	return nil
}

// call returns the results of the functions in a file of tensors.
func (r *reader) call(f global, args tuple) (any, error) {
	switch f {
	case orderedDict:
		return ordered(args)
	case size:
		if len(args) == 1 {
			if t, ok := args[0].(tuple); ok {
				return t, nil
			}
		}
		return nil, errors.New("want one tuple")
	case rebuildParameter: // the tensor, whether it needs a gradient, hooks
		if len(args) == 3 {
			if a, ok := args[0].(*array); ok {
				return a, nil
			}
		}
		return nil, errors.New("want a tensor, a truth value and hooks")
	case rebuildTensor:
		return r.array(args)
	}
	return nil, errors.New("cannot be called")
}

// ordered makes an OrderedDict, from nothing or from a list of pairs.
func ordered(args tuple) (any, error) {
	d := new(dict)
	if len(args) == 0 {
		return d, nil
	}
	l, ok := args[0].(*list)
	if !ok || len(args) > 1 {
		return nil, errors.New("want nothing or a list of pairs")
	}
	for _, item := range l.items {
		var p []any
		switch item := item.(type) {
		case tuple:
			p = item
		case *list:
			p = item.items
		}
		if len(p) != 2 {
			return nil, errors.New("want nothing or a list of pairs")
		}
		if err := d.add(p[0], p[1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// plain returns an error for metadata of a tensor whose values differ from its storage: torch marks
// negated and conjugated tensors.
func plain(metadata any) error {
	if metadata == nil {
		return nil
	}
	d, ok := metadata.(*dict)
	if !ok {
		return fmt.Errorf("metadata: got a %s, want a dictionary", kind(metadata))
	}
	for _, p := range d.pairs {
		if p.value != false {
			name, _ := p.key.(string)
			return fmt.Errorf("metadata: got %.40q, want a tensor as its storage has it", name)
		}
	}
	return nil
}

// array makes a tensor from (storage, offset, shape, strides, needs a gradient, hooks, and perhaps
// metadata).
func (r *reader) array(args tuple) (any, error) {
	if len(args) < 6 || len(args) > 7 {
		return nil, fmt.Errorf("got %d arguments, want 6 or 7", len(args))
	}
	if len(args) == 7 {
		if err := plain(args[6]); err != nil {
			return nil, err
		}
	}
	s, ok := args[0].(*storage)
	if !ok {
		return nil, fmt.Errorf("got a %s, want a storage", kind(args[0]))
	}
	shape, err := whole(args[2])
	if err != nil {
		return nil, fmt.Errorf("shape: %w", err)
	}
	strides, err := whole(args[3])
	if err != nil {
		return nil, fmt.Errorf("strides: %w", err)
	}
	offset, ok := args[1].(int64)
	if slices.Contains(shape, 0) { // no elements: torch allows any offset
		offset = min(offset, int64(s.count))
	}
	if !ok || offset < 0 || offset > int64(s.count) || len(shape) != len(strides) {
		return nil, fmt.Errorf(
			"offset %v, shape %v and strides %v do not fit a storage of %d elements", args[1],
			shape, strides, s.count)
	}
	n := 1
	for _, d := range slices.Backward(shape) {
		if d != 0 && n > r.file/d {
			return nil, fmt.Errorf(
				"shape %v: want at most as many elements as the file has bytes, %d", shape, r.file)
		}
		n *= d
	}
	a := &array{of: s, offset: int(offset), shape: shape, strides: strides, contiguous: true}
	if n == 0 {
		return a, nil
	}
	inOrder, left := 1, s.count-1-int(offset) // elements after the last one that the tensor uses
	for i, d := range slices.Backward(shape) {
		if d == 1 {
			continue
		}
		a.contiguous = a.contiguous && strides[i] == inOrder
		inOrder *= d
		if left < 0 || strides[i] > 0 && d-1 > left/strides[i] {
			left = -1
			break
		}
		left -= (d - 1) * strides[i]
	}
	if left < 0 {
		return nil, fmt.Errorf(
			"shape %v with strides %v at %d reaches beyond the storage of %d elements", shape,
			strides, offset, s.count)
	}
	return a, nil
}

// whole returns a tuple of numbers that are not negative.
func whole(v any) ([]int, error) {
	t, ok := v.(tuple)
	if !ok || len(t) > maxAxes {
		return nil, fmt.Errorf("got a %s, want a tuple of at most %d numbers", kind(v), maxAxes)
	}
	out := make([]int, len(t))
	for i, x := range t {
		n, ok := x.(int64)
		if !ok || n < 0 || n > math.MaxInt {
			return nil, fmt.Errorf("got %s, want a whole number that is not negative", shown(x))
		}
		out[i] = int(n)
	}
	return out, nil
}

// elements returns the number of elements.
func (a *array) elements() int {
	n := 1
	for _, d := range a.shape {
		n *= d
	}
	return n
}

// bytes returns the bytes of the elements if contiguous.
func (a *array) bytes() int { return a.elements() * a.of.dtype.Size() }

// weight returns the tensor as a view of its storage, or as one that is read element by element.
func (a *array) weight() *checkpoint.Weight {
	w := &checkpoint.Weight{Tensor: tensor.Tensor{DType: a.of.dtype, Shape: a.shape}}
	at, n := a.offset*a.of.dtype.Size(), a.bytes()
	if n == 0 {
		at = 0
	}
	if a.contiguous {
		w.Data = a.of.data[at : at+n : at+n]
		return w
	}
	w.Raw = [][]byte{a.of.data}
	w.Read = a.read
	return w
}

// read implements [checkpoint.Weight]'s Read.
func (a *array) read(dst []float32, at int) error {
	index := make([]int, len(a.shape))
	from := a.offset
	for i, rest := len(a.shape)-1, at; i >= 0; i-- {
		index[i] = rest % a.shape[i]
		rest /= a.shape[i]
		from += index[i] * a.strides[i]
	}
	d, b := a.of.dtype, a.of.data
	for k := range dst {
		if err := tensor.Widen(dst[k:k+1], d, b, from); err != nil {
			return err
		}
		for i := len(index) - 1; i >= 0; i-- { // next index in order
			index[i]++
			from += a.strides[i]
			if index[i] < a.shape[i] {
				break
			}
			index[i] = 0
			from -= a.shape[i] * a.strides[i]
		}
	}
	return nil
}
