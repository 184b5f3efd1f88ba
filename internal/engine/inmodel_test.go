package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolRows and tolScores are shares of a tensor's largest value: seven times the difference between
// the released code in float32 and in float64, for rows and logits, and for sums of small
// probabilities.
const (
	tolRows   = 2e-5
	tolScores = 3e-5
)

// inside lists runs of the authors' released code, and of RESTORE over it.
var inside = []struct {
	name string
	o    methods.Options
}{
	{"baseline", methods.Options{}},
	{"fastv_k1_n18", methods.Options{Base: "fastv", Schedule: "1:18", Compat: "released"}},
	{"fastv_k2_n12", methods.Options{Base: "fastv", Schedule: "2:0.3333333333333333", Compat: "released"}},
	{"fastv_k3_n9", methods.Options{Base: "fastv", Schedule: "3:0.25", Compat: "released"}},
	{"pdrop_135", methods.Options{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "released"}},
	{"pdrop_246", methods.Options{Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "released"}},
	{"restore_pdrop_135_g75", methods.Options{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "paper", Restore: true, Gamma: new(0.75)}},
	{"restore_pdrop_246_g50", methods.Options{Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "paper", Restore: true}},
	{"sparsevlm_124", methods.Options{Base: "sparsevlm", Schedule: "1:5,2:3,4:2", Compat: "released"}},
	{"sparsevlm_135", methods.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "released"}},
	{"restore_sparsevlm_135_g50", methods.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true}},
	{"restore_sparsevlm_135_g75", methods.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true, Gamma: new(0.75)}},
	{"fitprune_a", methods.Options{Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "released"}},
	{"fitprune_b", methods.Options{Base: "fitprune", Schedule: "0:30,1:26,2:18,3:15,4:10,5:8", Compat: "released"}},
	{"restore_fitprune_a_g50", methods.Options{Base: "fitprune", Schedule: "1:33,2:26,3:21,5:15,6:11,7:9", Compat: "paper", Restore: true}},
	{"restore_fastv_k2_n12_g50", methods.Options{Base: "fastv", Schedule: "2:12", Compat: "paper", Restore: true}},
	{"restore_fastv_k2_n12_g50_code", methods.Options{Base: "fastv", Schedule: "2:12", Restore: true}},
}

// Ensure that rows, positions, key counts, choices, logits and greedy tokens equal the released
// code's and the RESTORE reference's.
func TestInsideDecoder(t *testing.T) {
	dir := filepath.Join("testdata", "inmodel-tiny")
	in := golden.Read(t, filepath.Join(dir, "prompt.ref"))
	e := open(t, dir, 2)
	for _, c := range inside {
		t.Run(c.name, func(t *testing.T) {
			ref := golden.Read(t, filepath.Join(dir, c.name+".ref"))
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: c.o, Tokens: 12,
			})
			if err != nil {
				t.Fatal(err)
			}
			least := len(ref) * 3 / 4
			if c.o.Base == "" {
				least = 3 // cache_len, tokens, logits
			}
			if compared := compareInside(t, got, ref); compared < least {
				t.Errorf("compared %d of %d tensors, want %d or more", compared, len(ref), least)
			}
			if ref["logits_size_only"] == nil {
				return
			}
			o := c.o
			o.DecodeDistance = new(false)
			if got, err = lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: o, Tokens: 12,
			}); err != nil {
				t.Fatal(err)
			}
			sized := map[string]*tensor.Tensor{
				"tokens": ref["tokens_size_only"], "logits": ref["logits_size_only"],
			}
			compareInside(t, got, sized)
		})
	}
}

// compareInside compares the tensors of ref that got has under its own names.
func compareInside(t *testing.T, got, ref map[string]*tensor.Tensor) (compared int) {
	t.Helper()
	for name, want := range ref {
		g, tol := traceOf(got, name)
		if g == nil {
			continue
		}
		if strings.HasPrefix(name, "bias.") {
			causal(g)
			causal(want)
		}
		clampInf(t, name, g, want)
		if err := golden.Compare(g, want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compared++
	}
	return compared
}

// traceOf returns the trace's tensor for a reference name, and its tolerance.
func traceOf(got map[string]*tensor.Tensor, name string) (*tensor.Tensor, float64) {
	kind, layer, _ := strings.Cut(name, ".")
	l := -1
	fmt.Sscan(layer, &l)
	switch kind {
	case "inputs_embeds":
		return got["embeds"], tolRows
	case "layer_in":
		if g := got["text.layer."+layer+".in"]; g != nil {
			return g, tolRows
		}
		if l == 0 {
			return got["embeds"], tolRows
		}
		return got[fmt.Sprintf("text.layer.%d.out", l-1)], tolRows
	case "layer_out":
		return got["text.layer."+layer+".out"], tolRows
	case "cache_k":
		return got["text.layer."+layer+".k"], tolRows
	case "cache_v":
		return got["text.layer."+layer+".v"], tolRows
	case "bias":
		return got["text.layer."+layer+".bias"], tolScores
	case "pos", "cache_pos":
		return got["cache."+layer+".position"], 0
	case "cache_size":
		return got["cache."+layer+".size"], 0
	case "cache_len":
		return got["cache.len"], 0
	case "tokens":
		return got["gen.tokens"], 0
	case "logits":
		return got["gen.logits"], tolRows
	case "decode_pos":
		return got["gen.layer_positions"], 0
	}
	g := got[name]
	if g != nil && g.DType == tensor.F32 {
		return g, tolScores
	}
	return g, 0
}

// causal sets the entries that no query sees to zero in a square matrix.
func causal(m *tensor.Tensor) {
	v, _ := m.Float32s()
	n := m.Shape[0]
	for i := range n {
		clear(v[i*n+i+1 : (i+1)*n])
	}
	*m = *tensor.From(m.Shape, v)
}

// clampInf checks that infinities are at the same places and sets them to 0.
func clampInf(t *testing.T, name string, g, w *tensor.Tensor) {
	t.Helper()
	if !strings.HasSuffix(name, "anchor_score") {
		return
	}
	a, _ := g.Float32s()
	b, _ := w.Float32s()
	for i := range min(len(a), len(b)) {
		if math.IsInf(float64(b[i]), 1) {
			if !math.IsInf(float64(a[i]), 1) {
				t.Errorf("%s: at %d: got %v, want +Inf", name, i, a[i])
			}
			a[i], b[i] = 0, 0
		}
	}
	*g, *w = *tensor.From(g.Shape, a), *tensor.From(w.Shape, b)
}

// insideModels are checkpoints of other shapes than the reference's: grouped heads with the class
// token among the picture's tokens, pictures in tiles with newlines, positions of three axes,
// several pictures.
func insideModels(t *testing.T) map[string]map[string]*tensor.Tensor {
	gqa := golden.Read(t, filepath.Join("testdata", "llava15-gqa-full-tiny", "two-images.ref"))
	return map[string]map[string]*tensor.Tensor{
		"llava15-gqa-full-tiny":  gqa,
		"llavanext-vicuna-tiny":  nextInputs(t, "llavanext-vicuna-tiny", "two-images"),
		"llavanext-mistral-tiny": nextInputs(t, "llavanext-mistral-tiny", "odd"),
		"qwen25vl-tiny":          axesReference(t, "qwen25vl-tiny", "two-images"),
		"qwen25vl-tied-tiny":     axesReference(t, "qwen25vl-tied-tiny", "one-image"),
		"qwen2vl-tiny":           reference(t, "qwen2vl-tiny", "two-images"),
		"internvl-tiny":          reference(t, "internvl-tiny", "two"),
	}
}

// Ensure, for every architecture, that a stage keeps the rows to which the last row of the
// unreduced run attends most, that their keys equal the unreduced run's at their old
// positions, that sizes add up, that keeping all equals no reduction, and that text without
// pictures is unaffected.
func TestInsideArchitectures(t *testing.T) {
	for name, in := range insideModels(t) {
		e := open(t, filepath.Join("testdata", name), 2)
		trace := func(in map[string]*tensor.Tensor, o methods.Options) map[string]*tensor.Tensor {
			t.Helper()
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: in, Reduce: o, Tokens: 4, NoMaps: o.Base != "",
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return got
		}
		plain := trace(in, methods.Options{})
		first, counts := pictureRows(t, name, plain)
		if len(counts) == 0 {
			t.Fatalf("%s: no picture", name)
		}
		for _, base := range []string{"fastv", "pdrop"} {
			o := methods.Options{Base: base, Schedule: "1:0.4", Positions: "original"}
			got := trace(in, o)
			read := 0
			if base == "pdrop" {
				read = 1
			}
			removed := 0
			for p := range counts {
				prefix := "stage.0."
				if len(counts) > 1 {
					prefix = fmt.Sprintf("stage.%d.0.", p)
				}
				kept, _ := got[prefix+"keep"].Int64s()
				checkLargest(t, fmt.Sprintf("%s %s picture %d", name, base, p),
					plain[fmt.Sprintf("text.layer.%d.attn", read)], first[p], counts[p], kept)
				checkKeys(t, name+" "+base, got["text.layer.1.k"], plain["text.layer.1.k"],
					first[p], first[p]-removed, kept)
				removed += counts[p] - len(kept)
			}
			lens, _ := got["cache.len"].Int64s()
			if before := plain["text.layer.1.k"].Shape[1]; int(lens[0]) != before ||
				int(lens[1]) != before-removed {
				t.Errorf("%s %s: %v keys, want %d and %d", name, base, lens, before, before-removed)
			}
			o.Schedule, o.Positions = "1:1.0", ""
			same(t, name+" "+base+" keeping all", trace(in, o), plain, "gen.tokens", "gen.logits")
			o.Schedule, o.Restore = "1:0.4", true
			got = trace(in, o)
			sizes, _ := got["cache.1.size"].Float32s()
			sum := float32(0)
			for _, s := range sizes {
				sum += s
			}
			if int(sum) != plain["text.layer.1.k"].Shape[1] {
				t.Errorf("%s RESTORE over %s: sizes in layer 1 add up to %v, want %d", name, base,
					sum, plain["text.layer.1.k"].Shape[1])
			}
			o.Compat, o.Restore = "released", false
			trace(in, o)
			words := map[string]*tensor.Tensor{
				"input_ids": tensor.From([]int{4}, []int64{1, 5, 6, 7}),
			}
			same(t, name+" "+base+" text only", trace(words, o), trace(words, methods.Options{}),
				"gen.logits", "cache.len")
		}
		for _, base := range []string{"sparsevlm", "fitprune"} { // drop after and inside layer 0
			got := trace(in, methods.Options{Base: base, Schedule: "0:0.4", Restore: true})
			sizes, _ := got["cache.1.size"].Float32s()
			sum := float32(0)
			for _, s := range sizes {
				sum += s
			}
			if before := plain["text.layer.1.k"].Shape[1]; int(sum) != before ||
				len(sizes) >= before {
				t.Errorf("%s RESTORE over %s: sizes of %d rows in layer 1 add up to %v, want %d",
					name, base, len(sizes), sum, before)
			}
			same(t, name+" "+base+" keeping all",
				trace(in, methods.Options{Base: base, Schedule: "0:1.0"}), plain, "gen.tokens",
				"gen.logits")
		}
		if _, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: methods.Options{Base: "fastv", NVis: 8, Newlines: "skip"},
		}); err == nil || !strings.Contains(err.Error(), "newlines: got skip") {
			t.Errorf("%s: newlines skip: got %v", name, err)
		}
	}
}

// Ensure that merged tokens inside the decoder have the rows and columns that their members give,
// on each axis separately, and that results do not depend on threads.
func TestInsideAxes(t *testing.T) {
	in := axesReference(t, "qwen25vl-tiny", "one-image")
	o := methods.Options{Base: "pdrop", Schedule: "1:6", Restore: true, MergePosition: "axes-mean"}
	var first map[string]*tensor.Tensor
	for _, threads := range []int{1, 2, 5} {
		e := open(t, filepath.Join("testdata", "qwen25vl-tiny"), threads)
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Reduce: o, Tokens: 4, NoMaps: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		same(t, fmt.Sprint(threads, " threads"), got, first, "gen.logits", "cache.1.position_ids",
			"text.layer.1.k")
	}
	at, _ := pictureRows(t, "qwen25vl-tiny", first)
	pos, whole := numbers(t, first["cache.1.position_ids"]), numbers(t, first["position_ids"])
	members, offsets := numbers(t, first["stage.0.group_members"]),
		numbers(t, first["stage.0.group_offsets"])
	if len(offsets) != 7 {
		t.Fatalf("%d rows, want 6", len(offsets)-1)
	}
	for row := range 6 {
		group := members[int(offsets[row]):int(offsets[row+1])]
		for axis := range 3 {
			want := 0.0
			for _, m := range group {
				want += whole[axis*len(whole)/3+at[0]+int(m)] / float64(len(group))
			}
			// the trace has float32
			if got := pos[axis*len(pos)/3+at[0]+row]; !(math.Abs(got-want) <= 1e-5) {
				t.Errorf("row %d of %v: axis %d at %v, want %v", row, group, axis, got, want)
			}
		}
	}
}

// Ensure that rows which a stage renumbers are consecutive, also where as many remain as positions
// that the picture takes: 5 rows of 5x3.
func TestInsideAxesSequential(t *testing.T) {
	const name = "qwen25vl-tiny"
	in := axesReference(t, name, "one-image")
	e := open(t, filepath.Join("testdata", name), 1)
	for _, rows := range []int{4, 5, 6} {
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: in, Tokens: 1, NoMaps: true, Reduce: methods.Options{
				Base: "pdrop", Schedule: fmt.Sprint("1:", rows), Positions: "sequential"},
		})
		must(t, err)
		pos := numbers(t, got["cache.1.position_ids"])
		for i, p := range pos {
			if want := i % (len(pos) / 3); p != float64(want) {
				t.Errorf("%d rows: axis %d of row %d is %v, want %d", rows, i/(len(pos)/3), want, p,
					want)
			}
		}
	}
}

// pictureRows returns where each picture's rows start in a traced prompt and how many there are.
func pictureRows(t *testing.T, name string, plain map[string]*tensor.Tensor) (first, counts []int) {
	t.Helper()
	var config struct {
		Old int64 `json:"image_token_index"`
		New int64 `json:"image_token_id"`
	}
	data, err := os.ReadFile(filepath.Join("testdata", name, "config.json"))
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	ids, err := plain["input_ids"].Int64s()
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		switch {
		case id != config.Old+config.New: // a checkpoint has one of the two
		case i > 0 && ids[i-1] == id:
			counts[len(counts)-1]++
		default:
			first, counts = append(first, i), append(counts, 1)
		}
	}
	return first, counts
}

// checkLargest checks that kept are the rows of a picture to which the last row of attn [heads,
// rows, keys] attends most, averaged over heads.
func checkLargest(t *testing.T, what string, attn *tensor.Tensor, first, n int, kept []int64) {
	t.Helper()
	v, _ := attn.Float32s()
	heads, rows, keys := attn.Shape[0], attn.Shape[1], attn.Shape[2]
	mean := make([]float64, n)
	for h := range heads {
		for j := range mean {
			mean[j] += float64(v[(h*rows+rows-1)*keys+first+j])
		}
	}
	chosen := make([]bool, n)
	least := math.Inf(1)
	for _, k := range kept {
		chosen[k] = true
		least = min(least, mean[k])
	}
	for j, m := range mean {
		if !chosen[j] && m > least*(1+tolScores) {
			t.Errorf("%s: row %d with %v is dropped, but one with %v is kept", what, j, m, least)
			return
		}
	}
}

// checkKeys checks that the keys of got from row at on equal the kept rows of want, counted from
// first. Both are [heads, keys, width].
func checkKeys(t *testing.T, what string, got, want *tensor.Tensor, first, at int, kept []int64) {
	t.Helper()
	g, _ := got.Float32s()
	w, _ := want.Float32s()
	width := got.Shape[2]
	for h := range got.Shape[0] {
		for i, k := range kept {
			a := g[(h*got.Shape[1]+at+i)*width:][:width]
			b := w[(h*want.Shape[1]+first+int(k))*width:][:width]
			for j := range a {
				if d := math.Abs(float64(a[j] - b[j])); !(d <= tolRows*max(1,
					math.Abs(float64(b[j])))) {
					t.Errorf("%s: head %d, row %d: key %v, want row %d's key %v", what, h, at+i,
						a[j], k, b[j])
					return
				}
			}
		}
	}
}

// sizesOf sums the sizes of the rows in layer i.
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

// Ensure, for any number of pictures anywhere in a prompt, that every layer holds the text and the
// rows that the stages before it kept, that sizes add up to all rows if tokens merge, that
// positions ascend, and that stages that keep all equal no reduction.
func TestInsidePlaces(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and covers no additional kernel")
	}
	dir := filepath.Join("testdata", "inmodel-tiny")
	e := open(t, dir, 2)
	in := golden.Read(t, filepath.Join(dir, "prompt.ref"))
	pixels, _ := in["pixel_values"].Float32s()
	ids, _ := in["input_ids"].Int64s()
	img := int64(e.Model().ImageToken())
	start, visual := slices.Index(ids, img), 0
	for _, id := range ids {
		if id == img {
			visual++
		}
	}
	text := slices.Delete(slices.Clone(ids), start, start+visual)
	kinds := []methods.Options{
		{Restore: true}, {}, {Compat: "released"}, {Restore: true, Positions: "sequential"},
	}
	for place, ids := range map[string][]int64{
		"inside":         slices.Insert(slices.Clone(text), start, img),
		"first":          slices.Concat([]int64{img}, text),
		"last":           slices.Concat(text, []int64{img}),
		"two":            slices.Concat(text[:3], []int64{img}, text[3:6], []int64{img}, text[6:]),
		"two together":   slices.Concat(text[:3], []int64{img, img}, text[3:]),
		"first and last": slices.Concat([]int64{img}, text, []int64{img}),
	} {
		pictures := len(ids) - len(text)
		shape := slices.Clone(in["pixel_values"].Shape)
		shape[0] = pictures
		inputs := map[string]*tensor.Tensor{
			"input_ids": tensor.From([]int{len(ids)}, ids), "pixel_values": tensor.From(shape, slices.Repeat(pixels, pictures)),
		}
		trace := func(o methods.Options) map[string]*tensor.Tensor {
			got, err := lab.Trace(context.Background(), e, lab.TraceRequest{
				Inputs: inputs, Reduce: o, Tokens: 3, NoMaps: true,
			})
			if err != nil {
				t.Fatalf("%s: %v", place, err)
			}
			return got
		}
		plain := trace(methods.Options{})
		for base, after := range map[string]int{
			"fastv": 0, "pdrop": 0, "fitprune": 1, "dart-text": 0,
		} {
			some := kinds // with the picture inside, every kind; otherwise one kind in turn
			if place != "inside" {
				some = kinds[(len(place)+len(base))%len(kinds):][:1]
			}
			for _, o := range some {
				o.Base = base
				o.NVis = 36
				got := trace(o)
				if err := golden.Compare(got["gen.logits"], plain["gen.logits"], 0); err != nil {
					t.Errorf("%s %s: a budget of all tokens: %v", place, base, err)
				}
				o.NVis, o.Schedule = 0, "1:1.0,3:36"
				got = trace(o)
				if err := golden.Compare(got["gen.logits"], plain["gen.logits"], 0); err != nil {
					t.Errorf("%s %s: stages that keep all: %v", place, base, err)
				}
				for schedule, rows := range map[string][]int{
					"1:1": {36, 1, 1, 1, 1, 1, 1, 1}, "2:17,6:5": {36, 36, 17, 17, 17, 17, 5, 5}, "1:1.0,7:35": {36, 36, 36, 36, 36, 36, 36, 35},
				} {
					o.Schedule = schedule
					got = trace(o)
					lens, _ := got["cache.len"].Int64s()
					for i, n := range lens {
						if want := len(text) + pictures*rows[max(0, i-after)]; int(n) != want {
							t.Errorf("%s %s %s: layer %d holds %d keys, want %d", place, base,
								schedule, i, n, want)
						}
						whole := len(text) + pictures*36
						if sum := sizesOf(t, got, i); o.Restore && sum != float64(whole) {
							t.Errorf("%s %s %s: sizes in layer %d add up to %v, want %d", place,
								base, schedule, i, sum, whole)
						}
						pos, _ := got[fmt.Sprintf("cache.%d.position", i)].Int64s()
						for j := 1; j < len(pos); j++ {
							if !(pos[j] > pos[j-1]) {
								t.Errorf("%s %s %s: positions in layer %d: %v", place, base,
									schedule, i, pos)
								break
							}
						}
					}
				}
			}
		}
	}
}
