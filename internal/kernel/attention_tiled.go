//go:build (amd64 || arm64) && !purego

package kernel

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// The tiled attention. A task is a block of query rows and up to attnGroup heads. It goes over
// blocks of keys that fit the cache together with their values. Both are packed into panels, or
// read in place from pages:
//
//	S = Q·Kᵀ (Q scaled)            tiles of six rows by one panel
//	S += bias; m' = max(m, max S)
//	P = e^(S-m'); l = l·e^(m-m') + ΣP; O = O·e^(m-m') + P·V
//	Out = O/l                      after the last block
//
// A row's bits do not depend on the others of its task, and blocks of keys only on the shape, so
// the result does not depend on the number of threads.
const (
	attnTileRows  = 6    // as in _gen
	attnTileBlock = 48   // most query rows of one score block
	attnQueries   = 768  // most query rows of a task
	attnRounded   = 4096 // the same with pairs or quads, whose packing takes longer
	attnBiased    = 320  // the same with a bias, whose rows are in memory
	attnPeaks     = 400  // the same with a maximum over heads, whose rows are in memory
	attnBiasRows  = 16   // rows of a bias that one task makes
	attnGroup     = 4    // heads of a task that computes a maximum over heads
	attnKeys      = 1024
	attnFewRows   = 3 // up to this many queries over pages use a task for each run of keys
	attnFewPages  = 8 // pages of a run
	attnTapKeys   = 512
	attnSerial    = 1 << 15
)

// attnBlock is the query rows q0 … q1-1, which see at most keys k0 … k1-1.
type attnBlock struct{ q0, q1, k0, k1 int }

// attnJob is one call of Attend. Jobs are recycled, so that decoding does not allocate.
type attnJob struct {
	a      Attention
	ops    *attnOps
	blocks []attnBlock
	groups int  // of heads
	pairs  bool // products of pairs of bfloat16
	quads  bool // scores of quads of bytes
	values bool // products of probabilities and values of int16, after scores of quads
	int16s bool // products of blocks of int16
	sample bool // probabilities relative to a sample of the scores, see sampleBlock
	fused  bool // the same, whose scores become probabilities beside products, see fusedBlock
	height int  // rows of a tile
	unit   int  // k is rounded up to this many pairs
	tiled  func(i int)
	biased func(i int)

	// biasRows is the bias of all queries of one block and its keys, [rows, biasWidth], which the
	// heads share; first is the block's index. It is empty if there is no bias or each task makes
	// its rows. With few queries it is [Tq, padded Tk].
	biasRows  []float32
	biasWidth int
	first     int
	// window is the bias table, mirrored before its start. It is used if every vector of look-ups
	// lies within two adjacent vectors of the table, as for keys without large gaps; otherwise it
	// is empty.
	window []float32

	merging sync.Mutex // for MaxTap

	// For few queries: the keys and values to write, and partial results of every query row, head
	// and run of pages. The first run starts at firstKey.
	fresh             pageWrite
	firstKey          int
	chunks, chunkKeys int
	taskHeads         int          // key heads of a task
	left              atomic.Int32 // tasks
	top, sum          []float32    // [Tq, Heads, chunks]
	out               []float32    // [Tq, Heads, chunks, padded HeadDim]
}

// attnScratch is the scratch memory of a task.
type attnScratch struct {
	q, k, v, s, o, m, l, bias, sizes, row, cols, colBlock, peaks, last []float32
	words, columns                                                     []float32
	// With quads: the scales of the queries and of a block's keys, and what is subtracted from each
	// key, which changes all scores of a query by the same amount.
	queryScales, keyScales, mean []float32
	// The probabilities of a score block, or of a tile, and 16 sums of each row.
	probs, sums []float32
	// With values of int16: the scales of a tile's probabilities and of the columns of values.
	probScales, valueScales []float32
	// Of pairProbs: the sums before, scores, and which keys of a group the rows see.
	sumsBefore, groupScores []float32
	seen                    []uint32
	keys, lasts             []int32
}

var (
	attnJobs      = sync.Pool{New: func() any { return newAttnJob() }}
	attnScratches = sync.Pool{New: func() any { return new(attnScratch) }}
)

func newAttnJob() *attnJob {
	j := new(attnJob)
	j.tiled, j.biased = j.tiledTask, j.biasTask
	return j
}

func attendTiled(p *Pool, a *Attention, ops *attnOps) {
	j := attnJobs.Get().(*attnJob)
	j.a, j.ops = *a, ops
	j.pairs = a.Rounding != Exact && a.Rounding != RoundWords && ops.pairs != nil &&
		a.HeadDim%2 == 0 && (a.Pages == nil || a.Tq > attnFewRows)
	j.height, j.unit = attnTileRows, 1
	if j.pairs {
		j.height, j.unit = ops.pairHeight, ops.pairUnit
	}
	bare := a.Bias == nil && a.RowTap == nil && a.MaxTap == nil && a.ColTap == nil
	j.quads = a.Rounding == RoundBytes && ops.quads != nil && a.HeadDim%4 == 0 && bare
	j.int16s = a.Rounding == RoundWords && ops.words != nil && a.HeadDim <= wordsBlock &&
		a.MaxTap == nil && a.Tq >= wordsQueries*max(1, len(a.Segments)-1)
	j.values = j.quads && ops.wordValues != nil
	j.sample = bare && a.Window == 0 && (j.pairs || j.quads)
	j.fused = j.sample && !j.quads && ops.pairProbs != nil && a.HeadDim <= attnFusedDim
	if a.work() <= attnSerial {
		p = nil
	}
	a.write(p)
	if a.MaxTap != nil {
		clear(a.MaxTap[:a.Tq*a.Tk])
	}
	j.runTiled(p)
	j.release()
}

func (j *attnJob) release() {
	j.a = Attention{}
	attnJobs.Put(j)
}

// runTiled computes all blocks at once. If the heads share rows of a bias, it computes one block
// after another, and all threads make the block's bias first.
func (j *attnJob) runTiled(p *Pool) {
	j.makeWindow()
	j.plan(p)
	j.biasRows = j.biasRows[:0]
	if !j.sharesBias() {
		p.Run(len(j.blocks)*j.groups, j.tiled)
		return
	}
	for i, b := range j.blocks {
		j.first, j.biasWidth = i, padded(b.k1-b.k0)
		j.biasRows = grow(j.biasRows, (b.q1-b.q0)*j.biasWidth)
		p.Run((b.q1-b.q0+attnBiasRows-1)/attnBiasRows, j.biased)
		p.Run(j.groups, j.tiled)
	}
}

// sharesBias reports whether the heads of a block share the rows of a bias. They do not with column
// sums, which take all queries in one task: its bias may be too large.
func (j *attnJob) sharesBias() bool {
	b := j.a.Bias
	return b != nil && (b.Row != nil || b.Table != nil) && j.a.ColTap == nil && len(j.window) == 0
}

// makeWindow fills window if the keys ascend, every vector of keys stays within the two vectors
// that ops.addWindow reads, and no query precedes the last key it reads by more than that.
func (j *attnJob) makeWindow() {
	a, lanes, span := &j.a, j.ops.lanes, 2*j.ops.lanes
	j.window = j.window[:0]
	b := a.Bias
	if b == nil || b.Row != nil || b.Table == nil || a.Segments != nil {
		return
	}
	for k := range a.Tk - 1 {
		first := k &^ (lanes - 1) // of the key's vector
		if next := b.KeyPos[k+1]; next < b.KeyPos[k] ||
			(k+1)%lanes != 0 && next-b.KeyPos[first] >= int32(span) {
			return
		}
	}
	for q := range a.Tq {
		_, hi := a.visible(q)
		last := min(a.Tk, (hi+lanes-1)&^(lanes-1)) - 1 // last key of the last vector that q reads
		if b.QueryPos[q]-b.KeyPos[last] < -int32(span) {
			return
		}
	}
	j.window = grow(j.window, span+len(b.Table)+span)
	for d := range span {
		j.window[d] = b.Table[min(span-d, len(b.Table)-1)]
	}
	copy(j.window[span:], b.Table)
	clear(j.window[span+len(b.Table):])
}

// biasTask makes some rows of a block's bias.
func (j *attnJob) biasTask(i int) {
	sc := attnScratches.Get().(*attnScratch)
	t := attnTask{attnJob: j, attnScratch: sc, attnBlock: j.blocks[j.first]}
	sc.keys, sc.sizes = j.a.Bias.pad(sc.keys, sc.sizes, t.k0, t.k1-t.k0)
	for q := t.q0 + i*attnBiasRows; q < min(t.q1, t.q0+(i+1)*attnBiasRows); q++ {
		if seen := t.sees(q, t.k0, t.k1); seen > 0 {
			t.biasRow(j.biasRows[(q-t.q0)*j.biasWidth:], q, t.k0, seen)
		}
	}
	attnScratches.Put(sc)
}

// heads returns the number of heads of a task.
func (j *attnJob) heads() int {
	if j.a.MaxTap != nil {
		return min(attnGroup, j.a.Heads)
	}
	return 1
}

// plan splits the queries into blocks of almost equal height, in multiples of the tile's. With
// column sums, all queries of a segment are in one task.
func (j *attnJob) plan(p *Pool) {
	a := &j.a
	n := j.heads()
	j.groups = (a.Heads + n - 1) / n
	j.blocks = j.blocks[:0]
	add := func(lo, hi, k0, k1 int) {
		parts := 1
		if a.ColTap == nil {
			blocks := func(rows int) int { return (hi - lo + rows - 1) / rows }
			switch {
			case a.MaxTap != nil:
				parts = blocks(attnPeaks)
			case j.sharesBias():
				parts = blocks(attnBiased)
			case j.pairs || j.quads || j.int16s:
				tasks := j.groups * max(1, len(a.Segments)-1)
				parts = p.parts(tasks, blocks(attnRounded), blocks(attnQueries))
			default:
				parts = blocks(attnQueries)
			}
		}
		rows := (hi - lo + parts - 1) / parts
		rows = (rows + j.height - 1) / j.height * j.height
		for q := lo; q < hi; q += rows {
			end := min(q+rows, hi)
			b := attnBlock{q, end, k0, k1}
			if a.Causal {
				b.k1 = min(k1, a.end(end-1))
			}
			if a.ColTap == nil { // which gets all keys
				b.k0 = max(k0, a.oldest(q)/PageKeys*PageKeys)
			}
			j.blocks = append(j.blocks, b)
		}
	}
	if a.Segments == nil {
		add(0, a.Tq, 0, a.Tk)
		return
	}
	for i := 1; i < len(a.Segments); i++ {
		if lo, hi := int(a.Segments[i-1]), int(a.Segments[i]); lo < hi {
			add(lo, hi, lo, hi)
		}
	}
}

// tiledTask computes one block for one group of heads. In a causal call, the longest blocks come
// first.
func (j *attnJob) tiledTask(i int) {
	sc := attnScratches.Get().(*attnScratch)
	n := j.heads()
	b := j.first
	if len(j.biasRows) == 0 {
		b = len(j.blocks) - 1 - i/j.groups
	}
	h0 := i % j.groups * n
	t := attnTask{
		attnJob: j, attnScratch: sc, attnBlock: j.blocks[b], h0: h0, h1: min(h0+n, j.a.Heads),
	}
	t.run()
	attnScratches.Put(sc)
}

// attnTask is the state of one task.
type attnTask struct {
	*attnJob
	*attnScratch
	attnBlock
	h0, h1 int
	rows   int // query rows, rounded up to whole tiles
	depth  int // head dim, padded
	width  int // stride of s: the keys of one block, padded
	kv, c0 int // key head and first key that load prepared
}

func (t *attnTask) run() {
	a := &t.a
	t.depth = padded(a.HeadDim)
	t.rows = (t.q1 - t.q0 + t.height - 1) / t.height * t.height
	total := t.k1 - t.k0
	chunk := total
	if a.ColTap == nil && a.MaxTap == nil {
		limit := min(attnKeys, max(64, t.ops.packed/t.depth&^63))
		parts := (total + limit - 1) / limit
		chunk = min(total, ((total+parts-1)/parts+63)&^63)
		if t.fused { // the same blocks of any number of keys
			chunk = min(total, limit)
		}
	}
	t.width = padded(chunk) + attnPad // not a power of two, which would use few cache sets
	heads := t.h1 - t.h0
	switch {
	case t.quads:
		t.packQueryQuads()
	case t.fused:
		t.width = t.ops.widths[0] + attnPad
		t.prepareFused()
	case t.int16s:
		t.width = wordsBlocks(chunk)*wordsBlock + attnPad
		t.packQueryWords()
	default:
		t.q = grow(t.q, attnTileBlock*t.depth)
	}
	if t.sample && !t.fused {
		t.probs = grow(t.probs, attnTileBlock*t.probWidth())
		t.sums = grow(t.sums, attnTileBlock*t.ops.lanes)
		t.probScales = grow(t.probScales, attnTileRows)
	}
	switch {
	case a.Pages == nil && !t.int16s:
		t.k = grow(t.k, t.panelKeys(padded(chunk))*t.depth)
		t.v = grow(t.v, (chunk+2*t.unit)*t.depth)
	case t.pairs:
		n := (chunk + PageKeys - 1) &^ (PageKeys - 1)
		t.k, t.v = grow(t.k, n*t.depth), grow(t.v, (chunk+2*t.unit)*t.depth)
	case a.half():
		n := (chunk + PageKeys - 1) &^ (PageKeys - 1)
		t.k, t.v = grow(t.k, n*a.HeadDim), grow(t.v, n*t.depth)
	}
	t.s = grow(t.s, attnTileBlock*t.width)
	t.o = grow(t.o, heads*t.rows*t.depth)
	t.m = grow(t.m, heads*t.rows)
	t.l = grow(t.l, heads*t.rows)
	t.last = grow(t.last, attnPad*t.depth)
	if a.ColTap != nil {
		t.cols = grow(t.cols, t.width)
		t.colBlock = grow(t.colBlock, t.width)
		clear(t.cols)
	}
	if a.MaxTap != nil {
		t.peaks = grow(t.peaks, (t.q1-t.q0)*t.width)
		clear(t.peaks)
	}
	tapped := t.tapped()
	for h := t.h0; h < t.h1; h++ {
		for _, q := range tapped {
			clear(a.rowTap(h, int(q)))
		}
	}
	for c0 := t.k0; c0 < t.k1; c0 += chunk {
		t.keyBlock(c0, min(c0+chunk, t.k1))
	}
	if t.fused {
		t.sumFused()
	}
	for h := t.h0; h < t.h1; h++ {
		at := (h - t.h0) * t.rows
		for i := t.q0; i < t.q1; i++ {
			r := at + i - t.q0
			t.ops.copyRows(&a.Out[i*a.OutStride+h*a.HeadDim], 0, &t.o[r*t.depth], 0, 1, a.HeadDim,
				1/t.l[r])
		}
		for _, q := range tapped {
			r := at + int(q) - t.q0
			t.finishRowTap(a.rowTap(h, int(q)), int(q), t.m[r], t.l[r])
		}
		if a.ColTap != nil {
			copy(a.ColTap[h*a.Tk+t.k0:], t.cols[:total])
		}
	}
	if a.MaxTap != nil {
		t.mergePeaks()
	}
}

// mergePeaks merges the maximum over the task's heads into the maximum over all heads.
func (t *attnTask) mergePeaks() {
	t.merging.Lock()
	defer t.merging.Unlock()
	for i := t.q0; i < t.q1; i++ {
		n := t.sees(i, t.k0, t.k1)
		if n <= 0 {
			continue
		}
		row, tap := t.peaks[(i-t.q0)*t.width:][:n], t.a.MaxTap[i*t.a.Tk+t.k0:][:n]
		whole := n &^ (t.ops.lanes - 1)
		if whole > 0 {
			t.ops.peak(&tap[0], &row[0], whole, 1)
		}
		for k := whole; k < n; k++ {
			tap[k] = max(tap[k], row[k])
		}
	}
}

// tapped returns the queries of the task that are in the row tap.
func (t *attnTask) tapped() []int32 {
	if t.a.RowTap == nil {
		return nil
	}
	all := t.a.RowTapQueries
	lo, _ := slices.BinarySearch(all, int32(t.q0))
	hi, _ := slices.BinarySearch(all, int32(t.q1))
	return all[lo:hi]
}

// sees returns how many keys of c0 … c1-1 query sees.
func (t *attnTask) sees(query, c0, c1 int) int {
	if t.a.Causal {
		return min(c1, t.a.end(query)) - c0
	}
	return c1 - c0
}

// keyBlock adds the keys c0 … c1-1 to every row and head of the task.
func (t *attnTask) keyBlock(c0, c1 int) {
	t.prepareBias(c0, c1)
	for h, packed := t.h0, -1; h < t.h1; h++ {
		if kv := h / (t.a.Heads / t.a.KVHeads); kv != packed {
			t.load(kv, c0, c1)
			packed = kv
		}
		rows := attnTileBlock / t.height * t.height
		for q := t.q0; q < t.q1; q += rows {
			switch end := min(q+rows, t.q1); {
			case t.fused:
				t.fusedBlock(q, end, c0, c1)
			case t.sample:
				t.sampleBlock(h, q, end, c0, c1)
			default:
				t.scoreBlock(h, q, end, c0, c1)
			}
		}
	}
}

// prepareBias prepares biasOf for one block of keys.
func (t *attnTask) prepareBias(c0, c1 int) {
	b := t.a.Bias
	if b == nil || len(t.biasRows) > 0 || b.Row == nil && b.Table == nil && b.LogSize == nil {
		return
	}
	t.bias = grow(t.bias, t.width)
	t.keys, t.sizes = b.pad(t.keys, t.sizes, c0, c1-c0)
	if len(t.window) == 0 {
		return
	}
	lanes := t.ops.lanes
	t.lasts = t.lasts[:0]
	for i := 0; i < len(t.keys); i += lanes {
		v := t.keys[i : i+lanes]
		last := v[lanes-1]
		for k := range v {
			v[k] = last - v[k]
		}
		t.lasts = append(t.lasts, last)
	}
}

// biasOf returns the bias of query for the first n keys from c0 on, up to the end of their last
// vector, or nil if there is no bias.
func (t *attnTask) biasOf(query, c0, n int) []float32 {
	b := t.a.Bias
	switch {
	case len(t.biasRows) > 0:
		return t.biasRows[(query-t.q0)*t.biasWidth+c0-t.k0:]
	case b == nil:
		return nil
	case b.Row != nil || b.Table != nil:
		t.biasRow(t.bias, query, c0, n)
		return t.bias
	case b.LogSize != nil:
		return t.sizes
	}
	return nil
}

// pad copies the positions and sizes of the keys k0 … k0+n-1 into buffers of whole vectors.
func (b *Bias) pad(keys []int32, sizes []float32, k0, n int) ([]int32, []float32) {
	keys, sizes = grow(keys, padded(n)), grow(sizes, padded(n))
	if b.Row != nil {
		return keys, sizes
	}
	if b.LogSize != nil {
		copy(sizes, b.LogSize[k0:k0+n])
		clear(sizes[n:])
	} else {
		clear(sizes)
	}
	if b.Table != nil {
		copy(keys, b.KeyPos[k0:k0+n])
		for i := n; i < len(keys); i++ {
			keys[i] = keys[n-1] // any position inside the table
		}
	}
	return keys, sizes
}

// biasRow sets dst to the bias of query for the first n keys from c0 on, and to finite values up to
// the end of their last vector.
func (t *attnTask) biasRow(dst []float32, query, c0, n int) {
	b := t.a.Bias
	full := t.vectors(n)
	if b.Row != nil {
		b.Row(dst[:n], query, c0)
		clear(dst[n:full])
		return
	}
	t.ops.bias(&dst[0], &t.sizes[0], &t.keys[0], &b.Table[0], full, b.QueryPos[query])
}

// vectors rounds n up to whole vectors.
func (j *attnJob) vectors(n int) int { return (n + j.ops.lanes - 1) &^ (j.ops.lanes - 1) }

// offset returns a pointer to the element i after p.
func offset(p *float32, i int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*i)) }

// panels calls f for every panel of n columns with its first column and the index of its kernel.
func (j *attnJob) panels(n int, f func(col, kind int)) {
	for col := 0; col < n; {
		kind := 0
		for kind < len(j.ops.widths)-1 && padded(n-col) < j.ops.widths[kind] {
			kind++
		}
		f(col, kind)
		col += j.ops.widths[kind]
	}
}

// panelKeys rounds n keys up to what their panels hold: with fused, these are all of the widest.
func (j *attnJob) panelKeys(n int) int {
	if w := j.ops.widths[0]; j.fused {
		return (n + w - 1) / w * w
	}
	return n
}

// load prepares the keys c0 … c1-1 of one head and their values.
func (t *attnTask) load(kv, c0, c1 int) {
	t.kv, t.c0 = kv, c0
	switch a := &t.a; {
	case a.Pages == nil:
		t.pack(c1 - c0)
	case t.pairs:
		t.packPages(c1 - c0)
	case a.half():
		for i := c0; i < c1; i += PageKeys {
			g := a.Pages[i/PageKeys]
			WidenHalf(t.k[(i-c0)*a.HeadDim:][:PageKeys*a.HeadDim],
				g.Halves[pageKeys(a.HeadDim, kv):])
			WidenHalf(t.v[(i-c0)*t.depth:][:PageKeys*t.depth],
				g.Halves[pageValues(a.KVHeads, a.HeadDim, kv):])
		}
	}
}

// keysAt returns the panel of keys from t.c0+col on, with one row for each of the head's columns,
// and the stride of these rows.
func (t *attnTask) keysAt(col, width int) (*float32, int) {
	if t.a.Pages == nil {
		return &t.k[col*t.depth], width
	}
	page, place := (t.c0+col)/PageKeys, col%PageKeys
	if t.pairs {
		return &t.k[(col-place)*t.depth+place], PageKeys
	}
	if t.a.half() {
		return &t.k[(col-place)*t.a.HeadDim+place], PageKeys
	}
	return &t.a.Pages[page].Floats[pageKeys(t.a.HeadDim, t.kv)+place], PageKeys
}

// weigh computes the values of the keys from t.c0+from on, weighted by the probabilities p of
// tiles, which have depth of them per row, stride apart. It adds the result to the output rows c,
// or, with the first keys, stores it there. packed is the number of packed keys. from is even, and
// 0 but with pairs. With pages that are read in place, there is one tile.
func (t *attnTask) weigh(p *float32, stride int, c *float32, from, depth, packed, tiles int) {
	a, ops, add := &t.a, t.ops, 1
	if t.c0+from == t.k0 {
		add = 0
	}
	if t.pairs || t.values {
		packed, depth = t.pairsOf(packed), (depth+1)/2
	}
	if t.values {
		t.panels(a.HeadDim, func(col, kind int) {
			ops.wordValues[kind](p, stride, &t.v[col*packed], ops.widths[kind], offset(c, col),
				t.depth, depth, tiles, add, &t.probScales[0], &t.valueScales[col])
		})
		return
	}
	if a.Pages == nil || t.pairs {
		by := t.tiles()
		t.panels(a.HeadDim, func(col, kind int) {
			w, f, n := ops.widths[kind], by[kind], tiles
			if w == ops.lanes && tiles == 2 && ops.tall != nil {
				f, n = ops.tall, 1
			}
			f(p, stride, &t.v[col*packed+from/2*w], w, offset(c, col), t.depth, depth, n, add)
		})
		return
	}
	for lo := 0; lo < depth; lo += PageKeys {
		rows := t.v
		if !a.half() {
			rows = a.Pages[(t.c0+lo)/PageKeys].Floats[pageValues(a.KVHeads, a.HeadDim, t.kv):]
		} else {
			rows = rows[lo*t.depth:]
		}
		k := min(PageKeys, depth-lo)
		t.panels(a.HeadDim, func(col, kind int) {
			ops.tiles[kind](offset(p, lo), stride, &rows[col], t.depth, offset(c, col), t.depth, k,
				1, add)
		})
		add = 1
	}
}

// pairsOf returns the number of pairs of n values along k, zeros included.
func (j *attnJob) pairsOf(n int) int { return ((n+1)/2 + j.unit - 1) / j.unit * j.unit }

// endPairs clears what follows the n probabilities of a row, in whole vectors, up to the end of the
// last unit of depth of them.
func (t *attnTask) endPairs(row []float32, n, depth int) {
	pairs := t.pairsOf(depth)
	clear(row[min(pairs, t.vectors(n)/2):pairs])
}

// pack prepares n keys from t.c0 on and their values.
func (t *attnTask) pack(n int) {
	switch {
	case t.quads:
		t.packKeyQuads(n)
	case t.int16s:
		t.packKeyWords(n)
	case t.pairs:
		t.packKeyPairs(n)
	default:
		t.packKeys(n)
	}
	switch {
	case t.int16s:
		t.packValueWords(n)
	case t.values:
		t.scaleValues(n)
		t.packValuePairs(n)
	case t.pairs:
		t.packValuePairs(n)
	default:
		t.packValues(n)
	}
}

// packKeys copies n keys from t.c0 on into panels [depth][w].
func (t *attnTask) packKeys(n int) {
	a, ops := &t.a, t.ops
	keys, kRows, kStride := t.k, a.K[t.c0*a.KStride+t.kv*a.HeadDim:], a.KStride
	t.panels(n, func(col, kind int) {
		w := ops.widths[kind]
		for i := col; i < col+w; i += ops.lanes {
			src, stride := t.last, t.depth
			switch {
			case i+ops.lanes <= n:
				src, stride = kRows[i*kStride:], kStride
			case i < n:
				clear(t.last)
				ops.copyRows(&t.last[0], t.depth, &kRows[i*kStride], kStride, n-i, a.HeadDim, 1)
			default:
				clear(t.last)
			}
			ops.transpose(&keys[col*t.depth+i-col], w, &src[0], stride, a.HeadDim)
		}
	})
}

// packValues copies the values of n keys from t.c0 on into panels [keys][w].
func (t *attnTask) packValues(n int) {
	a, ops := &t.a, t.ops
	vRows := a.V[t.c0*a.VStride+t.kv*a.HeadDim:]
	t.panels(a.HeadDim, func(col, kind int) {
		w := ops.widths[kind]
		ops.copyRows(&t.v[col*n], w, &vRows[col], a.VStride, n, min(w, a.HeadDim-col), 1)
	})
}

// packKeyQuads is packKeys with quads of the head's columns, [depth/4][w], in unsigned bytes: each
// key less the mean of the first block has its own scale. Beyond the last key it is repeated.
func (t *attnTask) packKeyQuads(n int) {
	a, ops := &t.a, t.ops
	keys := a.K[t.c0*a.KStride+t.kv*a.HeadDim:]
	t.meanOf(keys, n)
	stride, rows := quadStride(a.HeadDim), t.vectors(n)
	t.words, t.keyScales = grow(t.words, rows*stride), grow(t.keyScales, rows)
	const flip = -0x7f7f7f80 // turns signed bytes into unsigned ones with 128 added
	ops.quadRows(&t.words[0], stride, &t.keyScales[0], &keys[0], a.KStride, &t.mean[0], n,
		a.HeadDim, flip, 1)
	for i := n; i < rows; i++ {
		copy(t.words[i*stride:][:stride], t.words[(n-1)*stride:])
		t.keyScales[i] = t.keyScales[n-1]
	}
	t.transposeWords(n, stride, a.HeadDim/4)
}

// meanOf sets mean to the mean of the first block's n keys.
func (t *attnTask) meanOf(keys []float32, n int) {
	if t.c0 != t.k0 {
		return
	}
	t.mean, t.row = grow(t.mean, t.depth), grow(t.row, n)
	for i := range t.row {
		t.row[i] = 1 / float32(n)
	}
	clear(t.mean)
	t.ops.weighted(&t.mean[0], &t.row[0], &keys[0], t.a.KStride, n, t.a.HeadDim, 0, 0)
}

// quadStride is the distance between rows of quads, in quads: one more, up to a multiple of four.
func quadStride(headDim int) int { return (headDim/4 + 1 + 3) &^ 3 }

// packKeyPairs is packKeys with pairs of bfloat16 of the head's columns, [depth/2][w]. Where others
// would round to bytes, it subtracts the mean of the first block, as packKeyQuads.
func (t *attnTask) packKeyPairs(n int) {
	a, ops := &t.a, t.ops
	rows, d, keys := t.vectors(n), a.HeadDim/2, a.K[t.c0*a.KStride+t.kv*a.HeadDim:]
	t.words = grow(t.words, (rows+1)*t.depth/2)
	less := t.sample && a.Rounding == RoundBytes
	if less {
		t.meanOf(keys, n)
	}
	for i := range n {
		key := keys[i*a.KStride:][:a.HeadDim]
		if less || a.HeadDim < t.depth {
			copy(t.last, key)
			key = t.last
		}
		if less {
			ops.axpy(&key[0], &t.mean[0], t.depth, -1)
		}
		ops.round(&t.words[i*t.depth/2], &key[0], t.depth)
	}
	clear(t.words[n*t.depth/2:])
	t.transposeWords(n, t.depth/2, d)
	t.panels(t.panelKeys(n), func(col, kind int) {
		w := ops.widths[kind]
		clear(t.k[col*t.depth:][d*w : t.pairsOf(a.HeadDim)*w])
	})
}

// transposeWords turns the first d words of n rows, stride apart, into panels of keys.
func (t *attnTask) transposeWords(n, stride, d int) {
	ops, rows := t.ops, t.vectors(n)
	t.panels(t.panelKeys(n), func(col, kind int) {
		w := ops.widths[kind]
		for i := col; i < min(col+w, rows); i += ops.lanes {
			ops.transpose(&t.k[col*t.depth+i-col], w, &t.words[i*stride], stride, d)
		}
	})
}

// packValuePairs is packValues with pairs of keys, [keys/2][w], of bfloat16 or, with scales, int16.
func (t *attnTask) packValuePairs(n int) {
	t.endValues(n)
	t.pairValues(0, t.a.V[t.c0*t.a.VStride+t.kv*t.a.HeadDim:], t.a.VStride, n, n)
}

const (
	attnWordValue = 1023    // largest magnitude of a value of int16
	attnWordSum   = 1 << 21 // sum of a row's probabilities of int16; times the values it fits int32
	attnWordFar   = 0x1p100 // largest factor of a probability: the least, 2^-126, becomes 0
)

// scaleValues finds the scales of the values of n keys from t.c0 on, one for each column. It leaves
// their inverses in row, where pairValues reads them.
func (t *attnTask) scaleValues(n int) {
	t.valueScales, t.row = grow(t.valueScales, t.depth), grow(t.row, t.depth)
	t.ops.columnHighs(&t.valueScales[0], &t.a.V[t.c0*t.a.VStride+t.kv*t.a.HeadDim], t.a.VStride, n,
		t.a.HeadDim)
	for i, high := range t.valueScales[:t.a.HeadDim] {
		high = max(high, 0x1p-100) // so that the inverse is finite; NaN stays
		t.valueScales[i], t.row[i] = high/attnWordValue, attnWordValue/high
	}
}

// probWords rounds n probabilities with the given sum to int16 in place and returns their scale.
func (t *attnTask) probWords(p []float32, n int, sum float32) float32 {
	full := t.vectors(n)
	f := min(math.MaxInt16/t.ops.rowMax(&p[0], full), attnWordSum/sum, attnWordFar)
	t.ops.scaleWords(&p[0], &p[0], full, f)
	return 1 / f
}

// endValues clears what follows the pairs of n values, up to the end of their last unit, and last,
// with which an odd value makes a pair.
func (t *attnTask) endValues(n int) {
	pairs := t.pairsOf(n)
	t.panels(t.a.HeadDim, func(col, kind int) {
		w := t.ops.widths[kind]
		clear(t.v[col*pairs:][(n+1)/2*w : pairs*w])
	})
	clear(t.last)
}

// pairValues packs rows of values, stride apart, of the keys from the even key at on, of n in all.
func (t *attnTask) pairValues(at int, values []float32, stride, rows, n int) {
	ops, pairs := t.ops, t.pairsOf(n)
	t.panels(t.a.HeadDim, func(col, kind int) {
		w := ops.widths[kind]
		panel, columns := t.v[col*pairs+at/2*w:], min(w, t.a.HeadDim-col)
		pair := func(dst, x, y *float32, stride, rows int) {
			if t.values {
				ops.wordRows(dst, w, x, y, stride, rows, columns, &t.row[col])
			} else {
				ops.pairRows(dst, w, x, y, stride, rows, columns)
			}
		}
		if rows > 1 {
			pair(&panel[0], &values[col], &values[col+stride], 2*stride, rows/2)
		}
		if rows%2 != 0 {
			pair(&panel[rows/2*w], &values[(rows-1)*stride+col], &t.last[0], 0, 1)
		}
	})
}

// packPages prepares n keys of pages from t.c0 on and their values, as pairs of bfloat16.
func (t *attnTask) packPages(n int) {
	a, d := &t.a, t.a.HeadDim/2
	t.endValues(n)
	for i := 0; i < n; i += PageKeys {
		g := a.Pages[(t.c0+i)/PageKeys]
		from, to := pageKeys(a.HeadDim, t.kv), pageValues(a.KVHeads, a.HeadDim, t.kv)
		var keys, values []float32
		if a.half() {
			t.words = grow(t.words, PageKeys*(a.HeadDim+t.depth))
			keys, values = t.words[:PageKeys*a.HeadDim], t.words[PageKeys*a.HeadDim:]
			WidenHalf(keys, g.Halves[from:])
			WidenHalf(values, g.Halves[to:])
		} else {
			keys, values = g.Floats[from:], g.Floats[to:]
		}
		panel := t.k[i*t.depth:]
		t.ops.pairRows(&panel[0], PageKeys, &keys[0], &keys[PageKeys], 2*PageKeys, d, PageKeys)
		clear(panel[d*PageKeys : t.pairsOf(a.HeadDim)*PageKeys])
		t.pairValues(i, values, t.depth, min(PageKeys, n-i), n)
	}
}

// tiles returns the products of panels, by the index of the panel's width.
func (j *attnJob) tiles() []attnTile {
	if j.pairs {
		return j.ops.pairs
	}
	return j.ops.tiles
}

// packQueryQuads rounds all queries of the task to quads of signed bytes, zero up to the end of
// their last tile.
func (t *attnTask) packQueryQuads() {
	a, n, stride := &t.a, t.q1-t.q0, quadStride(t.a.HeadDim)
	t.q, t.queryScales = grow(t.q, t.rows*stride), grow(t.queryScales, t.rows)
	t.row = grow(t.row, t.depth)
	clear(t.row)
	t.ops.quadRows(&t.q[0], stride, &t.queryScales[0], &a.Q[t.q0*a.QStride+t.h0*a.HeadDim],
		a.QStride, &t.row[0], n, a.HeadDim, 0, a.Scale*math.Log2E)
	clear(t.q[n*stride:])
	clear(t.queryScales[n:])
}

// prepareQueries prepares the queries q … end-1 of a head, and zeros up to the end of their last
// tile. It returns their depth and their products with keys.
func (t *attnTask) prepareQueries(h, q, end int) (depth int, by []attnTile) {
	a, ops, n := &t.a, t.ops, end-q
	scale := a.Scale
	if t.sample {
		scale *= math.Log2E
	}
	ops.copyRows(&t.q[0], t.depth, &a.Q[q*a.QStride+h*a.HeadDim], a.QStride, n, a.HeadDim, scale)
	clear(t.q[n*t.depth : (n+t.height-1)/t.height*t.height*t.depth])
	if !t.pairs {
		return a.HeadDim, ops.tiles
	}
	for i := range n {
		row := t.q[i*t.depth:][:t.depth]
		ops.round(&row[0], &row[0], t.depth)
		clear(row[a.HeadDim/2 : t.pairsOf(a.HeadDim)])
	}
	return a.HeadDim / 2, ops.pairs
}

// scoreBlock adds the keys c0 … c1-1 to the query rows q … end-1 of head h.
func (t *attnTask) scoreBlock(h, q, end, c0, c1 int) {
	a, ops := &t.a, t.ops
	last := t.sees(end-1, c0, c1) // keys that the last row sees
	if last <= 0 {
		return
	}
	tiles := (end - q + t.height - 1) / t.height
	first := t.firstTile(q, end, c0, c1, 0)
	if t.int16s {
		t.scoreWords(q-t.q0, c1-c0, tiles)
	} else {
		t.scoreFloats(h, q, end, c0, c1, last, tiles)
	}
	state := (h-t.h0)*t.rows + q - t.q0
	if a.ColTap != nil {
		clear(t.colBlock)
	}
	for tile := first; tile < tiles; tile++ {
		r0 := tile * t.height
		r1 := min(r0+t.height, end-q)
		depth := t.sees(q+r1-1, c0, c1)
		for r := r0; r < r1; r++ {
			row := t.s[r*t.width:][:t.width]
			t.softmaxRow(h, q+r, state+r, row, depth, c0, c1)
			if t.pairs {
				ops.round(&row[0], &row[0], t.vectors(depth))
				t.endPairs(row, depth, depth)
			}
		}
		if o := &t.o[(state+r0)*t.depth]; t.int16s {
			t.weighWords(t.s[r0*t.width:], r1-r0, o, depth)
		} else {
			t.weigh(&t.s[r0*t.width], t.width, o, 0, depth, c1-c0, 1)
		}
	}
	if a.ColTap != nil {
		ops.axpy(&t.cols[0], &t.colBlock[0], t.vectors(c1-c0), 1)
	}
}

// firstTile returns the first tile of the queries q … end-1 that sees the key c0+col, which the
// last query sees.
func (t *attnTask) firstTile(q, end, c0, c1, col int) (tile int) {
	for t.sees(min(end, q+(tile+1)*t.height)-1, c0, c1) <= col {
		tile++
	}
	return tile
}

// scoreFloats computes the scores of the keys c0 … c1-1, of which the last query sees last, for the
// queries q … end-1 of head h.
func (t *attnTask) scoreFloats(h, q, end, c0, c1, last, tiles int) {
	a, ops := &t.a, t.ops
	depth, by := t.prepareQueries(h, q, end)
	t.panels(c1-c0, func(col, kind int) {
		if col >= last {
			return
		}
		w := ops.widths[kind]
		if c0+col+w <= a.oldest(q) {
			return
		}
		from := t.firstTile(q, end, c0, c1, col)
		r := from * t.height
		keys, keyStride := t.keysAt(col, w)
		by[kind](&t.q[r*t.depth], t.depth, keys, keyStride, &t.s[r*t.width+col], t.width, depth,
			tiles-from, 0)
	})
}

// addBias adds the bias of query for the first n keys from c0 on to their scores s, up to the end
// of their last vector, and returns the largest.
func (t *attnTask) addBias(s []float32, query, c0, n int) float32 {
	ops, full := t.ops, t.vectors(n)
	if len(t.window) > 0 {
		return ops.addWindow(&s[0], &t.sizes[0], &t.keys[0], &t.lasts[0], &t.window[2*ops.lanes],
			full, t.a.Bias.QueryPos[query])
	}
	bias := t.biasOf(query, c0, n)
	if bias == nil {
		return ops.rowMax(&s[0], full)
	}
	return ops.addMax(&s[0], &bias[0], full)
}

// softmaxRow turns the scores of one query into unnormalised probabilities, zero up to the end of
// the vector of depth, and rescales the row's sum and output to the new maximum. state is the row's
// index in m, l and o.
func (t *attnTask) softmaxRow(h, query, state int, s []float32, depth, c0, c1 int) {
	a, ops := &t.a, t.ops
	n, end := t.sees(query, c0, c1), t.vectors(depth)
	if n <= 0 {
		clear(s[:end])
		return
	}
	full := t.vectors(n)
	for i := n; i < full; i++ {
		s[i] = float32(math.Inf(-1))
	}
	for i := range min(n, a.oldest(query)-c0) {
		s[i] = float32(math.Inf(-1))
	}
	top := t.addBias(s, query, c0, n)
	if tap := a.rowTap(h, query); tap != nil {
		copy(tap[c0:][:n], s)
	}
	top = max(top, -math.MaxFloat32) // avoids Inf-Inf in rows that are all -Inf so far
	if c0 == t.k0 {
		t.m[state], t.l[state] = top, ops.expSum(&s[0], full, top)
	} else {
		top = max(top, t.m[state])
		sum := ops.expSum(&s[0], full, top)
		t.rescale(state, expGo(t.m[state]-top))
		t.m[state], t.l[state] = top, t.l[state]+sum
	}
	clear(s[full:end])
	if a.ColTap != nil {
		ops.axpy(&t.colBlock[0], &s[0], full, 1/t.l[state])
	}
	if a.MaxTap != nil {
		ops.peak(&t.peaks[(query-t.q0)*t.width], &s[0], full, 1/t.l[state])
	}
}

// rescale multiplies the sum and output of a row by f.
func (t *attnTask) rescale(state int, f float32) {
	if f != 1 {
		o := &t.o[state*t.depth]
		t.ops.copyRows(o, 0, o, 0, 1, t.depth, f)
		t.l[state] *= f
	}
}

const (
	attnFused  = 256  // keys of a block whose scores are worth becoming probabilities in registers
	attnSample = 64   // scores whose largest stands for that of a row; at most a panel
	attnExcess = 1e18 // sum of probabilities that a float32 and its products with values hold
)

// sampleBlock is scoreBlock for rounded products without bias, window and taps. Probabilities are
// relative to the largest of the first scores instead of all, which costs no precision: only where
// others are so much larger that a row's sum exceeds attnExcess is the row computed again, relative
// to the largest. So no pass looks for it, and tiles of quads turn the scores of keys lo … hi-1
// into probabilities before they write them. Logarithms are to base 2.
func (t *attnTask) sampleBlock(h, q, end, c0, c1 int) {
	ops, n, at, first, width := t.ops, t.sees(end-1, c0, c1), q-t.q0, c0 == t.k0, t.probWidth()
	if n <= 0 {
		return
	}
	tiles, lo, hi := (end-q+t.height-1)/t.height, 0, 0
	if !t.quads {
		t.scoreFloats(h, q, end, c0, c1, n, tiles)
	} else {
		if ops.probs != nil && n >= attnFused {
			hi = n &^ (ops.widths[0] - 1)
			if first {
				lo = ops.widths[0]
			}
		}
		t.scoreQuads(at, 0, lo, 0, tiles)
		t.scoreQuads(at, hi, n, 0, tiles)
	}
	if first {
		for r := range end - q {
			t.m[at+r], t.l[at+r] = t.topOf(at, r, min(t.sees(q+r, c0, c1), attnSample)), 0
		}
	}
	clear(t.sums)
	stride := quadStride(t.a.HeadDim)
	for col := lo; col < hi; col += ops.widths[0] {
		ops.probs(&t.q[at*stride], stride, &t.k[col*t.depth], &t.keyScales[col], &t.probs[col/2],
			width, &t.sums[0], &t.queryScales[at], &t.m[at], t.a.HeadDim/4, tiles)
	}
	for tile, step := 0, 1; tile < tiles; tile += step {
		if t.ops.tall != nil {
			step = min(2, tiles-tile)
		}
		r0 := tile * t.height
		r1 := min(r0+step*t.height, end-q)
		depth := t.sees(q+r1-1, c0, c1)
		if depth <= 0 {
			continue
		}
		probs := t.probs // of the tiles, which stay in the first-level cache
		if hi > 0 {
			probs = probs[r0*width:]
		}
		for r := r0; r < r1; r++ {
			p, seen := probs[(r-r0)*width:], t.sees(q+r, c0, c1)
			if seen > 0 {
				sum := t.sampled(p, at, r, lo, hi, seen, first)
				t.l[at+r] += sum
				if t.values {
					t.probScales[r-r0] = t.probWords(p, seen, sum)
				}
			}
			if t.pairs || t.values {
				t.endPairs(p, max(seen, 0), depth)
			}
		}
		t.weigh(&probs[0], width, &t.o[(at+r0)*t.depth], 0, depth, c1-c0, step)
	}
}

// sampled sets p to the probabilities of the first n scores of the query r rows after row at of the
// task, of which lo … hi-1 are there already, and returns their sum.
func (t *attnTask) sampled(p []float32, at, r, lo, hi, n int, first bool) float32 {
	sum := t.expOf(p, at, r, 0, lo) + t.expOf(p[hi/2:], at, r, hi, n)
	if lo < hi {
		var sums [4]float32
		for i, v := range t.sums[r*t.ops.lanes:][:t.ops.lanes] {
			sums[i%4] += v
		}
		sum += sums[0] + sums[1] + sums[2] + sums[3]
	}
	if !(sum > attnExcess) {
		return sum
	}
	own := r / t.height
	t.scoreQuads(at, lo, hi, own, own+1)
	top := t.topOf(at, r, n)
	if !first {
		t.rescale(at+r, expGo((t.m[at+r]-top)*math.Ln2))
	}
	t.m[at+r] = top
	return t.expOf(p, at, r, 0, n)
}

// probWidth is the distance between rows of probabilities, in float32.
func (t *attnTask) probWidth() int {
	if t.pairs {
		return padded(t.width / 2)
	}
	return t.width
}

// scoreQuads computes the sums of quads of the block's keys from lo, the first of a panel, to hi-1,
// for tiles first … last-1 of the queries from row at of the task on.
func (t *attnTask) scoreQuads(at, lo, hi, first, last int) {
	r, stride := first*t.height, quadStride(t.a.HeadDim)
	t.panels(hi-lo, func(col, kind int) {
		t.ops.quads[kind](&t.q[(at+r)*stride], stride, &t.k[(lo+col)*t.depth], t.ops.widths[kind],
			&t.s[r*t.width+lo+col], t.width, t.a.HeadDim/4, last-first, 0)
	})
}

// topOf returns the largest of the first n scores of the query r rows after row at of the task.
func (t *attnTask) topOf(at, r, n int) float32 {
	s := t.s[r*t.width:]
	if t.quads { // beyond the last key it is repeated
		return t.ops.topQuads(&s[0], &t.keyScales[0], t.vectors(n), t.queryScales[at+r])
	}
	return t.ops.top(s[:n])
}

// top returns the largest of some scores.
func (ops *attnOps) top(s []float32) float32 {
	top, whole := float32(math.Inf(-1)), len(s)&^(ops.lanes-1)
	if whole > 0 {
		top = ops.rowMax(&s[0], whole)
	}
	for _, v := range s[whole:] {
		top = max(top, v)
	}
	return top
}

// expOf sets p to the probabilities of the scores lo … hi-1 of the query r rows after row at of the
// task, and returns their sum.
func (t *attnTask) expOf(p []float32, at, r, lo, hi int) float32 {
	if lo == hi {
		return 0
	}
	s, m := &t.s[r*t.width+lo], t.m[at+r]
	if !t.quads {
		return t.ops.expRound(&p[0], s, hi-lo, m)
	}
	return t.ops.expQuads(&p[0], s, &t.keyScales[lo], hi-lo, t.queryScales[at+r], m)
}

// finishRowTap turns the raw scores of the visible keys in tap into probabilities.
func (t *attnTask) finishRowTap(tap []float32, query int, m, l float32) {
	hi := t.k0 + t.sees(query, t.k0, t.k1)
	for lo := t.k0; lo < hi; lo += attnTapKeys {
		n := min(attnTapKeys, hi-lo)
		t.row = grow(t.row, attnTapKeys)
		copy(t.row, tap[lo:lo+n])
		full := t.vectors(n)
		for i := n; i < full; i++ {
			t.row[i] = float32(math.Inf(-1))
		}
		t.ops.expSum(&t.row[0], full, m)
		t.ops.copyRows(&tap[lo], 0, &t.row[0], 0, 1, n, 1/l)
	}
}
