//go:build !purego

package kernel

import "unsafe"

// microLoop returns a function that calls the tile from which a product of m rows is built, on its
// own operands, and its number of operations.
func microLoop(on isa, step bool, f Format, m int) (loop func(), ops int) {
	level := on.level()
	switch {
	case level == implGo:
		return microLoopGo(f, m)
	case !step && on.tiled(f):
		return microTiles(f, m)
	case !step && on.spans(f):
		return microSpans(spanKernels(on, f), on.spanAct(f))
	case f.blocks():
		return microQuant(on, f, m)
	case f == BF16Dot:
		return microPairs(on, m)
	case f == Q12:
		return microWords(m)
	case m <= smallRows(level):
		return microDots(level, f, m)
	}
	width := panelWidth(level)
	a, c := make([]float32, maxTileRows*microDepth), make([]float32, maxTileRows*width)
	b := alignedFloats(microDepth * width)
	return func() {
		for range microCalls {
			gemmTile(level, &c[0], width, &a[0], microDepth, &b[0], microDepth, maxTileRows, true,
				&prefetch{})
		}
	}, microCalls * 2 * maxTileRows * width * microDepth
}

func microQuant(on isa, f Format, m int) (loop func(), ops int) {
	if f == IQ4 {
		f = Q8 // the format it is widened to
	}
	const blocks = microDepth / quantBlock
	tiles := quantTiles(on, f)
	m = min(m, len(tiles))
	tile := tiles[m-1]
	w := alignedFloats((blocks*quantBlockSize(f) + 3) / 4)
	x := make([]byte, m*blocks*actBlock)
	dst, bias := make([]float32, m*quantPanel), make([]float32, quantPanel)
	return func() {
		for range microCalls {
			tile(&dst[0], quantPanel, &x[0], blocks*actBlock, (*byte)(unsafe.Pointer(&w[0])),
				blocks, &bias[0], 0, 1, 0, 0)
		}
	}, microCalls * 2 * m * quantPanel * microDepth
}

// microSpans multiplies a tile of rows with an unpacked span.
func microSpans(k *spanOps, act int) (loop func(), ops int) {
	rows := len(k.tiles)
	const calls = microCalls * microDepth / spanDepth
	v := newSpanVectors()
	x, c := make([]byte, rows*act), alignedFloats(rows*quantPanel)
	return func() {
		for range calls {
			k.tiles[rows-1](&c[0], &x[0], &v.units[0], &v.scales[0], spanBlocks, 1, 0, 0, 0, nil,
				0, nil)
		}
	}, calls * 2 * rows * quantPanel * spanDepth
}

// microTiles multiplies one block of a strip, again and again.
func microTiles(f Format, m int) (loop func(), ops int) {
	m = min(m, 8*tileRows)
	t := &tileProduct{m: m, w: &Matrix{Format: f, N: stripWidth, K: microDepth}}
	t.prepare(make([]float32, m*microDepth))
	t.w.Data = make([]byte, t.w.Bytes())
	for pair := range t.pairs {
		t.round(pair)
	}
	c := tileBlock{tileProduct: t, tileScratch: new(tileScratch), pairs: t.pairs, begin: 1}
	c.reserve(2 * t.pairs)
	c.c = c.tileScratch.c
	return func() {
		for range microCalls {
			c.multiply()
		}
	}, microCalls * 2 * 2 * t.pairs * tileRows * stripWidth * microDepth
}

func microPairs(on isa, m int) (loop func(), ops int) {
	tiles, width := pairsTiles(on)
	m = min(m, len(tiles))
	b, c, a := alignedFloats(microDepth*pairsPanel/2), make([]float32, m*width),
		make([]float32, m*microDepth)
	_, unit := pairsBlock(on, m)
	return func() {
		for range microCalls {
			tiles[m-1](&c[0], 4*width, &c[0], 4*width, (*byte)(unsafe.Pointer(&a[0])),
				unit*microDepth, (*byte)(unsafe.Pointer(&b[0])), microDepth/pairsUnit, 0, 0)
		}
	}, microCalls * 2 * m * width * microDepth
}

func microWords(m int) (loop func(), ops int) {
	const blocks = microDepth / wordsBlock
	m = min(m, len(wordTiles))
	w, sums := alignedFloats(blocks*wordsBlockSize/4), make([]float32, m*wordsPanel)
	x := make([]byte, m*blocks*wordActs)
	return func() {
		for range microCalls {
			wordTiles[m-1](&sums[0], 4*wordsPanel, &sums[0], 4*wordsPanel, &x[0],
				(*byte)(unsafe.Pointer(&w[0])), blocks, 0, 0)
		}
	}, microCalls * 2 * m * wordsPanel * microDepth
}

func microDots(level implementation, f Format, m int) (loop func(), ops int) {
	if level == implAVX2 {
		return microParts(f, min(m, 3))
	}
	m = min(m, 6)
	tile := dotTiles[level][f][m-1]
	w, x, dst := make([]byte, 4*microDepth*f.Size()), make([]float32, m*microDepth),
		make([]float32, m*4)
	return func() {
		for range microCalls {
			tile(&dst[0], 4, &x[0], microDepth, &w[0], microDepth*f.Size(), microDepth/16, 0)
		}
	}, microCalls * 2 * m * 4 * microDepth
}

func microParts(f Format, m int) (loop func(), ops int) {
	var passes [4]int
	passes[m] = 1
	w, x, sums := alignedFloats(4*microDepth*f.Size()/4), alignedFloats(m*microDepth),
		alignedFloats(m*4*8)
	return func() {
		for range microCalls {
			dotPartsAVX2[f](&sums[0], &x[0], microDepth, (*byte)(unsafe.Pointer(&w[0])),
				microDepth*f.Size(), microDepth/8, passes[3], passes[2], passes[1], 0, 0)
		}
	}, microCalls * 2 * m * 4 * microDepth
}
