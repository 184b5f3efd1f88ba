//go:build (amd64 || arm64) && !purego

package kernel

import "unsafe"

// Attention in words: queries, keys, values and probabilities are int16, in the layout of products
// with weights in [Q12], for processors that multiply these faster than float32. Probabilities have
// a scale for every row and every 128 keys, values one for every column and every 128 keys. A
// float32 has the place of two words.
const (
	wordsRow   = wordActs / 4            // of a row of one block, with its scale
	wordsTile  = attnTileRows * wordsRow // of a tile of rows of one block
	wordsWhole = wordsBlockSize / 4      // of a panel of one block
	wordsRound = 8                       // values of a round of wordScores
)

// toWords rounds values to one block and its scale.
func (t *attnTask) toWords(dst, scale *float32, x []float32, most int) {
	t.ops.roundWords((*byte)(unsafe.Pointer(dst)), (*byte)(unsafe.Pointer(scale)), 0, &x[0], 1,
		most)
}

// packQueryWords rounds all queries of the task, zero up to the end of their last tile.
func (t *attnTask) packQueryWords() {
	a := &t.a
	t.q = grow(t.q, t.rows/attnTileRows*wordsTile)
	clear(t.q[len(t.q)-wordsTile:])
	t.row = grow(t.row, wordsBlock)
	clear(t.row)
	for i := range t.q1 - t.q0 {
		query := a.Q[(t.q0+i)*a.QStride+t.h0*a.HeadDim:]
		t.ops.copyRows(&t.row[0], 0, &query[0], 0, 1, a.HeadDim, a.Scale)
		tile, r := t.q[i/attnTileRows*wordsTile:], i%attnTileRows
		t.toWords(&tile[r*wordsBlock/2], &tile[attnTileRows*wordsBlock/2+r], t.row, wordActMost)
	}
}

// wordRounds returns the rounds of wordScores.
func (j *attnJob) wordRounds() int { return (j.a.HeadDim + wordsRound - 1) / wordsRound }

// packKeyWords rounds n keys from t.c0 on less the mean of the first block, in panels of one block
// that is as deep as the rounds.
func (t *attnTask) packKeyWords(n int) {
	a, ops := &t.a, t.ops
	keys := a.K[t.c0*a.KStride+t.kv*a.HeadDim:]
	t.meanOf(keys, n)
	t.row = grow(t.row, wordsBlock)
	clear(t.row)
	t.words = grow(t.words, padded(n)*wordsRow)
	clear(t.words[n*wordsRow:])
	width := (a.HeadDim + ops.lanes - 1) &^ (ops.lanes - 1)
	for i := range n {
		ops.copyRows(&t.row[0], 0, &keys[i*a.KStride], 0, 1, a.HeadDim, 1)
		ops.axpy(&t.row[0], &t.mean[0], width, -1)
		row := t.words[i*wordsRow:]
		t.toWords(&row[0], &row[wordsBlock/2], t.row, wordMost)
	}
	size := t.keyPanel()
	t.k = grow(t.k, padded(n)/wordsPanel*size+wordsPanel*ops.lanes)
	for p := range padded(n) / wordsPanel {
		t.panelOf(t.k[p*size:], t.words[p*wordsPanel*wordsRow:], t.wordRounds()*wordsRound/2)
	}
}

// keyPanel is the size of a panel of keys.
func (t *attnTask) keyPanel() int { return wordsPanel + t.wordRounds()*wordsRound/2*wordsPanel }

// panelOf sets dst to a panel of one block of the first pairs of 16 rows with scales. It writes
// zeros after it, up to a multiple of the lanes of pairs.
func (t *attnTask) panelOf(dst, rows []float32, pairs int) {
	ops := t.ops
	for r := 0; r < wordsPanel; r += ops.lanes {
		ops.transpose(&dst[wordsPanel+r], wordsPanel, &rows[r*wordsRow], wordsRow, pairs)
	}
	for r := range wordsPanel {
		dst[r] = rows[r*wordsRow+wordsBlock/2]
	}
}

// packValueWords rounds the values of n keys from t.c0 on, in panels of blocks of keys.
func (t *attnTask) packValueWords(n int) {
	a, ops, blocks := &t.a, t.ops, wordsBlocks(n)
	values := a.V[t.c0*a.VStride+t.kv*a.HeadDim:]
	t.v = grow(t.v, t.depth/wordsPanel*blocks*wordsWhole)
	t.columns = grow(t.columns, t.depth*wordsBlock)
	t.words = grow(t.words, t.depth*wordsRow)
	clear(t.words[a.HeadDim*wordsRow:])
	for b := range blocks {
		lo := b * wordsBlock
		if n < lo+wordsBlock {
			clear(t.columns)
		}
		for i := lo; i < min(n, lo+wordsBlock); i += ops.lanes {
			src, stride := values[i*a.VStride:], a.VStride
			if n < i+ops.lanes {
				clear(t.last)
				ops.copyRows(&t.last[0], t.depth, &src[0], stride, n-i, a.HeadDim, 1)
				src, stride = t.last, t.depth
			}
			ops.transpose(&t.columns[i-lo], wordsBlock, &src[0], stride, a.HeadDim)
		}
		ops.roundWords((*byte)(unsafe.Pointer(&t.words[0])),
			(*byte)(unsafe.Pointer(&t.words[wordsBlock/2])), wordActs, &t.columns[0], a.HeadDim,
			wordMost)
		for p := range t.depth / wordsPanel {
			t.panelOf(t.v[(p*blocks+b)*wordsWhole:], t.words[p*wordsPanel*wordsRow:],
				wordsBlock/2)
		}
	}
}

// scoreWords computes the scores of n keys for tiles of queries from row at of the task on.
func (t *attnTask) scoreWords(at, n, tiles int) {
	size := t.keyPanel()
	for col := 0; col < n; col += wordsPanel {
		t.ops.words(&t.s[col], 4*t.width,
			(*byte)(unsafe.Pointer(&t.q[at/attnTileRows*wordsTile])),
			(*byte)(unsafe.Pointer(&t.k[col/wordsPanel*size])), t.wordRounds(), tiles)
	}
}

var noSums [wordsPanel]float32

// weighWords is weigh for n probabilities of some rows of s.
func (t *attnTask) weighWords(s []float32, rows int, c *float32, n int) {
	blocks := wordsBlocks(n)
	t.probs = grow(t.probs, blocks*wordsTile)
	x := (*byte)(unsafe.Pointer(&t.probs[0]))
	for r := range rows {
		row := s[r*t.width:][:blocks*wordsBlock]
		clear(row[min(len(row), t.vectors(n)):])
		t.ops.roundWords((*byte)(unsafe.Pointer(&t.probs[r*wordsBlock/2])),
			(*byte)(unsafe.Pointer(&t.probs[attnTileRows*wordsBlock/2+r])), 4*wordsTile, &row[0],
			blocks, wordActMost)
	}
	for p := range t.depth / wordsPanel {
		to := offset(c, p*wordsPanel)
		from, ldf := to, 4*t.depth
		if t.c0 == t.k0 {
			from, ldf = &noSums[0], 0
		}
		w := unsafe.Pointer(&t.v[p*blocks*wordsWhole])
		t.ops.weighWords(to, 4*t.depth, from, ldf, x, (*byte)(w), blocks, uintptr(w), 0)
	}
}
