//go:build !amd64 || purego

package kernel

func pairsBlock(isa, int) (kc, unit int) { return pairsBlockGo, 4 }

func roundActs(_ implementation, dst []byte, x []float32, unit int) { roundActsGo(dst, x, unit) }

func pairsPanelRows(t *pairsProduct, panel, first, end int) { pairsPanelGo(t, panel, first, end) }
