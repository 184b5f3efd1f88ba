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
	switch t.DType {
	case I64:
		integers[int64](v, t.Data)
	case U64:
		integers[uint64](v, t.Data)
		for i, x := range v {
			if x < 0 {
				return nil, fmt.Errorf("tensor: element %d: got %d, want at most %d", i, uint64(x),
					int64(math.MaxInt64))
			}
		}
	case I32:
		integers[int32](v, t.Data)
	case U32:
		integers[uint32](v, t.Data)
	case I16:
		integers[int16](v, t.Data)
	case U16:
		integers[uint16](v, t.Data)
	case I8:
		integers[int8](v, t.Data)
	case U8:
		integers[uint8](v, t.Data)
	case Bool:
		integers[uint8](v, t.Data)
		for i := range v {
			v[i] = min(1, v[i])
		}
	default:
		return nil, fmt.Errorf("tensor: element type: got %v, want an integer type", t.DType)
	}
	return v, nil
}

// integers reads elements of type T, as many as v takes.
func integers[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](
	v []int64, data []byte,
) {
	stored := make([]T, len(v))
	_, _ = binary.Decode(data, binary.LittleEndian, stored) // data has the right size
	for i, x := range stored {
		v[i] = int64(x)
	}
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

// From returns a tensor with a copy of v. It panics if shape and len(v) disagree.
func From[T float32 | float64 | int32 | int64](shape []int, v []T) *Tensor {
	var d DType
	switch any(v).(type) {
	case []float32:
		d = F32
	case []float64:
		d = F64
	case []int32:
		d = I32
	case []int64:
		d = I64
	}
	if p := product(shape); p != len(v) {
		panic(fmt.Sprintf("tensor.From: shape %v, got %d elements, want %d", shape, len(v), p))
	}
	t := &Tensor{DType: d, Shape: append([]int{}, shape...), Data: make([]byte, len(v)*d.Size())}
	_, _ = binary.Encode(t.Data, binary.LittleEndian, v) // Data has the right size
	return t
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
