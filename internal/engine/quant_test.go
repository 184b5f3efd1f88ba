package engine_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that each plan's logits are near the logits with the weights as stored. Bounds are at most
// twice the measured error, as a share of the logits' root mean square: 0.08 % for f16, 1.3 % for
// bf16, 3.1 % for q8 in the decoder, 2.7 % in the encoder and 4.2 % in both, 27 % for q4, 0.16 %
// for q12 in the encoder. The weights are random, so the rounding errors (0.02, 0.2, 0.6 and 7 % of
// a weight) grow about four times on their way through the layers.
func TestPlans(t *testing.T) {
	for _, c := range []struct {
		decoder, encoder, cache string
		bound                   float64
	}{
		{"", "", "", 0}, {"f32", "f32", "f32", 0},
		{"f16", "", "", 1.7e-3}, {"", "f16", "", 1.7e-3}, {"", "", "f16", 1.7e-3}, {"bf16", "bf16", "", 2e-2},
		{"q8", "", "", 6e-2}, {"", "q8", "", 6e-2}, {"", "q12", "", 3e-3}, {"q8", "q8", "", 8e-2}, {"q4", "", "", 0.5}, {"q4", "f16", "f16", 0.5},
	} {
		var sum, square float64
		for _, name := range []string{"llava15-tiny", "llava15-gqa-full-tiny"} {
			dir := filepath.Join("testdata", name)
			e := openWith(t, dir, engine.Options{
				Threads: 2, Quant: c.decoder, EncoderQuant: c.encoder, CacheType: c.cache,
			}, engine.Hooks{})
			plain := open(t, dir, 1)
			for _, prompt := range []string{"one-image", "two-images", "text-only"} {
				ref := golden.Read(t, filepath.Join(dir, prompt+".ref"))
				got, want := logits(t, e, ref), logits(t, plain, ref)
				for i := range want {
					sum += float64(got[i]-want[i]) * float64(got[i]-want[i])
					square += float64(want[i]) * float64(want[i])
				}
			}
		}
		err := math.Sqrt(sum / square)
		t.Logf("quant %q, encoder-quant %q, cache %q: error of the logits %.2g of their "+
			"root mean square", c.decoder, c.encoder, c.cache, err)
		if !(err <= c.bound) || c.bound > 0 && err == 0 {
			t.Errorf("quant %q, encoder-quant %q, cache %q: error %.3g, want at most %g", c.decoder,
				c.encoder, c.cache, err, c.bound)
		}
	}
}

// Ensure that keys and values are float16 where the products of all blocks round activations, and
// float32 otherwise, unless somebody says so.
func TestCacheType(t *testing.T) {
	gguf := filepath.Join(unzip(t, "testdata/gguf/qwen3vl-k-tiny.zip"), "qwen3vl-k-tiny.gguf")
	for _, c := range []struct{ model, quant, cache, want string }{
		{"", "", "", "f32"}, {"", "f32", "", "f32"}, {"", "f16", "", "f32"}, {"", "f16", "f16", "f16"},
		{"", "bf16", "", "f16"}, {"", "q8", "", "f16"}, {"", "q4", "", "f16"}, {"", "q4", "f32", "f32"},
		{gguf, "", "", "f16"}, {gguf, "f32", "", "f32"},
	} {
		for _, describe := range []bool{false, true} {
			e := openWith(t, c.model, engine.Options{Quant: c.quant, CacheType: c.cache},
				engine.Hooks{Describe: describe})
			if got := e.About().CacheType; got != c.want {
				t.Errorf("%s, quant %q, cache-type %q: got %s, want %s", c.model, c.quant, c.cache,
					got, c.want)
			}
		}
	}
}

func logits(t *testing.T, e *engine.Engine, in map[string]*tensor.Tensor) []float32 {
	t.Helper()
	out, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: in})
	if err != nil {
		t.Fatal(err)
	}
	v, err := out["logits"].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Ensure that the decoder's plan and the encoder's plan apply only to their own weights, and that
// q4 leaves the embedding and the head at q8.
func TestPlanOfEachPart(t *testing.T) {
	const dir = "testdata/llava15-tiny"
	ck, err := formats.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	var decoder, tables, encoder int64
	for _, name := range ck.Names() {
		w, _ := ck.Tensor(name)
		switch n := int64(w.Len()); {
		case len(w.Shape) < 2 || strings.Contains(name, "position_embedding"):
		case strings.Contains(name, "embed_tokens") || strings.Contains(name, "lm_head"):
			tables += n
		case strings.HasPrefix(name, "language_model."):
			decoder += n
		default:
			encoder += n
		}
	}
	for _, describe := range []bool{false, true} {
		e, err := engine.New(ck, engine.Options{Quant: "q4", EncoderQuant: "bf16"},
			engine.Hooks{Describe: describe})
		must(t, err)
		got := e.Info()
		if got.Kept["Q4"] != decoder || got.Kept["Q8"] != tables ||
			got.Kept["BF16Dot"] != encoder || got.Types["F32"] != got.Params {
			t.Errorf("kept %v (stored %v), want %d Q4, %d Q8, %d BF16Dot", got.Kept, got.Types,
				decoder, tables, encoder)
		}
		if got.Resident <= 0 || got.Resident >= got.Bytes {
			t.Errorf("%d bytes in memory, want fewer than the %d stored", got.Resident, got.Bytes)
		}
	}
}

// Ensure that a weight that is NaN, infinite or out of range is refused with an error that names
// it, and an unknown type likewise.
func TestPlanErrors(t *testing.T) {
	const name = "language_model.model.layers.1.mlp.up_proj.weight"
	for _, c := range []struct {
		o     engine.Options
		value float64
		want  []string
	}{
		{engine.Options{Quant: "q4"}, math.NaN(), []string{name, "row 1,", "not finite"}},
		{engine.Options{Quant: "q8"}, math.Inf(-1), []string{name, "not finite in Q8"}},
		{engine.Options{Quant: "f16"}, 1e6, []string{name, "row 1, column 2", "not finite in F16"}},
		{engine.Options{Quant: "bf16"}, math.NaN(), []string{name, "not finite in BF16"}},
		{engine.Options{}, math.NaN(), []string{name, "[1 2]", "not finite (NaN or an infinity)"}},
		{engine.Options{Quant: "f32"}, math.Inf(1), []string{name, "[1 2]", "not finite (NaN or an infinity)"}},
		{engine.Options{Quant: "int4"}, 0, []string{"quant", `got "int4"`, "want one of q4"}},
		{engine.Options{EncoderQuant: "q4"}, 0, []string{"encoder-quant", `got "q4"`}},
	} {
		dir := copyDir(t, "testdata/llava15-tiny")
		path := filepath.Join(dir, "model.safetensors")
		head, data := readHeader(t, path)
		e := head[name]
		bits := math.Float32bits(float32(c.value))
		at := e.Offsets[0] + 4*int64(e.Shape[1]+2)
		for i := range 4 {
			data[at+int64(i)] = byte(bits >> (8 * i))
		}
		raw, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, append(raw[:len(raw)-len(data)], data...), 0o644))
		ck, err := formats.Open(dir)
		must(t, err)
		_, err = engine.New(ck, c.o, engine.Hooks{})
		ck.Close()
		if err == nil {
			t.Errorf("%+v: accepted %v", c.o, c.value)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: %q, want one line with %q", c.o, err, want)
			}
		}
	}
}

// Ensure that a shape without a checkpoint runs on weights that Hooks.Weights makes, in the plan's
// type or converted to it, that products are counted, and that these weights are checked like those
// of a file.
func TestMadeWeights(t *testing.T) {
	stored, err := formats.Open("testdata/llava15-tiny")
	must(t, err)
	defer stored.Close()
	ref := golden.Read(t, "testdata/llava15-tiny/one-image.ref")
	for _, plan := range []string{"", "q8"} {
		work := new(nn.Work)
		asked := map[tensor.DType]int{}
		ck, err := checkpoint.FromConfig("shape", stored.Parts().Config.Data)
		must(t, err)
		e, err := engine.New(ck, engine.Options{Threads: 2, Quant: plan}, engine.Hooks{
			Work: work,
			Weights: func(m *kernel.Memory, name string, d tensor.DType,
				shape []int) *tensor.Tensor {
				asked[d]++
				w, ok := stored.Tensor(name)
				if !ok || !slices.Equal(w.Shape, shape) {
					t.Errorf("requested %q %v", name, shape)
				}
				return &w.Tensor
			}})
		must(t, err)
		want := open(t, "testdata/llava15-tiny", 1)
		if plan != "" {
			want = openWith(t, "testdata/llava15-tiny",
				engine.Options{Threads: 1, Quant: plan}, engine.Hooks{})
		}
		if !slices.Equal(logits(t, e, ref), logits(t, want, ref)) {
			t.Errorf("%q: other logits than the checkpoint's", plan)
		}
		if asked[tensor.F32] == 0 || asked[tensor.F16] == 0 ||
			(asked[tensor.Q8] > 0) != (plan == "q8") {
			t.Errorf("%q: requested %v", plan, asked)
		}
		total := work.Total()
		for what, c := range map[string]nn.Count{
			"products": total.Products, "attention": total.Attention,
		} {
			if c.Time <= 0 || c.Operations <= 0 || c.Bytes <= 0 {
				t.Errorf("%q: %s: %+v", plan, what, c)
			}
		}
		must(t, e.Close())
	}
	ck, err := checkpoint.FromConfig("shape", stored.Parts().Config.Data)
	must(t, err)
	_, err = engine.New(ck, engine.Options{},
		engine.Hooks{Weights: func(*kernel.Memory, string, tensor.DType, []int) *tensor.Tensor {
			return tensor.From([]int{1}, []float32{1})
		}})
	if err == nil || !strings.Contains(err.Error(), "mis-shaped") {
		t.Errorf("weights of another shape: %v", err)
	}
	if _, err := checkpoint.FromConfig("shape", []byte("[1]")); err == nil {
		t.Error("a config that is no object: accepted")
	}
}

// Ensure that progress rises to its end, with and without conversion.
func TestLoadingProgress(t *testing.T) {
	ck, err := formats.Open("testdata/llava15-tiny")
	must(t, err)
	defer ck.Close()
	file := packed(t, ck, engine.Options{Quant: "q4"})
	for _, c := range []struct {
		path string
		o    engine.Options
	}{
		{"testdata/llava15-tiny", engine.Options{}}, {"testdata/llava15-tiny", engine.Options{Quant: "q8", EncoderQuant: "q8"}},
		{"testdata/llava15-tiny", engine.Options{EncoderQuant: "bf16"}}, {file, engine.Options{}},
	} {
		last, end := int64(0), int64(0)
		c.o.Progress = func(done, total int64) {
			if done < last || done > total {
				t.Errorf("%s %+v: %d of %d after %d", c.path, c.o, done, total, last)
			}
			last, end = done, total
		}
		openWith(t, c.path, c.o, engine.Hooks{})
		if last != end || end == 0 {
			t.Errorf("%s: ends at %d of %d", c.path, last, end)
		}
	}
}
