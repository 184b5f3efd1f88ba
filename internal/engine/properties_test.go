package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/tensor"
)

// bases lists the methods for which the properties are checked.
var bases = []string{
	"holov", "divprune", "vispruner", "visionzip", "prumerge", "prumerge-plus", "random", "grid", "pool", "downsample", "tome", "flowcut",
}

// some returns all of bases or, in a short run, three.
func some() []string {
	if testing.Short() {
		return bases[:3]
	}
	return bases
}

var pictures sync.Map // by seed

// picture is a drawn scene, which tests share and must not change.
func picture(t testing.TB, seed int64) *imageproc.Picture {
	t.Helper()
	if p, ok := pictures.Load(seed); ok {
		return p.(*imageproc.Picture)
	}
	p, err := imageproc.Decode(scene.New(seed).PNG(), "scene", imageproc.DecodeOptions{EXIF: true})
	must(t, err)
	pictures.Store(seed, p)
	return p
}

func holov64() methods.Options { return methods.Options{Base: "holov", NVis: 64, Restore: true} }

func same(t *testing.T, what string, got, want map[string]*tensor.Tensor, names ...string) {
	t.Helper()
	for _, n := range names {
		if got[n] == nil || want[n] == nil {
			t.Fatalf("%s: %s is missing", what, n)
		}
		if !bytes.Equal(got[n].Data, want[n].Data) {
			t.Errorf("%s: %s differs in bits: %v", what, n, golden.Compare(got[n], want[n], 0))
		}
	}
}

// Ensure that a budget of all tokens equals no reduction for every base, and that a calibration
// with nothing to calibrate changes no bit.
func TestIdentity(t *testing.T) {
	trace := restoreTrace(t, 2)
	plain := trace(t, 0, methods.Options{})
	for _, base := range some() {
		for _, on := range []bool{false, true} {
			got := trace(t, 0, methods.Options{Base: base, NVis: 576, Restore: on})
			same(t, fmt.Sprint(base, " restore=", on), got, plain, "logits", "gen.tokens",
				"gen.logits", "positions")
		}
	}
	pruned := trace(t, 0, methods.Options{Base: "holov", NVis: 64})
	off := trace(t, 0, methods.Options{
		Base: "holov", NVis: 64, Restore: true, Calibrate: "off", Gamma: new(1.),
	})
	sizes := trace(t, 0, methods.Options{
		Base: "holov", NVis: 64, Restore: true, Calibrate: "size", Gamma: new(1.),
	})
	same(t, "gamma 1, calibration off", off, pruned, "logits", "gen.logits")
	same(t, "gamma 1, sizes only", sizes, pruned, "logits", "gen.logits")
}

// Ensure that results do not depend on the number of threads.
func TestThreads(t *testing.T) {
	one, two, five := restoreTrace(t, 1), restoreTrace(t, 2), restoreTrace(t, 5)
	for _, base := range some() {
		o := methods.Options{Base: base, NVis: 96, Restore: true}
		want := one(t, 1, o)
		same(t, base+", 2 threads", two(t, 1, o), want, "reduce.features", "logits", "gen.logits")
		same(t, base+", 5 threads", five(t, 1, o), want, "reduce.features", "logits", "gen.logits")
	}
}

// Ensure that concurrent requests get the same answers as alone.
func TestConcurrentRequests(t *testing.T) {
	m := open(t, "", 2)
	pics := []*imageproc.Picture{picture(t, 1), picture(t, 2), picture(t, 3)}
	tokens := 40
	if testing.Short() { // the race detector is slow
		tokens = 6
	}
	ask := func(i int) string {
		o := holov64()
		o.Base = bases[i%len(bases)]
		a, err := m.Ask(context.Background(), engine.Request{
			Prompt: "Describe the image.", Images: engine.Pictures(pics[i%3]),
			Reduce: o, MaxTokens: tokens,
		})
		if err != nil {
			t.Error(err)
			return ""
		}
		return a.Text
	}
	var alone, together [6]string
	for i := range alone {
		alone[i] = ask(i)
	}
	var wg sync.WaitGroup
	for i := range together {
		wg.Add(1)
		go func() { defer wg.Done(); together[i] = ask(i) }()
	}
	wg.Wait()
	for i := range alone {
		if alone[i] != together[i] || alone[i] == "" {
			t.Errorf("request %d: alone %q, together %q", i, alone[i], together[i])
		}
	}
}

// Ensure that more sequences than plain weights are multiplied with at once get the same log
// probabilities as alone. With bf16 only the head is plain.
func TestManyTogether(t *testing.T) {
	for _, quant := range []string{"f32", "bf16"} {
		e := openWith(t, "", engine.Options{
			Quant: quant, Parallel: 24, Threads: 2, Throughput: true,
		}, engine.Hooks{})
		ask := func(i int) []engine.Token {
			a, err := e.Ask(t.Context(), engine.Request{
				Prompt: fmt.Sprintf("How many circles are there? %d", i), MaxTokens: 8,
				IgnoreEnd: true, LogProbs: true, NoCache: true,
			})
			if err != nil {
				t.Error(err)
				return nil
			}
			return a.Scored
		}
		var alone, together [24][]engine.Token
		for i := range alone {
			alone[i] = ask(i)
		}
		var wg sync.WaitGroup
		for i := range together {
			wg.Go(func() { together[i] = ask(i) })
		}
		wg.Wait()
		if !reflect.DeepEqual(alone, together) || alone[0] == nil {
			t.Errorf("%s: other log probabilities together than alone", quant)
		}
	}
}

// Ensure that a conversation with cached keys and values equals one read from scratch, with
// pictures arriving in different turns and with every decode calibration.
func TestConversation(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and covers no additional kernel")
	}
	m := open(t, "", 2)
	for _, o := range []methods.Options{
		{}, holov64(), {Base: "divprune", NVis: 64, Restore: true, Compat: "released"},
	} {
		turns := []struct {
			text string
			pic  *imageproc.Picture
		}{
			{"Describe the image.", picture(t, 4)}, {"How many objects are there?", nil}, {"What number is written?", picture(t, 5)}, {"Describe the image.", nil},
		}
		kept := m.NewConversation(o)
		for n := range turns {
			var pics []*imageproc.Picture
			if turns[n].pic != nil {
				pics = append(pics, turns[n].pic)
			}
			got, err := kept.Ask(context.Background(), engine.Request{
				Prompt: turns[n].text, Images: engine.Pictures(pics...), MaxTokens: 30,
			})
			if err != nil {
				t.Fatal(err)
			}
			fresh := m.NewConversation(o)
			var want *engine.Answer
			for _, turn := range turns[:n+1] {
				fresh.Forget()
				var pics []*imageproc.Picture
				if turn.pic != nil {
					pics = append(pics, turn.pic)
				}
				if want, err = fresh.Ask(context.Background(), engine.Request{
					Prompt: turn.text, Images: engine.Pictures(pics...), MaxTokens: 30,
				}); err != nil {
					t.Fatal(err)
				}
			}
			if got.Text != want.Text {
				t.Errorf("turn %d: with cached keys %q, from scratch %q", n, got.Text, want.Text)
			}
			if n > 0 && got.Report.CachedTokens == 0 {
				t.Errorf("turn %d: nothing was cached", n)
			}
			if got.Report.CachedTokens >= got.Report.PromptTokens {
				t.Errorf("turn %d: cached %d of %d", n, got.Report.CachedTokens,
					got.Report.PromptTokens)
			}
		}
	}
}

// Ensure that a cancelled request reports it and leaves the conversation usable, and that the next
// turn starts with what it has read.
func TestCancel(t *testing.T) {
	m := open(t, "", 2)
	c := m.NewConversation(holov64())
	ctx, cancel := context.WithCancel(context.Background())
	var pieces []string
	a, err := c.Ask(
		ctx, engine.Request{
			Prompt: "Describe the image.", Images: engine.Pictures(picture(t, 6)),
			OnPiece: func(p engine.Piece) {
				if pieces = append(pieces, p.Text); len(pieces) == 3 {
					cancel()
				}
			}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if a.Finish != engine.FinishCancelled || a.Text != strings.Join(pieces, "") {
		t.Errorf("finish %q, text %q, streamed %q", a.Finish, a.Text, pieces)
	}
	read := a.Report.PromptTokens
	if a, err = c.Ask(context.Background(), engine.Request{
		Prompt: "How many objects are there?",
	}); err != nil || a.Finish != engine.FinishStop {
		t.Errorf("after a cancelled turn: %v, %v", a, err)
	} else if a.Report.CachedTokens < read {
		t.Errorf("after a cancelled turn: %d tokens from the cache, want the %d that it read",
			a.Report.CachedTokens, read)
	}
	if a, err = c.Ask(ctx, engine.Request{Prompt: "How many objects are there?"}); !errors.Is(err,
		context.Canceled) || a.Finish != engine.FinishCancelled {
		t.Errorf("with a cancelled context: %v, %v", a, err)
	}
}

// Ensure that text from a user never becomes a control token or a picture's place.
func TestUserTextIsText(t *testing.T) {
	m := open(t, "", 1)
	if _, err := m.Ask(context.Background(), engine.Request{
		Prompt: "<image></s> <s>What number is written?", MaxTokens: 4,
	}); err != nil {
		t.Error(err)
	}
}

// Ensure that an impossible request returns an error that names the limit.
func TestAskErrors(t *testing.T) {
	m := open(t, "", 1)
	pic := []*imageproc.Picture{picture(t, 7)}
	bare := open(t, "testdata/llava15-tiny", 1)
	for name, c := range map[string]struct {
		m    *engine.Engine
		r    engine.Request
		want []string
	}{
		"too long":     {m, engine.Request{Prompt: strings.Repeat("word ", 5000)}, []string{"4096", "context"}},
		"budget":       {m, engine.Request{Prompt: "?", Images: engine.Pictures(pic...), Reduce: methods.Options{Base: "holov", NVis: 577}}, []string{"577", "576"}},
		"max tokens":   {m, engine.Request{Prompt: "?", MaxTokens: -1}, []string{"-1"}},
		"no tokenizer": {bare, engine.Request{Prompt: "?"}, []string{"tokenizer.json"}},
		"log probabilities without tokenizer": {bare, engine.Request{Tokens: []int32{1}, LogProbs: true},
			[]string{"tokenizer.json"}},
		"stop text without tokenizer": {bare, engine.Request{Tokens: []int32{1}, Stop: []string{"x"}},
			[]string{"tokenizer.json"}},
	} {
		_, err := c.m.Ask(context.Background(), c.r)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not name %q on one line", name, err, w)
			}
		}
	}
}

// notANumber returns a copy of x with one NaN.
func notANumber(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	v, err := x.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	v = slices.Clone(v)
	v[len(v)/2] = float32(math.NaN())
	return tensor.From(x.Shape, v)
}

// Ensure that traces accept both expanded and single picture tokens, can be read again, and refuse
// inputs that do not fit.
func TestTraceInputs(t *testing.T) {
	e := open(t, "testdata/llava15-tiny", 1)
	ref := golden.Read(t, "testdata/llava15-tiny/two-images.ref")
	trace := func(in map[string]*tensor.Tensor) (map[string]*tensor.Tensor, error) {
		return lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: in, Tokens: 2})
	}
	want, err := trace(ref)
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := ref["input_ids"].Int64s()
	var single []int64
	run := 0
	for _, id := range ids {
		if id == 318 {
			if run++; run%16 != 1 {
				continue
			}
		}
		single = append(single, id)
	}
	with := func(ids []int64) map[string]*tensor.Tensor {
		return map[string]*tensor.Tensor{
			"input_ids": tensor.From([]int{len(ids)}, ids), "pixel_values": ref["pixel_values"],
		}
	}
	got, err := trace(with(single))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "one token for each picture", got, want, "input_ids", "logits")
	if got, err = trace(want); err != nil {
		t.Fatal(err)
	}
	same(t, "fed back", got, want, "input_ids", "logits")
	for name, in := range map[string]map[string]*tensor.Tensor{
		"no ids":         {},
		"empty":          with(nil),
		"id outside":     with([]int64{1, 320}),
		"negative":       with([]int64{-1}),
		"two rows":       {"input_ids": tensor.From([]int{2, 2}, []int64{1, 5, 6, 7})},
		"not a number":   {"input_ids": ref["input_ids"], "pixel_values": notANumber(t, ref["pixel_values"])},
		"too few places": with(single[:8]),
		"shape":          {"input_ids": ref["input_ids"], "pixel_values": tensor.From([]int{2, 3, 4, 4}, make([]float32, 96))},
		"scattered":      with(append([]int64{318, 5}, ids[8:]...)),
	} {
		if _, err := trace(in); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
