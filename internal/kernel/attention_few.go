//go:build (amd64 || arm64) && !purego

package kernel

import (
	"math"
	"unsafe"
)

// runFew computes one to attnFewRows queries over pages, as in decoding. A page is read once for
// all query heads that share its keys. A task is some key heads and one run of pages. The partial
// results of the runs are joined in order afterwards. Keys and values to write are written by the
// task that reads them, when they are about to be read and their page is on its way.
func (j *attnJob) runFew(p *Pool) {
	a := &j.a
	j.fresh = pageWrite{
		pages: a.Pages, at: a.Tk - a.Tq, k: a.K, v: a.V, rows: a.Tq, kvHeads: a.KVHeads,
		headDim: a.HeadDim,
	}
	j.firstKey = a.oldest(0) / PageKeys * PageKeys
	pages := (a.Tk - j.firstKey + PageKeys - 1) / PageKeys
	j.chunks = (pages + attnFewPages - 1) / attnFewPages
	j.chunkKeys = (pages + j.chunks - 1) / j.chunks * PageKeys
	j.chunks = (a.Tk - j.firstKey + j.chunkKeys - 1) / j.chunkKeys
	rows, depth := a.Tq*a.Heads, padded(a.HeadDim)
	j.top, j.sum = grow(j.top, rows*j.chunks), grow(j.sum, rows*j.chunks)
	j.out = grow(j.out, rows*j.chunks*depth)
	j.fewBias()
	j.taskHeads = max(1, a.KVHeads*j.chunks/(4*p.Threads()))
	p.Run((a.KVHeads+j.taskHeads-1)/j.taskHeads*j.chunks, j.few)
	for r := 0; r < rows; r++ {
		j.join(r, depth)
	}
	j.fresh = pageWrite{}
}

// fewBias computes the bias of all queries and keys, [Tq, padded Tk], shared by the heads.
func (j *attnJob) fewBias() {
	a, b := &j.a, j.a.Bias
	if b == nil || b.Row == nil && b.Table == nil && b.LogSize == nil {
		j.biasRows = j.biasRows[:0]
		return
	}
	sc := attnScratches.Get().(*attnScratch)
	n := a.Tk - j.firstKey
	j.biasWidth = padded(n)
	j.biasRows = grow(j.biasRows, a.Tq*j.biasWidth)
	t := attnTask{attnJob: j, attnScratch: sc}
	sc.keys, sc.sizes = b.pad(sc.keys, sc.sizes, j.firstKey, n)
	for i := 0; i < a.Tq; i++ {
		dst := j.biasRows[i*j.biasWidth:][:j.biasWidth]
		if b.Row == nil && b.Table == nil {
			copy(dst, sc.sizes)
		} else {
			t.biasRow(dst, i, j.firstKey, n)
		}
	}
	attnScratches.Put(sc)
}

func (j *attnJob) fewTask(i int) {
	sc := attnScratches.Get().(*attnScratch)
	sc.kv0 = i / j.chunks * j.taskHeads
	sc.kv1 = min(sc.kv0+j.taskHeads, j.a.KVHeads)
	j.fewHeads(sc, i%j.chunks)
	attnScratches.Put(sc)
}

// fewHeads computes the query heads of some key heads over a run of pages. It reads the keys of a
// page head by head, as they lie in memory, then those of the next, and then the values.
func (j *attnJob) fewHeads(sc *attnScratch, chunk int) {
	a, ops := &j.a, j.ops
	c0 := j.firstKey + chunk*j.chunkKeys
	depth, group := padded(a.HeadDim), a.Heads/a.KVHeads
	h0, h1 := sc.kv0*group, sc.kv1*group
	sc.q, sc.s, sc.o = grow(sc.q, (h1-h0)*depth), grow(sc.s, (h1-h0)*j.chunkKeys),
		grow(sc.o, depth)
	sc.written = a.Tk
	if a.K != nil {
		sc.written = a.Tk - a.Tq
	}
	for t := 0; t < a.Tq; t++ {
		n := min(j.chunkKeys, a.Tk-c0)
		if a.Causal {
			n = min(n, t+a.Tk-a.Tq+1-c0)
		}
		first := max(0, a.oldest(t)-c0)
		if n <= first {
			for h := h0; h < h1; h++ {
				at := (t*a.Heads+h)*j.chunks + chunk
				j.top[at], j.sum[at] = -math.MaxFloat32, 0
				clear(j.out[at*depth:][:depth])
			}
			continue
		}
		for h := h0; h < h1; h++ {
			ops.copyRows(&sc.q[(h-h0)*depth], 0, &a.Q[t*a.QStride+h*a.HeadDim], 0, 1, a.HeadDim,
				a.Scale)
		}
		full := j.vectors(n)
		j.fewScores(sc, c0, full)
		for h := h0; h < h1; h++ {
			s := sc.s[(h-h0)*j.chunkKeys:][:full]
			for i := range first {
				s[i] = float32(math.Inf(-1))
			}
			for i := n; i < full; i++ {
				s[i] = float32(math.Inf(-1))
			}
			top := float32(0)
			if len(j.biasRows) == 0 {
				top = ops.rowMax(&s[0], full)
			} else {
				top = ops.addMax(&s[0], &j.biasRows[t*j.biasWidth+c0-j.firstKey], full)
			}
			at := (t*a.Heads+h)*j.chunks + chunk
			top = max(top, -math.MaxFloat32)
			j.top[at], j.sum[at] = top, ops.expSum(&s[0], full, top)
		}
		j.fewValues(sc, t, chunk, c0, n)
	}
}

// fewScores sets sc.s to the products of sc.q with the n keys from c0 on, in whole vectors. Keys
// and values that are to be written are written before their page is read.
func (j *attnJob) fewScores(sc *attnScratch, c0, n int) {
	a := &j.a
	depth, group := padded(a.HeadDim), a.Heads/a.KVHeads
	for lo := 0; lo < n; lo += PageKeys {
		end := min(a.Tk, c0+lo+PageKeys)
		for kv := sc.kv0; kv < sc.kv1; kv++ {
			if sc.written < end {
				j.fresh.heads((c0+lo)/PageKeys, kv, kv+1)
			}
			next := j.valuesOf(sc.kv0, c0, n)
			switch {
			case kv+1 < sc.kv1:
				next = j.keysOf(kv+1, c0+lo)
			case lo+PageKeys < n:
				next = j.keysOf(sc.kv0, c0+lo+PageKeys)
			}
			for i := (kv - sc.kv0) * group; i < (kv-sc.kv0+1)*group; i++ {
				j.weighPart(&sc.s[i*j.chunkKeys+lo], &sc.q[i*depth], j.keysOf(kv, c0+lo), PageKeys,
					a.HeadDim, min(PageKeys, n-lo), next)
			}
		}
		sc.written = max(sc.written, end)
	}
}

// fewValues sets out of query t to the sums of the values of the n keys from c0 on, weighted by
// sc.s.
func (j *attnJob) fewValues(sc *attnScratch, t, chunk, c0, n int) {
	a := &j.a
	depth, group := padded(a.HeadDim), a.Heads/a.KVHeads
	for lo := 0; lo < n; lo += PageKeys {
		rows := min(PageKeys, n-lo)
		for kv := sc.kv0; kv < sc.kv1; kv++ {
			next := j.keysOf(sc.kv0, c0)
			switch {
			case kv+1 < sc.kv1:
				next = j.valuesOf(kv+1, c0+lo, n-lo)
			case lo+PageKeys < n:
				next = j.valuesOf(sc.kv0, c0+lo+PageKeys, n-lo-PageKeys)
			}
			for i := (kv - sc.kv0) * group; i < (kv-sc.kv0+1)*group; i++ {
				out := j.out[((t*a.Heads+sc.kv0*group+i)*j.chunks+chunk)*depth:][:depth]
				to := out
				if lo > 0 {
					to = sc.o
				}
				j.weighPart(&to[0], &sc.s[i*j.chunkKeys+lo], j.valuesOf(kv, c0+lo, n-lo), depth,
					rows, depth, next)
				if lo > 0 {
					j.ops.axpy(&out[0], &sc.o[0], depth, 1)
				}
			}
		}
	}
}

// pagePart is n elements of a page from the given one on.
type pagePart struct {
	page    *Page
	from, n int
}

// keysOf returns the keys of a key head in the page of key c.
func (j *attnJob) keysOf(kv, c int) pagePart {
	d := j.a.HeadDim
	return pagePart{j.a.Pages[c/PageKeys], pageKeys(d, kv), PageKeys * d}
}

// valuesOf returns the values of a key head in the page of key c, of at most n keys.
func (j *attnJob) valuesOf(kv, c, n int) pagePart {
	d := j.a.HeadDim
	return pagePart{
		j.a.Pages[c/PageKeys], pageValues(j.a.KVHeads, d, kv), min(n, PageKeys) * padded(d),
	}
}

// weighPart sets out to the sum of rows of x, weighted by p: n columns, stride elements between
// rows. Meanwhile it prefetches what is read next, because hardware prefetchers do not follow from
// one part to another.
func (j *attnJob) weighPart(out, p *float32, x pagePart, stride, rows, n int, next pagePart) {
	width := 8 * j.ops.lanes // of a block of columns
	blocks := rows * ((n + width - 1) / width)
	if x.page.Halves != nil {
		ahead := uintptr(unsafe.Pointer(&next.page.Halves[next.from]))
		j.ops.weightedHalf(out, p, &x.page.Halves[x.from], stride, rows, n, ahead,
			min(128, 2*next.n/blocks))
		return
	}
	ahead := uintptr(unsafe.Pointer(&next.page.Floats[next.from]))
	j.ops.weighted(out, p, &x.page.Floats[x.from], stride, rows, n, ahead,
		min(128, 4*next.n/blocks))
}

// join combines the runs of row r of [Tq, Heads] and writes its output.
func (j *attnJob) join(r, depth int) {
	a, ops := &j.a, j.ops
	top, sum, out := j.top[r*j.chunks:][:j.chunks], j.sum[r*j.chunks:][:j.chunks],
		j.out[r*j.chunks*depth:]
	m := top[0]
	for _, v := range top {
		m = max(m, v)
	}
	l := float32(0)
	for c, v := range top {
		f := expGo(v - m)
		l += sum[c] * f
		if c == 0 {
			ops.copyRows(&out[0], 0, &out[0], 0, 1, depth, f)
			continue
		}
		ops.axpy(&out[0], &out[c*depth], depth, f)
	}
	t, h := r/a.Heads, r%a.Heads
	ops.copyRows(&a.Out[t*a.OutStride+h*a.HeadDim], 0, &out[0], 0, 1, a.HeadDim, 1/l)
}
