//go:build (amd64 || arm64) && !purego

package kernel

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// fewRun is some calls with one to attnFewRows queries each over pages, as in decoding, which share
// a loop. It is recycled.
type fewRun struct {
	jobs []*attnJob
	work int   // of all jobs
	ends []int // of the tasks of each job
	task func(i int)
}

var fewRuns = sync.Pool{New: func() any {
	r := new(fewRun)
	r.task = r.call
	return r
}}

// take adds a to the jobs if it has few queries, and reports whether it has.
func (r *fewRun) take(a *Attention) bool {
	ops := attnKernels()
	if ops == nil || a.Pages == nil || a.Tq > attnFewRows || a.RowTap != nil || a.MaxTap != nil {
		return false
	}
	j := attnJobs.Get().(*attnJob)
	j.a, j.ops = *a, ops
	r.jobs = append(r.jobs, j)
	r.work += a.work()
	return true
}

// work is how many multiply-adds the scores take if every query sees every key.
func (a *Attention) work() int { return a.Tq * a.Tk * a.Heads * a.HeadDim }

// run computes and releases the jobs. A long call has more tasks than a short one.
func (r *fewRun) run(p *Pool) {
	if r.work <= attnSerial {
		p = nil
	}
	tasks := 0
	for _, j := range r.jobs {
		tasks += j.prepareFew(max(1, 4*p.Threads()*j.a.work()/r.work))
		r.ends = append(r.ends, tasks)
	}
	p.Run(tasks, r.task)
	for _, j := range r.jobs {
		j.fresh = pageWrite{}
		j.release()
	}
	clear(r.jobs)
	r.jobs, r.ends, r.work = r.jobs[:0], r.ends[:0], 0
}

// call is task i of all jobs.
func (r *fewRun) call(i int) {
	k, _ := slices.BinarySearch(r.ends, i+1)
	j := r.jobs[k]
	if k > 0 {
		i -= r.ends[k-1]
	}
	j.fewTask(i)
	if j.left.Add(-1) == 0 {
		for row := range j.a.Tq * j.a.Heads {
			j.join(row)
		}
	}
}

// prepareFew divides the call into about the given number of tasks and returns how many there are.
// A page is read once for all query heads that share its keys. A task is some key heads and one run
// of pages. The last one joins the partial results of the runs in order. Keys and values to write
// are written by the task that reads them, when they are about to be read and their page is on its
// way.
func (j *attnJob) prepareFew(tasks int) int {
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
	j.taskHeads = min(a.KVHeads, max(1, a.KVHeads*j.chunks/tasks))
	n := (a.KVHeads + j.taskHeads - 1) / j.taskHeads * j.chunks
	j.left.Store(int32(n))
	return n
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
	first, chunk := i/j.chunks*j.taskHeads, i%j.chunks
	t := attnFew{
		attnJob: j, attnScratch: attnScratches.Get().(*attnScratch),
		kv0: first, kv1: min(first+j.taskHeads, j.a.KVHeads),
		chunk: chunk, c0: j.firstKey + chunk*j.chunkKeys,
		depth: padded(j.a.HeadDim), group: j.a.Heads / j.a.KVHeads, written: j.a.Tk,
	}
	if j.a.K != nil {
		t.written -= j.a.Tq
	}
	t.run()
	attnScratches.Put(t.attnScratch)
}

// attnFew computes the query heads of key heads kv0 … kv1-1 over a run of pages, whose first key is
// c0. It reads the keys of a page, head after head as they lie in memory, then the keys of the next
// page, and then the values.
type attnFew struct {
	*attnJob
	*attnScratch
	kv0, kv1  int
	chunk, c0 int // number and first key of the run
	depth     int // head dim, padded
	group     int // query heads of a key head
	written   int // keys that the pages have of these heads
}

func (t *attnFew) run() {
	a, ops := &t.a, t.ops
	heads := (t.kv1 - t.kv0) * t.group
	t.q, t.s = grow(t.q, heads*t.depth), grow(t.s, heads*t.chunkKeys)
	t.o = grow(t.o, t.group*t.depth)
	for i := range a.Tq {
		n := min(t.chunkKeys, a.Tk-t.c0)
		if a.Causal {
			n = min(n, a.end(i)-t.c0)
		}
		first := max(0, a.oldest(i)-t.c0)
		if n <= first {
			for h := range heads {
				at := t.partOf(i, h)
				t.top[at], t.sum[at] = -math.MaxFloat32, 0
				clear(t.out[at*t.depth:][:t.depth])
			}
			continue
		}
		for h := range heads {
			q := &a.Q[i*a.QStride+(t.kv0*t.group+h)*a.HeadDim]
			ops.copyRows(&t.q[h*t.depth], 0, q, 0, 1, a.HeadDim, a.Scale)
		}
		full := t.vectors(n)
		t.scores(full)
		for h := range heads {
			s := t.s[h*t.chunkKeys:][:full]
			for k := range first {
				s[k] = float32(math.Inf(-1))
			}
			for k := n; k < full; k++ {
				s[k] = float32(math.Inf(-1))
			}
			top := float32(0)
			if len(t.biasRows) == 0 {
				top = ops.rowMax(&s[0], full)
			} else {
				top = ops.addMax(&s[0], &t.biasRows[i*t.biasWidth+t.c0-t.firstKey], full)
			}
			top = max(top, -math.MaxFloat32)
			at := t.partOf(i, h)
			t.top[at], t.sum[at] = top, ops.expSum(&s[0], full, top)
		}
		t.values(i, n)
	}
}

// partOf is the index of the run's partial result for query i and query head h of these.
func (t *attnFew) partOf(i, h int) int {
	return (i*t.a.Heads+t.kv0*t.group+h)*t.chunks + t.chunk
}

// scores sets s to the products of q with the first n keys, in whole vectors. Keys and values that
// are to be written are written before their page is read.
func (t *attnFew) scores(n int) {
	for lo := 0; lo < n; lo += PageKeys {
		c := t.c0 + lo
		end := min(t.a.Tk, c+PageKeys)
		for kv := t.kv0; kv < t.kv1; kv++ {
			if t.written < end {
				t.fresh.heads(c/PageKeys, kv, kv+1)
			}
			next := t.valuesOf(t.kv0, t.c0, n)
			switch {
			case kv+1 < t.kv1:
				next = t.keysOf(kv+1, c)
			case lo+PageKeys < n:
				next = t.keysOf(t.kv0, c+PageKeys)
			}
			h := (kv - t.kv0) * t.group
			t.weighPart(t.s[h*t.chunkKeys+lo:], t.chunkKeys, t.q[h*t.depth:], t.depth,
				t.keysOf(kv, c), PageKeys, t.a.HeadDim, min(PageKeys, n-lo), next)
		}
		t.written = max(t.written, end)
	}
}

// values sets the outputs of query i to the sums of the first n values, weighted by s.
func (t *attnFew) values(i, n int) {
	for lo := 0; lo < n; lo += PageKeys {
		c, rows := t.c0+lo, min(PageKeys, n-lo)
		for kv := t.kv0; kv < t.kv1; kv++ {
			next := t.keysOf(t.kv0, t.c0)
			switch {
			case kv+1 < t.kv1:
				next = t.valuesOf(kv+1, c, rows)
			case lo+PageKeys < n:
				next = t.valuesOf(t.kv0, c+PageKeys, n-lo-PageKeys)
			}
			h := (kv - t.kv0) * t.group
			out, step := t.out[t.partOf(i, h)*t.depth:], t.chunks*t.depth // from head to head
			to, ldo := out, step
			if lo > 0 {
				to, ldo = t.o, t.depth
			}
			t.weighPart(to, ldo, t.s[h*t.chunkKeys+lo:], t.chunkKeys, t.valuesOf(kv, c, rows),
				t.depth, rows, t.depth, next)
			for g := 0; lo > 0 && g < t.group; g++ {
				t.ops.axpy(&out[g*step], &to[g*ldo], t.depth, 1)
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

// weighPart sets the rows of out, ldo floats apart, one for each query head of a group, to the sums
// of the rows of x, weighted by the rows of p: n columns, stride elements between rows of x.
// Meanwhile it prefetches what is read next, because hardware prefetchers do not follow from one
// part to another.
func (t *attnFew) weighPart(
	out []float32, ldo int, p []float32, ldp int, x pagePart, stride, rows, n int, next pagePart,
) {
	halves := x.page.Halves != nil
	for g := 0; g < t.group; {
		sums, vectors := 1, 8
		if halves {
			sums = min(t.group-g, len(t.ops.weightedHalf))
			vectors = t.ops.weightedHalf[sums-1].vectors
		}
		width := min(n, vectors*t.ops.lanes) // of a block of columns
		blocks := rows * ((n + width - 1) / width)
		first, end := next.n*g/t.group, next.n*(g+sums)/t.group // to fetch meanwhile
		if halves {
			step := min(max(128, 2*width), 2*(end-first)/blocks)
			t.ops.weightedHalf[sums-1].sums(&out[g*ldo], ldo, &p[g*ldp], ldp,
				&x.page.Halves[x.from], stride, rows, n,
				uintptr(unsafe.Pointer(&next.page.Halves[next.from+first])), step)
		} else {
			t.ops.weighted(&out[g*ldo], &p[g*ldp], &x.page.Floats[x.from], stride, rows, n,
				uintptr(unsafe.Pointer(&next.page.Floats[next.from+first])),
				min(128, 4*(end-first)/blocks))
		}
		g += sums
	}
}

// join combines the runs of row r of [Tq, Heads] and writes its output.
func (j *attnJob) join(r int) {
	a, ops, depth := &j.a, j.ops, padded(j.a.HeadDim)
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
