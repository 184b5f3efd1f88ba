//go:build (amd64 || arm64) && !purego

package kernel

import "math"

// Fused attention computes what sampleBlock does with pairs, but one kernel turns scores into
// probabilities while it multiplies the next ones. Queries come in tiles of rows, keys in panels of
// the widest kind, and groups of half a panel. A row that others share a tile with keeps its bits.
const (
	attnFusedDim   = 256 // most columns of a head
	attnFusedKeys  = 512 // keys whose probabilities are made at once
	attnFusedGroup = 32
	attnFusedRow   = attnFusedKeys/2 + attnPad // distance of rows of probabilities
	// attnFusedScores is the length of two groups of scores.
	attnFusedScores = 2 * attnFusedGroup * attnFusedGroup
)

// prepareFused prepares the queries of the task and memory.
func (t *attnTask) prepareFused() {
	t.packQueryPairs()
	t.sums = grow(t.sums, t.rows*t.ops.lanes)
	t.sumsBefore = grow(t.sumsBefore, t.height*t.ops.lanes)
	t.probs = grow(t.probs, t.height*attnFusedRow)
	t.groupScores = grow(t.groupScores, attnFusedScores)
}

// fusedBlock adds the keys c0 … c1-1 to the query rows q … end-1, at most a tile.
func (t *attnTask) fusedBlock(q, end, c0, c1 int) {
	ops, at, n := t.ops, q-t.q0, t.sees(end-1, c0, c1)
	if n <= 0 {
		return
	}
	lanes := t.height * ops.lanes
	sums := t.sums[at*ops.lanes:][:lanes]
	if c0 == t.k0 {
		clear(sums)
		clear(t.m[at:][:t.height])
		t.fusedScores(at, 0)
		for r := range end - q {
			seen := min(t.sees(q+r, c0, c1), attnSample)
			t.m[at+r] = ops.top(t.s[r*t.width:][:max(0, seen)])
		}
	}
	for from := 0; from < n; from += attnFusedKeys {
		keys := min(attnFusedKeys, n-from)
		groups := (keys + attnFusedGroup - 1) / attnFusedGroup
		whole := t.fusedMask(q, end, c0, c1, from, groups)
		copy(t.sumsBefore, sums)
		t.fusedProbs(at, from, groups, whole)
		if !(ops.rowMax(&sums[0], lanes) <= attnExcess/float32(ops.lanes)) { // or NaN
			t.raiseTops(q, end, c0, c1, from, keys)
			copy(sums, t.sumsBefore)
			t.fusedProbs(at, from, groups, whole)
		}
		t.weigh(&t.probs[0], attnFusedRow, &t.o[at*t.depth], from, keys, c1-c0, 1)
	}
}

// fusedScores computes the scores of the panel of keys from t.c0+from on for the tile of queries
// from row at of the task on. They are the first columns of s.
func (t *attnTask) fusedScores(at, from int) {
	w, stride := t.ops.widths[0], t.pairStride()
	t.ops.pairs[0](&t.q[at*stride], stride, &t.k[from*t.depth], w, &t.s[0], t.width, t.a.HeadDim/2,
		1, 0)
}

// fusedProbs sets probs to the probabilities of groups of keys from t.c0+from on, for the tile of
// queries from row at of the task on, and adds them to their sums. Rows see all keys of the first
// whole groups.
func (t *attnTask) fusedProbs(at, from, groups, whole int) {
	ops, stride, k := t.ops, t.pairStride(), t.pairsOf(t.a.HeadDim)
	loads, dots, stores := 0, 1, 0
	switch steps := k / t.unit; steps {
	case 1:
		loads, dots, stores = 2, 4, 4
	case 2:
		loads, dots, stores = 1, 2, 4
	case 3:
		loads, dots, stores = 1, 1, 4
	default:
		stores = t.height/2 - 2*steps
	}
	ops.pairProbs(&t.q[at*stride], stride, &t.k[from*t.depth], ops.widths[0]*t.depth, &t.probs[0],
		attnFusedRow, &t.sums[at*ops.lanes], &t.m[at], &t.groupScores[0], &t.seen[0], k, groups,
		whole, loads, dots, stores, 0, 0, 0, 0)
}

// fusedMask sets seen to a bit for each key that the queries q … end-1 see, in groups from c0+from
// on, after the first ones, which all of them see. It returns the number of the first ones.
func (t *attnTask) fusedMask(q, end, c0, c1, from, groups int) (whole int) {
	all := t.sees(q, c0, c1) - from
	whole = max(0, min(all/attnFusedGroup, groups))
	t.seen = grow(t.seen, max(1, (groups-whole)*t.height))
	clear(t.seen)
	for r := range end - q {
		for g := whole; g < groups; g++ {
			seen := t.sees(q+r, c0, c1) - from - g*attnFusedGroup
			seen = max(0, min(seen, attnFusedGroup))
			t.seen[(g-whole)*t.height+r] = uint32(uint64(1)<<seen - 1)
		}
	}
	return whole
}

// raiseTops makes the probabilities of queries whose sums are too large, among q … end-1, relative
// to the largest of their scores of some keys from c0+from on. Other queries keep their bits.
func (t *attnTask) raiseTops(q, end, c0, c1, from, keys int) {
	at, w := q-t.q0, t.ops.widths[0]
	t.row = grow(t.row, end-q)
	for r := range t.row {
		t.row[r] = t.m[at+r]
	}
	for first := from; first < from+keys; first += w {
		t.fusedScores(at, first)
		for r := range t.row {
			if seen := min(t.sees(q+r, c0, c1)-first, w); seen > 0 {
				t.row[r] = max(t.row[r], t.ops.top(t.s[r*t.width:][:seen]))
			}
		}
	}
	for r, top := range t.row {
		if t.sumOf(at+r) <= attnExcess {
			continue
		}
		f := expGo((t.m[at+r] - top) * math.Ln2)
		scale := func(x *float32, n int) { t.ops.copyRows(x, 0, x, 0, 1, n, f) }
		scale(&t.o[(at+r)*t.depth], t.depth)
		scale(&t.sumsBefore[r*t.ops.lanes], t.ops.lanes)
		t.m[at+r] = top
	}
}

// sumFused sets l to the sums of the rows of the task.
func (t *attnTask) sumFused() {
	for r := range t.q1 - t.q0 {
		t.l[r] = t.sumOf(r)
	}
}

// sumOf returns the sum of the probabilities of a row of the task.
func (t *attnTask) sumOf(row int) float32 {
	var sums [4]float32
	for i, v := range t.sums[row*t.ops.lanes:][:t.ops.lanes] {
		sums[i%4] += v
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

// pairStride is the distance between rows of packQueryPairs.
func (t *attnTask) pairStride() int { return max(t.pairsOf(t.a.HeadDim), t.depth/2) }

// packQueryPairs rounds all queries of the task to pairs of bfloat16, zero up to the end of their
// last tile. They are closer together than prepareQueries leaves them, which saves 2 to 8 % of the
// attention.
func (t *attnTask) packQueryPairs() {
	a, n, stride := &t.a, t.q1-t.q0, t.pairStride()
	t.q, t.row = grow(t.q, t.rows*stride), grow(t.row, t.depth)
	clear(t.row)
	for i := range n {
		t.ops.copyRows(&t.row[0], 0, &a.Q[(t.q0+i)*a.QStride+t.h0*a.HeadDim], a.QStride, 1,
			a.HeadDim, a.Scale*math.Log2E)
		row := t.q[i*stride:][:stride]
		t.ops.round(&row[0], &t.row[0], t.depth)
		clear(row[t.depth/2:])
	}
	clear(t.q[n*stride:])
}
