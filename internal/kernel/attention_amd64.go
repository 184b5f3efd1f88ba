//go:build !purego

package kernel

//go:generate sh -c "cd _gen && go run . -kernel attention"

var attnAVX2 = attnOps{
	lanes:  8,
	widths: []int{16},
	tiles: []attnTile{
		attnTile16AVX2,
	},
	packed:    1 << 15,
	transpose: attnTransposeAVX2,
	copyRows:  attnCopyAVX2,
	rowMax:    attnMaxAVX2,
	addMax:    attnAddMaxAVX2,
	expSum:    attnExpSumAVX2,
	bias:      attnBiasAVX2,
	addWindow: attnAddWindowAVX2,
	axpy:      attnAxpyAVX2,
	peak:      attnPeakAVX2,
	weighted:  attnWeightedAVX2,
	narrow:    attnNarrowAVX2,

	weightedHalf: []attnHalves{{8, attnWeightedHalf1AVX2}},

	words: wordScores, weighWords: wordTile6, roundWords: quantizeWordsAVX2,
}

// attnAVXVNNI is attnAVX2 with the products of bytes and int16 of AVX-VNNI.
var attnAVXVNNI = func() attnOps {
	ops := attnAVX2
	ops.words = nil
	ops.quads = []attnTile{attnQuads16AVXVNNI}
	ops.quadRows, ops.topQuads = attnQuadRowsAVX2, attnTopQuadsAVX2
	ops.expQuads = attnExpQuadsAVX2
	ops.wordValues = []attnWordTile{attnWords16AVXVNNI}
	ops.scaleWords, ops.wordRows = attnRoundWordsAVX2, attnWordRowsAVX2
	ops.columnHighs = attnColumnHighsAVX2
	return ops
}()

var attnAVX512 = attnOps{
	lanes:  16,
	widths: []int{64, 32, 16},
	tiles: []attnTile{
		attnTile64AVX512, attnTile32AVX512, attnTile16AVX512,
	},
	packed:    1 << 16,
	transpose: attnTransposeAVX512,
	copyRows:  attnCopyAVX512,
	rowMax:    attnMaxAVX512,
	addMax:    attnAddMaxAVX512,
	expSum:    attnExpSumAVX512,
	bias:      attnBiasAVX512,
	addWindow: attnAddWindowAVX512,
	axpy:      attnAxpyAVX512,
	peak:      attnPeakAVX512,
	weighted:  attnWeightedAVX512,
	narrow:    attnNarrowAVX512,

	weightedHalf: []attnHalves{
		{8, attnWeightedHalf1AVX512}, {8, attnWeightedHalf2AVX512}, {4, attnWeightedHalf3AVX512},
		{4, attnWeightedHalf4AVX512},
	},
}

// attnVNNI is attnAVX512 with the products of bytes and int16.
var attnVNNI = func() attnOps {
	ops := attnAVX512
	ops.quads = []attnTile{
		attnQuads64AVX512, attnQuads32AVX512, attnQuads16AVX512,
	}
	ops.quadRows, ops.topQuads = attnQuadRowsAVX512, attnTopQuadsAVX512
	ops.expQuads = attnExpQuadsAVX512
	ops.wordValues = []attnWordTile{attnWords64AVX512, attnWords32AVX512, attnWords16AVX512}
	ops.scaleWords, ops.wordRows = attnRoundWordsAVX512, attnWordRowsAVX512
	ops.columnHighs = attnColumnHighsAVX512
	return ops
}()

// attnBF16 is attnVNNI with the instructions for bfloat16. Every CPU with these has VNNI.
var attnBF16 = func() attnOps {
	ops := attnVNNI
	ops.pairs = []attnTile{
		attnPairs64AVX512, attnPairs32AVX512, attnPairs16AVX512,
	}
	ops.tall = attnTall16AVX512
	ops.pairHeight, ops.pairUnit = attnTileRows, 1
	ops.round, ops.expRound, ops.pairRows = attnRoundAVX512, attnExpRoundAVX512, attnPairRowsAVX512
	ops.expQuads, ops.probs = attnExpRoundQuadsAVX512, attnProbs64AVX512
	ops.wordValues = nil // which are as fast
	return ops
}()

// attnAMX is attnBF16 with tiles.
var attnAMX = func() attnOps {
	ops := attnBF16
	ops.pairs = []attnTile{attnPairs64AMX, attnPairs32AMX, attnPairs16AMX}
	ops.quads, ops.tall, ops.probs, ops.pairProbs = nil, nil, nil, attnProbsAMX
	ops.pairHeight, ops.pairUnit = pairRows, tileRows
	return ops
}()

// laneMask holds the AVX2 masks of 0 to 8 lanes: the mask of rem lanes starts at 8-rem.
//
//lint:ignore U1000 the assembly reads it
var laneMask = [16]int32{-1, -1, -1, -1, -1, -1, -1, -1}

// attnKernels returns the kernels in use, or nil for the reference.
func attnKernels() *attnOps {
	switch on := computing(); on.level() {
	case implAVX512:
		switch {
		case on.impl == implAMX:
			return &attnAMX
		case on.bf16:
			return &attnBF16
		case on.vnni:
			return &attnVNNI
		}
		return &attnAVX512
	case implAVX2:
		if on.impl == implAVXVNNI {
			return &attnAVXVNNI
		}
		return &attnAVX2
	}
	return nil
}
