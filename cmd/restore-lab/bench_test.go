package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// A config.json of each kind of model, small enough to measure in a moment.
const (
	tinyText  = `"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512, "vocab_size": 320`
	tinyLLaVA = `{"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 318, "text_config": {"model_type": "llama", ` + tinyText + `},
 "vision_config": {"hidden_size": 48, "image_size": 56, "intermediate_size": 80, "num_attention_heads": 3, "num_hidden_layers": 3, "patch_size": 14}}`
	tinyTiled = `{"architectures": ["LlavaNextForConditionalGeneration"], "image_token_index": 318, "image_grid_pinpoints": [[56, 112], [112, 112]],
 "text_config": {"model_type": "llama", ` + tinyText + `},
 "vision_config": {"hidden_size": 48, "image_size": 56, "intermediate_size": 80, "num_attention_heads": 3, "num_hidden_layers": 3, "patch_size": 14}}`
	tinyAnySize = `{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 318, ` + tinyText + `, "num_key_value_heads": 2,
 "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
 "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 56, "num_heads": 2, "out_hidden_size": 64, "fullatt_block_indexes": [1]}}`
)

// smallLimits makes samples of the machine's limits few and fast, and useless as measurements.
func smallLimits(t *testing.T) {
	weights, samples, limit := benchWeightBytes, limitSamples, limitBytes
	benchWeightBytes, limitSamples, limitBytes = 4<<20, 1, 4<<20
	t.Cleanup(func() { benchWeightBytes, limitSamples, limitBytes = weights, samples, limit })
}

// benched runs bench --json and returns its output, one object on a line.
func benched(t *testing.T, args ...string) (got benchJSON) {
	t.Helper()
	r := commandLine(append([]string{"bench", "--repeat", "1", "--gen", "2", "--text", "10",
		"--json"},
		args...)...)
	if r.Code != cli.ExitOK || strings.Count(r.Out, "\n") != 1 {
		t.Fatalf("%v: exit code %d, output %q, errors %q", args, r.Code, r.Out, r.Err)
	}
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// Ensure that bench measures every plan, picture and budget, that the JSON names its fields as
// documented, and that each holds a number.
func TestBenchShapes(t *testing.T) {
	smallLimits(t)
	for _, c := range []struct {
		config, nVis string
		args         []string
		want         [][2]int // n_vis and prompt_tokens of each plan's rows
	}{
		{tinyLLaVA, "16,8", []string{"--quant", "q4,stored"}, [][2]int{{16, 26}, {8, 18}}},
		{tinyTiled, "all,8", []string{"--quant", "q8,bf16", "--encoder-quant", "q8"}, [][2]int{{88, 98}, {8, 18}}},
		{tinyAnySize, "all,0.25", []string{"--patches", "16,64", "--quant", "q4,f32"}, [][2]int{{4, 14}, {1, 11}, {16, 26}, {4, 14}}},
	} {
		got := benched(t,
			append(c.args, "--shape", clitest.Written(t, "config.json", c.config), "--base",
				"grid", "--n-vis", c.nVis)...)
		if len(got.Rows) != 2*len(c.want) || len(got.Plans) != 2 || got.CPU == "" ||
			!(got.Peaks.FMA > 0 && got.Peaks.Dot > 0 && got.Peaks.DRAM > 0) {
			t.Fatalf("%d rows, want %d: %+v", len(got.Rows), 2*len(c.want), got)
		}
		for i, r := range got.Rows {
			if want := c.want[i%len(c.want)]; r.NVis != want[0] || r.PromptTokens != want[1] {
				t.Errorf("%s, row %d: %d visual tokens, %d rows, want %v", got.Model, i, r.NVis,
					r.PromptTokens, want)
			}
			if !(r.EncodeS > 0 && r.PrefillS > 0 && r.TTFTS >= r.PrefillS && r.DecodeTokS > 0 &&
				r.SpeedUp > 0 && r.ReduceS >= 0) ||
				!(r.ProductsOfPeak > 0 && r.ProductsShare > 0 && r.ProductsShare <= 1) ||
				!(r.DecodeOfDRAM > 0 && r.EncodeOfPeak > 0) {
				t.Errorf("%s, row %d: %+v", got.Model, i, r)
			}
		}
	}
}

// Ensure that bench shows how the encoder's time and memory grow, whatever the order of the sizes,
// for each plan, and only with two sizes.
func TestBenchGrowth(t *testing.T) {
	smallLimits(t)
	file := clitest.Written(t, "config.json", tinyAnySize)
	got := benched(t, "--shape", file, "--patches", "400,16", "--quant", "q4,f32", "--n-vis",
		"all,0.25")
	if len(got.Growth) != 4 {
		t.Fatalf("growth %+v, want two plans with two sizes", got.Growth)
	}
	for i, g := range got.Growth {
		plan, first := []string{"q4", "f32"}[i/2], got.Growth[i&^1]
		if g.Quant != plan || g.Patches != []int{16, 400}[i%2] || !(g.EncodeS > 0) {
			t.Errorf("row %d: %+v", i, g)
		}
		want := g.EncodeS / float64(g.Patches) / (first.EncodeS / float64(first.Patches))
		if math.Abs(g.OfLinear/want-1) > 1e-3 { // rounded to five digits
			t.Errorf("row %d: %v of linear growth, want %v", i, g.OfLinear, want)
		}
	}
	if got := benched(t, "--shape", file, "--patches", "16", "--n-vis", "all"); got.Growth != nil {
		t.Errorf("growth of one size: %+v", got.Growth)
	}
	table := commandLine("bench", "--shape", file, "--patches", "16,400", "--repeat", "1", "--gen",
		"1",
		"--n-vis", "all").Out
	if !strings.Contains(table, "OF LINEAR") || !strings.Contains(table, "1.00×") {
		t.Errorf("table:\n%s", table)
	}
}

// Ensure that --limits splits the time to the first token into stages that do not overlap, that
// every stage of multiply-adds has what they would take at their peaks, and that the first token
// takes at least that.
func TestBenchLimits(t *testing.T) {
	smallLimits(t)
	file := clitest.Written(t, "config.json", tinyLLaVA)
	args := []string{"--shape", file, "--n-vis", "16,8", "--quant", "q4"}
	got := benched(t, append(args, "--limits")...)
	for _, r := range got.Rows {
		sum, limits, least := 0.0, 0, 0.0
		for _, s := range r.Stages {
			if s.Measured < 0 || s.Limit < 0 {
				t.Errorf("%d tokens: %+v", r.NVis, s)
			}
			sum, least = sum+s.Measured, least+s.Limit
			if s.Limit > 0 {
				limits++
			}
		}
		if !(sum > 0 && sum <= 1.001*r.TTFTS) { // rounded to five digits
			t.Errorf("%d tokens: stages of %v s, first token after %v s", r.NVis, sum, r.TTFTS)
		}
		if limits != 4 || least > r.TTFTS {
			t.Errorf("%d tokens: %+v, want limits of products and attention below %v s", r.NVis,
				r.Stages, r.TTFTS)
		}
	}
	if got := benched(t, args...); got.Rows[0].Stages != nil {
		t.Errorf("stages without --limits: %+v", got.Rows[0].Stages)
	}
	r := commandLine(append([]string{"bench", "--repeat", "1", "--gen", "1", "--limits"},
		args...)...)
	if !strings.Contains(r.Out, "AT ITS LIMIT") || !strings.Contains(r.Out, "prefill, attention") {
		t.Errorf("table:\n%s", r.Out)
	}
}

// Ensure that the fields of a row have the names that scripts read, and that the embedded model can
// be measured.
func TestBenchEmbedded(t *testing.T) {
	smallLimits(t)
	r := commandLine("bench", "--repeat", "1", "--gen", "1", "--n-vis", "64", "--json")
	var got struct{ Rows []map[string]any }
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || len(got.Rows) != 1 {
		t.Fatalf("%v: %q, %q", err, r.Out, r.Err)
	}
	for _, name := range []string{
		"quant", "n_vis", "encode_s", "reduce_s", "prefill_s", "ttft_s", "decode_tok_s", "products_of_peak", "products_share", "peak_rss_bytes",
	} {
		if _, ok := got.Rows[0][name]; !ok {
			t.Errorf("no %q in %v", name, got.Rows[0])
		}
	}
	if table := commandLine("bench", "--repeat", "1", "--gen", "1", "--n-vis",
		"all,64").Out; !strings.Contains(table, "plan stored:") ||
		strings.Count(table, "\nstored ") != 2 {
		t.Errorf("table:\n%s", table)
	}
}

func TestBenchUsage(t *testing.T) {
	smallLimits(t)
	file := clitest.Written(t, "config.json", tinyLLaVA)
	for flags, want := range map[string]string{
		"--shape llava-2":                          `--shape: got "llava-2", want llava-1.5-7b|`,
		"--shape . ":                               `--shape: got "."`,
		"--shape llava-1.5-7b -m x":                "--shape and --model: both given, got llava-1.5-7b and x",
		"--quant q4,q5 --shape " + file:            `--quant: got "q5", want q4|q8|`,
		"--cache-type bf16 --shape " + file:        `--cache-type: got "bf16"`,
		"--encoder-quant q4 --shape " + file:       `--encoder-quant: got "q4"`,
		"--n-vis 64,none --shape " + file:          `--n-vis: got "none", want a number`,
		"--n-vis 1.5 --shape " + file:              `--n-vis: got "1.5"`,
		"--n-vis 8,17 --base grid --shape " + file: "--n-vis: got 17, want at most the picture's 16 tokens",
		"--base none --shape " + file:              `--base: got "none"`,
		"--base holo --shape " + file:              `--base: got "holo", want holov|`,
		"--patches 64 --shape " + file:             "--patches: has no use with this model, got 64: its pictures have one size",
		"--patches 63 --shape qwen2.5-vl-3b":       "--patches: got 63, want a multiple of 4",
		"--patches 3988 --shape qwen2.5-vl-3b":     "--patches: got 3988, want a number with closer factors (it makes a picture of 1994 x 2 patches)",
		"--repeat 0":                               "--repeat: out of range, got 0, want 1 to 1000",
		"--gen -1":                                 "--gen: out of range, got -1",
		"--text 0":                                 "--text: out of range, got 0",
		"--threads 0":                              "--threads: out of range, got 0",
		"kernel":                                   `unknown command, got "kernel", want kernels`,
	} {
		r := commandLine(append([]string{"bench"}, strings.Fields(flags)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) ||
			strings.Count(r.Err, "\n") != 2 {
			t.Errorf("%s: exit code %d, %q, want %q", flags, r.Code, r.Err, want)
		}
	}
	for config, want := range map[string]string{
		`{"architectures": ["GPT"]}`:                 `architectures: got ["GPT"]`,
		`{"vision_config": {"image_size": 1000000}}`: "image_size: got 1000000, want 1 to 4096",
		`{"vision_config": {"patch_size": -1}}`:      "patch_size: got -1",
		`[1]`:                                        "shape: ",
	} {
		r := commandLine("bench", "--shape", clitest.Written(t, "config.json", config))
		if r.Code != cli.ExitFailure || !strings.Contains(r.Err, want) ||
			strings.Count(r.Err, "\n") != 1 {
			t.Errorf("%s: exit code %d, %q, want %q", config, r.Code, r.Err, want)
		}
	}
}

// Ensure that the shapes are those of the published models: their configs are accepted, and bind as
// many numbers as the models have.
func TestShapesParse(t *testing.T) {
	for name, side := range map[string]int{
		"llava-1.5-7b": 336, "llava-1.5-13b": 336, "llava-next-7b": 672, "qwen2.5-vl-3b": 448, "qwen2.5-vl-7b": 448,
		"qwen2-vl-2b": 448, "qwen2-vl-7b": 448, "llava-onevision-0.5b": 1152, "llava-onevision-7b": 1152,
		"qwen3-vl-2b": 512, "qwen3-vl-4b": 512, "qwen3-vl-8b": 512,
		"internvl3-1b": 1344, "internvl3-2b": 1344, "internvl3-8b": 1344,
		"smolvlm-256m": 2048, "smolvlm-500m": 2048, "smolvlm2-2.2b": 1536,
		"gemma3-4b": 896, "gemma3-12b": 896, "gemma3-27b": 896,
		"pixtral-12b": 512, "mistral-small-3.1": 448,
	} {
		s, err := loadShape(name)
		if err != nil {
			t.Fatal(err)
		}
		pic, err := s.Picture(1024)
		if err != nil || pic.Width != side || pic.Height != side {
			t.Errorf("%s: %v, want a picture of %d", name, err, side)
		}
		if _, err := s.Processor(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all := restore.Shapes(); len(all) != 23 {
		t.Errorf("got %v, want those above", all)
	}
}

// Ensure that random weights have the variance that keeps the scale of activations, in every type,
// also with partial blocks, and that a name always gives the same weight and another name another.
func TestMadeWeights(t *testing.T) {
	w := newWeightMaker(nil)
	var memory kernel.Memory
	defer memory.Free()
	for _, d := range []tensor.DType{
		tensor.F32, tensor.F16, tensor.BF16, tensor.BF16Dot, tensor.Q8, tensor.Q4,
		tensor.Q12,
	} {
		for _, k := range []int{64, 588} {
			const n = 320
			m := nn.Weights(w.make(&memory, d.String()+string(rune('a'+k%26)), d, []int{n, k}), n,
				k)
			row, sum := make([]float32, k), 0.0
			for i := range n {
				m.Row(row, i)
				for _, v := range row {
					sum += float64(v) * float64(v)
				}
			}
			// of 1/k: rotation moves the padding of a row that does not fill its last block
			const tolerance = 0.12
			if got := sum / n; !(math.Abs(got-1) <= tolerance) {
				t.Errorf("%v [%d %d]: variance %v of 1/in", d, n, k, got)
			}
		}
	}
	a, b := w.make(&memory, "a.weight", tensor.F16, []int{32, 64}),
		w.make(&memory, "b.weight", tensor.F16, []int{32, 64})
	if w.make(&memory, "a.weight", tensor.F16, []int{32, 64}) != a ||
		string(a.Data) == string(b.Data) {
		t.Error("a weight was made twice, or two are the same")
	}
	norm, err := w.make(&memory, "norm.weight", tensor.F32, []int{64}).Float32s()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range norm {
		if !(v >= 0.9 && v <= 1.1) {
			t.Errorf("a norm's weight is %v, want about 1", v)
		}
	}
}

// Ensure that the peer produces the same number of tokens, in turns, and that ratios are its time
// divided by ours.
func TestBenchPeer(t *testing.T) {
	smallLimits(t)
	log := filepath.Join(t.TempDir(), "log")
	config := clitest.Written(t, "config.json", tinyLLaVA)
	peer := func(lines string) string {
		script := "#!/bin/sh\necho \"$@\" >> " + log + "\n" + lines
		path := clitest.Written(t, "peer.sh", script)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("no shell")
	}
	lines := "echo loading\n" +
		`echo '{"n_prompt": '$2', "n_gen": 0, "avg_ns": '$2'000000000}'` + "\n" +
		`echo '{"n_prompt": 0, "n_gen": '$4', "avg_ns": 4000000000}'` + "\n"
	args := []string{"--shape", config, "--base", "grid", "--n-vis", "16,8", "--quant", "q4",
		"--repeat", "3", "--threads", "1", "--peer"}
	got := benched(t, append(args, peer(lines)+" -p {prompt} -n {gen} -t {threads}")...)
	for i, prompt := range []float64{26, 18} {
		r := got.Rows[i]
		if r.Peer == nil || r.Peer.Decode == nil {
			t.Fatalf("row %d: %+v", i, r)
		}
		p := r.Peer
		close := func(a, b float64) bool { return math.Abs(a/b-1) < 1e-3 }
		if p.PrefillS != prompt || !close(p.Prefill.Median, prompt/r.PrefillS) ||
			p.DecodeTokS != 0.5 || !close(p.Decode.Median, r.DecodeTokS/0.5) ||
			p.Reduced.Median > 26/r.PrefillS*(1+1e-3) || // both are rounded
			p.Reduced.Least > p.Reduced.Most {
			t.Errorf("row %d: %+v, %+v", i, r, p)
		}
	}
	data, err := os.ReadFile(log)
	want := strings.Repeat("-p 26 -n 2 -t 1\n-p 18 -n 2 -t 1\n", 3)
	if err != nil || string(data) != want {
		t.Errorf("%v: asked\n%s\nwant\n%s", err, data, want)
	}
	for command, want := range map[string]string{
		"restore-no-such x {prompt}":    "restore-no-such",
		peer(lines):                     "want a command with {prompt}",
		peer("exit 3") + " {prompt}":    "exit status 3",
		peer("echo 1") + " -p {prompt}": `no line {"n_prompt": 26, "n_gen": 0`,
	} {
		r := commandLine(append(append([]string{"bench", "--text", "10"}, args...), command)...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Err, want) {
			t.Errorf("%q: %+v, want %q", command, r, want)
		}
	}
}
