package tensor

import (
	"encoding/binary"
	"math"
)

// WidenF16 writes the len(dst) binary16 numbers of src to dst, exactly. src must hold at least
// 2*len(dst) bytes, at any alignment; otherwise it panics.
func WidenF16(dst []float32, src []byte) {
	src = src[: 2*len(dst) : 2*len(dst)]
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// WidenBF16 writes the len(dst) bfloat16 numbers of src to dst, exactly. src must hold at least
// 2*len(dst) bytes, at any alignment; otherwise it panics.
func WidenBF16(dst []float32, src []byte) {
	src = src[: 2*len(dst) : 2*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// F16ToF32 returns the value of binary16 bits. It moves exponent and mantissa to their places in a
// binary32, whose exponent is then 112 too small. Multiplying by 2^112 corrects this exactly, for
// subnormals too. Infinities and NaNs (exponent 31) keep their payload.
func F16ToF32(h uint16) float32 {
	const exponentBias = 1 << 112 // 127 - 15
	sign := uint32(h&0x8000) << 16
	magnitude := uint32(h & 0x7fff)
	if magnitude >= 0x7c00 {
		return math.Float32frombits(sign | 0x7f800000 | (magnitude&0x3ff)<<13)
	}
	f := math.Float32frombits(magnitude<<13) * exponentBias
	return math.Float32frombits(sign | math.Float32bits(f))
}

// F32ToF16 rounds f to binary16, to nearest, ties to even. Values that are too large become
// infinite; a NaN stays a NaN.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000: // NaN, made quiet
		return sign | 0x7e00 | uint16(b>>13&0x1ff)
	case b >= 0x477ff000: // 65520, the smallest that rounds to 2^16
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: subnormal, units of 2^-24
		// Adding 0.5 makes the lowest mantissa bit worth 2^-24, so the addition itself rounds to
		// nearest even.
		const half = 0x3f000000
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-half)
	}
	b += 0xfff + b>>13&1 // round away 13 bits, ties to even
	return sign | uint16((b-112<<23)>>13)
}

// F32ToBF16 rounds f to bfloat16, to nearest, ties to even; a NaN stays a NaN.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
