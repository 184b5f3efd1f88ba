//go:build !purego

package kernel

import "math"

// runFew computes one to attnFewRows queries, as in decoding: keys and values are read where they are,
// once for all query heads that share them. A task is one key head and one block of keys; the blocks'
// partial results are joined in order afterwards.
func (j *attnJob) runFew(p *Pool) {
	a := &j.a
	j.chunks = (a.Tk + attnFewKeys - 1) / attnFewKeys
	j.chunkKeys = padded((a.Tk + j.chunks - 1) / j.chunks)
	j.chunks = (a.Tk + j.chunkKeys - 1) / j.chunkKeys
	rows, depth := a.Tq*a.Heads, padded(a.HeadDim)
	j.top, j.sum = grow(j.top, rows*j.chunks), grow(j.sum, rows*j.chunks)
	j.out = grow(j.out, rows*j.chunks*depth)
	j.fewBias()
	p.Run(a.KVHeads*j.chunks, j.few)
	for r := 0; r < rows; r++ {
		j.join(r, depth)
	}
}

// fewBias makes the bias of all queries and keys, [Tq, padded Tk], shared by the heads.
func (j *attnJob) fewBias() {
	a, b := &j.a, j.a.Bias
	if b == nil || b.Row == nil && b.Table == nil && b.LogSize == nil {
		j.biasRows = j.biasRows[:0]
		return
	}
	sc := attnScratches.Get().(*attnScratch)
	width := padded(a.Tk)
	j.biasRows = grow(j.biasRows, a.Tq*width)
	t := attnTask{attnJob: j, attnScratch: sc}
	sc.keys, sc.sizes = b.pad(sc.keys, sc.sizes, 0, a.Tk)
	for i := 0; i < a.Tq; i++ {
		dst := j.biasRows[i*width:][:width]
		if b.Row == nil && b.Table == nil {
			copy(dst, sc.sizes)
		} else {
			t.biasRow(dst, i, 0, a.Tk)
		}
	}
	attnScratches.Put(sc)
}

func (j *attnJob) fewTask(i int) {
	a, ops := &j.a, j.ops
	sc := attnScratches.Get().(*attnScratch)
	kv, chunk := i/j.chunks, i%j.chunks
	c0 := chunk * j.chunkKeys
	depth, group := padded(a.HeadDim), a.Heads/a.KVHeads
	sc.q, sc.s = grow(sc.q, depth), grow(sc.s, j.chunkKeys)
	for t := 0; t < a.Tq; t++ {
		n := min(j.chunkKeys, a.Tk-c0)
		if a.Causal {
			n = min(n, t+a.Tk-a.Tq+1-c0)
		}
		for h := kv * group; h < (kv+1)*group; h++ {
			at := (t*a.Heads+h)*j.chunks + chunk
			if n <= 0 {
				j.top[at], j.sum[at] = -math.MaxFloat32, 0
				clear(j.out[at*depth:][:depth])
				continue
			}
			ops.copyRows(&sc.q[0], 0, &a.Q[t*a.QStride+h*a.HeadDim], 0, 1, a.HeadDim, a.Scale)
			j.scores(sc.s, sc.q, kv, c0, n)
			full := j.vectors(n)
			for i := n; i < full; i++ {
				sc.s[i] = float32(math.Inf(-1))
			}
			top := float32(0)
			if len(j.biasRows) == 0 {
				top = ops.rowMax(&sc.s[0], full)
			} else {
				top = ops.addMax(&sc.s[0], &j.biasRows[t*padded(a.Tk)+c0], full)
			}
			top = max(top, -math.MaxFloat32)
			j.top[at], j.sum[at] = top, ops.expSum(&sc.s[0], full, top)
			if v := c0*a.VStride + kv*a.HeadDim; a.HalfV != nil {
				ops.weightedHalf(&j.out[at*depth], &sc.s[0], &a.HalfV[v], a.VStride, n, a.HeadDim)
			} else {
				ops.weighted(&j.out[at*depth], &sc.s[0], &a.V[v], a.VStride, n, a.HeadDim)
			}
		}
	}
	attnScratches.Put(sc)
}

// scores sets s to the products of q with n keys from c0 on. The last vector of keys overlaps the one
// before it; fewer keys than one vector holds go through the reference.
func (j *attnJob) scores(s, q []float32, kv, c0, n int) {
	a, lanes := &j.a, j.ops.lanes
	at := c0*a.KStride + kv*a.HeadDim
	if n < lanes {
		for i := 0; i < n; i++ {
			if at := at + i*a.KStride; a.HalfK != nil {
				s[i] = dotHalfGo(q[:a.HeadDim], a.HalfK[at:])
			} else {
				s[i] = dotGo(q[:a.HeadDim], a.K[at:][:a.HeadDim])
			}
		}
		return
	}
	for i := 0; i < n; i += lanes {
		i = min(i, n-lanes)
		if at := at + i*a.KStride; a.HalfK != nil {
			j.ops.dotsHalf(&s[i], &q[0], &a.HalfK[at], a.KStride, a.HeadDim)
		} else {
			j.ops.dots(&s[i], &q[0], &a.K[at], a.KStride, a.HeadDim)
		}
	}
}

// join adds up the blocks of row r of [Tq, Heads] and writes its output.
func (j *attnJob) join(r, depth int) {
	a, ops := &j.a, j.ops
	top, sum, out := j.top[r*j.chunks:][:j.chunks], j.sum[r*j.chunks:][:j.chunks], j.out[r*j.chunks*depth:]
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

func dotHalfGo(q []float32, k []uint16) float32 {
	sum := float32(0)
	for i, v := range q {
		sum += v * Half(k[i])
	}
	return sum
}
