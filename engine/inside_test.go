package engine

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
)

// tolLater is a share of the largest logit: a prompt read in other pieces sums
// in another order.
const tolLater = 2e-5

// insideCase is a tiny checkpoint, a prompt of the reference about one picture
// and what its encoder makes of it.
type insideCase struct {
	e     *Engine
	ids   []int64
	v     *model.Visual
	start int // place of the picture in ids
}

func openInside(t *testing.T) *insideCase {
	t.Helper()
	dir := filepath.Join("testdata", "inmodel-tiny")
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(ck, Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	in, err := golden.Read(filepath.Join(dir, "prompt.ref"))
	if err != nil {
		t.Fatal(err)
	}
	ids, px, err := e.traceInputs(TraceRequest{Inputs: in})
	if err != nil {
		t.Fatal(err)
	}
	v, err := e.m.Encode(e.run(), px, model.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	c := &insideCase{e: e, v: v[0]}
	for i, id := range ids {
		c.ids = append(c.ids, int64(id))
		if id == e.m.ImageToken() {
			c.start = i
		}
	}
	return c
}

// units is the prompt with pictures reduced by o in the place of its own.
func (c *insideCase) units(t *testing.T, o reduce.Options, pictures int) []unit {
	t.Helper()
	var out []unit
	for i, id := range c.ids {
		if i != c.start {
			out = append(out, unit{id: int32(id)})
			continue
		}
		for j := range pictures {
			p, err := c.e.reduce(c.e.run(), c.v, j, o)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, unit{pic: p})
		}
	}
	return out
}

// begin starts a conversation that has read units.
func (c *insideCase) begin(t *testing.T, units []unit) (*Conversation, *sequence) {
	t.Helper()
	conv := &Conversation{e: c.e, cache: c.e.newCache()}
	return conv, c.more(t, conv, units)
}

// more reads units, of which conv may hold a stretch from the start.
func (c *insideCase) more(t *testing.T, conv *Conversation, units []unit) *sequence {
	t.Helper()
	var pics []*picture
	for _, u := range units {
		if u.pic != nil {
			pics = append(pics, u.pic)
		}
	}
	s := &sequence{e: c.e, cache: conv.cache, calib: calibrationOf(c.e, pics)}
	if err := conv.prefill(&model.Run{Pool: c.e.pool, Context: context.Background()}, s, units, &Report{}); err != nil {
		t.Fatal(err)
	}
	return s
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

// Ensure that text behind a picture that was shrunk on its way, read as a later
// turn, gets the logits that the reference gets decoding it: in one piece, in
// two, and again after a part was forgotten.
func TestInsideLaterTurns(t *testing.T) {
	c := openInside(t)
	for name, o := range map[string]reduce.Options{
		"fastv_k2_n12":              {Base: "fastv", Schedule: "2:12", Compat: "released"},
		"pdrop_246":                 {Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "released"},
		"restore_fastv_k2_n12_g50":  {Base: "fastv", Schedule: "2:12", Compat: "paper", Restore: true},
		"restore_pdrop_135_g75":     {Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "paper", Restore: true, Gamma: 0.75},
		"sparsevlm_135":             {Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "released"},
		"restore_sparsevlm_135_g50": {Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true},
		"fitprune_a":                {Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "released"},
		"restore_fitprune_a_g50":    {Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "paper", Restore: true},
	} {
		ref, err := golden.Read(filepath.Join("testdata", "inmodel-tiny", name+".ref"))
		if err != nil {
			t.Fatal(err)
		}
		logits, _ := ref["logits"].Float32s()
		tokens, _ := ref["tokens"].Int64s()
		vocab := c.e.shape.Vocab
		units := c.units(t, o, 1)
		conv, s := c.begin(t, units)
		near(t, name, s.logits, logits[:vocab])
		lens := conv.cache.Lens(nil)
		said := slices.Clone(units)
		for _, id := range tokens[:5] {
			said = append(said, unit{id: int32(id)})
		}
		near(t, name+" in one piece", c.more(t, conv, said).logits, logits[5*vocab:6*vocab])
		near(t, name+" after forgetting", c.more(t, conv, said[:len(said)-2]).logits, logits[3*vocab:4*vocab])
		near(t, name+" in two pieces", c.more(t, conv, said).logits, logits[5*vocab:6*vocab])
		for i, n := range conv.cache.Lens(nil) {
			if n != lens[i]+5 {
				t.Errorf("%s: layer %d holds %d keys, want %d and 5", name, i, n, lens[i])
			}
		}
		conv.forget(0)
		near(t, name+" from scratch", c.more(t, conv, units).logits, logits[:vocab])
	}
}

// Ensure that prompts longer than what goes through the decoder at once are read
// as in one piece, with the long text before the picture, behind it, or on
// both sides of two.
func TestInsideChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and no kernel is new to it")
	}
	c := openInside(t)
	c.e.shape.MaxPositions = 4 * prefillChunk
	text := make([]unit, prefillChunk+37)
	for i := range text {
		text[i] = unit{id: int32(3 + i*7%290)}
	}
	for _, o := range []reduce.Options{
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
			units := build()
			conv, s := c.begin(t, units)
			in, err := c.e.layout(units, 0)
			if err != nil {
				t.Fatal(err)
			}
			cache := c.e.newCache()
			spans := []model.Span{{Pos: in.pos, Size: in.size, FirstSize: in.firstSize, Cache: cache, Calib: s.calib, Staged: in.staged}}
			r := &model.Run{Pool: c.e.pool, Context: context.Background()}
			if err := c.e.m.Decoder().Forward(r, in.x, spans); err != nil {
				t.Fatal(err)
			}
			want := make([]float32, c.e.shape.Vocab)
			c.e.m.Decoder().Logits(r, want, in.x[(len(spans[0].Pos)-1)*c.e.shape.Hidden:], 1)
			near(t, name, s.logits, want)
			if got := conv.cache.Lens(nil); !slices.Equal(got, cache.Lens(nil)) {
				t.Errorf("%s: keys per layer: got %v, want %v", name, got, cache.Lens(nil))
			}
		}
	}
}

// Ensure that sequences that go through the decoder together get what each gets
// alone, shrunk at different layers or not at all.
func TestInsideTogether(t *testing.T) {
	c := openInside(t)
	h := c.e.shape.Hidden
	var want [][]float32
	var spans []model.Span
	var x []float32
	for i, o := range []reduce.Options{
		{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "released"}, {}, {Base: "fastv", Schedule: "2:12", Restore: true}, {Base: "pdrop", Schedule: "3:9", Restore: true},
		{Base: "fitprune", Schedule: "0:30,2:9"}, {Base: "sparsevlm", Schedule: "1:9", Compat: "released"}, {Base: "fitprune", Schedule: "2:9", Restore: true},
		{Base: "dart-text", Schedule: "2:13"},
	} {
		units := c.units(t, o, 1+i%2)
		_, s := c.begin(t, units)
		want = append(want, s.logits)
		in, err := c.e.layout(units, 0)
		if err != nil {
			t.Fatal(err)
		}
		x = append(x, in.x...)
		spans = append(spans, model.Span{Pos: in.pos, Size: in.size, FirstSize: in.firstSize, Cache: c.e.newCache(), Calib: s.calib, Staged: in.staged})
	}
	r := &model.Run{Pool: c.e.pool, Context: context.Background()}
	if err := c.e.m.Decoder().Forward(r, x, spans); err != nil {
		t.Fatal(err)
	}
	at := 0
	for i := range spans {
		at += len(spans[i].Pos)
		got := make([]float32, c.e.shape.Vocab)
		c.e.m.Decoder().Logits(r, got, x[(at-1)*h:], 1)
		near(t, fmt.Sprint("sequence ", i), got, want[i])
	}
}

// Ensure that a picture's tokens are chosen for the first question and kept for
// the next, that a report says so, and that Reset reads the picture again.
func TestInsideConversation(t *testing.T) {
	c := openInside(t)
	o := reduce.Options{Base: "pdrop", Schedule: "2:20,5:5", Restore: true}
	units := c.units(t, o, 1)
	conv, _ := c.begin(t, units)
	inside := units[c.start].pic.inside
	rows := slices.Clone(inside.Rows())
	var rep Report
	s := &sequence{e: c.e, cache: conv.cache, calib: calibrationOf(c.e, []*picture{units[c.start].pic})}
	r := &model.Run{Pool: c.e.pool, Context: context.Background()}
	if err := conv.prefill(r, s, append(slices.Clone(units), unit{id: 5}, unit{id: 9}), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.ChosenBefore != 1 || rep.CachedTokens != len(c.ids)-1+c.v.N {
		t.Errorf("got %d pictures chosen before and %d kept rows, want 1 and %d", rep.ChosenBefore, rep.CachedTokens, len(c.ids)-1+c.v.N)
	}
	if units[c.start].pic.inside != inside || len(inside.Rows()) != len(rows) {
		t.Error("the picture was shrunk again")
	}
	conv.Reset()
	if got := conv.cache.Len(0); got != c.start {
		t.Errorf("after Reset: %d rows kept, want the %d before the picture", got, c.start)
	}
	rep = Report{}
	if err := conv.prefill(r, s, units, &rep); err != nil {
		t.Fatal(err)
	}
	if rep.ChosenBefore != 0 || rep.CachedTokens != c.start || units[c.start].pic.inside == inside {
		t.Errorf("after Reset: got %d pictures chosen before and %d kept rows, want 0 and %d", rep.ChosenBefore, rep.CachedTokens, c.start)
	}
}

// sizesOf sums the sizes that layer i holds.
func sizesOf(t *testing.T, got map[string]*tensor.Tensor, i int) float64 {
	t.Helper()
	v, err := got[fmt.Sprintf("cache.%d.size", i)].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return sum
}

// Ensure, wherever pictures stand in a prompt and however many there are: every
// layer holds the text and what the stages before it left, sizes add up to all
// rows where tokens merge, positions ascend, and stages that keep all are no
// reduction.
func TestInsidePlaces(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and no kernel is new to it")
	}
	c := openInside(t)
	in, err := golden.Read(filepath.Join("testdata", "inmodel-tiny", "prompt.ref"))
	if err != nil {
		t.Fatal(err)
	}
	pixels, _ := in["pixel_values"].Float32s()
	text := slices.Delete(slices.Clone(c.ids), c.start, c.start+1)
	img := int64(c.e.m.ImageToken())
	for place, ids := range map[string][]int64{
		"inside": c.ids, "first": slices.Concat([]int64{img}, text), "last": slices.Concat(text, []int64{img}),
		"two": slices.Concat(text[:3], []int64{img}, text[3:6], []int64{img}, text[6:]), "two together": slices.Concat(text[:3], []int64{img, img}, text[3:]),
		"first and last": slices.Concat([]int64{img}, text, []int64{img}),
	} {
		pictures := len(ids) - len(text)
		shape := slices.Clone(in["pixel_values"].Shape)
		shape[0] = pictures
		inputs := map[string]*tensor.Tensor{
			"input_ids": tensor.FromInt64s([]int{len(ids)}, ids), "pixel_values": tensor.FromFloat32s(shape, slices.Repeat(pixels, pictures)),
		}
		trace := func(o reduce.Options) map[string]*tensor.Tensor {
			got, err := c.e.Trace(context.Background(), TraceRequest{Inputs: inputs, Reduce: o, Tokens: 3})
			if err != nil {
				t.Fatalf("%s: %v", place, err)
			}
			return got
		}
		plain := trace(reduce.Options{})
		for base, after := range map[string]int{"fastv": 0, "pdrop": 0, "fitprune": 1, "dart-text": 0} {
			for _, o := range []reduce.Options{{Restore: true}, {}, {Compat: "released"}, {Restore: true, Positions: "sequential"}} {
				o.Base = base
				o.NVis = c.v.N
				got := trace(o)
				if err := golden.Compare(got["gen.logits"], plain["gen.logits"], 0); err != nil {
					t.Errorf("%s %s: a budget of all tokens: %v", place, base, err)
				}
				o.NVis, o.Schedule = 0, "1:1.0,3:36"
				got = trace(o)
				if err := golden.Compare(got["gen.logits"], plain["gen.logits"], 0); err != nil {
					t.Errorf("%s %s: stages that keep all: %v", place, base, err)
				}
				for schedule, rows := range map[string][]int{"1:1": {36, 1, 1, 1, 1, 1, 1, 1}, "2:17,6:5": {36, 36, 17, 17, 17, 17, 5, 5}, "1:1.0,7:35": {36, 36, 36, 36, 36, 36, 36, 35}} {
					o.Schedule = schedule
					got = trace(o)
					lens, _ := got["cache.len"].Int64s()
					for i, n := range lens {
						if want := len(text) + pictures*rows[max(0, i-after)]; int(n) != want {
							t.Errorf("%s %s %s: layer %d holds %d keys, want %d", place, base, schedule, i, n, want)
						}
						whole := len(text) + pictures*36
						if sum := sizesOf(t, got, i); o.Restore && sum != float64(whole) {
							t.Errorf("%s %s %s: sizes in layer %d add up to %v, want %d", place, base, schedule, i, sum, whole)
						}
						pos, _ := got[fmt.Sprintf("cache.%d.position", i)].Int64s()
						for j := 1; j < len(pos); j++ {
							if !(pos[j] > pos[j-1]) {
								t.Errorf("%s %s %s: positions in layer %d: %v", place, base, schedule, i, pos)
								break
							}
						}
					}
				}
			}
		}
	}
}
