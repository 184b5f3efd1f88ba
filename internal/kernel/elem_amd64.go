//go:build !purego

package kernel

//go:generate sh -c "cd _gen && go run . -kernel elem"

var elemImpl = [...]*elemOps{
	implAVX2: {8, elemSigmoidAVX2, elemGELUTanhAVX2, elemSiLUMulAVX2, elemGELUAVX2,
		elemAddAVX2, elemRotateAVX2, elemSumAVX2, elemSquaresAVX2, elemScaleAVX2,
		elemNormAVX2, elemDotAVX2, attnExpSumAVX2},
	implAVX512: {16, elemSigmoidAVX512, elemGELUTanhAVX512, elemSiLUMulAVX512, elemGELUAVX512,
		elemAddAVX512, elemRotateAVX512, elemSumAVX512, elemSquaresAVX512,
		elemScaleAVX512, elemNormAVX512, elemDotAVX512, attnExpSumAVX512},
}
