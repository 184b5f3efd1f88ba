package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

var axesPrompts = map[string][]string{
	"qwen25vl-tiny":      {"one-image", "two-images", "text-only", "two-turns"},
	"qwen25vl-tied-tiny": {"one-image", "two-images", "text-only"},
}

// axesBases lists methods that choose tokens and need no class token.
var axesBases = []string{"holov", "divprune", "vispruner", "visionzip", "dart", "random", "grid"}

// axesReference returns the reference of one prompt of a checkpoint whose positions have three
// axes, with the pixel values of its pictures.
func axesReference(t testing.TB, name, prompt string) map[string]*tensor.Tensor {
	t.Helper()
	ref := reference(t, name, prompt)
	pics := numbered(t, filepath.Join("testdata", name, prompt+"-%d.png"))
	if len(pics) == 0 {
		return ref
	}
	px, err := processor(t, name).Process(pics)
	must(t, err)
	ref["pixel_values"] = tensor.From(px.Shape, px.Data)
	var grid []int64
	for _, g := range px.GridTHW {
		grid = append(grid, int64(g[0]), int64(g[1]), int64(g[2]))
	}
	made := tensor.From([]int{len(pics), 3}, grid)
	must(t, golden.Compare(made, ref["image_grid_thw"], 0))
	return ref
}

// tolSharp is for decoder attention in rows with a probability near 1/2. The encoder's noise, which
// the reference has too, puts both 1e-5 away from the float64 result, in either direction.
const tolSharp = 4e-5

// tolFloat64 is for the reference's float64 logits: twice the error of the float32 reference.
const tolFloat64 = 1e-5

// Ensure that every stage of every prompt equals transformers' and that greedy tokens are the same:
// windows cut at both edges, empty windows, several pictures, none, tied and untied heads.
func TestAxesStages(t *testing.T) {
	for name, prompts := range axesPrompts {
		e := open(t, filepath.Join("testdata", name), 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkAxes(t, e, axesReference(t, name, prompt))
			})
		}
	}
}

func checkAxes(t *testing.T, e *engine.Engine, ref map[string]*tensor.Tensor) {
	t.Helper()
	got, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: ref, Tokens: 24})
	must(t, err)
	addTails(t, got, ref)
	for name, want := range ref {
		if strings.HasPrefix(name, "turn") || name == "split" { // see TestTwoTurns
			continue
		}
		if name == "gen.logits.f64_residual" || name == "gen.margin" {
			continue
		}
		tol := tolStage
		switch {
		case strings.HasPrefix(name, "logits.f64_residual"):
			name = strings.Replace(name, ".f64_residual", "", 1)
			logits, err := ref[name].Float32s()
			must(t, err)
			rest, err := want.Float32s()
			must(t, err)
			for i, v := range rest {
				rest[i] = logits[i] + v
			}
			want, tol = tensor.From(want.Shape, rest), tolFloat64
		case strings.HasPrefix(name, "text.") && strings.HasSuffix(name, ".attn"):
			tol = tolSharp
		case want.DType != tensor.F32:
			tol = 0
		}
		if got[name] == nil {
			t.Errorf("%s: not in the trace", name)
		} else if err := golden.Compare(got[name], want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ensure that the config form of transformers 5 describes the same model.
func TestAxesNewConfigForm(t *testing.T) {
	for name := range axesPrompts {
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join(dir, "config-5.x.ref"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644))
		checkAxes(t, open(t, dir, 1), axesReference(t, name, "one-image"))
	}
}

// Ensure that faulty edits of these checkpoints are also refused with an error that names the
// cause.
func TestAxesMutated(t *testing.T) {
	var all struct{ Cases []mutation }
	golden.JSON(t, "testdata/mutations.json", &all)
	cases := append(all.Cases, configCases()...)
	n := 0
	for _, c := range cases {
		if axesPrompts[c.Base] == nil {
			continue
		}
		n++
		t.Run(c.ID, func(t *testing.T) {
			dir := copyDir(t, filepath.Join("testdata", c.Base))
			for _, op := range c.Ops {
				if op.Op == "copy_tensor" { // always a copy of the embedding as the head
					copyHead(t, filepath.Join(dir, "model.safetensors"))
				} else {
					op.apply(t, dir)
				}
			}
			err := load(dir)
			if (err == nil) != (c.Expect == "ok") {
				t.Fatalf("got %v, want %s", err, c.Expect)
			}
			if err == nil {
				return
			}
			t.Log(err)
			for _, want := range append(c.ErrorNames, "") {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%q does not name %q on one line", err, want)
				}
			}
		})
	}
	if n < 9+len(configCases()) {
		t.Errorf("%d cases, want all", n)
	}
}

// configCases are edits of config.json beyond the shared list.
func configCases() []mutation {
	set := func(id, value string, path ...string) mutation {
		return mutation{
			ID: id, Base: "qwen25vl-tiny", Expect: "error", ErrorNames: path[len(path)-1:],
			Ops: []edit{
				{Op: "set_json", File: "config.json", Path: path, Value: json.RawMessage(value)},
			},
		}
	}
	return []mutation{
		set("two sections", "[4, 4]", "rope_scaling", "mrope_section"),
		set("negative section", "[-2, 5, 5]", "rope_scaling", "mrope_section"),
		set("no sections", "null", "rope_scaling", "mrope_section"),
		set("another rotation", `"yarn"`, "rope_scaling", "type"),
		set("image token outside", "340", "image_token_id"),
		set("sliding window", "true", "use_sliding_window"),
		set("sliding layer", `["full_attention", "sliding_attention", "full_attention"]`, "layer_types"),
		set("kv heads", "3", "num_key_value_heads"),
		set("heads", "3", "num_attention_heads"),
		set("odd head dim", "64", "num_attention_heads"),
		set("no vision", "null", "vision_config"),
		set("vision heads", "3", "vision_config", "num_heads"),
		set("vision head dim", "16", "vision_config", "num_heads"),
		set("channels", "4", "vision_config", "in_chans"),
		set("no full block", "[]", "vision_config", "fullatt_block_indexes"),
		set("activation", `"gelu"`, "vision_config", "hidden_act"),
		set("window between cells", "100", "vision_config", "window_size"),
		set("merge", "0", "vision_config", "spatial_merge_size"),
		set("quantised", `{"bits": 4}`, "quantization_config"),
	}
}

// copyHead stores a copy of the embedding as the head.
func copyHead(t *testing.T, path string) {
	head, data := readHeader(t, path)
	e := head["model.embed_tokens.weight"]
	out := map[string]any{}
	for k, v := range head {
		out[k] = v
	}
	blob := data[e.Offsets[0]:e.Offsets[1]]
	out["lm_head.weight"] = entry{
		e.Dtype, e.Shape, [2]int64{int64(len(data)), int64(len(data) + len(blob))},
	}
	writeHeader(t, path, out, append(data[:len(data):len(data)], blob...))
}

// reduced traces the two pictures (9x7 and 4x9 tokens) of qwen25vl-tiny.
func reduced(
	t testing.TB, e *engine.Engine, ref map[string]*tensor.Tensor, o methods.Options,
) map[string]*tensor.Tensor {
	t.Helper()
	out, err := lab.Trace(context.Background(), e, lab.TraceRequest{
		Inputs: ref, Reduce: o, Tokens: 6, NoMaps: true,
	})
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return out
}

func numbers(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	if x == nil {
		t.Fatal("tensor missing")
	}
	var out []float64
	if f, err := x.Float32s(); err == nil {
		for _, v := range f {
			out = append(out, float64(v))
		}
		return out
	}
	ints, err := x.Int64s()
	must(t, err)
	for _, v := range ints {
		out = append(out, float64(v))
	}
	return out
}

// Ensure that reduced rows keep the cells of the tokens that they stand for, that text keeps its
// unreduced positions, that scores are the attention that each token receives in the last full
// block, and that the bias follows Appendix A.
func TestAxesReduced(t *testing.T) {
	ref := axesReference(t, "qwen25vl-tiny", "two-images")
	e := open(t, "testdata/qwen25vl-tiny", 2)
	plain := reduced(t, e, ref, methods.Options{})
	rope := nn.NewRoPE(16, 1e6, []int{2, 3, 3})
	var start [2]int // of the pictures' rows before reduction
	ids := numbers(t, plain["input_ids"])
	for i, n := 0, 0; i < len(ids); i++ {
		if ids[i] == 336 && (i == 0 || ids[i-1] != 336) {
			start[n] = i
			n++
		}
	}
	tokens, scores := [2]int{63, 36}, numbers(t, ref["vision.block.3.received_merged"])
	for _, base := range axesBases {
		for _, restore := range []bool{false, true} {
			o := methods.Options{Base: base, KeepRatio: 1.0 / 3, Restore: restore}
			got := reduced(t, e, ref, o)
			before, after := numbers(t, plain["position_ids"]), numbers(t, got["position_ids"])
			s, n := len(before)/3, len(after)/3
			row, old := 0, 0
			equal := func(row, old int) {
				t.Helper()
				for a := range 3 {
					if after[a*n+row] != before[a*s+old] {
						t.Fatalf("%s: row %d: axis %d: got %v, want %v", base, row, a,
							after[a*n+row], before[a*s+old])
					}
				}
			}
			for p := range tokens {
				for ; old < start[p]; old++ {
					equal(row, old)
					row++
				}
				prefix := fmt.Sprintf("reduce.%d.", p)
				position := numbers(t, got[prefix+"position"])
				for _, at := range position {
					equal(row, old+int(at))
					row++
				}
				if a := got[prefix+"attention"]; a != nil {
					want := scores[p*63:][:tokens[p]]
					for i, v := range numbers(t, a) {
						if base == "visionzip" { // sums over the two heads
							v /= 2
						}
						if !(math.Abs(v-want[i]) <= 1e-6) {
							t.Fatalf("%s: picture %d: score of token %d: got %v, want %v", base, p,
								i, v, want[i])
						}
					}
				}
				old += tokens[p]
			}
			for ; old < s; old++ {
				equal(row, old)
				row++
			}
			if row != n {
				t.Errorf("%s: %d rows, want %d", base, n, row)
			}
			same(t, base, got, plain, "gen.positions")
			if !restore {
				continue
			}
			size, bias := numbers(t, got["sizes"]), numbers(t, got["text.layer.1.bias"])
			for q := range n {
				for k := range n {
					away := func(axis int) float64 { return after[axis*n+q] - after[axis*n+k] }
					D := rope.DecayMRoPE(nn.Pos{away(0), away(1), away(2)})
					want := math.Log(size[k] * (2 - D))
					if !(math.Abs(bias[q*n+k]-want) <= 2e-6) {
						t.Fatalf("%s: bias of %d and %d: got %v, want %v", base, q, k, bias[q*n+k],
							want)
					}
				}
			}
		}
	}
}

// Ensure that merged tokens have the rows and columns that their members give, on each axis
// separately, and that this option is refused for positions of one axis.
func TestAxesMergePositions(t *testing.T) {
	ref := axesReference(t, "qwen25vl-tiny", "one-image")
	e := open(t, "testdata/qwen25vl-tiny", 2)
	const cols, n = 3, 6 // the picture's columns; rows kept
	for _, how := range []string{"median", "axes-median", "axes-mean"} {
		got := reduced(t, e, ref, methods.Options{
			Base: "divprune", NVis: n, Restore: true, MergePosition: how,
		})
		group, pos, place := numbers(t, got["reduce.group"]), numbers(t, got["position_ids"]),
			numbers(t, got["reduce.position"])
		ids := numbers(t, got["input_ids"])
		start := slices.Index(ids, 336)
		rows := len(pos) / 3
		for row := range n {
			var at [2][]float64
			for tok, g := range group {
				if int(g) == row {
					at[0], at[1] = append(at[0], float64(tok/cols)),
						append(at[1], float64(tok%cols))
				}
			}
			want := [2]float64{float64(int(place[row]) / cols), float64(int(place[row]) % cols)}
			for axis, v := range at {
				slices.Sort(v)
				switch sum := 0.0; how {
				case "axes-median":
					want[axis] = v[(len(v)-1)/2]
				case "axes-mean":
					for _, x := range v {
						sum += x
					}
					want[axis] = sum / float64(len(v))
				}
				// the trace has float32
				if g := pos[(axis+1)*rows+start+row] -
					float64(start); !(math.Abs(g-want[axis]) <= 1e-6) {
					t.Errorf("%s: row %d of %v: axis %d at %v, want %v", how, row, v, axis, g,
						want[axis])
				}
			}
			if pos[start+row] != float64(start) {
				t.Errorf("%s: row %d: time %v, want %d", how, row, pos[start+row], start)
			}
		}
		if last := pos[rows-1]; last != numbers(t, ref["position_ids"])[len(ids)-1] {
			t.Errorf("%s: text ends at %v", how, last)
		}
	}
	for _, o := range []methods.Options{
		{Base: "holov", NVis: 4, Restore: true, MergePosition: "axes-mean"}, {Base: "fastv", NVis: 4, Restore: true, MergePosition: "axes-mean"},
	} {
		_, err := lab.Trace(context.Background(), open(t, "testdata/llava15-tiny", 1),
			lab.TraceRequest{
				Inputs: golden.Read(t, "testdata/llava15-tiny/one-image.ref"), Reduce: o,
			})
		if err == nil || !strings.Contains(err.Error(), "merge-position: got axes-mean") {
			t.Errorf("%s: got %v, want a refusal by name", o.Base, err)
		}
	}
}

// Ensure that a budget of all tokens equals no reduction and that results do not depend on threads.
func TestAxesIdentityAndThreads(t *testing.T) {
	ref := axesReference(t, "qwen25vl-tiny", "one-image")
	e1, e2, e5 := open(t, "testdata/qwen25vl-tiny", 1), open(t, "testdata/qwen25vl-tiny", 2),
		open(t, "testdata/qwen25vl-tiny", 5)
	plain := reduced(t, e2, ref, methods.Options{})
	for _, base := range axesBases {
		for _, on := range []bool{false, true} {
			same(t, base, reduced(t, e2, ref, methods.Options{Base: base, NVis: 15, Restore: on}),
				plain, "logits", "gen.tokens", "gen.logits", "position_ids", "rope_delta")
		}
		o := methods.Options{Base: base, NVis: 6, Restore: true, MergePosition: "mean"}
		want := reduced(t, e1, ref, o)
		same(t, base+", 2 threads", reduced(t, e2, ref, o), want, "vision.merger", "logits",
			"gen.logits")
		same(t, base+", 5 threads", reduced(t, e5, ref, o), want, "vision.merger", "logits",
			"gen.logits")
	}
	seq := reduced(t, e2, ref, methods.Options{Base: "holov", NVis: 6, Positions: "sequential"})
	pos := numbers(t, seq["position_ids"])
	for i, v := range pos {
		if n := len(pos) / 3; v != float64(i%n) {
			t.Fatalf("sequential: got %v, want 0 to %d on every axis", pos, n-1)
		}
	}
}

// Ensure that invalid inputs return errors that name the fault.
func TestAxesInputErrors(t *testing.T) {
	e := open(t, "testdata/qwen25vl-tiny", 1)
	ref := axesReference(t, "qwen25vl-tiny", "one-image")
	grid := func(v ...int64) map[string]*tensor.Tensor {
		in := maps.Clone(ref)
		in["image_grid_thw"] = tensor.From([]int{len(v) / 3, 3}, v)
		return in
	}
	none := maps.Clone(ref)
	delete(none, "image_grid_thw")
	for name, in := range map[string]map[string]*tensor.Tensor{
		"no grid": none, "two frames": grid(2, 5, 6), "odd": grid(1, 5, 12), "negative": grid(1, -10, -6), "too few": grid(1, 8, 6),
		"too many": grid(1, 10, 6, 1, 2, 2), "huge": grid(1, 1<<40, 1<<40), "zero": grid(1, 0, 6),
	} {
		_, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: in})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want an error of one line", name, err)
		}
	}
}

// byteVocab maps every byte, in the notation of byte-level tokenizers, to its value, and words to
// the ids from 256 to end.
func byteVocab(end int) map[string]int {
	vocab := map[string]int{}
	shifted := 0
	for b := range 256 {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = rune(256 + shifted)
			shifted++
		}
		vocab[string(r)] = b
	}
	for id := 256; id < end; id++ {
		vocab[fmt.Sprintf("w%d", id)] = id
	}
	return vocab
}

// Ensure that a picture with fewer tokens than an implicit budget is read whole, next to one that
// is reduced.
func TestUpTo(t *testing.T) {
	small, large := &imageproc.Picture{Width: 84, Height: 56, Pix: make([]byte, 84*56*3)},
		picture(t, 4)
	o := methods.Options{Base: "holov", NVis: 20, UpTo: true, Restore: true}
	ans, err := open(t, talking(t), 1).Ask(context.Background(), engine.Request{
		Prompt: "?", Images: engine.Pictures(small, large), Reduce: o, MaxTokens: 1,
	})
	must(t, err)
	if r := ans.Report.Images; r[0].Tokens != 6 || r[0].Kept != 6 || r[0].Reduction != nil ||
		r[1].Kept+r[1].Merged != 20 {
		t.Errorf("got %+v", r)
	}
	o.UpTo = false
	if _, err := open(t, talking(t), 1).Ask(context.Background(), engine.Request{
		Prompt: "?", Images: engine.Pictures(small), Reduce: o,
	}); err == nil || !strings.Contains(err.Error(), "n-vis: got 20, want at most 6") {
		t.Errorf("a budget of 20 for 6 tokens: got %v, want a refusal", err)
	}
}

// talking returns a copy of qwen25vl-tiny with a tokenizer of single bytes and a chat template.
func talking(t testing.TB) string {
	t.Helper()
	dir := copyDir(t, "testdata/qwen25vl-tiny")
	type added struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	}
	var special []added
	for i, name := range []string{
		"endoftext", "im_start", "im_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
	} {
		special = append(special, added{330 + i, "<|" + name + "|>", true})
	}
	level := map[string]any{
		"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
	}
	write := func(name string, v any) {
		data, err := json.Marshal(v)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	write("tokenizer.json", map[string]any{
		"version": "1.0", "added_tokens": special, "pre_tokenizer": level, "decoder": level,
		"model": map[string]any{"type": "BPE", "vocab": byteVocab(330), "merges": []string{}},
	})
	write("tokenizer_config.json", map[string]any{"eos_token": "<|im_end|>", "chat_template": `{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`})
	return dir
}

// Ensure that a conversation with cached keys and values equals one read from scratch, with
// pictures of different sizes arriving in different turns.
func TestAxesConversation(t *testing.T) {
	checkConversation(t, open(t, talking(t), 2), []methods.Options{
		{}, {Base: "divprune", NVis: 8, Restore: true}, {Base: "holov", NVis: 8, Restore: true, DecodeDistance: new(false), MergePosition: "mean"},
		{Base: "holov", NVis: 6, Restore: true, MergePosition: "axes-mean"},
	})
}

// checkConversation runs a dialogue with each of options.
func checkConversation(t *testing.T, e *engine.Engine, options []methods.Options) {
	t.Helper()
	for _, o := range options {
		turns := []struct {
			text string
			pic  *imageproc.Picture
		}{
			{"What is this?", picture(t, 4)}, {"And this?", &imageproc.Picture{Width: 60, Height: 150, Pix: make([]byte, 60*150*3)}}, {"How many?", nil},
		}
		kept := e.NewConversation(o)
		for n := range turns {
			ask := func(c *engine.Conversation, i int) *engine.Answer {
				t.Helper()
				req := engine.Request{Prompt: turns[i].text, MaxTokens: 8}
				if turns[i].pic != nil {
					req.Images = engine.Pictures(turns[i].pic)
				}
				a, err := c.Ask(context.Background(), req)
				must(t, err)
				return a
			}
			got := ask(kept, n)
			fresh := e.NewConversation(o)
			var want *engine.Answer
			for i := range n + 1 {
				fresh.Forget()
				want = ask(fresh, i)
			}
			if fmt.Sprint(got.Tokens) != fmt.Sprint(want.Tokens) {
				t.Errorf("%+v: turn %d: with cached keys %v, from scratch %v", o, n, got.Tokens,
					want.Tokens)
			}
			if n > 0 && got.Report.CachedTokens == 0 {
				t.Errorf("turn %d: nothing was cached", n)
			}
		}
	}
}

// Ensure that a system prompt stands at the start of the dialogue in all its turns, and is refused
// where it is not possible.
func TestSystemPrompt(t *testing.T) {
	e := open(t, talking(t), 1)
	ask := func(c *engine.Conversation, system string) (*engine.Answer, error) {
		return c.Ask(context.Background(), engine.Request{
			Prompt: "Hi", System: system, MaxTokens: 3,
		})
	}
	plain, err := ask(e.NewConversation(methods.Options{}), "")
	must(t, err)
	c := e.NewConversation(methods.Options{})
	first, err := ask(c, "Be brief.")
	must(t, err)
	// in tokens: each of the template's two marks is one
	const added = len("<s>system\nBe brief.<e>\n") - 4
	if got := first.Report.PromptTokens - plain.Report.PromptTokens; got != added {
		t.Errorf("%d tokens more than without, want %d", got, added)
	}
	for _, again := range []string{"", "Be brief."} {
		next, err := ask(c, again)
		must(t, err)
		if next.Report.CachedTokens < first.Report.PromptTokens {
			t.Errorf("%q: %d tokens cached, want the %d of the first turn", again,
				next.Report.CachedTokens, first.Report.PromptTokens)
		}
	}
	if _, err := ask(c, "Be long."); err == nil || !strings.Contains(err.Error(), "system prompt") {
		t.Errorf("another system prompt later: got %v, want a refusal by name", err)
	}
	dir := talking(t)
	must(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(`{% if messages[0].role != 'system' %}Be brief.{% endif %}{% for m in messages %}{{ m.content[0].text }}{% endfor %}`), 0o644))
	if _, err := ask(open(t, dir, 1).NewConversation(methods.Options{}), "Be brief."); err != nil {
		t.Errorf("the template's own system prompt: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(`{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'] }}{% endif %}{% endfor %}`), 0o644))
	if _, err := ask(open(t, dir, 1).NewConversation(methods.Options{}), "Be brief."); err == nil ||
		!strings.Contains(err.Error(), "no place") {
		t.Errorf("a template without system prompts: got %v, want a refusal", err)
	}
}

// Ensure that methods read each head of the block that scores come from: DART's pivots are the keys
// with the greatest length over all heads. Methods that need a class token are refused with an
// error that names it.
func TestAxesKeys(t *testing.T) {
	ref := axesReference(t, "qwen25vl-tiny", "one-image")
	e := open(t, "testdata/qwen25vl-tiny", 2)
	const heads, dim, cells = 2, 16, 15
	// [patches, heads, dim] in window order
	keys, index := numbers(t, ref["vision.block.3.k_rope"]), numbers(t, ref["vision.window_index"])
	length := make([]float64, cells)
	for at, cell := range index {
		for i := range heads * dim {
			sum := 0.0
			for p := range 4 {
				sum += keys[(4*at+p)*heads*dim+i]
			}
			length[int(cell)] += math.Abs(sum / 4)
		}
	}
	got := reduced(t, e, ref, methods.Options{Base: "dart", NVis: 10})
	for i, v := range numbers(t, got["reduce.key_norm"]) {
		// sums of 32 float32 numbers near 1 that are 1e-5 away from the reference's
		if !(math.Abs(v-length[i]) <= 1e-4) {
			t.Errorf("token %d: length %v, want %v", i, v, length[i])
		}
	}
	for _, base := range []string{"prumerge", "prumerge-plus"} {
		_, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: ref, Reduce: methods.Options{Base: base, NVis: 5},
		})
		if err == nil || !strings.Contains(err.Error(), "class token") ||
			!strings.Contains(err.Error(), base) {
			t.Errorf("%s: got %v, want a refusal by name", base, err)
		}
	}
}

// Ensure that a video is read by its definition: two frames make a moment, each moment is encoded
// like a picture, the time axis rises by the seconds between moments, and text continues after the
// largest position.
func TestVideo(t *testing.T) {
	e := open(t, talking(t), 2)
	trace := func(r lab.TraceRequest) map[string]*tensor.Tensor {
		t.Helper()
		r.Prompt, r.Tokens = "What moves?", 4
		out, err := lab.Trace(context.Background(), e, r)
		must(t, err)
		return out
	}
	frame := func(seed int) *imageproc.Picture {
		p := &imageproc.Picture{Width: 84, Height: 56, Pix: make([]byte, 84*56*3)}
		for i := range p.Pix {
			p.Pix[i] = byte(i*i>>3 + seed*i)
		}
		return p
	}
	a, b := frame(3), frame(11)
	const rows, cols = 2, 3
	still := trace(lab.TraceRequest{Images: []*imageproc.Picture{a}})
	// the last frame replaces the missing one
	for _, frames := range [][]*imageproc.Picture{{a, a}, {a}} {
		got := trace(lab.TraceRequest{Video: &imageproc.Video{Frames: frames, FPS: 2}})
		got["pixel_values"] = got["pixel_values_videos"]
		same(t, "one moment", got, still, "pixel_values", "vision.merger", "position_ids",
			"rope_delta", "embeds", "logits", "gen.tokens")
		ids := numbers(t, got["input_ids"])
		if n := slices.Index(ids, 337); n < 0 || slices.Contains(ids, 336) ||
			ids[n+rows*cols-1] != 337 || ids[n+rows*cols] == 337 {
			t.Errorf("ids %v: want %d of the video's token", ids, rows*cols)
		}
	}
	other := trace(lab.TraceRequest{Images: []*imageproc.Picture{b}})
	got := trace(lab.TraceRequest{
		Video: &imageproc.Video{Frames: []*imageproc.Picture{a, a, b, b}, FPS: 2},
	})
	joined := append(numbers(t, still["vision.merger"]), numbers(t, other["vision.merger"])...)
	for i, v := range numbers(t, got["vision.merger"]) {
		if !(math.Abs(v-joined[i]) <= 1e-5) { // summed in another order
			t.Fatalf("feature %d of two moments: %v, alone %v", i, v, joined[i])
		}
	}
	mixed := trace(lab.TraceRequest{
		Video: &imageproc.Video{Frames: []*imageproc.Picture{a, b}, FPS: 2},
	})
	px, pa, pb := numbers(t, mixed["pixel_values_videos"]), numbers(t, still["pixel_values"]),
		numbers(t, other["pixel_values"])
	for i, v := range px { // rows of [channel][frame][14][14]
		want := pa[i]
		if i/196%2 == 1 {
			want = pb[i]
		}
		if v != want {
			t.Fatalf("value %d of a moment of two frames: %v, want %v", i, v, want)
		}
	}

	for _, fps := range []float64{0.4, 1, 2, 3, 24} {
		for _, o := range []methods.Options{{}, {Base: "divprune", NVis: 8, Restore: true}} {
			v := &imageproc.Video{FPS: fps}
			for i := range 7 { // the last moment has one frame
				v.Frames = append(v.Frames, frame(i))
			}
			got := trace(lab.TraceRequest{Video: v, Reduce: o})
			pos, ids := numbers(t, got["position_ids"]), numbers(t, got["input_ids"])
			start, n := slices.Index(ids, 337), len(pos)/3
			kept := make([]float64, 4*rows*cols)
			for i := range kept {
				kept[i] = float64(i)
			}
			if o.Base != "" {
				kept = numbers(t, got["reduce.position"])
			}
			last := 0
			for i, k := range kept {
				at := int(k)
				// tokens_per_second 2
				want := [3]int{
					start + int(float64(at/(rows*cols))*(2/fps)*2), start + at%(rows*cols)/cols,
					start + at%cols,
				}
				for axis, w := range want {
					if g := pos[axis*n+start+i]; g != float64(w) {
						t.Errorf("%v fps, %s: token %d: axis %d at %v, want %d", fps, o.Base, at,
							axis, g, w)
					}
				}
			}
			last = start + max(int(3*(2/fps)*2), rows-1, cols-1)
			for axis := range 3 {
				if g := pos[axis*n+start+len(kept)]; g != float64(last+1) {
					t.Errorf("%v fps, %s: text continues at %v, want %d", fps, o.Base, g, last+1)
				}
			}
		}
	}

	c := e.NewConversation(methods.Options{Base: "holov", KeepRatio: 0.5, Restore: true})
	first, err := c.Ask(context.Background(), engine.Request{
		Prompt: "?", Video: &imageproc.Video{Frames: []*imageproc.Picture{a, b, a}, FPS: 1},
		Images: engine.Pictures(b), MaxTokens: 2,
	})
	must(t, err)
	if r := first.Report; len(r.Images) != 2 || r.Images[0].Tokens != 2*rows*cols ||
		r.Images[1].Tokens != rows*cols || r.Images[0].Kept+r.Images[0].Merged != rows*cols {
		t.Errorf("video and picture: %+v", r.Images)
	}
	next, err := c.Ask(context.Background(), engine.Request{Prompt: "And?", MaxTokens: 2})
	must(t, err)
	if next.Report.CachedTokens < first.Report.PromptTokens {
		t.Errorf("%d tokens cached, want %d", next.Report.CachedTokens, first.Report.PromptTokens)
	}

	small := &imageproc.Picture{Width: 56, Height: 56, Pix: make([]byte, 56*56*3)}
	for name, v := range map[string]*imageproc.Video{
		"no frames": {FPS: 1}, "fps": {Frames: []*imageproc.Picture{a}}, "another size": {Frames: []*imageproc.Picture{a, small}, FPS: 1},
		"not a number": {Frames: []*imageproc.Picture{a}, FPS: math.NaN()},
	} {
		if _, err := e.Ask(context.Background(), engine.Request{Prompt: "?",
			Video: v}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want an error of one line", name, err)
		}
	}
	if _, err := open(t, talkingNext(t), 1).Ask(context.Background(), engine.Request{
		Prompt: "?", Video: &imageproc.Video{Frames: []*imageproc.Picture{a}, FPS: 1},
	}); err == nil || !strings.Contains(err.Error(), "takes no videos") {
		t.Errorf("a model without videos: got %v, want a refusal", err)
	}
}
