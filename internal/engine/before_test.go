package engine_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tensor"
)

// openLarge opens a tiny checkpoint whose pictures may be as large as the reference's.
func openLarge(t *testing.T, name string, threads int) *engine.Engine {
	t.Helper()
	return openWith(t, filepath.Join("testdata", name),
		engine.Options{Threads: threads, MaxPixels: 1 << 22}, engine.Hooks{})
}

// drawnPage returns a picture of the reference for PixelPrune.
func drawnPage(t *testing.T, name string) *imageproc.Picture {
	t.Helper()
	return decoded(t, filepath.Join("../methods/testdata/pixelprune", name+".png"))
}

// pixelPrune returns the options of PixelPrune as a base.
func pixelPrune(tau float64, sized, restore bool) methods.Options {
	return methods.Options{Base: "pixelprune", Restore: restore, Own: map[string]any{
		"pixelprune-tau": tau, "proportional-attention": sized,
	}}
}

// encoded runs a prompt and returns what the encoder made of its first picture, and the logits of
// the last row.
func encoded(
	t *testing.T, e *engine.Engine, pic *imageproc.Picture, ids []int32, o methods.Options,
) map[string]*tensor.Tensor {
	t.Helper()
	p, err := e.NewPrompt(context.Background(), engine.Request{
		Tokens: ids, Images: engine.Pictures(pic), Reduce: o,
	})
	must(t, err)
	defer p.Free()
	out := map[string]*tensor.Tensor{}
	must(t, e.Do(context.Background(), func(r *model.Run) error {
		r.Trace = func(name string, shape []int, data []float32) {
			out[name] = tensor.From(shape, data)
		}
		r.TraceInts = func(string, []int, []int32) {}
		in, err := p.Rows(r)
		if err != nil {
			return err
		}
		r.Trace, r.TraceInts = nil, nil
		if _, err := p.Read(r, in, nil); err != nil {
			return err
		}
		d := e.Model().Decoder()
		h, logits := d.Shape().Hidden, make([]float32, d.Shape().Vocab)
		d.Logits(r, logits, in.X[len(in.X)-h:], 1)
		out["logits"] = tensor.From([]int{len(logits)}, logits)
		return nil
	}))
	return out
}

// Ensure that an encoder that sees only some patches gives them what transformers gives them with
// the others hidden, in windows and without, and that the decoder reads them at their original
// places: features, DeepStack's rows, logits, and greedy tokens.
func TestPrunedEncoderGoldens(t *testing.T) {
	g := golden.Read(t, "testdata/pixelprune/encoded.safetensors")
	cases := 0
	for key := range g {
		name, ok := strings.CutSuffix(key, "/x")
		if !ok {
			continue
		}
		cases++
		part := strings.Split(name, "/") // checkpoint, picture, tau, sized
		tau, err := strconv.ParseFloat(part[2], 64)
		must(t, err)
		t.Run(name, func(t *testing.T) {
			e, pic := openLarge(t, part[0], 2), drawnPage(t, part[1])
			o := pixelPrune(tau, part[3] == "sized", false)
			ids := ints(t, g[name+"/ids"])
			got := encoded(t, e, pic, ids, o)
			got["x"] = got["vision.merger"]
			for i := range 3 {
				got[fmt.Sprint("deep.", i)] = got[fmt.Sprint("vision.deepstack.", i)]
			}
			for _, what := range []string{"x", "deep.0", "deep.1", "deep.2", "logits"} {
				want := g[name+"/"+what]
				if want == nil && strings.HasPrefix(what, "deep") {
					continue
				}
				if got[what] == nil {
					t.Fatalf("%s: missing", what)
				}
				if err := golden.Compare(got[what], want, tolStage); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			a, err := e.Ask(context.Background(), engine.Request{
				Tokens: ids, Images: engine.Pictures(pic), Reduce: o, IgnoreEnd: true,
				MaxTokens: 6,
			})
			must(t, err)
			if want := ints(t, g[name+"/tokens"]); !slices.Equal(a.Tokens, want) {
				t.Errorf("tokens %v, want %v", a.Tokens, want)
			}
			checkPruned(t, &a.Report.Images[0], ints(t, g[name+"/kept"]))
		})
	}
	if cases != 10 {
		t.Errorf("%d cases, want 10", cases)
	}
}

// checkPruned checks the report about a picture of which only kept was encoded.
func checkPruned(t *testing.T, i *engine.ImageReport, kept []int32) {
	t.Helper()
	r := i.Reduction
	if i.Encoded != len(kept) || i.Kept != len(kept) || i.Merged != 0 || i.Tokens != r.N ||
		i.Options.N != i.Tokens || i.Options.NVis != len(kept) || !slices.Equal(r.Kept, kept) {
		t.Errorf("report %+v, want the %d tokens %v", i, len(kept), kept)
	}
	if g := i.Grids; len(g) != 1 || g[0].Rows*g[0].Cols != i.Tokens {
		t.Errorf("grids %+v, want one of %d tokens", g, i.Tokens)
	}
}

func ints(t *testing.T, x *tensor.Tensor) []int32 {
	t.Helper()
	v, err := x.Int64s()
	must(t, err)
	out := make([]int32, len(v))
	for i := range v {
		out[i] = int32(v[i])
	}
	return out
}

// Ensure that PixelPrune that prunes nothing equals the plain forward bit for bit: a noisy page
// has no copies.
func TestNothingPruned(t *testing.T) {
	page := drawnPage(t, "scan")
	pic := &imageproc.Picture{Width: 112, Height: 84}
	for y := range pic.Height {
		pic.Pix = append(pic.Pix, page.Pix[(100+y)*3*page.Width:][:3*pic.Width]...)
	}
	for _, name := range []string{"qwen25vl-tiny", "qwen2vl-tiny", "qwen3vl-tied-tiny"} {
		e := openLarge(t, name, 2)
		ids := []int32{5, e.Model().ImageToken(), 11, 48}
		want := encoded(t, e, pic, ids, methods.Options{})
		for _, restore := range []bool{false, true} {
			got := encoded(t, e, pic, ids, pixelPrune(0, true, restore))
			same(t, name, got, want, "vision.merger", "logits")
		}
	}
}

// Ensure that a pruned picture does not depend on the number of threads, nor on the pictures that
// stand before it.
func TestPrunedThreads(t *testing.T) {
	for _, name := range []string{"qwen25vl-tiny", "qwen2vl-tiny", "qwen3vl-tied-tiny"} {
		pic := drawnPage(t, "drift")
		o := pixelPrune(0.05, true, true)
		var one map[string]*tensor.Tensor
		for _, threads := range []int{1, 2, 3} {
			e := openLarge(t, name, threads)
			got := encoded(t, e, pic, []int32{5, e.Model().ImageToken(), 11, 48}, o)
			if one == nil {
				one = got
			}
			same(t, fmt.Sprintf("%s with %d threads", name, threads), got, one, "vision.merger",
				"logits")
		}
	}
}

// composed are options of a base after PixelPrune.
func composed(base string, n int, restore bool, tau float64) methods.Options {
	return methods.Options{
		Base: base, Before: "pixelprune", NVis: n, Restore: restore,
		Own: map[string]any{"pixelprune-tau": tau},
	}
}

// Ensure that methods after the encoder and between the decoder's layers choose among the tokens
// that were encoded, that reports have both budgets, and that with RESTORE every token of the
// picture is in a row.
func TestBeforeAnother(t *testing.T) {
	for _, name := range []string{"qwen25vl-tiny", "qwen2vl-tiny", "qwen3vl-tiny"} {
		e, pic := openLarge(t, name, 2), drawnPage(t, "drift")
		ids := []int32{5, e.Model().ImageToken(), 11, 48}
		ask := func(o methods.Options) *engine.ImageReport {
			t.Helper()
			a, err := e.Ask(context.Background(), engine.Request{
				Tokens: ids, Images: engine.Pictures(pic), Reduce: o, MaxTokens: 3,
				IgnoreEnd: true,
			})
			if err != nil {
				t.Fatalf("%s: %+v: %v", name, o, err)
			}
			return &a.Report.Images[0]
		}
		left := ask(pixelPrune(0.05, false, false)).Encoded
		for _, base := range []string{"holov", "divprune", "dart", "random", "grid", "fastv"} {
			for _, restore := range []bool{false, true} {
				i := ask(composed(base, 24, restore, 0.05))
				if i.Tokens <= left || i.Encoded != left || i.Reduction.N != i.Tokens {
					t.Errorf("%s, %s: %d of %d tokens encoded, want %d", name, base, i.Encoded,
						i.Tokens, left)
				}
				b := i.Options.Before
				if i.Options.Base != base || b == nil || b.Base != "pixelprune" ||
					b.N != i.Tokens || b.NVis != left {
					t.Errorf("%s, %s: before %+v", name, base, b)
				}
				if base != "fastv" && i.Kept+i.Merged != 24 {
					t.Errorf("%s, %s: %d kept and %d merged, want 24", name, base, i.Kept, i.Merged)
				}
				sum := 0
				for _, row := range i.Reduction.Rows {
					sum += row.Size
				}
				if restore && sum != i.Tokens {
					t.Errorf("%s, %s: sizes add up to %d, want %d", name, base, sum, i.Tokens)
				}
			}
		}
		// a budget of more than was encoded is all of that
		if i := ask(composed("holov", left+1, true, 0.05)); i.Kept+i.Merged != left {
			t.Errorf("%s: %d tokens, want the %d encoded ones", name, i.Kept+i.Merged, left)
		}
	}
}

// Ensure that a picture's rows are shared only by requests that leave out the same tokens: by tau,
// by attention, and by the base; in memory and from a store.
func TestBeforeCaches(t *testing.T) {
	ck, err := formats.Open(filepath.Join("testdata", "qwen25vl-tiny"))
	must(t, err)
	store := &shelf{}
	e, err := engine.New(ck, engine.Options{Threads: 2, Store: store}, engine.Hooks{})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	pic := drawnPage(t, "drift")
	ask := func(e *engine.Engine, o methods.Options) (string, []int32) {
		t.Helper()
		a, err := e.Ask(context.Background(), engine.Request{
			Tokens: []int32{5, e.Model().ImageToken(), 11, 48}, Images: engine.Pictures(pic),
			Reduce: o, MaxTokens: 4, IgnoreEnd: true,
		})
		must(t, err)
		return a.Report.Images[0].Cache, a.Tokens
	}
	all := []methods.Options{
		{}, pixelPrune(0, false, false), pixelPrune(0.02, false, false),
		pixelPrune(0.05, false, false), pixelPrune(0.05, true, false),
		pixelPrune(0.05, false, true),
		{Base: "holov", NVis: 8, Restore: true}, composed("holov", 8, true, 0.05),
		composed("holov", 8, true, 0.1), composed("divprune", 8, true, 0.05),
	}
	answers := make([][]int32, len(all))
	for i, o := range all {
		from, tokens := ask(e, o)
		if answers[i] = tokens; from != engine.FromNothing {
			t.Errorf("%+v: from %s, want nothing", o, from)
		}
	}
	for i, o := range all {
		from, tokens := ask(e, o)
		if from == engine.FromNothing || !slices.Equal(tokens, answers[i]) {
			t.Errorf("%+v: from %s, %v, want %v from memory", o, from, tokens, answers[i])
		}
	}
	must(t, e.Close())
	ck, err = formats.Open(filepath.Join("testdata", "qwen25vl-tiny"))
	must(t, err)
	again, err := engine.New(ck, engine.Options{Threads: 2, Store: store}, engine.Hooks{})
	must(t, err)
	t.Cleanup(func() { again.Close() })
	for i, o := range all {
		from, tokens := ask(again, o)
		if from != engine.FromDisk || !slices.Equal(tokens, answers[i]) {
			t.Errorf("%+v: from %s, %v, want %v from the store", o, from, tokens, answers[i])
		}
	}
}

// shelf is a Store in memory.
type shelf struct {
	mu   sync.Mutex
	data map[engine.Key][]byte
}

func (s *shelf) Load(key engine.Key, _ bool) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.data[key]
	return data, ok
}

func (s *shelf) Save(key engine.Key, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		s.data = map[engine.Key][]byte{}
	}
	s.data[key] = data
}

// Ensure that a conversation about a pruned picture answers as without caches.
func TestBeforeConversation(t *testing.T) {
	e := openLarge(t, "qwen3vl-tied-tiny", 2)
	var answers [2][]int32
	for i := range answers {
		c := e.NewConversation(composed("holov", 12, true, 0.1))
		for turn := range 3 {
			req := engine.Request{
				Prompt: "b?", MaxTokens: 3, IgnoreEnd: true, NoCache: i == 1,
			}
			if turn != 1 {
				req.Images = engine.Pictures(drawnPage(t, []string{"drift", "", "row"}[turn]))
			}
			if i == 1 && turn == 1 {
				c.Forget()
			}
			a, err := c.Ask(context.Background(), req)
			must(t, err)
			answers[i] = append(answers[i], a.Tokens...)
		}
	}
	if !slices.Equal(answers[0], answers[1]) {
		t.Errorf("got %v, without caches %v", answers[0], answers[1])
	}
}

// Ensure that pictures of which no token can be left out are refused by name.
func TestBeforeRefused(t *testing.T) {
	refused := func(e *engine.Engine, req engine.Request, want ...string) {
		t.Helper()
		_, err := e.Ask(context.Background(), req)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("got %v, want %q", err, w)
			}
		}
	}
	clip := open(t, "testdata/llava15-tiny", 1)
	pics := engine.Pictures(drawnPage(t, "row"))
	refused(clip, engine.Request{Prompt: "?", Images: pics, Reduce: pixelPrune(0, false, true)},
		"base: got pixelprune", "needs all patches")
	refused(clip, engine.Request{Prompt: "?", Images: pics, Reduce: composed("holov", 4, true, 0)},
		"before: got pixelprune", "needs all patches")
	e := open(t, "testdata/qwen3vl-tiny", 1)
	refused(e, engine.Request{
		Prompt: "?", Video: openAsked(t, "qwen3vl-tiny", "video").video(t),
		Reduce: pixelPrune(0, false, true),
	}, "base: got pixelprune", "this is a video")
	refused(e, engine.Request{Prompt: "?", Images: pics, Reduce: composed("pool", 4, true, 0)},
		"before: got pixelprune", "rows and columns")
}
