package engine_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
)

// tolStage is three times the largest float32 error of the references against float64 over all
// stages, as a share of a tensor's largest value.
const tolStage = 2e-5

// tolLogits is absolute, on logits of size 12: 3 to 6 times the float32 error of the released code.
// The smallest effect of any switch is 60 times larger.
const tolLogits = 3e-4

// open opens the model in a folder or file; "" is the embedded one.
func open(t testing.TB, path string, threads int) *engine.Engine {
	t.Helper()
	return openWith(t, path, engine.Options{Threads: threads}, engine.Hooks{})
}

func openWith(t testing.TB, path string, o engine.Options, h engine.Hooks) *engine.Engine {
	t.Helper()
	e, err := engine.OpenWith(formats.Files{Model: path}, o, h)
	must(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// decoded is a picture's file.
func decoded(t testing.TB, path string) *imageproc.Picture {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	pic, err := imageproc.Decode(data, path, imageproc.DecodeOptions{EXIF: true})
	must(t, err)
	return pic
}

// numbered are the pictures whose paths a format makes of 0, 1 and so on.
func numbered(t testing.TB, format string) (pics []*imageproc.Picture) {
	t.Helper()
	for {
		path := fmt.Sprintf(format, len(pics))
		if _, err := os.Stat(path); os.IsNotExist(err) {
			return pics
		}
		pics = append(pics, decoded(t, path))
	}
}

// processor prepares pictures as the checkpoint in testdata says.
func processor(t testing.TB, name string) imageproc.Processor {
	t.Helper()
	config, err := os.ReadFile(filepath.Join("testdata", name, "preprocessor_config.json"))
	must(t, err)
	proc, err := families.Processor(config)
	must(t, err)
	return proc
}

// reference returns transformers' tensors for a prompt: the stages in testdata or, if
// RESTORE_ORACLE names the folder of the full set, every stage.
func reference(t testing.TB, name, prompt string) map[string]*tensor.Tensor {
	t.Helper()
	path := filepath.Join("testdata", name, prompt+".ref")
	if root := os.Getenv("RESTORE_ORACLE"); root != "" {
		path = filepath.Join(root, "models", "ref", name, prompt+".safetensors")
	}
	ref := golden.Read(t, path)
	return ref
}

// Ensure that the stages of every prompt equal transformers' and that greedy tokens are the same.
func TestStages(t *testing.T) {
	all := []string{"one-image", "two-images", "text-only"}
	for name, prompts := range map[string][]string{
		"llava15-tiny": all, "llava15-gqa-full-tiny": all,
		"llava15-tiny-f16": all[:1], "llava15-tiny-bf16-sharded": all[:1],
	} {
		dir := filepath.Join("testdata", name)
		if len(prompts) == 1 {
			dir = roundedModel(t, name)
		}
		e := open(t, dir, 2)
		for _, prompt := range prompts {
			t.Run(name+"/"+prompt, func(t *testing.T) {
				checkStages(t, e, reference(t, name, prompt))
			})
		}
	}
}

// roundedModel returns the folder of one of the reference's checkpoints with the weights of
// llava15-tiny in 16 bits: one file of float16, or shards of bfloat16.
func roundedModel(t testing.TB, name string) string {
	t.Helper()
	dir, narrow, dtype := copyDir(t, "testdata/llava15-tiny"), tensor.F32ToF16, tensor.F16
	var index struct {
		File map[string]string `json:"weight_map"`
	}
	if name == "llava15-tiny-bf16-sharded" {
		dir, narrow, dtype = copyDir(t, "testdata/"+name), tensor.F32ToBF16, tensor.BF16
		golden.JSON(t, filepath.Join(dir, "model.safetensors.index.json"), &index)
	}
	weights := golden.Read(t, "testdata/llava15-tiny/model.safetensors")
	files := map[string]map[string]*tensor.Tensor{}
	for name, w := range weights {
		wide, err := w.Float32s()
		must(t, err)
		half := make([]byte, 2*len(wide))
		for i, v := range wide {
			binary.LittleEndian.PutUint16(half[2*i:], narrow(v))
		}
		file := cmp.Or(index.File[name], "model.safetensors")
		if files[file] == nil {
			files[file] = map[string]*tensor.Tensor{}
		}
		files[file][name] = &tensor.Tensor{DType: dtype, Shape: w.Shape, Data: half}
	}
	for file, weights := range files {
		var b bytes.Buffer
		must(t, checkpoint.WriteSafetensors(&b, weights, map[string]string{"format": "pt"}))
		must(t, os.WriteFile(filepath.Join(dir, file), b.Bytes(), 0o644))
	}
	return dir
}

func checkStages(t *testing.T, e *engine.Engine, ref map[string]*tensor.Tensor) {
	got, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: ref, Tokens: 24})
	if err != nil {
		t.Fatal(err)
	}
	addTails(t, got, ref)
	compared := 0
	for name, want := range ref {
		if strings.HasSuffix(name, "f64_residual") || name == "gen.margin" {
			continue
		}
		g, ok := got[name]
		if !ok {
			t.Errorf("%s: not in the trace", name)
			continue
		}
		tol := tolStage
		if want.DType == tensor.I64 {
			tol = 0
		}
		if err := golden.Compare(g, want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compared++
	}
	if compared < 5 {
		t.Fatalf("compared %d tensors, want the reference's stages", compared)
	}
}

// addTails adds to got what ref has of its tensors under NAME.tail: the last rows.
func addTails(t testing.TB, got, ref map[string]*tensor.Tensor) {
	t.Helper()
	for name, want := range ref {
		if all := got[strings.TrimSuffix(name, ".tail")]; all != nil && got[name] == nil {
			got[name] = lastRows(t, all, want.Shape[0])
		}
	}
}

// Ensure that Granite's factors have the effect of the same factors in the weights, for which
// the reference has transformers' logits.
func TestGraniteFactors(t *testing.T) {
	dir := copyDir(t, "testdata/llava15-tiny")
	file := filepath.Join(dir, "model.safetensors")
	weights := golden.Read(t, file)
	for name, w := range weights {
		by := float32(1)
		switch {
		case strings.Contains(name, "embed_tokens"), strings.Contains(name, "linear_2"):
			by = 1.0 / 12 // embedding_multiplier, of pictures too
		case !strings.HasPrefix(name, "language_model"):
		case strings.Contains(name, "o_proj"), strings.Contains(name, "down_proj"):
			by = 1 / 0.22 // residual_multiplier
		case strings.Contains(name, "q_proj"):
			by = 0.25 / 0.4 // 1/sqrt(head dim) over attention_multiplier
		}
		values, err := w.Float32s()
		must(t, err)
		values = slices.Clone(values)
		for i := range values {
			values[i] *= by
		}
		weights[name] = tensor.From(w.Shape, values)
	}
	var b bytes.Buffer
	must(t, checkpoint.WriteSafetensors(&b, weights, map[string]string{"format": "pt"}))
	must(t, os.WriteFile(file, b.Bytes(), 0o644))
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	config = bytes.Replace(config, []byte(`"model_type": "llama"`), []byte(`"model_type": "granite",
		"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.4`), 1)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644))
	e := open(t, dir, 2)
	for _, prompt := range []string{"one-image", "two-images", "text-only"} {
		ref := reference(t, "llava15-tiny", prompt)
		got, err := lab.Trace(context.Background(), e, lab.TraceRequest{Inputs: ref, Tokens: 24})
		must(t, err)
		addTails(t, got, ref)
		compared := 0
		for name, want := range ref {
			tol := tolStage
			switch {
			case name == "gen.tokens":
				tol = 0
			case !strings.HasPrefix(name, "logits") && !strings.HasPrefix(name, "gen.logits"):
				continue
			}
			if err := golden.Compare(got[name], want, tol); err != nil {
				t.Errorf("%s: %s: %v", prompt, name, err)
			}
			compared++
		}
		if compared < 2 {
			t.Errorf("%s: compared %d tensors, want logits and tokens", prompt, compared)
		}
	}
}

// Ensure that the config form of transformers 5 describes the same model.
func TestNewConfigForm(t *testing.T) {
	for _, name := range []string{"llava15-tiny", "llava15-gqa-full-tiny"} {
		dir := copyDir(t, filepath.Join("testdata", name))
		data, err := os.ReadFile(filepath.Join("testdata", name, "config-5.x.ref"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		checkStages(t, open(t, dir, 1), reference(t, name, "one-image"))
	}
}

func copyDir(t testing.TB, src string) string {
	t.Helper()
	dst := t.TempDir()
	if err := os.CopyFS(dst, os.DirFS(src)); err != nil {
		t.Fatal(err)
	}
	return dst
}

type restoreInputs struct {
	ImageTokenID int32 `json:"image_token_id"`
	Prompts      []struct {
		Picture string  `json:"picture"`
		Prefix  []int64 `json:"prefix_ids"`
		Suffix  []int64 `json:"suffix_ids"`
	} `json:"prompts"`
}

// restoreTrace returns a function that traces prompt p (0 or 1) of the reference runs of released
// code and paper.
func restoreTrace(
	t testing.TB, threads int,
) func(t testing.TB, p int, o methods.Options) map[string]*tensor.Tensor {
	dir := copyDir(t, "testdata/restore-tiny")
	weights := golden.ReadFile(t, filepath.Join(dir, "model.safetensors"))
	must(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o644))
	e := open(t, dir, threads)
	var in restoreInputs
	golden.JSON(t, "testdata/restore-tiny/ref-inputs.json", &in)
	proc := processor(t, "restore-tiny")
	var inputs []map[string]*tensor.Tensor
	for _, p := range in.Prompts {
		pic := decoded(t, "testdata/restore-tiny/ref-"+p.Picture)
		px, err := proc.Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		ids := append(append(append([]int64(nil), p.Prefix...), int64(in.ImageTokenID)),
			p.Suffix...)
		inputs = append(inputs, map[string]*tensor.Tensor{
			"input_ids":    tensor.From([]int{len(ids)}, ids),
			"pixel_values": tensor.From(px.Shape, px.Data),
		})
	}
	return func(t testing.TB, p int, o methods.Options) map[string]*tensor.Tensor {
		t.Helper()
		out, err := lab.Trace(context.Background(), e, lab.TraceRequest{
			Inputs: inputs[p], Reduce: o, Tokens: 16, NoMaps: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
}

// checkPixelsOf compares what e makes of the picture of a file with ref's pixel values.
func checkPixelsOf(
	t *testing.T, e *engine.Engine, file string, ref map[string]*tensor.Tensor,
) {
	t.Helper()
	px, err := e.Pixels([]*imageproc.Picture{decoded(t, file)}, nil)
	must(t, err)
	want, err := ref["pixel_values"].Float32s()
	must(t, err)
	if !slices.Equal(px.Data, want) {
		t.Errorf("pixel values %v…, want %v…", px.Data[:6], want[:6])
	}
}

// Ensure that LLaVA with a SigLIP tower, whose patches all are visual tokens, and a rotation that
// is stretched as Llama 3.1's, computes what transformers does, from the picture on
// (tools/fixtures/siglip.py).
func TestSigLIPTower(t *testing.T) {
	const name = "llava-siglip-tiny"
	e := open(t, filepath.Join("testdata", name), 2)
	ref := golden.Read(t, filepath.Join("testdata", name, "one-image.ref"))
	checkStages(t, e, ref)

	checkPixelsOf(t, e, filepath.Join("testdata", name, "picture.png"), ref)
}

// Ensure that LLaVA over the decoders of Qwen2, with a tied head, and of Qwen3 computes what
// transformers does (tools/fixtures/decoders.py).
func TestQwenDecoders(t *testing.T) {
	for _, name := range []string{"llava-qwen2-tiny", "llava-qwen3-tiny"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", name)
			checkStages(t, open(t, dir, 2), golden.Read(t, filepath.Join(dir, "one-image.ref")))
		})
	}
}
