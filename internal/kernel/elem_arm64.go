//go:build !purego

package kernel

var elemImpl = [...]*elemOps{
	implNEON: {4, elemSigmoidNEON, elemGELUTanhNEON, elemSiLUMulNEON, elemGELUNEON,
		elemAddNEON, elemRotateNEON, elemSumNEON, elemSquaresNEON, elemScaleNEON,
		elemNormNEON, elemDotNEON, attnExpSumNEON},
}
