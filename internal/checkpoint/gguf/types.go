package gguf

import (
	"fmt"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/tensor"
)

// blockType is a type of a tensor's elements.
type blockType struct {
	name   string
	values int // in a block
	bytes  int // of a block; 0 if the type is not supported
	// plain is set if the type is an array of single values.
	plain bool
	dtype tensor.DType // if plain
	// read writes the values of whole blocks; nil if plain is set.
	read func(dst []float32, blocks []byte)
	// kept is the default type of such a weight in memory.
	kept tensor.DType
	// blocks reads a block in the form of kept, in blocks of 32: scales, in Q4M minima, and values;
	// nil if kept cannot represent it without loss.
	blocks func(scales, minima []float32, q []uint8, block []byte)
}

// blockTypes are ggml's types by their number.
var blockTypes = map[uint32]*blockType{
	0:  {name: "F32", values: 1, bytes: 4, plain: true, dtype: tensor.F32},
	1:  {name: "F16", values: 1, bytes: 2, plain: true, dtype: tensor.F16},
	2:  {name: "Q4_0", values: 32, bytes: 18, read: readQ40, kept: tensor.Q4, blocks: blocksQ40},
	3:  {name: "Q4_1", values: 32, bytes: 20, read: readQ41, kept: tensor.Q4M, blocks: blocksQ41},
	6:  {name: "Q5_0", values: 32, bytes: 22, read: readQ50, kept: tensor.Q8, blocks: blocksQ50},
	7:  {name: "Q5_1", values: 32, bytes: 24, read: readQ51, kept: tensor.Q8},
	8:  {name: "Q8_0", values: 32, bytes: 34, read: readQ80, kept: tensor.Q8, blocks: blocksQ80},
	10: {name: "Q2_K", values: 256, bytes: 84, read: readQ2K, kept: tensor.Q8},
	11: {name: "Q3_K", values: 256, bytes: 110, read: readQ3K, kept: tensor.Q8},
	12: {name: "Q4_K", values: 256, bytes: 144, read: readQ4K, kept: tensor.Q4M, blocks: blocksQ4K},
	13: {name: "Q5_K", values: 256, bytes: 176, read: readQ5K, kept: tensor.Q8},
	14: {name: "Q6_K", values: 256, bytes: 210, read: readQ6K, kept: tensor.Q8},
	20: {
		name: "IQ4_NL", values: 32, bytes: 18, read: readIQ4NL, kept: tensor.IQ4,
		blocks: blocksIQ4NL,
	},
	23: {
		name: "IQ4_XS", values: 256, bytes: 136, read: readIQ4XS, kept: tensor.IQ4,
		blocks: blocksIQ4XS,
	},
	24: {name: "I8", values: 1, bytes: 1, plain: true, dtype: tensor.I8},
	25: {name: "I16", values: 1, bytes: 2, plain: true, dtype: tensor.I16},
	26: {name: "I32", values: 1, bytes: 4, plain: true, dtype: tensor.I32},
	27: {name: "I64", values: 1, bytes: 8, plain: true, dtype: tensor.I64},
	28: {name: "F64", values: 1, bytes: 8, plain: true, dtype: tensor.F64},
	30: {name: "BF16", values: 1, bytes: 2, plain: true, dtype: tensor.BF16},
}

// otherTypes are the names of types that are not supported, including those that ggml has removed.
var otherTypes = map[uint32]string{
	4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
	19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
	29: "IQ1_M", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
	36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
	38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}

// readableTypes is the list in errors.
const readableTypes = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, " +
	"Q5_K, Q6_K, IQ4_NL or IQ4_XS"

// typeOf returns the type with the given number.
func typeOf(n uint32) (*blockType, error) {
	if t := blockTypes[n]; t != nil {
		return t, nil
	}
	name := otherTypes[n]
	if name == "" {
		name = fmt.Sprint(n)
	}
	return nil, fmt.Errorf("type %s: %w, want %s", name, errs.ErrUnsupported, readableTypes)
}
