package engine_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

var nextPrompts = map[string][]string{
	"llavanext-mistral-tiny": {"square", "wide", "tall", "odd", "tiny", "text-only"},
	"llavanext-vicuna-tiny":  {"odd", "two-images"},
}

// nextInputs returns the reference tensors of a prompt. If there are picture files next to it,
// pixel_values comes from them, prepared as the checkpoint says.
func nextInputs(t testing.TB, name, prompt string) map[string]*tensor.Tensor {
	t.Helper()
	ref := reference(t, name, prompt)
	pics := numbered(t, filepath.Join("testdata", name, prompt+"-%d.ref.png"))
	if len(pics) == 0 {
		return ref
	}
	px, err := processor(t, name).Process(pics)
	must(t, err)
	ref["pixel_values"] = tensor.From(px.Shape, px.Data)
	return ref
}

// Ensure that every stage of any-resolution prompts equals transformers', with
// both forms of the config, and that greedy tokens are the same.
func TestNextStages(t *testing.T) {
	for name, prompts := range nextPrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkStages(t, e, nextInputs(t, name, prompt))
			})
		}
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join(dir, "config-5.x.ref"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		checkStages(t, open(t, dir, 1), nextInputs(t, name, "odd"))
	}
}

// countTokens returns the picture's tokens with and without newlines.
func countTokens(packed, newline []float32, width int) (all, plain int) {
	all = len(packed) / width
	for i := range all {
		row := packed[i*width : (i+1)*width]
		if !slices.Equal(row, newline) {
			plain++
		}
	}
	return all, plain
}

// Ensure that every method runs on every shape of picture and with each treatment of newlines:
// the right number of rows in order of position, text after the picture's unreduced length, and
// a budget of all tokens that equals no reduction.
func TestNextReductions(t *testing.T) {
	const name = "llavanext-vicuna-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	ck, err := formats.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	w, _ := ck.Tensor("image_newline")
	newline, err := w.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	in := nextInputs(t, name, "odd")
	trace := func(o methods.Options) (map[string]*tensor.Tensor, error) {
		return lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: o, Tokens: 4, NoMaps: true,
		})
	}
	plain, err := trace(methods.Options{})
	if err != nil {
		t.Fatal(err)
	}
	packed, _ := plain["packed"].Float32s()
	all, patches := countTokens(packed, newline, plain["packed"].Shape[1])
	if all <= patches || all != int(plain["packed_lens"].Data[0]) {
		t.Fatalf("%d tokens, %d of them patches", all, patches)
	}
	text := in["input_ids"].Shape[0] - all
	for _, base := range append(bases, "dart") {
		for _, mode := range []string{"", "drop", "skip", "keep"} {
			perView := base == "vispruner" || base == "visionzip" ||
				strings.HasPrefix(base, "prumerge")
			// where padding takes part and newlines do not
			inside := base == "tome" || base == "flowcut"
			if inside && (mode == "keep" || mode == "skip") {
				continue
			}
			n, span := patches, patches
			if inside {
				n = plain["vision.pre_ln"].Shape[0] * 16
				span = n
			}
			if mode == "keep" {
				n = all
			}
			if mode == "keep" || mode == "skip" {
				span = all
			}
			for _, on := range []bool{true, false} {
				o := methods.Options{Base: base, Newlines: mode, Restore: on, NVis: n}
				if !(perView && mode == "keep") {
					got, err := trace(o)
					if err != nil {
						t.Fatalf("%s %q: %v", base, mode, err)
					}
					same(t, base+" "+mode+" with all tokens", got, plain, "logits", "gen.tokens",
						"gen.logits", "positions")
				}
				o.NVis = 24
				got, err := trace(o)
				if base == "downsample" {
					if err == nil || !strings.Contains(err.Error(), "tiles") {
						t.Errorf("%s: got %v, want a refusal for its tiles", base, err)
					}
					continue
				}
				if (perView || base == "pool") && mode == "keep" {
					if err == nil || !strings.Contains(err.Error(), "newlines: got ") {
						t.Errorf("%s keep: got %v, want a refusal by name", base, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s %q restore=%v: %v", base, mode, on, err)
					continue
				}
				pos, _ := got["positions"].Float32s()
				if len(pos) != o.NVis+text || int(pos[len(pos)-1]) != span+text-1 {
					t.Errorf("%s %q restore=%v: %d rows to position %v, want %d to %d", base, mode,
						on, len(pos), pos[len(pos)-1], o.NVis+text, span+text-1)
				}
				if !slices.IsSorted(pos) {
					t.Errorf("%s %q restore=%v: positions fall: %v", base, mode, on, pos)
				}
			}
		}
	}
	if _, err := lab.Trace(context.Background(), open(t, "testdata/llava15-tiny", 1),
		lab.TraceRequest{
			Inputs: golden.Read(t, "testdata/llava15-tiny/one-image.ref"),
			Reduce: methods.Options{Base: "holov", NVis: 4, Newlines: "keep"},
		}); err == nil || !strings.Contains(err.Error(), "newlines") {
		t.Errorf("newlines without any: got %v, want a refusal by name", err)
	}
}

// Ensure that every token of a picture in tiles lies at one patch or at the end of one row, that
// the tiles' patches cover the picture, and that padding and newlines are marked as such.
func TestNextGrids(t *testing.T) {
	e := open(t, talkingNext(t), 2)
	for _, size := range [][2]int{{97, 131}, {60, 180}, {180, 60}, {300, 3}, {56, 56}} {
		pic := &imageproc.Picture{
			Width: size[0], Height: size[1], Pix: make([]byte, size[0]*size[1]*3),
		}
		for i := range pic.Pix {
			pic.Pix[i] = byte(i * i)
		}
		for _, o := range []methods.Options{
			{Base: "grid", NVis: 12}, {Base: "holov", NVis: 12, Restore: true, Newlines: "keep"}, {Base: "visionzip", NVis: 12, Compat: "released"},
		} {
			ans, err := e.Ask(context.Background(), engine.Request{
				Prompt: "x", Images: engine.Pictures(pic), Reduce: o, MaxTokens: 1,
			})
			must(t, err)
			rep := ans.Report.Images[0]
			if len(rep.Grids) != 2 {
				t.Fatalf("%v: %d grids, want 2", size, len(rep.Grids))
			}
			seen := make([]int, len(rep.Reduction.Group))
			for i, g := range rep.Grids {
				if len(g.Tokens) != g.Rows*g.Cols || (g.Tile != 0) != (i == 1) {
					t.Fatalf("%v: grid %d: %+v", size, i, g)
				}
				if i == 0 && (g.Frame.W != float64(size[0]) || g.Frame.H != float64(size[1])) {
					t.Errorf("%v: frame %+v", size, g.Frame)
				}
				shown := imageproc.Frame{X0: 1e9, Y0: 1e9}
				for k, tok := range g.Tokens {
					if tok < 0 {
						continue
					}
					seen[tok]++
					w, h := g.Frame.W/float64(g.Cols), g.Frame.H/float64(g.Rows)
					x, y := g.Frame.X0+float64(k%g.Cols)*w, g.Frame.Y0+float64(k/g.Cols)*h
					shown.X0, shown.Y0, shown.W, shown.H = min(shown.X0, x), min(shown.Y0, y),
						max(shown.W, x+w), max(shown.H, y+h)
					if o.Compat == "" &&
						(x >= float64(size[0]) || y >= float64(size[1]) || x+w <= 0 || y+h <= 0) {
						t.Errorf("%v: patch %d of grid %d shows nothing of the picture", size, k, i)
					}
				}
				cell := max(g.Frame.W/float64(g.Cols), g.Frame.H/float64(g.Rows))
				if shown.X0 < 1e9 &&
					(shown.X0 > cell || shown.Y0 > cell || shown.W < float64(size[0])-cell ||
						shown.H < float64(size[1])-cell) {
					t.Errorf("%v: grid %d: patches from (%v, %v) to (%v, %v)", size, i, shown.X0,
						shown.Y0, shown.W, shown.H)
				}
				for _, tok := range g.Ends {
					if tok >= 0 {
						seen[tok]++
					}
				}
				if (g.Ends != nil) != (i == 1 && o.Newlines == "keep" && shown.X0 < 1e9) {
					t.Errorf("%v: grid %d: newlines %v with %q", size, i, g.Ends, o.Newlines)
				}
			}
			for tok, n := range seen {
				// a feature map without columns has newlines that end no row
				if n != 1 && !(o.Newlines == "keep" && size[1] == 3) {
					t.Errorf("%v %s: token %d lies at %d places", size, o.Base, tok, n)
				}
			}
		}
	}
}

// talkingNext returns a copy of llavanext-vicuna-tiny with a tokenizer of single bytes.
func talkingNext(t testing.TB) string { return talkingCopy(t, "llavanext-vicuna-tiny", 320) }

// talkingCopy returns a copy of a checkpoint whose picture token is image, with a tokenizer of
// single bytes.
func talkingCopy(t testing.TB, name string, image int) string {
	t.Helper()
	dir := copyDir(t, filepath.Join("testdata", name))
	level := map[string]any{
		"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
	}
	type added struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	}
	for name, v := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "added_tokens": []added{{image - 3, "<s>", true}, {image - 2, "</s>", true}, {image, "<image>", true}}, "pre_tokenizer": level, "decoder": level,
			"model": map[string]any{"type": "BPE", "vocab": byteVocab(image - 4), "merges": []string{}},
		},
		"tokenizer_config.json": map[string]any{"eos_token": "</s>", "bos_token": "<s>"},
	} {
		data, err := json.Marshal(v)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	return dir
}

// Ensure that with a limit of pixels pictures are read as if the checkpoint had only the canvases
// within it, and that a picture that is prepared for all canvases is refused then.
func TestLimitedCanvases(t *testing.T) {
	for _, c := range []struct {
		dir                    string
		limit, width, height   int
		limitedViews, allViews int
	}{
		{talkingNext(t), 56 * 112, 100, 110, 3, 5},
		{"testdata/llava-onevision-tiny", 13 * 17 * 17, 200, 170, 13, 37},
	} {
		pic := &imageproc.Picture{Width: c.width, Height: c.height,
			Pix: make([]byte, 3*c.width*c.height)}
		for i := range pic.Pix {
			pic.Pix[i] = byte(i * i / 7)
		}
		dir := copyDir(t, c.dir)
		for _, file := range []string{"config.json", "preprocessor_config.json"} {
			doc, path := map[string]any{}, filepath.Join(dir, file)
			golden.JSON(t, path, &doc)
			const key = "image_grid_pinpoints"
			doc[key] = slices.DeleteFunc(doc[key].([]any), func(v any) bool {
				p := v.([]any)
				return p[0].(float64)*p[1].(float64) > float64(c.limit)
			})
			data, err := json.Marshal(doc)
			must(t, err)
			must(t, os.WriteFile(path, data, 0o644))
		}
		ask := func(e *engine.Engine) *engine.Answer {
			t.Helper()
			a, err := e.Ask(context.Background(), engine.Request{
				Prompt: "What?", Images: engine.Pictures(pic), MaxTokens: 8, IgnoreEnd: true,
				LogProbs: true,
			})
			must(t, err)
			return a
		}
		all := open(t, c.dir, 2)
		o := engine.Options{Threads: 2, MaxPixels: c.limit}
		limited := openWith(t, c.dir, o, engine.Hooks{})
		got, want := ask(limited), ask(open(t, dir, 2))
		if !reflect.DeepEqual(got.Scored, want.Scored) || len(got.Tokens) != 8 ||
			got.Report.ImageTokens != want.Report.ImageTokens {
			t.Errorf("%s: got %v of %d tokens, want %v of %d", c.dir, got.Tokens,
				got.Report.ImageTokens, want.Tokens, want.Report.ImageTokens)
		}
		for e, views := range map[*engine.Engine]int{limited: c.limitedViews, all: c.allViews} {
			px, err := e.Pixels([]*imageproc.Picture{pic}, nil)
			must(t, err)
			if px.Shape[1] != views {
				t.Errorf("%s: %d views, want %d", c.dir, px.Shape[1], views)
			}
			px.MostPixels = c.limit - px.MostPixels
			if _, err := e.Model().Pictures(px); err == nil ||
				!strings.Contains(err.Error(), "is put on") {
				t.Errorf("%s: another limit than the processor's: got %v", c.dir, err)
			}
		}
	}
}

// Ensure that a conversation about pictures in tiles equals one read from scratch.
func TestNextConversation(t *testing.T) {
	checkConversation(t, open(t, talkingNext(t), 2), []methods.Options{
		{}, {Base: "divprune", KeepRatio: 0.3, Restore: true, Newlines: "keep"}, {Base: "vispruner", KeepRatio: 0.3, Restore: true},
		{Base: "visionzip", KeepRatio: 0.5, Compat: "released"}, {Base: "holov", KeepRatio: 0.3, Newlines: "skip", Restore: true},
	})
}

// Ensure that a window longer than the prompt equals no window, that a shorter one changes the
// results, and that a conversation with cached keys obeys it.
func TestNextSlidingWindow(t *testing.T) {
	in := nextInputs(t, "llavanext-mistral-tiny", "odd")
	var logits [3][]float64
	for i, window := range []string{"null", "1000", "24"} {
		dir := talkingCopy(t, "llavanext-mistral-tiny", 330)
		path := filepath.Join(dir, "config.json")
		data, err := os.ReadFile(path)
		must(t, err)
		var config map[string]json.RawMessage
		must(t, json.Unmarshal(data, &config))
		var text map[string]json.RawMessage
		must(t, json.Unmarshal(config["text_config"], &text))
		text["sliding_window"] = json.RawMessage(window)
		config["text_config"], err = json.Marshal(text)
		must(t, err)
		data, err = json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o644))
		e := open(t, dir, 2)
		out, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: in})
		must(t, err)
		logits[i] = numbers(t, out["logits"])
		if window == "24" {
			checkConversation(t, e, []methods.Options{
				{}, {Base: "divprune", KeepRatio: 0.3, Restore: true},
			})
		}
	}
	width := 336 // the vocabulary's size
	// rows up to the window's length see the same keys as without a window
	if !slices.Equal(logits[0], logits[1]) || slices.Equal(logits[0], logits[2]) ||
		!slices.Equal(logits[0][:24*width], logits[2][:24*width]) {
		t.Error("windows of 1000 and 24: want the logits without one, and others from row 24 on")
	}
}

// Ensure that pooling averages the whole picture and each tile separately, including tiles with
// padding cut off, and that newlines, which lie on no grid, are refused.
func TestNextPool(t *testing.T) {
	for name, prompts := range map[string][]string{
		"llavanext-vicuna-tiny": {"odd"}, "llavanext-mistral-tiny": {"tall", "tiny"},
	} {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			in := nextInputs(t, name, prompt)
			trace := func(o methods.Options) (map[string]*tensor.Tensor, error) {
				return lab.Trace(context.Background(), e, lab.TraceRequest{
					Inputs: in, Reduce: o, Tokens: 2,
				})
			}
			for _, n := range []int{1, 2, 17} {
				got, err := trace(methods.Options{Base: "pool", NVis: n, Restore: true})
				if err != nil {
					t.Fatalf("%s %s, %d: %v", name, prompt, n, err)
				}
				group, _ := got["reduce.group"].Int64s()
				for i, g := range group {
					first := i < 16 // the whole picture's tokens
					if g < 0 || int(g) >= n || n > 1 && !first && slices.Contains(group[:16], g) {
						t.Errorf("%s %s, %d: token %d is in group %d of %v", name, prompt, n, i, g,
							group)
						break
					}
				}
			}
			if _, err := trace(methods.Options{
				Base: "pool", NVis: 5, Restore: true, Newlines: "keep",
			}); err == nil ||
				!strings.Contains(err.Error(), "on no grid, which pool cannot honour") {
				t.Errorf("%s %s: newlines kept: got %v, want a refusal", name, prompt, err)
			}
		}
	}
}
