package model

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// Staged is one picture's rows in a span that a reducer inside the decoder reduces in some layers.
type Staged struct {
	*methods.Inside
	First  int                          // its first row in the span; updated when earlier rows go
	Start  float64                      // position where the picture starts
	Extent float64                      // positions that it takes
	At     func(row *reduce.Row) nn.Pos // position of a row
}

// Layers is the part of a decoder that a Passage needs.
type Layers interface {
	Shape() DecoderShape
	Attention(layer int) *nn.Attention
	// Ahead computes, for x [rows, Hidden] as input of layer, before rotation: every row's key in k
	// [rows, KVHeads·HeadDim], and the last row's query in q [Heads·HeadDim].
	Ahead(r *Run, layer int, q, k, x []float32, rows int)
	// Norm writes the final norm of x [rows, Hidden] into dst.
	Norm(r *Run, dst, x []float32, rows int)
}

// Passage takes the rows of a batch through a decoder's layers. It rotates, caches and attends, and
// removes rows of spans as reducers inside the decoder decide. A decoder calls Enter before each
// layer and Attend inside it, and works on the first Rows rows of its activations.
type Passage struct {
	Rows     int
	Cos, Sin []float32 // [Rows, HeadDim/2] of the current layer

	run    *Run
	layers Layers
	shape  DecoderShape
	spans  []Span
	pos    [][]nn.Pos // per span, in the current layer
	moved  [][]nn.Pos // per span, memory for pos if it is not the span's own
	base   []float64  // per span, the shift of positions before its first row
	stale  bool       // rows were removed since the tables were computed
	turns  []turn     // per rotation that a layer has used since
	calls  []nn.Call  // of the spans that have not failed, in the current layer
}

// turn is the table of a rotation at all rows' positions.
type turn struct {
	rope     *nn.RoPE
	cos, sin []float32
}

// NewPassage starts a pass. It is part of r, so there can be only one at a time.
func NewPassage(r *Run, l Layers, spans []Span) *Passage {
	p := &r.passage
	*p = Passage{
		run: r, layers: l, shape: l.Shape(), spans: spans, pos: p.pos[:0], moved: p.moved,
		base: p.base[:0], stale: true, turns: p.turns[:0],
		calls: p.calls[:0],
	}
	for i := range spans {
		p.Rows += len(spans[i].Pos)
		p.pos, p.base = append(p.pos, nil), append(p.base, 0)
	}
	for len(p.moved) < len(spans) {
		p.moved = append(p.moved, nil)
	}
	return p
}

// Enter prepares layer i for x [Rows, Hidden], the output of the previous layer. It removes the
// rows that a reducer drops before the layer. It reports whether any span continues.
func (p *Passage) Enter(i int, x []float32) bool {
	if !p.alive() {
		return false
	}
	for s := range p.spans {
		if b := p.spans[s].Cache.Layer(i).Shift; b != p.base[s] {
			p.base[s], p.stale = b, true
		}
	}
	at, rows := 0, p.Rows
	for s := range p.spans {
		if sp := &p.spans[s]; len(sp.Staged) > 0 {
			p.prepare(i, s, at, x)
		}
		at += len(p.spans[s].Pos)
	}
	p.tables(i)
	for s := range p.spans {
		sp := &p.spans[s]
		shift := p.base[s]
		for j := range sp.Staged {
			st := &sp.Staged[j]
			st.Enter()
			shift += st.shift()
		}
		sp.Cache.Layer(i).Shift = shift
	}
	if p.Rows < rows {
		p.Trace(fmt.Sprintf("text.layer.%d.in", i), p.shape.Hidden, x)
	}
	return true
}

// Yield lets other sequences pass between the products of a layer, which may have many rows. If
// this passage should end, it ends at the next layer.
func (p *Passage) Yield() { _ = p.run.Pause() }

// alive ends spans whose context has ended, or all spans if Between returns an error. It reports
// whether any span is left.
func (p *Passage) alive() bool {
	all, left := p.run.Pause(), false
	for s := range p.spans {
		sp := &p.spans[s]
		switch {
		case sp.Err != nil:
		case all != nil:
			sp.fail(all)
		case sp.Context != nil && sp.Context.Err() != nil:
			sp.fail(context.Cause(sp.Context))
		}
		left = left || sp.Err == nil
	}
	return left
}

// fail ends the span and its reducers. Its rows stay in the batch.
func (sp *Span) fail(err error) { sp.Err, sp.Staged = err, nil }

// rescue turns a panic into the span's error.
func (sp *Span) rescue() {
	if v := recover(); v != nil {
		sp.fail(&Panic{v, debug.Stack()})
	}
}

// prepare shows the input of layer i to the reducers of span s, whose first row is at, and removes
// rows before the layer.
func (p *Passage) prepare(i, s, at int, x []float32) {
	sp := &p.spans[s]
	defer sp.rescue()
	span := x[at*p.shape.Hidden : (at+len(sp.Pos))*p.shape.Hidden]
	if i == 0 {
		if err := p.begin(sp, span); err != nil {
			sp.fail(err)
			return
		}
	}
	err := p.readAhead(i, s, span)
	if err == nil {
		err = p.states(i, s, span)
	}
	if err == nil {
		err = p.shrink(i, s, at, false, x, nil)
	}
	if err != nil {
		sp.fail(err)
	}
}

// First returns the first row whose output of layer i is read.
func (p *Passage) First(i int) int {
	sp := &p.spans[0]
	if i < p.shape.Layers-1 || len(p.spans) > 1 || !sp.LastOnly || sp.Trace != nil {
		return 0
	}
	for j := range sp.Staged {
		if st := &sp.Staged[j]; st.Reads(i, false) || st.Shrinks(i, true) {
			return 0
		}
	}
	return p.Rows - 1
}

// Tracing reports whether any span is traced.
func (p *Passage) Tracing() bool {
	for s := range p.spans {
		if p.spans[s].Trace != nil {
			return true
		}
	}
	return false
}

// Trace passes each traced span its rows of x [Rows, width].
func (p *Passage) Trace(name string, width int, x []float32) {
	at := 0
	for s := range p.spans {
		n := len(p.spans[s].Pos)
		if t := p.spans[s].Trace; t != nil {
			t(name, []int{n, width}, x[at*width:(at+n)*width])
		}
		at += n
	}
}

// renumbered reports whether a picture's stages gave its rows consecutive positions.
func (st *Staged) renumbered() bool { return st.Reduced() && st.Sequential() }

// shift returns by how much a picture's stages moved the rows after it.
func (st *Staged) shift() float64 {
	if !st.renumbered() {
		return 0
	}
	return st.Extent - float64(len(st.Rows()))
}

// Names of the buffers of the first two rotations' tables; a decoder has no more.
var (
	cosines = [...]string{"text.cos", "text.cos.2"}
	sines   = [...]string{"text.sin", "text.sin.2"}
)

// tables computes the positions of all rows in layer i and their rotation, unless they are known.
func (p *Passage) tables(i int) {
	if p.stale {
		for s := range p.spans {
			p.pos[s] = p.positions(s)
		}
		p.turns, p.stale = p.turns[:0], false
	}
	rope := p.shape.RoPE[i]
	for _, t := range p.turns {
		if t.rope == rope {
			p.Cos, p.Sin = t.cos, t.sin
			return
		}
	}
	half, k := p.shape.HeadDim/2, len(p.turns)
	p.Cos, p.Sin = p.run.Buffer(cosines[k], p.Rows*half), p.run.Buffer(sines[k], p.Rows*half)
	at := 0
	for s := range p.spans {
		n := len(p.pos[s])
		rope.Tables(p.Cos[at*half:(at+n)*half], p.Sin[at*half:(at+n)*half], p.pos[s])
		at += n
	}
	p.turns = append(p.turns, turn{rope, p.Cos, p.Sin})
}

// positions returns the positions of span s in this layer. If a reducer renumbers its rows, they
// become consecutive and all later rows move forward.
func (p *Passage) positions(s int) []nn.Pos {
	sp := &p.spans[s]
	shift := p.base[s]
	moved := shift != 0
	for j := range sp.Staged {
		moved = moved || sp.Staged[j].renumbered()
	}
	if !moved {
		return sp.Pos
	}
	pos := slices.Grow(p.moved[s][:0], len(sp.Pos))
	upTo := func(row int) {
		for _, at := range sp.Pos[len(pos):row] {
			pos = append(pos, nn.Pos{at[0] - shift, at[1] - shift, at[2] - shift})
		}
	}
	for j := range sp.Staged {
		st := &sp.Staged[j]
		upTo(st.First)
		if st.renumbered() {
			for k := range st.Rows() {
				pos = append(pos, nn.At(st.Start-shift+float64(k)))
			}
			shift += st.shift()
		}
	}
	upTo(len(sp.Pos))
	p.moved[s] = pos
	return pos
}

// begin shows the embeddings x of a span to the reducers that need them.
func (p *Passage) begin(sp *Span, x []float32) error {
	for j := range sp.Staged {
		st := &sp.Staged[j]
		if !st.Begins() {
			continue
		}
		w, n := p.shape.Hidden, len(st.Rows())
		rows := sp.text(j)
		text := make([]float32, len(rows)*w)
		nn.Gather(text, x, rows, w)
		if err := st.Begin(p.run.Pool, x[st.First*w:(st.First+n)*w], text, w); err != nil {
			return err
		}
	}
	return nil
}

// text returns the rows of text after picture j.
func (sp *Span) text(j int) []int32 {
	var rows []int32
	row := sp.Staged[j].First + len(sp.Staged[j].Rows())
	for _, st := range sp.Staged[j+1:] {
		for ; row < st.First; row++ {
			rows = append(rows, int32(row))
		}
		row += len(st.Rows())
	}
	for ; row < len(sp.Pos); row++ {
		rows = append(rows, int32(row))
	}
	return rows
}

// readAhead shows reducers the attention of the last row of span s in layer i as if no row were
// dropped before it. x: the span's rows.
func (p *Passage) readAhead(i, s int, x []float32) error {
	sp := &p.spans[s]
	reads := false
	for j := range sp.Staged {
		reads = reads || sp.Staged[j].Reads(i, true)
	}
	if !reads {
		return nil
	}
	rows, half := len(sp.Pos), p.shape.HeadDim/2
	k := p.run.Buffer("ahead.k", rows*p.shape.KVHeads*p.shape.HeadDim)
	q := p.run.Buffer("ahead.q", p.shape.Heads*p.shape.HeadDim)
	p.layers.Ahead(p.run, i, q, k, x, rows)
	pos := p.positions(s)
	cos, sin := p.run.Buffer("ahead.cos", rows*half), p.run.Buffer("ahead.sin", rows*half)
	rope := p.shape.RoPE[i]
	rope.Tables(cos, sin, pos)
	rope.Apply(p.run.Pool, k, rows, p.shape.KVHeads, cos, sin)
	rope.Apply(p.run.Pool, q, 1, p.shape.Heads, cos[(rows-1)*half:], sin[(rows-1)*half:])
	kv := sp.Cache.Layer(i)
	cached, held := len(kv.Pos), kv.Held()
	kv.Append(p.run.Pool, k, k, pos, sp.Size)
	defer kv.Retract(cached, held) // the pages that were reserved for the layer stay its own
	tap := &nn.Tap{Mean: []int32{0}}
	calib := sp.Calib.At(i)
	if sp.Calib.At(i-1) == nil { // the rows are not reduced yet
		calib = nil
	}
	p.layers.Attention(i).TapLast(p.run.Pool, q, pos[len(pos)-1], kv, calib, tap)
	for j := range sp.Staged { // only the last row's query was computed
		if st := &sp.Staged[j]; st.Reads(i, true) {
			if err := st.Read(sp.sight(j, len(kv.Pos)), tap.Row(0, false)); err != nil {
				return err
			}
		}
	}
	return nil
}

// states shows x, the rows of span s before layer i, and their keys in the previous layer to the
// reducers that read them.
func (p *Passage) states(i, s int, x []float32) error {
	sp := &p.spans[s]
	var seen *methods.States
	for j := range sp.Staged {
		st := &sp.Staged[j]
		if !st.ReadsStates(i) {
			continue
		}
		rows, kw := len(sp.Pos), p.shape.KVHeads*p.shape.HeadDim
		kv := sp.Cache.Layer(i - 1)
		if seen == nil {
			seen = &methods.States{
				Width: p.shape.Hidden, KeyWidth: kw, Hidden: make([]float32, len(x)),
				Keys: kv.Keys(len(kv.Pos) - rows), Pool: p.run.Pool,
			}
			p.layers.Norm(p.run, seen.Hidden, x, rows)
		}
		sight := sp.sight(j, len(kv.Pos))
		sight.States = seen
		if err := st.Read(sight, nil); err != nil {
			return err
		}
	}
	return nil
}

// sight returns what the reducer of picture j sees of a layer with the given number of keys.
func (sp *Span) sight(j, keys int) *methods.Sight {
	first := sp.Staged[j].First
	return &methods.Sight{
		First: first, Key: keys - len(sp.Pos) + first, Keys: keys, Text: sp.text(j),
		Last: int32(len(sp.Pos) - 1),
	}
}

// tap returns the tap for the span's reducers in layer i, which will hold the given number of keys;
// nil if none needs one.
func (sp *Span) tap(i, keys int) *nn.Tap {
	var tap *nn.Tap
	for j := range sp.Staged {
		st := &sp.Staged[j]
		if !st.Reads(i, false) {
			continue
		}
		if tap == nil {
			tap = &nn.Tap{}
		}
		rows, largest := st.AttentionRows(sp.sight(j, keys))
		if largest {
			tap.Largest = append(tap.Largest, rows...)
		} else {
			tap.Mean = append(tap.Mean, rows...)
		}
	}
	if tap != nil {
		slices.Sort(tap.Mean)
		slices.Sort(tap.Largest)
		tap.Mean, tap.Largest = slices.Compact(tap.Mean), slices.Compact(tap.Largest)
	}
	return tap
}

// read passes the attention of layer i to the reducers of the span that need it.
func (sp *Span) read(i int, tap *nn.Tap) error {
	if tap == nil {
		return nil
	}
	for j := range sp.Staged {
		st := &sp.Staged[j]
		if !st.Reads(i, false) {
			continue
		}
		sight := sp.sight(j, sp.Cache.Len(i))
		rows, largest := st.AttentionRows(sight)
		attention := make([]float32, 0, len(rows)*sight.Keys)
		for _, q := range rows {
			attention = append(attention, tap.Row(q, largest)...)
		}
		if err := st.Read(sight, attention); err != nil {
			return err
		}
	}
	return nil
}

// shrink performs the stages of span s before layer i, or within it, on x [Rows, Hidden] and, if
// not nil, on a [Rows, Heads·HeadDim]. at is the span's first row.
func (p *Passage) shrink(i, s, at int, within bool, x, a []float32) error {
	sp := &p.spans[s]
	h, qw := p.shape.Hidden, p.shape.Heads*p.shape.HeadDim
	for j := range sp.Staged {
		st := &sp.Staged[j]
		if !st.Shrinks(i, within) {
			continue
		}
		first, old := at+st.First, len(st.Rows())
		mixes, err := st.Shrink(p.run.Pool, x[first*h:(first+old)*h], h)
		if err != nil {
			return err
		}
		nn.Replace(p.run.Pool, x, p.Rows, h, first, old, mixes)
		sp.shrinkDeep(p.run.Pool, st.First, old, mixes, h)
		if a != nil {
			nn.Replace(p.run.Pool, a, p.Rows, qw, first, old, mixes)
		}
		sp.replace(st, old)
		for k := range sp.Staged[j+1:] {
			sp.Staged[j+1+k].First -= old - len(mixes)
		}
		for k := range sp.Deep {
			if d := &sp.Deep[k]; d.First > st.First {
				d.First -= old - len(mixes)
			}
		}
		sp.shrinkBlocks(st.First, old-len(mixes))
		p.Rows -= old - len(mixes)
		p.stale = true
	}
	return nil
}

// shrinkDeep replaces the old rows of the picture at first by mixes in the rows that it adds. It
// does not change the caller's.
func (sp *Span) shrinkDeep(p *nn.Pool, first, old int, mixes []nn.Mix, width int) {
	for k := range sp.Deep {
		d := &sp.Deep[k]
		if d.First != first {
			continue
		}
		levels := make([][]float32, len(d.Levels))
		for i, rows := range d.Levels {
			levels[i] = make([]float32, len(mixes)*width)
			nn.Blend(p, levels[i], rows[:old*width], mixes, width)
		}
		d.Levels = levels
	}
}

// shrinkBlocks takes less rows from the block at first, and from the places of later ones. It does
// not change the caller's.
func (sp *Span) shrinkBlocks(first, less int) {
	blocks := slices.Clone(sp.Blocks)
	for i := range blocks {
		if b := &blocks[i]; b.First >= first {
			b.End -= less
			if b.First > first {
				b.First -= less
			}
		}
	}
	sp.Blocks = blocks
}

// blocksFrom returns the blocks of the rows from the first on.
func (sp *Span) blocksFrom(first int) []nn.Block {
	var blocks []nn.Block
	for _, b := range sp.Blocks {
		if b.End > first {
			blocks = append(blocks, nn.Block{First: b.First - first, End: b.End - first})
		}
	}
	return blocks
}

// Deepen adds the pictures' rows for layer i to x [Rows, Hidden], the output of that layer.
func (p *Passage) Deepen(i int, x []float32) {
	at, h := 0, p.shape.Hidden
	for s := range p.spans {
		sp := &p.spans[s]
		for _, d := range sp.Deep {
			if i < len(d.Levels) && sp.Err == nil {
				first := (at + d.First) * h
				nn.Add(p.run.Pool, x[first:first+len(d.Levels[i])], d.Levels[i])
			}
		}
		at += len(sp.Pos)
	}
}

// replace updates the span's positions and sizes after a stage reduced the old rows of st. It does
// not change the caller's slices.
func (sp *Span) replace(st *Staged, old int) {
	pos := append([]nn.Pos(nil), sp.Pos[:st.First]...)
	rows := st.Rows()
	for i := range rows {
		pos = append(pos, st.At(&rows[i]))
	}
	if sp.Size != nil {
		size := append(append([]float32(nil), sp.Size[:st.First]...), st.Sizes()...)
		sp.Size = append(size, sp.Size[st.First+old:]...)
	}
	sp.Pos, sp.FirstSize = append(pos, sp.Pos[st.First+old:]...), nil
}

// Attend is attention in layer i. It rotates q [Rows, Heads·HeadDim] and k [Rows, KVHeads·HeadDim],
// appends k and v to the spans' caches and writes the result, before its projection, to out [Rows,
// Heads·HeadDim]; q and out begin with the row First. Rows that a reducer drops inside the layer
// are removed from out and from x [Rows, Hidden], the layer's input.
func (p *Passage) Attend(i int, out, q, k, v, x []float32) {
	r := p.run
	qw, kw := p.shape.Heads*p.shape.HeadDim, p.shape.KVHeads*p.shape.HeadDim
	rows := len(q) / qw
	first, half := p.Rows-rows, p.shape.HeadDim/2
	rope := p.shape.RoPE[i]
	rope.Apply(r.Pool, q, rows, p.shape.Heads, p.Cos[first*half:], p.Sin[first*half:])
	rope.Apply(r.Pool, k, p.Rows, p.shape.KVHeads, p.Cos, p.Sin)
	at := 0
	p.calls = p.calls[:0]
	for s := range p.spans {
		n := len(p.pos[s])
		end := at + n - first // only a span alone has a first row
		p.extend(i, s, first, nn.Call{
			Out: out[at*qw : end*qw], Q: q[at*qw : end*qw], K: k[at*kw : (at+n)*kw],
			V: v[at*kw : (at+n)*kw],
		})
		at += n
	}
	p.attend(i)
	calls := p.calls
	for s := range p.spans {
		if p.spans[s].Err == nil {
			p.read(i, s, &calls[0])
			calls = calls[1:]
		}
	}
	clear(p.calls)
	at = 0
	for s := range p.spans {
		if sp := &p.spans[s]; len(sp.Staged) > 0 {
			p.drop(i, s, at, x, out)
		}
		at += len(p.spans[s].Pos)
	}
}

// extend extends the cache of span s and appends its call, for the rows from the first on. Before
// that c has what depends on the rows of all spans.
func (p *Passage) extend(i, s, first int, c nn.Call) {
	sp, pos := &p.spans[s], p.pos[s]
	if sp.Err != nil {
		return
	}
	defer sp.rescue()
	size := sp.Size
	if i == 0 && sp.FirstSize != nil {
		size = sp.FirstSize
	}
	kv := sp.Cache.Layer(i)
	c.Pos, c.Blocks = pos, sp.Blocks
	if first > 0 { // the last row alone
		kv.Append(p.run.Pool, c.K, c.V, pos, size)
		c.K, c.V, c.Pos, c.Blocks = nil, nil, pos[first:], sp.blocksFrom(first)
	} else {
		kv.Extend(pos, size)
	}
	c.Cache, c.Calib, c.Decoding = kv, sp.Calib.At(i), sp.Decoding
	c.Tap = sp.tap(i, len(kv.Pos))
	p.calls = append(p.calls, c)
}

// attend computes the calls. If it panics, their spans fail.
func (p *Passage) attend(i int) {
	defer func() {
		if v := recover(); v != nil {
			for s := range p.spans {
				if sp := &p.spans[s]; sp.Err == nil {
					sp.fail(&Panic{v, debug.Stack()})
				}
			}
		}
	}()
	p.layers.Attention(i).Causal(p.run.Pool, p.calls...)
}

// read passes the attention of span s, computed by c, to its trace and its reducers.
func (p *Passage) read(i, s int, c *nn.Call) {
	sp := &p.spans[s]
	defer sp.rescue()
	if sp.Trace != nil {
		p.trace(i, s, c)
	}
	if err := sp.read(i, c.Tap); err != nil {
		sp.fail(err)
	}
}

// drop removes the rows of span s that a reducer drops inside layer i.
func (p *Passage) drop(i, s, at int, x, out []float32) {
	sp := &p.spans[s]
	defer sp.rescue()
	if err := p.shrink(i, s, at, true, x, out); err != nil {
		sp.fail(err)
	}
}

// trace traces the keys, values and attention of span s in layer i, computed by c.
func (p *Passage) trace(i, s int, c *nn.Call) {
	sp, kv := &p.spans[s], c.Cache
	n, t, heads, d := len(c.Pos), len(kv.Pos), p.shape.KVHeads, p.shape.HeadDim
	name := func(what string) string { return fmt.Sprintf("text.layer.%d.%s", i, what) }
	sp.Trace(name("k"), []int{heads, t, d}, nn.HeadsFirst(kv.Keys(0), t, heads, d))
	sp.Trace(name("v"), []int{heads, t, d}, nn.HeadsFirst(kv.Values(0), t, heads, d))
	if !p.run.NoMaps {
		sp.Trace(name("attn"), []int{p.shape.Heads, n, t},
			p.layers.Attention(i).CausalProbs(p.run.Pool, *c))
	}
	if c.Calib != nil {
		sp.Trace(name("bias"), []int{n, t}, c.Calib.Rows(kv, c.Pos, c.Decoding))
	}
}
