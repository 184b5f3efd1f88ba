package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Widen writes the elements of src from at on to dst as float32: exact for floating types of up to
// 32 bits, rounded to nearest even for the others. src may have any alignment; it panics if src is
// too short. A type whose elements are not single numbers is an error.
func Widen(dst []float32, d DType, src []byte, at int) error {
	le := binary.LittleEndian
	if size := d.Size(); size > 0 {
		src = src[at*size : (at+len(dst))*size]
	}
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	case F16:
		WidenF16(dst, src)
	case BF16:
		WidenBF16(dst, src)
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(le.Uint64(src[8*i:])))
		}
	case I64:
		for i := range dst {
			dst[i] = float32(int64(le.Uint64(src[8*i:])))
		}
	case U64:
		for i := range dst {
			dst[i] = float32(le.Uint64(src[8*i:]))
		}
	case I32:
		for i := range dst {
			dst[i] = float32(int32(le.Uint32(src[4*i:])))
		}
	case U32:
		for i := range dst {
			dst[i] = float32(le.Uint32(src[4*i:]))
		}
	case I16:
		for i := range dst {
			dst[i] = float32(int16(le.Uint16(src[2*i:])))
		}
	case U16:
		for i := range dst {
			dst[i] = float32(le.Uint16(src[2*i:]))
		}
	case I8:
		for i := range dst {
			dst[i] = float32(int8(src[i]))
		}
	case U8, Bool:
		for i := range dst {
			dst[i] = float32(src[i])
		}
	case F8:
		for i := range dst {
			dst[i] = widenF8(src[i])
		}
	case F8E5M2:
		for i := range dst {
			dst[i] = F16ToF32(uint16(src[i]) << 8)
		}
	default:
		return fmt.Errorf(
			"tensor: element type: got %v, want a floating type of 8 bits and more or an "+
				"integer type", d)
	}
	return nil
}

// widenF8 returns the value of F8_E4M3 bits: exponent bias 7, no infinities, NaN
// where exponent and mantissa are all ones.
func widenF8(b byte) float32 {
	sign, e, m := float32(1), int(b>>3&15), float32(b&7)
	if b&0x80 != 0 {
		sign = -1
	}
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case e == 0:
		return sign * m * 0x1p-9
	}
	return sign * (1 + m/8) * float32(math.Ldexp(1, e-7))
}
