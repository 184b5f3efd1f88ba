package kernel

import (
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Attention describes one call of [Attend]: softmax(Scale·Q·Kᵀ + Bias)·V for every head.
//
// Rows are tokens: Q and Out are [Tq, Heads*HeadDim], K and V are [Tk, KVHeads*HeadDim]. A stride
// is the distance in elements between the starts of consecutive rows; 0 means dense. Query head h
// reads key and value head h/(Heads/KVHeads). Out must not overlap the inputs.
type Attention struct {
	Heads, KVHeads, HeadDim int
	Tq, Tk                  int
	Scale                   float32

	Q, K, V, Out                         []float32
	QStride, KStride, VStride, OutStride int
	// Pages, when not nil, hold the keys and values: key j is in page j/PageKeys. Float16 is
	// widened exactly when read. K and V, when not nil, are then those of the queries' own tokens,
	// dense [Tq, KVHeads*HeadDim], and are first written to the pages as the last rows. Pages are
	// not allowed together with Segments or ColTap.
	Pages []*Page

	// Causal lets query i see key j only if j <= i + (Tk-Tq): the queries are the last Tq rows of
	// the keys. The order of rows decides, never Bias positions. Tk must be at least Tq.
	Causal bool
	// Window, when not 0, hides all but the newest Window of the keys up to a causal query's own.
	Window int
	// Ends, when not nil, are the keys before which the queries of a causal call see all, [Tq], in
	// place of the one after their own row's: not before it, and not descending. Window counts from
	// a query's own row. Not allowed together with Segments.
	Ends []int32
	// Segments are bounds 0 = s[0] <= s[1] <= … = Tq = Tk: a query sees only the keys of its own
	// segment. nil is one segment.
	Segments []int32
	// Rounding lets the products round; over Pages, only of more than attnFewRows queries.
	// RoundWords and RoundBytes are not allowed together with Pages or Causal.
	Rounding Rounding
	// Bias is added to the scaled scores before the softmax; nil adds nothing.
	Bias *Bias

	// RowTap, when not nil, receives [Heads, len(RowTapQueries), Tk]: the probabilities of those
	// queries, which must ascend; 0 where masked.
	RowTap        []float32
	RowTapQueries []int32
	// MaxTap, when not nil, receives [Tq, Tk]: the largest probability of all heads, 0 where
	// masked. Not allowed together with ColTap.
	MaxTap []float32
	// ColTap, when not nil, receives [Heads, Tk]: the probabilities summed over all queries.
	ColTap []float32
}

// Rounding is how far an [Attention] may round what it multiplies, where the CPU then multiplies
// faster; elsewhere it changes nothing. Sums stay float32, and so do the taps.
type Rounding int

const (
	Exact Rounding = iota
	// RoundPairs rounds queries, keys, values and probabilities to bfloat16, with an even HeadDim.
	RoundPairs
	// RoundWords rounds queries and probabilities to integers of 14 bits, keys and values of 12,
	// with a scale for each query and key, or for 128 keys, if HeadDim is at most 128, there is no
	// MaxTap, and segments have wordsQueries or more in the mean. Keys are rounded less a mean of
	// theirs, which changes no probability.
	RoundWords
	// RoundBytes is RoundPairs, but queries and keys become 8-bit integers, with a scale for each
	// row, if HeadDim is a multiple of 4 and there are neither Bias nor taps. Keys are rounded less
	// a mean of theirs, which changes no probability. Without bfloat16, probabilities and values
	// then become integers of 15 and 11 bits, with a scale for each query and each column.
	RoundBytes
	roundings
)

// wordsQueries is the fewest queries of a segment for which keys and values are worth packing in
// words: with 1024 words take as long as float32, with 577 1.2 times as long. Tests set it.
var wordsQueries = 2048

// Bias is the calibration term of every (query, key) pair: LogSize[k] +
// Table[|QueryPos[q]-KeyPos[k]|]. Either part may be nil.
type Bias struct {
	LogSize          []float32 // [Tk] ln of the number of tokens that each key stands for
	QueryPos, KeyPos []int32   // [Tq], [Tk] positions; used when Table is not nil
	Table            []float32 // ln(c-D(d)) for d = 0, 1, …; must reach the largest distance
	// Row, when not nil, is used instead of the other fields: it sets dst[i] to the bias of key
	// k0+i for the given query row. It may be called from several goroutines at once.
	Row func(dst []float32, query, k0 int)
}

// Pairs returns how many keys all queries see together.
func (a *Attention) Pairs() int {
	switch {
	case a.Segments != nil:
		pairs := 0
		for i, end := range a.Segments[1:] {
			n := int(end - a.Segments[i])
			pairs += n * n
		}
		return pairs
	case !a.Causal:
		return a.Tq * a.Tk
	}
	pairs := 0
	for i := range a.Tq {
		pairs += a.end(i) - a.oldest(i)
	}
	return pairs
}

// Attend computes a.Out and the taps. It panics if shapes and lengths disagree. Every query must
// see at least one key. The result does not depend on the number of threads.
func Attend(p *Pool, a *Attention) { AttendEach(p, unsafe.Slice(a, 1)) }

// AttendEach is [Attend] for each of calls. Calls with few queries over pages, as of a decoding
// step's sequences, share one loop, because a loop for each is too short to be divided well.
func AttendEach(p *Pool, calls []Attention) {
	few := fewRuns.Get().(*fewRun)
	for i := range calls {
		s := calls[i].check()
		switch {
		case s.Tq == 0:
			if s.ColTap != nil {
				clear(s.ColTap[:s.Heads*s.Tk])
			}
		case !few.take(&s):
			attend(p, &s)
		}
	}
	few.run(p)
	fewRuns.Put(few)
}

// attendGo is the reference.
func attendGo(p *Pool, a *Attention) {
	a.write(p)
	s := *a // a copy that may escape, so that the caller's does not
	if s.MaxTap != nil {
		p = nil // all heads add to the column tap
	}
	p.Run(s.Heads, func(h int) { attendHeadGo(&s, h) })
}

// check returns a with its defaults filled in.
func (a *Attention) check() Attention {
	s := *a
	if s.Heads <= 0 || s.KVHeads <= 0 || s.HeadDim <= 0 || s.Heads%s.KVHeads != 0 {
		panic(fmt.Sprintf(
			"kernel.Attend: heads %d, kv heads %d, head dim %d", s.Heads, s.KVHeads, s.HeadDim))
	}
	if s.Tq < 0 || s.Tk < 0 || s.Tq > 0 && s.Tk == 0 || s.Causal && s.Tk < s.Tq {
		panic(fmt.Sprintf("kernel.Attend: %d queries, %d keys", s.Tq, s.Tk))
	}
	s.QStride = s.rows("Q", len(s.Q), s.Tq, s.Heads, s.QStride)
	s.OutStride = s.rows("Out", len(s.Out), s.Tq, s.Heads, s.OutStride)
	if s.Window < 0 || s.Window > 0 && !s.Causal {
		panic(fmt.Sprintf("kernel.Attend: window of %d keys, causal %v", s.Window, s.Causal))
	}
	s.checkEnds()
	if s.Rounding != Exact && s.Rounding != RoundPairs && (s.Pages != nil || s.Causal) {
		panic("kernel.Attend: integers together with pages or causal")
	}
	if s.Pages != nil {
		s.checkPages()
	} else {
		s.KStride = s.rows("K", len(s.K), s.Tk, s.KVHeads, s.KStride)
		s.VStride = s.rows("V", len(s.V), s.Tk, s.KVHeads, s.VStride)
	}
	if s.Segments != nil {
		n := len(s.Segments)
		if n < 2 || s.Segments[0] != 0 || int(s.Segments[n-1]) != s.Tq || s.Tq != s.Tk {
			panic(fmt.Sprintf(
				"kernel.Attend: segments %v, want bounds from 0 to %d queries = %d keys",
				s.Segments, s.Tq, s.Tk))
		}
		for i := 1; i < n; i++ {
			if s.Segments[i] < s.Segments[i-1] {
				panic(fmt.Sprintf("kernel.Attend: segments %v descend", s.Segments))
			}
		}
	}
	if s.RowTap != nil {
		last := int32(-1)
		for _, q := range s.RowTapQueries {
			if q <= last || int(q) >= s.Tq {
				panic(fmt.Sprintf("kernel.Attend: row tap of queries %v, want ascending ones of %d",
					s.RowTapQueries, s.Tq))
			}
			last = q
		}
		if n := s.Heads * len(s.RowTapQueries) * s.Tk; len(s.RowTap) < n {
			panic(fmt.Sprintf("kernel.Attend: row tap of length %d, want %d", len(s.RowTap), n))
		}
	}
	if s.MaxTap != nil && s.ColTap != nil {
		panic("kernel.Attend: a column tap and a max tap in one call")
	}
	if s.MaxTap != nil && len(s.MaxTap) < s.Tq*s.Tk {
		panic(fmt.Sprintf("kernel.Attend: max tap of length %d, want %d", len(s.MaxTap), s.Tq*s.Tk))
	}
	if s.ColTap != nil && len(s.ColTap) < s.Heads*s.Tk {
		panic(fmt.Sprintf("kernel.Attend: column tap of length %d, want %d", len(s.ColTap),
			s.Heads*s.Tk))
	}
	s.Bias.check(s.Tq, s.Tk)
	return s
}

func (a *Attention) checkEnds() {
	if a.Ends == nil {
		return
	}
	if !a.Causal || a.Segments != nil || len(a.Ends) != a.Tq {
		panic(fmt.Sprintf("kernel.Attend: %d ends for %d queries, causal %v, segments %v",
			len(a.Ends), a.Tq, a.Causal, a.Segments))
	}
	last := 0
	for i := range a.Ends {
		end, own := a.end(i), i+a.Tk-a.Tq
		if end < last || end <= own || end > a.Tk {
			panic(fmt.Sprintf("kernel.Attend: end %d of query %d of key %d after %d, of %d keys",
				end, i, own, last, a.Tk))
		}
		last = end
	}
}

func (a *Attention) checkPages() {
	if a.Segments != nil || a.ColTap != nil {
		panic("kernel.Attend: pages together with segments or a column tap")
	}
	n := (a.Tk + PageKeys - 1) / PageKeys
	if len(a.Pages) < n {
		panic(fmt.Sprintf("kernel.Attend: %d pages for %d keys", len(a.Pages), a.Tk))
	}
	if a.K != nil || a.V != nil {
		if !a.Causal || a.KStride != 0 || a.VStride != 0 {
			panic("kernel.Attend: keys to write that are not causal and dense")
		}
		a.rows("K", len(a.K), a.Tq, a.KVHeads, 0)
		a.rows("V", len(a.V), a.Tq, a.KVHeads, 0)
	}
	for _, g := range a.Pages[:n] {
		g.check(PageSize(a.KVHeads, a.HeadDim))
		if (g.Halves == nil) != (a.Pages[0].Halves == nil) {
			panic("kernel.Attend: pages of two types")
		}
	}
}

// write writes the keys and values of the queries' own tokens to the pages.
func (a *Attention) write(p *Pool) {
	if a.Pages != nil && a.K != nil {
		WritePages(p, a.Pages, a.Tk-a.Tq, a.K, a.V, a.Tq, a.KVHeads, a.HeadDim)
	}
}

// half reports whether keys and values are float16.
func (a *Attention) half() bool { return len(a.Pages) > 0 && a.Pages[0].Halves != nil }

// dense returns a with the keys and values of its pages copied into one slice each.
func (a *Attention) dense() Attention {
	s := *a
	if s.Pages == nil {
		return s
	}
	w := s.KVHeads * s.HeadDim
	s.K, s.V, s.KStride, s.VStride, s.Pages = make([]float32, s.Tk*w), make([]float32, s.Tk*w), w,
		w, nil
	ReadPages(s.K, a.Pages, 0, s.Tk, s.KVHeads, s.HeadDim, false)
	ReadPages(s.V, a.Pages, 0, s.Tk, s.KVHeads, s.HeadDim, true)
	return s
}

// rows checks an operand of length elements and n rows, and returns its stride.
func (a *Attention) rows(name string, length, n, heads, stride int) int {
	w := heads * a.HeadDim
	if stride == 0 {
		stride = w
	}
	if stride < w || n > 0 && length < (n-1)*stride+w {
		panic(fmt.Sprintf("kernel.Attend: %s: length %d, stride %d, want %d rows of %d", name,
			length, stride, n, w))
	}
	return stride
}

// rowTap returns where the probabilities of query in head h go, or nil if they are not requested.
func (a *Attention) rowTap(h, query int) []float32 {
	if a.RowTap == nil {
		return nil
	}
	k, ok := slices.BinarySearch(a.RowTapQueries, int32(query))
	if !ok {
		return nil
	}
	return a.RowTap[(h*len(a.RowTapQueries)+k)*a.Tk:][:a.Tk]
}

func (b *Bias) check(tq, tk int) {
	if b == nil || b.Row != nil {
		return
	}
	if b.LogSize != nil && len(b.LogSize) < tk {
		panic(fmt.Sprintf("kernel.Attend: bias: %d sizes for %d keys", len(b.LogSize), tk))
	}
	if b.Table == nil || tq == 0 || tk == 0 {
		return
	}
	if len(b.QueryPos) < tq || len(b.KeyPos) < tk {
		panic(fmt.Sprintf("kernel.Attend: bias: %d and %d positions for %d queries and %d keys",
			len(b.QueryPos), len(b.KeyPos), tq, tk))
	}
	qlo, qhi := minMax(b.QueryPos[:tq])
	klo, khi := minMax(b.KeyPos[:tk])
	if d := max(int64(qhi)-int64(klo), int64(khi)-int64(qlo)); d >= int64(len(b.Table)) {
		panic(fmt.Sprintf("kernel.Attend: bias: distance %d, table of %d", d, len(b.Table)))
	}
}

func minMax(x []int32) (lo, hi int32) {
	lo, hi = x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi
}

// addGo adds the bias of query and keys k0, k0+1, … to the scores s. tmp is as long as s.
func (b *Bias) addGo(s, tmp []float32, query, k0 int) {
	switch {
	case b == nil:
	case b.Row != nil:
		b.Row(tmp, query, k0)
		for i, v := range tmp {
			s[i] += v
		}
	default:
		if b.LogSize != nil {
			for i, v := range b.LogSize[k0 : k0+len(s)] {
				s[i] += v
			}
		}
		if b.Table != nil {
			q := b.QueryPos[query]
			for i, k := range b.KeyPos[k0 : k0+len(s)] {
				d := q - k
				if d < 0 {
					d = -d
				}
				s[i] += b.Table[d]
			}
		}
	}
}

// visible returns the range [lo, hi) of keys that query sees.
func (a *Attention) visible(query int) (lo, hi int) {
	hi = a.Tk
	if a.Segments != nil {
		i := 1
		for int(a.Segments[i]) <= query {
			i++
		}
		lo, hi = int(a.Segments[i-1]), int(a.Segments[i])
	}
	if a.Causal {
		hi = min(hi, a.end(query))
	}
	return max(lo, a.oldest(query)), hi
}

// end returns the key after the last one that a causal query sees.
func (a *Attention) end(query int) int {
	if a.Ends != nil {
		return int(a.Ends[query])
	}
	return query + a.Tk - a.Tq + 1
}

// oldest returns the first key in the window of query.
func (a *Attention) oldest(query int) int {
	if a.Window == 0 {
		return 0
	}
	return max(0, query+a.Tk-a.Tq+1-a.Window)
}

// attendHeadGo computes one head, one query after another.
func attendHeadGo(a *Attention, h int) {
	d, kv := a.HeadDim, h/(a.Heads/a.KVHeads)
	buf := make([]float32, 2*a.Tk)
	if a.ColTap != nil {
		clear(a.ColTap[h*a.Tk : (h+1)*a.Tk])
	}
	for i := 0; i < a.Tq; i++ {
		lo, hi := a.visible(i)
		s := buf[:hi-lo]
		q := a.Q[i*a.QStride+h*d:][:d]
		a.scoresGo(s, q, kv, lo)
		a.Bias.addGo(s, buf[a.Tk:][:len(s)], i, lo)
		softmaxGo(s)
		out := a.Out[i*a.OutStride+h*d:][:d]
		clear(out)
		a.weighGo(out, s, kv, lo)
		if tap := a.rowTap(h, i); tap != nil {
			clear(tap)
			copy(tap[lo:], s)
		}
		if a.MaxTap != nil {
			tap := a.MaxTap[i*a.Tk:][:a.Tk]
			if h == 0 {
				clear(tap)
			}
			for j, w := range s {
				tap[lo+j] = max(tap[lo+j], w)
			}
		}
		if a.ColTap != nil {
			addGo(a.ColTap[h*a.Tk+lo:][:len(s)], s)
		}
	}
}

// scoresGo sets s to the scaled products of q with the keys of a head from lo on.
func (a *Attention) scoresGo(s, q []float32, kv, lo int) {
	if a.Pages == nil {
		for j := range s {
			s[j] = a.Scale * dotGo(q, a.K[(lo+j)*a.KStride+kv*a.HeadDim:][:a.HeadDim])
		}
		return
	}
	clear(s)
	var wide [PageKeys]float32
	for done := 0; done < len(s); {
		g, place := a.Pages[(lo+done)/PageKeys], (lo+done)%PageKeys
		part := s[done:min(len(s), done+PageKeys-place)]
		for i, v := range q {
			at := pageKeys(a.HeadDim, kv) + i*PageKeys + place
			keys := wide[:len(part)]
			if g.Halves == nil {
				keys = g.Floats[at:][:len(part)]
			} else {
				WidenHalf(keys, g.Halves[at:])
			}
			for j, k := range keys {
				part[j] += v * k
			}
		}
		done += len(part)
	}
	for j := range s {
		s[j] *= a.Scale
	}
}

// weighGo adds to out the values of a head from lo on, weighted by s.
func (a *Attention) weighGo(out, s []float32, kv, lo int) {
	var wide []float32
	if a.half() {
		wide = make([]float32, a.HeadDim)
	}
	for j, w := range s {
		row := wide
		if a.Pages == nil {
			row = a.V[(lo+j)*a.VStride+kv*a.HeadDim:][:a.HeadDim]
		} else {
			g := a.Pages[(lo+j)/PageKeys]
			at := pageValues(a.KVHeads, a.HeadDim, kv) + (lo+j)%PageKeys*padded(a.HeadDim)
			if g.Halves == nil {
				row = g.Floats[at:][:a.HeadDim]
			} else {
				WidenHalf(wide, g.Halves[at:])
			}
		}
		for c, v := range row {
			out[c] += w * v
		}
	}
}

// AttentionProbs returns the probabilities [Heads, Tq, Tk] of a, computed in float64. It reads
// neither V nor Out. It is for traces only: it is slow and takes Heads·Tq·Tk elements.
func AttentionProbs(p *Pool, a *Attention) []float32 {
	s := a.dense()
	s.V, s.VStride, s.Out, s.OutStride = s.K, s.KStride, s.Q, s.QStride
	s = s.check()
	probs := make([]float32, s.Heads*s.Tq*s.Tk)
	p.Run(s.Heads*s.Tq, func(t int) {
		s.probs(probs[t*s.Tk:][:s.Tk], t/s.Tq, t%s.Tq)
	})
	return probs
}

// probs writes the probabilities of query i of head h. Keys that it does not see stay 0.
func (s *Attention) probs(p []float32, h, i int) {
	kv := h / (s.Heads / s.KVHeads)
	lo, hi := s.visible(i)
	n := hi - lo
	bias, row := make([]float32, 2*n), make([]float64, n)
	s.Bias.addGo(bias[:n], bias[n:], i, lo)
	q := s.Q[i*s.QStride+h*s.HeadDim:][:s.HeadDim]
	top, sum := math.Inf(-1), 0.0
	for j := range row {
		k := s.K[(lo+j)*s.KStride+kv*s.HeadDim:][:s.HeadDim]
		row[j] = dotWide(q, k)*float64(s.Scale) + float64(bias[j])
		top = max(top, row[j])
	}
	for j := range row {
		row[j] = math.Exp(row[j] - top)
		sum += row[j]
	}
	for j := range row {
		p[lo+j] = float32(row[j] / sum)
	}
}

// dotWide is x·y in float64, in four sums that do not wait for each other.
func dotWide(x, y []float32) float64 {
	var s [4]float64
	for ; len(x) >= 4 && len(y) >= 4; x, y = x[4:], y[4:] {
		s[0] += float64(x[0]) * float64(y[0])
		s[1] += float64(x[1]) * float64(y[1])
		s[2] += float64(x[2]) * float64(y[2])
		s[3] += float64(x[3]) * float64(y[3])
	}
	for c := range x {
		s[0] += float64(x[c]) * float64(y[c])
	}
	return s[0] + s[1] + s[2] + s[3]
}
