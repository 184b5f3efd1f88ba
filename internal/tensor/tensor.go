// Package tensor holds named arrays in their file format: an element type, a shape and
// little-endian bytes. It converts between stored types and Go slices and does no arithmetic.
package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Tensor is a row-major view, last axis fastest, of little-endian elements.
//
// Data holds exactly Len()*DType.Bits()/8 bytes. It may be unaligned, and it may be mapped
// read-only memory that is valid only while its file is open: copy data that must outlive the file,
// and never write to it.
type Tensor struct {
	DType DType
	Shape []int // empty for a scalar
	Data  []byte
	// Order, when not nil, gives the index along the last axis of each column of the blocks of 32.
	// It is a permutation. Only Q8, Q4, Q4M and IQ4 may have one.
	Order []int32
}

// Len returns the number of elements: the product of the shape, 1 for a scalar.
func (t *Tensor) Len() int { return product(t.Shape) }

// String returns type and shape, such as "F32 [4 64]".
func (t *Tensor) String() string { return fmt.Sprintf("%v %v", t.DType, t.Shape) }

// Float32s returns a copy of the elements as float32: exact for F32, F16 and BF16 (including
// subnormals, infinities and NaN payloads), rounded to nearest even for F64. Other types are an
// error.
func (t *Tensor) Float32s() ([]float32, error) {
	n := t.Len()
	if err := t.check(n); err != nil {
		return nil, err
	}
	v := make([]float32, n)
	switch t.DType {
	case F32:
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	case F16:
		WidenF16(v, t.Data)
	case BF16:
		WidenBF16(v, t.Data)
	case F64:
		for i := range v {
			v[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	default:
		return nil, fmt.Errorf("tensor: element type: got %v, want F32, F16, BF16 or F64", t.DType)
	}
	return v, nil
}

// Int64s returns a copy of the elements as int64. Float types, and a U64 above
// the largest int64, are an error. BOOL gives 0 and 1.
func (t *Tensor) Int64s() ([]int64, error) {
	n := t.Len()
	if err := t.check(n); err != nil {
		return nil, err
	}
	v := make([]int64, n)
	le := binary.LittleEndian
	switch t.DType {
	case I64:
		for i := range v {
			v[i] = int64(le.Uint64(t.Data[8*i:]))
		}
	case U64:
		for i := range v {
			u := le.Uint64(t.Data[8*i:])
			if u > math.MaxInt64 {
				return nil, fmt.Errorf("tensor: element %d: got %d, want at most %d", i, u,
					int64(math.MaxInt64))
			}
			v[i] = int64(u)
		}
	case I32:
		for i := range v {
			v[i] = int64(int32(le.Uint32(t.Data[4*i:])))
		}
	case U32:
		for i := range v {
			v[i] = int64(le.Uint32(t.Data[4*i:]))
		}
	case I16:
		for i := range v {
			v[i] = int64(int16(le.Uint16(t.Data[2*i:])))
		}
	case U16:
		for i := range v {
			v[i] = int64(le.Uint16(t.Data[2*i:]))
		}
	case I8:
		for i := range v {
			v[i] = int64(int8(t.Data[i]))
		}
	case U8:
		for i := range v {
			v[i] = int64(t.Data[i])
		}
	case Bool:
		for i := range v {
			if t.Data[i] != 0 {
				v[i] = 1
			}
		}
	default:
		return nil, fmt.Errorf("tensor: element type: got %v, want an integer type", t.DType)
	}
	return v, nil
}

// check compares the number of bytes with the shape, so that an invalid Tensor gives an error
// instead of a panic.
func (t *Tensor) check(n int) error {
	bits := t.DType.Bits()
	if bits == 0 {
		return fmt.Errorf("tensor: element type: got %v, want a known type", t.DType)
	}
	if n < 0 || int64(n) > math.MaxInt64/int64(bits) ||
		(int64(n)*int64(bits)+7)/8 != int64(len(t.Data)) {
		return fmt.Errorf("tensor: %v: got %d bytes, want the bytes of the shape", t, len(t.Data))
	}
	return nil
}

// FromFloat32s returns an F32 tensor with a copy of v. It panics if shape and len(v) disagree.
func FromFloat32s(shape []int, v []float32) *Tensor {
	t := alloc("FromFloat32s", F32, shape, len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(x))
	}
	return t
}

// FromInt64s returns an I64 tensor with a copy of v. It panics if shape and len(v) disagree.
func FromInt64s(shape []int, v []int64) *Tensor {
	t := alloc("FromInt64s", I64, shape, len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint64(t.Data[8*i:], uint64(x))
	}
	return t
}

// FromFloat64s returns an F64 tensor with a copy of v. It panics if shape and len(v) disagree.
func FromFloat64s(shape []int, v []float64) *Tensor {
	t := alloc("FromFloat64s", F64, shape, len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint64(t.Data[8*i:], math.Float64bits(x))
	}
	return t
}

// FromInt32s returns an I32 tensor with a copy of v. It panics if shape and len(v) disagree.
func FromInt32s(shape []int, v []int32) *Tensor {
	t := alloc("FromInt32s", I32, shape, len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], uint32(x))
	}
	return t
}

func alloc(fn string, d DType, shape []int, n int) *Tensor {
	if p := product(shape); p != n {
		panic(fmt.Sprintf("tensor.%s: shape %v, got %d elements, want %d", fn, shape, n, p))
	}
	return &Tensor{DType: d, Shape: append([]int{}, shape...), Data: make([]byte, n*d.Size())}
}

// product returns the number of elements of a shape, or -1 if an axis is negative or the number
// does not fit an int.
func product(shape []int) int {
	n := 1
	for _, d := range shape {
		if d < 0 {
			return -1
		}
		if d == 0 {
			n = 0
		} else if n > math.MaxInt/d {
			return -1
		} else {
			n *= d
		}
	}
	return n
}
