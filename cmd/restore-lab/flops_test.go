package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
)

// Ensure that the counted operations are those that the engine multiplies: for linear layers by the
// engine's own count during an answer, for attention by the sizes of the matrices in a trace of the
// same request, which computes all rows of the decoder's last block.
func TestFLOPsOfEngine(t *testing.T) {
	work := new(nn.Work)
	m, err := engine.OpenWith(formats.Files{}, engine.Options{}, engine.Hooks{Work: work})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := m.Info().Sizes
	pic := &imageproc.Picture{Width: 8, Height: 8, Pix: make([]byte, 3*64)}
	for name, o := range map[string]methods.Options{
		"unreduced": {},
		"holov":     {Base: "holov", NVis: 40, Restore: true},
		"fastv":     {Base: "fastv", Schedule: "2:100"},
		"shrunk":    {Base: "downsample", NVis: 64},
		"merged":    {Base: "tome", NVis: 64, Restore: true},
		"fitted":    {Base: "fitprune", NVis: 200},
	} {
		before := work.Total()
		ans, err := m.Ask(context.Background(), engine.Request{
			Prompt: "How many?", Images: engine.Pictures(pic), Reduce: o, MaxTokens: 1,
			NoCache: true,
		})
		if err != nil {
			t.Fatal(name, err)
		}
		ops := work.Total().Since(before).Products.Operations
		trace, err := lab.Trace(context.Background(), m, lab.TraceRequest{
			Prompt: "How many?", Images: []*imageproc.Picture{pic}, Reduce: o,
		})
		if err != nil {
			t.Fatal(name, err)
		}
		got := float64(ops) / 2
		matrices := func(format string, layers, width int) {
			for i := range layers {
				rows, keys := o.NVis+1, o.NVis+1 // the encoding of a shrunk picture is not traced
				if m := trace[fmt.Sprintf("vit_stage.%d.metric", i)]; m != nil && format[0] == 'v' {
					rows, keys = m.Shape[0], m.Shape[0]
				} else if m := trace[fmt.Sprintf(format, i)]; m != nil {
					rows, keys = m.Shape[len(m.Shape)-2], m.Shape[len(m.Shape)-1]
				}
				got += 2 * float64(rows) * float64(keys) * float64(width)
			}
		}
		matrices("vision.layer.%d.attn", s.Vision.Run, s.Vision.Query)
		last := s.Text.Blocks - 1
		matrices("text.layer.%d.attn", last, s.Text.Query)
		keys := trace[fmt.Sprintf("text.layer.%d.attn", last)].Shape[2]
		got += 2 * float64(keys*s.Text.Query)
		rows := trace["text.layer.0.attn"].Shape[1]
		visual := s.Tokens
		if r := ans.Report.Images[0].Reduction; r != nil && len(r.Options.Stages) == 0 {
			visual = len(r.Rows)
		}
		how, err := m.Resolve(o)
		if err != nil {
			t.Fatal(name, err)
		}
		f, err := lab.CountFLOPs(s, how, o.NVis, rows-visual)
		if err != nil {
			t.Fatal(name, err)
		}
		if f.Engine != got {
			t.Errorf("%s: counted %.0f, the engine multiplied %.0f", name, f.Engine, got)
		}
	}
}

// Ensure that models that take pictures of any size are counted as the engine multiplies: the
// products by the engine's own count, attention by the rows.
func TestFLOPsOfAnySize(t *testing.T) {
	for _, name := range []string{
		"qwen3vl-tiny", "qwen3vl-tied-tiny", "qwen25vl-tiny", "qwen2vl-tiny", "qwen2vl-tied-tiny",
	} {
		dir := filepath.Join("..", "..", "internal", "engine", "testdata", name)
		if name == "qwen25vl-tiny" {
			dir = spoken(t, dir, filepath.Join(dir, "..", "qwen3vl-tiny"))
		}
		work := new(nn.Work)
		m, err := engine.OpenWith(formats.Files{Model: dir}, engine.Options{},
			engine.Hooks{Work: work})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		pic := &imageproc.Picture{Width: 128, Height: 128, Pix: make([]byte, 3*128*128)}
		tokens := 0
		for _, o := range []methods.Options{{}, {Base: "divprune", NVis: 5, Restore: true}} {
			before := work.Total()
			ans, err := m.Ask(context.Background(), engine.Request{
				Prompt: "How many?", Images: engine.Pictures(pic), Reduce: o, MaxTokens: 1,
				NoCache: true,
			})
			if err != nil {
				t.Fatal(name, err)
			}
			n := ans.Report.ImageTokens
			tokens = max(tokens, n) // the first answer reads all
			s := m.Info().SizesOf(tokens)
			how, err := methods.Resolve(o, s.Facts())
			if err != nil {
				t.Fatal(err)
			}
			rows := ans.Report.PromptTokens
			f, err := lab.CountFLOPs(s, how, n, rows-n)
			if err != nil {
				t.Fatal(err)
			}
			patches, v := s.Cell*tokens, &s.Vision
			seen := v.Blocks * patches
			if v.Window > 0 {
				seen = v.Whole*patches + (v.Blocks-v.Whole)*min(patches, v.Window)
			}
			got := float64(work.Total().Since(before).Products.Operations) / 2
			got += 2 * float64(patches*seen*v.Query)
			got += 2 * float64((rows*(s.Text.Blocks-1)+1)*rows*s.Text.Query)
			if f.Engine != got {
				t.Errorf("%s, %d of %d tokens: counted %.0f, the engine multiplied %.0f", name, n,
					tokens, f.Engine, got)
			}
		}
	}
}

// Ensure that a picture in tiles whose encoder joins patches is counted as the engine multiplies:
// the products by the engine's own count, attention by the rows.
func TestFLOPsOfTiles(t *testing.T) {
	dir := changed(t, "internvl-tiny", "preprocessor_config.json", `"max_patches": 6`,
		`"max_patches": 12`)
	work := new(nn.Work)
	m, err := engine.OpenWith(formats.Files{Model: dir}, engine.Options{},
		engine.Hooks{Work: work})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := m.Info().Sizes
	pic := &imageproc.Picture{Width: 72, Height: 72, Pix: make([]byte, 3*72*72)}
	for _, o := range []methods.Options{{}, {Base: "vispruner", NVis: 20, Restore: true}} {
		before := work.Total()
		ans, err := m.Ask(context.Background(), engine.Request{
			Prompt: "How many?", Images: engine.Pictures(pic), Reduce: o, MaxTokens: 1,
			NoCache: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		n, rows := ans.Report.ImageTokens, ans.Report.PromptTokens
		how, err := methods.Resolve(o, s.Facts())
		if err != nil {
			t.Fatal(err)
		}
		f, err := lab.CountFLOPs(s, how, n, rows-n)
		if err != nil {
			t.Fatal(err)
		}
		seen := s.Cell*s.Tokens/s.Views + 1 // rows of a view
		got := float64(work.Total().Since(before).Products.Operations) / 2
		got += 2 * float64(s.Views*s.Vision.Run*seen*seen*s.Vision.Query)
		got += 2 * float64((rows*(s.Text.Blocks-1)+1)*rows*s.Text.Query)
		if f.Engine != got {
			t.Errorf("%d of %d tokens: counted %.0f, the engine multiplied %.0f", n, s.Tokens,
				f.Engine, got)
		}
	}
}

// Ensure that a model whose features are the encoder's embedding, before any block, is counted.
func TestFLOPsOfEmbedding(t *testing.T) {
	dir := changed(t, "internvl-tiny", "config.json", `"vision_feature_layer": -1`,
		`"vision_feature_layer": -5`)
	if r := commandLine("flops", "-m", dir, "--base", "random", "--n-vis", "9"); r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Err)
	}
}

// changed returns a copy of a tiny checkpoint in which one of the files has to for from.
func changed(t *testing.T, name, file, from, to string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../internal/engine/testdata/"+name)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), from) {
		t.Fatalf("%s: no %s", path, from)
	}
	data = []byte(strings.Replace(string(data), from, to, 1))
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// spoken returns a copy of a tiny Qwen2.5-VL with the tokenizer of a tiny Qwen3-VL.
func spoken(t *testing.T, model, tokenizer string) string {
	t.Helper()
	dir := t.TempDir()
	for file, from := range map[string]string{
		"config.json": model, "model.safetensors": model, "preprocessor_config.json": model,
		"tokenizer.json": tokenizer, "tokenizer_config.json": tokenizer,
		"chat_template.json": tokenizer,
	} {
		data, err := os.ReadFile(filepath.Join(from, file))
		if err != nil {
			t.Fatal(err)
		}
		if file == "config.json" {
			data = []byte(strings.NewReplacer(`_token_id": 336`, `_token_id": 280`,
				`_token_id": 337`, `_token_id": 281`).Replace(string(data)))
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Ensure that the command prints the paper's figures, names impossible settings, and refuses
// senseless flags.
func TestFLOPs(t *testing.T) {
	r := commandLine("flops", "--base", "divprune,fastv", "--n-vis", "64")
	for _, w := range []string{
		"llava-1.5-7b", "0.190 T", "1.359 G", "0.807 T", "0.997 T", "0.136 %", "fastv + RESTORE",
	} {
		if r.Code != cli.ExitOK || r.Err != "" || !strings.Contains(r.Out, w) {
			t.Errorf("exit %d, stderr %q, lacks %q in %q", r.Code, r.Err, w, r.Out)
		}
	}
	r = commandLine("flops", "--shape", "embedded", "--all", "--n-vis", "64", "--json")
	var j struct {
		Tokens int
		Rows   []struct{ Total, Engine float64 }
	}
	if err := json.Unmarshal([]byte(r.Out), &j); r.Code != cli.ExitOK || err != nil ||
		j.Tokens != 576 || len(j.Rows) < 20 || j.Rows[0].Total <= 0 {
		t.Errorf("exit %d, %v, %q", r.Code, err, r.Out)
	}
	if !strings.Contains(r.Err, "note: fastv, 64 tokens: methods: n-vis: got a mean of 64 "+
		"tokens a layer, want at least 96.83, the least") {
		t.Errorf("stderr %q", r.Err)
	}
	r = commandLine("flops", "--shape", "qwen3-vl-2b", "--base", "holov,prumerge", "--n-vis", "114")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "1024 visual tokens") ||
		!strings.Contains(r.Out, "holov + RESTORE") || strings.Contains(r.Out, "prumerge") ||
		!strings.Contains(r.Err, "prumerge, 114 tokens: flops: prumerge: the encoder of") {
		t.Errorf("exit %d, stderr %q, %q", r.Code, r.Err, r.Out)
	}
	for want, args := range map[string][]string{
		`--shape: got "x", want llava-1.5-7b|`:                             {"--shape", "x"},
		"--shape and --model: both given, got llava-1.5-7b and y":          {"--shape", "llava-1.5-7b", "-m", "y"},
		"--base and --all: both given":                                     {"--base", "holov", "--all"},
		`--base: got "none", want holov|`:                                  {"--base", "none"},
		"--n-vis: out of range, got 577, want 1 to 576 (the visual tokens": {"--n-vis", "577"},
		"--prompt: out of range, got 0, want 1 to":                         {"--prompt", "0"},
		"--tokens: got 9, which has no effect":                             {"--tokens", "9"},
		"--tokens: out of range, got -1":                                   {"--shape", "qwen3-vl-2b", "--tokens", "-1"},
	} {
		if r := commandLine(append([]string{"flops"}, args...)...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
}
