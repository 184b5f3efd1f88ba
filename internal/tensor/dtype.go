package tensor

import "fmt"

// DType is the stored type of a tensor's elements. The zero value is F32.
type DType uint8

// The types that weights and activations of this project use come first. The others are in the
// safetensors format: a file that holds one can be read, and the error that refuses it as a weight
// can name it.
const (
	F32        DType = iota // IEEE 754 binary32
	F16                     // IEEE 754 binary16
	BF16                    // the upper half of a binary32
	F64                     // IEEE 754 binary64
	I64                     // two's complement
	I32                     //
	I16                     //
	I8                      //
	U8                      //
	Bool                    // one byte, 0 or 1
	F8                      // F8_E4M3: 4 exponent bits, 3 mantissa bits
	F8E5M2                  // F8_E5M2
	F8E8M0                  // F8_E8M0: exponent only
	F8E4M3FNUZ              // F8_E4M3FNUZ: finite, one NaN, no negative zero
	F8E5M2FNUZ              // F8_E5M2FNUZ
	U16                     //
	U32                     //
	U64                     //
	C64                     // two binary32
	F4                      // half a byte
	F6E2M3                  // six bits
	F6E3M2                  // six bits
	// quantised in blocks and packed by package kernel; not in safetensors files
	Q8
	Q4      // likewise
	BF16Dot // bfloat16 packed by package kernel; not in safetensors files
	Q4M     // Q4 with a minimum in every block; likewise
	IQ4     // blocks of 4-bit indices into a table of values; likewise
	Q12     // blocks of 12-bit values; likewise
	numDTypes
)

// dtypes holds the format's name and the width in bits of every type.
var dtypes = [numDTypes]struct {
	name string
	bits int
}{
	F32: {"F32", 32}, F16: {"F16", 16}, BF16: {"BF16", 16}, F64: {"F64", 64},
	I64: {"I64", 64}, I32: {"I32", 32}, I16: {"I16", 16}, I8: {"I8", 8}, U8: {"U8", 8},
	Bool: {"BOOL", 8},
	F8:   {"F8_E4M3", 8}, F8E5M2: {"F8_E5M2", 8}, F8E8M0: {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	U16: {"U16", 16}, U32: {"U32", 32}, U64: {"U64", 64}, C64: {"C64", 64},
	F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6},
	Q8: {"Q8", 0}, Q4: {"Q4", 0}, BF16Dot: {"BF16Dot", 0}, Q4M: {"Q4M", 0}, IQ4: {"IQ4", 0},
	Q12: {"Q12", 0},
}

// Bits returns the width of one element in bits. It is 0 for Q8, Q4, Q4M, IQ4, BF16Dot and Q12,
// whose size depends on the shape, and for a type that is not one of the constants.
func (d DType) Bits() int {
	if d >= numDTypes {
		return 0
	}
	return dtypes[d].bits
}

// Size returns the bytes of one element, 0 for types narrower than a byte.
func (d DType) Size() int { return d.Bits() / 8 }

// String returns the name that safetensors headers use, such as "F32" or "BOOL".
func (d DType) String() string {
	if d >= numDTypes {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType returns the type with the given name, upper case as in safetensors headers. ok is
// false for an unknown name.
func ParseDType(name string) (d DType, ok bool) {
	for i := range dtypes {
		if dtypes[i].name == name && dtypes[i].bits > 0 {
			return DType(i), true
		}
	}
	return 0, false
}
