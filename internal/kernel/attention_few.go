//go:build (amd64 || arm64) && !purego

package kernel

import "math"

// runFew computes one to attnFewRows queries over pages, as in decoding. A page is read once for
// all query heads that share its keys. A task is one key head and one run of pages. The partial
// results of the runs are joined in order afterwards.
func (j *attnJob) runFew(p *Pool) {
	a := &j.a
	j.firstKey = a.oldest(0) / PageKeys * PageKeys
	pages := (a.Tk - j.firstKey + PageKeys - 1) / PageKeys
	j.chunks = (pages + attnFewPages - 1) / attnFewPages
	j.chunkKeys = (pages + j.chunks - 1) / j.chunks * PageKeys
	j.chunks = (a.Tk - j.firstKey + j.chunkKeys - 1) / j.chunkKeys
	rows, depth := a.Tq*a.Heads, padded(a.HeadDim)
	j.top, j.sum = grow(j.top, rows*j.chunks), grow(j.sum, rows*j.chunks)
	j.out = grow(j.out, rows*j.chunks*depth)
	j.fewBias()
	p.Run(a.KVHeads*j.chunks, j.few)
	for r := 0; r < rows; r++ {
		j.join(r, depth)
	}
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
	a, ops := &j.a, j.ops
	sc := attnScratches.Get().(*attnScratch)
	kv, chunk := i/j.chunks, i%j.chunks
	c0 := j.firstKey + chunk*j.chunkKeys
	depth, group := padded(a.HeadDim), a.Heads/a.KVHeads
	sc.q, sc.s, sc.o = grow(sc.q, depth), grow(sc.s, j.chunkKeys), grow(sc.o, depth)
	for t := 0; t < a.Tq; t++ {
		n := min(j.chunkKeys, a.Tk-c0)
		if a.Causal {
			n = min(n, t+a.Tk-a.Tq+1-c0)
		}
		first := max(0, a.oldest(t)-c0)
		for h := kv * group; h < (kv+1)*group; h++ {
			at := (t*a.Heads+h)*j.chunks + chunk
			if n <= first {
				j.top[at], j.sum[at] = -math.MaxFloat32, 0
				clear(j.out[at*depth:][:depth])
				continue
			}
			ops.copyRows(&sc.q[0], 0, &a.Q[t*a.QStride+h*a.HeadDim], 0, 1, a.HeadDim, a.Scale)
			full := j.vectors(n)
			j.fewScores(sc, kv, c0, full)
			for i := range first {
				sc.s[i] = float32(math.Inf(-1))
			}
			for i := n; i < full; i++ {
				sc.s[i] = float32(math.Inf(-1))
			}
			top := float32(0)
			if len(j.biasRows) == 0 {
				top = ops.rowMax(&sc.s[0], full)
			} else {
				top = ops.addMax(&sc.s[0], &j.biasRows[t*j.biasWidth+c0-j.firstKey], full)
			}
			top = max(top, -math.MaxFloat32)
			j.top[at], j.sum[at] = top, ops.expSum(&sc.s[0], full, top)
			j.fewValues(sc, j.out[at*depth:][:depth], kv, c0, n)
		}
	}
	attnScratches.Put(sc)
}

// fewScores sets sc.s to the products of sc.q with the n keys from c0 on, in whole vectors.
func (j *attnJob) fewScores(sc *attnScratch, kv, c0, n int) {
	a, at := &j.a, pageKeys(j.a.HeadDim, kv)
	for lo := 0; lo < n; lo += PageKeys {
		g, m := a.Pages[(c0+lo)/PageKeys], min(PageKeys, n-lo)
		if g.Halves != nil {
			j.ops.weightedHalf(&sc.s[lo], &sc.q[0], &g.Halves[at], PageKeys, a.HeadDim, m)
		} else {
			j.ops.weighted(&sc.s[lo], &sc.q[0], &g.Floats[at], PageKeys, a.HeadDim, m)
		}
	}
}

// fewValues sets out to the sum of the values of the n keys from c0 on, weighted by sc.s.
func (j *attnJob) fewValues(sc *attnScratch, out []float32, kv, c0, n int) {
	a, at := &j.a, pageValues(j.a.KVHeads, j.a.HeadDim, kv)
	depth := padded(a.HeadDim)
	for lo := 0; lo < n; lo += PageKeys {
		g, m, to := a.Pages[(c0+lo)/PageKeys], min(PageKeys, n-lo), out
		if lo > 0 {
			to = sc.o
		}
		if g.Halves != nil {
			j.ops.weightedHalf(&to[0], &sc.s[lo], &g.Halves[at], depth, m, depth)
		} else {
			j.ops.weighted(&to[0], &sc.s[lo], &g.Floats[at], depth, m, depth)
		}
		if lo > 0 {
			j.ops.axpy(&out[0], &sc.o[0], depth, 1)
		}
	}
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
