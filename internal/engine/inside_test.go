package engine

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// tolLater is a share of the largest logit: a prompt read in other pieces is summed in another
// order.
const tolLater = 2e-5

// insideCase is a tiny checkpoint with a reference prompt about one picture and the encoder's
// output for it.
type insideCase struct {
	e     *Engine
	ids   []int64
	v     *model.Visual
	start int // place of the picture in ids
}

func openInside(t *testing.T) *insideCase {
	t.Helper()
	dir := filepath.Join("testdata", "inmodel-tiny")
	e, err := OpenWith(formats.Files{Model: dir}, Options{Threads: 2}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	in := golden.Read(t, filepath.Join(dir, "prompt.ref"))
	ids, err := in["input_ids"].Int64s()
	if err != nil {
		t.Fatal(err)
	}
	pixels, err := in["pixel_values"].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	pics, err := e.m.Pictures(&imageproc.Pixels{Shape: in["pixel_values"].Shape, Data: pixels})
	if err != nil {
		t.Fatal(err)
	}
	v, err := e.m.Encode(&model.Run{Pool: e.pool}, pics, model.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	c := &insideCase{e: e, v: v[0]}
	for i, id := range ids {
		visual := id == int64(e.m.ImageToken())
		if visual && i > 0 && ids[i-1] == id {
			continue // one place for each picture
		}
		if visual {
			c.start = len(c.ids)
		}
		c.ids = append(c.ids, id)
	}
	return c
}

// units is the prompt, with its picture replaced by pictures reduced by o.
func (c *insideCase) units(t *testing.T, o methods.Options, pictures int) []unit {
	t.Helper()
	var out []unit
	for i, id := range c.ids {
		if i != c.start {
			out = append(out, unit{id: int32(id)})
			continue
		}
		for j := range pictures {
			out = append(out, unit{pic: c.picture(t, o, j)})
		}
	}
	return out
}

func (c *insideCase) picture(t *testing.T, o methods.Options, index int) *picture {
	t.Helper()
	p := &picture{image: &image{shape: c.v.Shape}, visual: c.v, index: index, id: c.e.unique()}
	var err error
	if p.planned, err = c.e.plan(c.v.Shape, o); err != nil {
		t.Fatal(err)
	}
	return p
}

// reading is a dialogue, read as the device reads it.
type reading struct {
	c    *insideCase
	root uint64
	s    *sequence // of the last prompt
	lens []int     // keys of each layer after it
}

// read reads units, a prefix of which may be in memory, and returns the last row's logits.
func (k *reading) read(t *testing.T, units []unit) []float32 {
	t.Helper()
	e := k.c.e
	s := newSequence(e, context.Background(), &Request{MaxTokens: 1})
	s.units, s.root, s.most = units, k.root, 1
	for _, u := range units {
		if u.pic != nil {
			s.pics = append(s.pics, u.pic)
		}
	}
	var err error
	if s.calib, err = e.calibration(s.pics); err != nil {
		t.Fatal(err)
	}
	if err := s.claim(); err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, e.shape.Vocab)
	err = e.Do(s.ctx, func(r *model.Run) error {
		if !e.device.admit(s) {
			return fmt.Errorf("no memory")
		}
		for _, u := range units[s.cached:] {
			if u.pic != nil {
				if u.pic.tokens, err = e.features(r, u.pic); err != nil {
					return err
				}
			}
		}
		_, at := extent(units[:s.cached])
		row, err := s.prefill(r, s.cached, at)
		if err != nil {
			return err
		}
		e.m.Decoder().Logits(r, logits, row, 1)
		k.lens = s.cache.Lens(nil)
		e.prefixes.keep(e.prefixes.add(s.root, units, s.cache))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.pics {
		if p.inside != nil && p.chosen == 0 {
			p.chosen = len(units)
		}
	}
	k.s = s
	return logits
}

func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	top := 0.0
	for _, v := range want {
		top = max(top, math.Abs(float64(v)))
	}
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= tolLater*top) {
			t.Errorf("%s: logit %d: got %v, want %v", what, i, got[i], want[i])
			return
		}
	}
}

// Ensure that text after a picture that was reduced inside the decoder, read as a later turn, gets
// the logits that the reference gets by decoding it: in one piece, in two, and again after a part
// was forgotten.
func TestInsideLaterTurns(t *testing.T) {
	c := openInside(t)
	for name, o := range map[string]methods.Options{
		"fastv_k2_n12":              {Base: "fastv", Schedule: "2:12", Compat: "released"},
		"pdrop_246":                 {Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "released"},
		"restore_fastv_k2_n12_g50":  {Base: "fastv", Schedule: "2:12", Compat: "paper", Restore: true},
		"restore_pdrop_135_g75":     {Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "paper", Restore: true, Gamma: new(0.75)},
		"sparsevlm_135":             {Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "released"},
		"restore_sparsevlm_135_g50": {Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true},
		"fitprune_a":                {Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "released"},
		"restore_fitprune_a_g50":    {Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "paper", Restore: true},
	} {
		ref := golden.Read(t, filepath.Join("testdata", "inmodel-tiny", name+".ref"))
		logits, _ := ref["logits"].Float32s()
		tokens, _ := ref["tokens"].Int64s()
		vocab := c.e.shape.Vocab
		units := c.units(t, o, 1)
		k := &reading{c: c, root: c.e.marks.Add(1)}
		near(t, name, k.read(t, units), logits[:vocab])
		lens := k.lens
		said := slices.Clone(units)
		for _, id := range tokens[:5] {
			said = append(said, unit{id: int32(id)})
		}
		near(t, name+" in one piece", k.read(t, said), logits[5*vocab:6*vocab])
		near(t, name+" after forgetting", k.read(t, said[:len(said)-2]), logits[3*vocab:4*vocab])
		near(t, name+" in two pieces", k.read(t, said), logits[5*vocab:6*vocab])
		for i, n := range k.lens {
			if n != lens[i]+5 {
				t.Errorf("%s: layer %d holds %d keys, want %d and 5", name, i, n, lens[i])
			}
		}
		k.root = c.e.marks.Add(1)
		near(t, name+" evicted", k.read(t, said), logits[5*vocab:6*vocab])
		near(t, name+" from scratch",
			(&reading{c: c, root: c.e.marks.Add(1)}).read(t, c.units(t, o, 1)), logits[:vocab])
	}
}

// Ensure that prompts longer than a chunk give the same result as in one piece, with the long text
// before the picture, after it, or on both sides of two.
func TestInsideChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and covers no additional kernel")
	}
	c := openInside(t)
	c.e.shape.MaxPositions, c.e.context = 4*prefillChunk, 4*prefillChunk
	text := make([]unit, prefillChunk+37)
	for i := range text {
		text[i] = unit{id: int32(3 + i*7%290)}
	}
	for _, o := range []methods.Options{
		{Base: "fastv", Schedule: "2:12"},
		{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "released"},
		{Base: "pdrop", Schedule: "2:20,5:5", Restore: true},
		{Base: "fitprune", Schedule: "2:20,5:5"},
		{Base: "dart-text", Schedule: "2:20,5:5", Restore: true},
	} {
		for place, build := range map[string]func() []unit{
			"before": func() []unit { return slices.Concat(text, c.units(t, o, 1)) },
			"behind": func() []unit { return slices.Concat(c.units(t, o, 1), text) },
			"both":   func() []unit { return slices.Concat(text, c.units(t, o, 2), text[:100]) },
		} {
			name := fmt.Sprintf("%s, text %s", o.Base, place)
			k := &reading{c: c, root: c.e.marks.Add(1)}
			got := k.read(t, build())
			in := c.laid(t, build())
			cache := c.e.newCache()
			spans := []model.Span{
				{Pos: in.Pos, Size: in.Size, FirstSize: in.FirstSize, Cache: cache, Calib: k.s.calib, Staged: in.Staged},
			}
			r := &model.Run{Pool: c.e.pool}
			if c.e.m.Decoder().Forward(r, in.X, spans); spans[0].Err != nil {
				t.Fatal(spans[0].Err)
			}
			want := make([]float32, c.e.shape.Vocab)
			c.e.m.Decoder().Logits(r, want, in.X[(len(spans[0].Pos)-1)*c.e.shape.Hidden:], 1)
			near(t, name, got, want)
			if got := k.lens; !slices.Equal(got, cache.Lens(nil)) {
				t.Errorf("%s: keys per layer: got %v, want %v", name, got, cache.Lens(nil))
			}
		}
	}
}

// Ensure that sequences that go through the decoder together get the same results as alone, reduced
// at different layers or not at all.
func TestInsideTogether(t *testing.T) {
	c := openInside(t)
	h := c.e.shape.Hidden
	var want [][]float32
	var spans []model.Span
	var x []float32
	for i, o := range []methods.Options{
		{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "released"}, {}, {Base: "fastv", Schedule: "2:12", Restore: true}, {Base: "pdrop", Schedule: "3:9", Restore: true},
		{Base: "fitprune", Schedule: "0:30,2:9"}, {Base: "sparsevlm", Schedule: "1:9", Compat: "released"}, {Base: "fitprune", Schedule: "2:9", Restore: true},
		{Base: "dart-text", Schedule: "2:13"},
	} {
		k := &reading{c: c, root: c.e.marks.Add(1)}
		want = append(want, k.read(t, c.units(t, o, 1+i%2)))
		in := c.laid(t, c.units(t, o, 1+i%2))
		x = append(x, in.X...)
		spans = append(spans, model.Span{
			Pos: in.Pos, Size: in.Size, FirstSize: in.FirstSize, Cache: c.e.newCache(),
			Calib: k.s.calib, Staged: in.Staged,
		})
	}
	r := &model.Run{Pool: c.e.pool}
	c.e.m.Decoder().Forward(r, x, spans)
	at := 0
	for i := range spans {
		if spans[i].Err != nil {
			t.Fatal(spans[i].Err)
		}
		at += len(spans[i].Pos)
		got := make([]float32, c.e.shape.Vocab)
		c.e.m.Decoder().Logits(r, got, x[(at-1)*h:], 1)
		near(t, fmt.Sprint("sequence ", i), got, want[i])
	}
}

// laid returns the decoder rows of units.
func (c *insideCase) laid(t *testing.T, units []unit) *Rows {
	t.Helper()
	for _, u := range units {
		if u.pic != nil {
			var err error
			if u.pic.tokens, err = c.e.features(&model.Run{Pool: c.e.pool}, u.pic); err != nil {
				t.Fatal(err)
			}
		}
	}
	in, err := c.e.layout(units, 0)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// Ensure that the tokens of a picture chosen for the first question are kept for the next one, and
// that another question about the same picture reads it again.
func TestInsideConversation(t *testing.T) {
	c := openInside(t)
	o := methods.Options{Base: "pdrop", Schedule: "2:20,5:5", Restore: true}
	units := c.units(t, o, 1)
	k := &reading{c: c, root: c.e.marks.Add(1)}
	k.read(t, units)
	inside := units[c.start].pic.inside
	rows := slices.Clone(inside.Rows())
	more := []unit{{id: 5}, {id: 9}, {id: 4}, {id: 8}} // leastRead units
	k.read(t, append(slices.Clone(units), more...))
	if k.s.cached != len(units) {
		t.Errorf("%d units were in memory, want %d", k.s.cached, len(units))
	}
	if units[c.start].pic.inside != inside || len(inside.Rows()) != len(rows) {
		t.Error("the picture was reduced again")
	}
	again := c.units(t, o, 1)
	k.read(t, again)
	if k.s.cached != c.start || again[c.start].pic.inside == inside {
		t.Errorf("another question: %d units were in memory, want %d", k.s.cached, c.start)
	}
}
