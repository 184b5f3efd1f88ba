package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Half widens an IEEE binary16 value, exactly; a NaN stays a NaN.
func Half(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h) & 0x3ff
	switch exp {
	case 0: // zero or subnormal: frac·2⁻²⁴
		v := math.Float32bits(float32(frac) * 0x1p-24)
		return math.Float32frombits(sign | v)
	case 0x1f:
		if frac != 0 {
			frac |= 0x200 // quiet, as VCVTPH2PS does
		}
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// BFloat widens a bfloat16 value, exactly.
func BFloat(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// Convert widens len(dst) values of format f from data, which may have any
// alignment. It panics when data is too short.
func Convert(dst []float32, data []byte, f Format) {
	if len(data)/f.Size() < len(dst) {
		panic("kernel.Convert: data too short")
	}
	convert(dst, data, f)
}

// WidenHalf widens len(dst) float16 values of src, exactly.
func WidenHalf(dst []float32, src []uint16) {
	if len(dst) > 0 {
		src = src[:len(dst)]
		Convert(dst, unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 2*len(src)), F16)
	}
}

// NarrowHalf rounds x to float16 in dst[:len(x)], to nearest, ties to even. Values that are too
// large become infinite.
func NarrowHalf(dst []uint16, x []float32) {
	dst = dst[:len(x)]
	done := narrowHalf(dst, x)
	for i, v := range x[done:] {
		dst[done+i] = toHalf(v)
	}
}

func convertGo(dst []float32, data []byte, f Format) {
	switch f {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = Half(binary.LittleEndian.Uint16(data[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = BFloat(binary.LittleEndian.Uint16(data[2*i:]))
		}
	}
}
