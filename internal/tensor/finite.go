package tensor

import (
	"encoding/binary"
	"math"
)

// NotFinite returns the index of the first element of src that is NaN or infinite, or -1. Only F32,
// F16 and BF16 are supported types with such elements.
func NotFinite(d DType, src []byte) int {
	var exponent, ones uint64 // of each element in a word: the exponent's bits, and a 1
	switch d {
	case F32:
		exponent, ones = 0x7f8000007f800000, 0x0000000100000001
	case F16:
		exponent, ones = 0x7c007c007c007c00, 0x0001000100010001
	case BF16:
		exponent, ones = 0x7f807f807f807f80, 0x0001000100010001
	default:
		return -1
	}
	// Only an exponent of all ones leaves zero in its element of t. Only then does the subtraction
	// borrow from the element's top bit, which is not part of t.
	top := ones << (8*d.Size() - 1)
	le := binary.LittleEndian
	i := 0
	for ; i+32 <= len(src); i += 32 {
		b := src[i : i+32 : i+32]
		t, u := ^le.Uint64(b)&exponent, ^le.Uint64(b[8:])&exponent
		v, w := ^le.Uint64(b[16:])&exponent, ^le.Uint64(b[24:])&exponent
		if ((t-ones)&^t|(u-ones)&^u|(v-ones)&^v|(w-ones)&^w)&top != 0 {
			break
		}
	}
	for at, size := i, d.Size(); at+size <= len(src); at += size {
		var bits uint32
		switch d {
		case F32:
			bits = le.Uint32(src[at:])
		case BF16:
			bits = uint32(le.Uint16(src[at:])) << 16
		default:
			bits = uint32(le.Uint16(src[at:])&0x7c00) << 13
			if bits == 0x7c00<<13 {
				bits = 0x7f800000
			}
		}
		if math.Float32frombits(bits)-math.Float32frombits(bits) != 0 {
			return at / size
		}
	}
	return -1
}
