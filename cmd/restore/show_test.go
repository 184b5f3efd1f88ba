package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that shapes have the published checkpoints' numbers of weights: for the LLaVAs without the
// tower's last norm, 2048 numbers that are never used; a tied head counts once.
func TestShowShape(t *testing.T) {
	for name, want := range map[string]struct {
		params int64
		tokens int
	}{
		"llava-1.5-7b": {7063427072 - 2048, 576}, "llava-next-7b": {7063427072 + 4096 - 2048, 2928},
		"qwen2.5-vl-3b": {3754622976, 576}, "qwen2.5-vl-7b": {8292166656, 576},
		"qwen2-vl-2b": {2208985600, 576}, "qwen2-vl-7b": {8291375616, 576},
	} {
		r := commandLine("show", "--shape", name, "--quant", "q4", "--n-vis", "0", "--json")
		var got shown
		if err := json.Unmarshal([]byte(r.Out), &got); r.Code != cli.ExitOK || err != nil {
			t.Fatalf("%s: exit code %d, errors %q, %v", name, r.Code, r.Err, err)
		}
		if got.Params != want.params || got.Bytes < 2*want.params || got.Memory == nil ||
			got.Memory.Kept != want.tokens {
			t.Errorf("%s: %d numbers in %d bytes, %+v, want %+v", name, got.Params, got.Bytes,
				got.Memory, want)
		}
		for _, q := range got.Quants {
			if q.Seconds == nil || !(q.Seconds.First > 0) || q.Weights < want.params/2 {
				t.Errorf("%s: %+v", name, q)
			}
		}
	}
	r := commandLine("show", "--shape", "qwen2.5-vl-3b", "--encoded", "144", "--json")
	var part, whole shown
	if err := json.Unmarshal([]byte(r.Out), &part); r.Code != cli.ExitOK || err != nil ||
		part.Memory.Tokens != 576 || part.Memory.Encoded != 144 || part.Memory.Kept != 64 {
		t.Errorf("a quarter encoded: exit code %d, %q, %v, %+v", r.Code, r.Err, err, part.Memory)
	}
	r = commandLine("show", "--shape", "qwen2.5-vl-3b", "--json")
	if err := json.Unmarshal([]byte(r.Out), &whole); err != nil ||
		!(part.Memory.Encoder < whole.Memory.Encoder) ||
		!(part.Quants[0].Seconds.Encode < 0.3*whole.Quants[0].Seconds.Encode) {
		t.Errorf("a quarter encoded: %+v, %v, all: %+v", part.Memory, err, whole.Memory)
	}
	r = commandLine("show", "--shape", "llava-1.5-7b")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "none, a shape alone") ||
		!strings.Contains(r.Out, "at --quant q4") || strings.Contains(r.Out, "Model card") ||
		strings.Contains(r.Out, "chat template") {
		t.Errorf("exit code %d, %s%s", r.Code, r.Out, r.Err)
	}
	r = commandLine("show", "--shape", "llava-1.5-7b", "--encoded", "64")
	if r.Code == cli.ExitOK || !strings.Contains(r.Err, "--encoded: got 64, want 0 or 576") {
		t.Errorf("an encoder that needs all patches: exit code %d, %q", r.Code, r.Err)
	}
	for args, want := range map[string]string{
		"-m x":              "--shape and --model: both given, got llava-1.5-7b and x",
		"--pull":            "--shape and --pull: both given",
		"--quant auto":      "--quant and --shape: got auto and llava-1.5-7b",
		"--shape llava-1.5": `--shape: got "llava-1.5", want llava-1.5-7b|`,
	} {
		r := commandLine(append([]string{"show", "--shape", "llava-1.5-7b"},
			strings.Fields(args)...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that a config.json of InternVL's authors has the shape of the same model in transformers'
// form, and that an error names the file's own keys.
func TestShowShapeOriginal(t *testing.T) {
	config := `{"architectures": ["InternVLChatModel"], "downsample_ratio": 0.5, "ps_version": "v2",
 "dynamic_image_size": true, "use_thumbnail": true, "template": "internvl2_5", "select_layer": -1,
 "min_dynamic_patch": 1, "max_dynamic_patch": 12, "llm_config": {
  "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
  "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rope_theta": 1000000.0, "vocab_size": 151674
 }, "vision_config": {
  "model_type": "intern_vit_6b", "hidden_act": "gelu", "hidden_size": 1024, "image_size": 448,
  "intermediate_size": 4096, "layer_norm_eps": 1e-06, "qk_normalization": false,
  "norm_type": "layer_norm", "num_attention_heads": 16, "num_hidden_layers": 24,
  "patch_size": 14, "qkv_bias": true
 }}`
	file := filepath.Join(t.TempDir(), "config.json")
	show := func(config, shape string) (r clitest.Result, got shown) {
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		r = commandLine("show", "--shape", shape, "--json")
		_ = json.Unmarshal([]byte(r.Out), &got)
		return r, got
	}
	_, want := show(config, "internvl3-1b")
	if r, got := show(config, file); r.Code != cli.ExitOK || got.Params != want.Params ||
		got.Params == 0 || got.Memory.Tokens != want.Memory.Tokens {
		t.Errorf("exit code %d, %q, %d numbers, want %d", r.Code, r.Err, got.Params, want.Params)
	}
	r, _ := show(strings.Replace(config, `"num_key_value_heads": 2`, `"num_key_value_heads": 3`, 1),
		file)
	if r.Code == cli.ExitOK || !strings.Contains(r.Err, `llm_config: "num_key_value_heads"`) {
		t.Errorf("exit code %d, %q", r.Code, r.Err)
	}
}

// Ensure that show says which type the encoder has, and why if the program chose it.
func TestShowEncoder(t *testing.T) {
	for want, e := range map[string]*restore.Encoder{
		"encoder weights: stored":                 {Type: "stored"},
		"encoder weights: q8, because it is fast": {Type: "q8", Why: "it is fast"},
		"": nil,
	} {
		var got string
		for _, row := range infoRows(&restore.Details{Encoder: e}) {
			if row[0] == "encoder weights" {
				got = strings.Join(row, ": ")
			}
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if r := commandLine("show", "--json"); !strings.Contains(r.Out, `"Encoder":{"type":"stored"}`) {
		t.Errorf("the embedded model's encoder: %s", r.Out)
	}
	r := commandLine("show", "--encoder-quant", "stored", "--json")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, `"Encoder":{"type":"stored"}`) {
		t.Errorf("as stored: %d, %s", r.Code, r.Err)
	}
}

// Ensure that show names the settings of generation that are not used.
func TestShowUnusedSettings(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.CopyFS(dir, os.DirFS("../../internal/engine/testdata/qwen25vl-tiny")); err != nil {
		t.Fatal(err)
	}
	for settings, want := range map[string]string{
		`{"eos_token_id":324,"do_sample":true,"repetition_penalty":1.05,"temperature":0.000001,"top_k":1}`: "not used: repetition_penalty 1.05, do_sample true, temperature 0.000001, top_k 1",
		`{"repetition_penalty":1.0,"suppress_tokens":[3,4],"bad_words_ids":null,"temperature":0.5}`:        "not used: suppress_tokens [3,4]",
		`{"do_sample":false,"suppress_tokens":[],"num_beams":1,"pad_token_id":2}`:                          "",
	} {
		file := filepath.Join(dir, "generation_config.json")
		if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
			t.Fatal(err)
		}
		shown := strings.Join(strings.Fields(commandLine("show", "-m", dir).Out), " ")
		_, got, _ := strings.Cut(shown, "generation settings ")
		if got, _, _ = strings.Cut(got, " kernel "); got != want {
			t.Errorf("%s: got %q, want %q", settings, got, want)
		}
	}
}

// Ensure that a setting of videos that is not supported refuses videos alone, by its name, and that
// show says so.
func TestVideoSettingRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	if err := os.CopyFS(dir, os.DirFS("../../internal/engine/testdata/qwen3vl-tiny")); err != nil {
		t.Fatal(err)
	}
	frames := []string{
		filepath.Join(dir, "qwen3vl-tiny-video-clip0-frame00-96x64.png"),
		filepath.Join(dir, "qwen3vl-tiny-video-clip0-frame01-96x64.png"),
	}
	ask := []string{"run", "-m", dir, "-p", "?", "-n", "1", "--base", "none"}
	video := slices.Concat(ask, []string{"--video-frames"}, frames)
	if r := commandLine(video...); r.Code != cli.ExitOK {
		t.Fatalf("as published: exit code %d, %q", r.Code, r.Err)
	}
	if r := commandLine("show", "-m", dir); !strings.Contains(r.Out, "Qwen3VLVideoProcessor\n") {
		t.Errorf("show: %s", r.Out)
	}
	file := filepath.Join(dir, "video_preprocessor_config.json")
	settings, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	settings = append([]byte(`{"num_frames":8,`), settings[1:]...)
	if err := os.WriteFile(file, settings, 0o644); err != nil {
		t.Fatal(err)
	}
	const want = "video_preprocessor_config.json: imageproc: video processor config: " +
		"num_frames: got 8, which is not supported, want null"
	if r := commandLine(video...); r.Code == cli.ExitOK || !strings.Contains(r.Err, want) {
		t.Errorf("a video: exit code %d, %q, want %q", r.Code, r.Err, want)
	}
	if r := commandLine(append(ask, "--image", frames[0])...); r.Code != cli.ExitOK {
		t.Errorf("a picture: exit code %d, %q", r.Code, r.Err)
	}
	r := commandLine("show", "-m", dir)
	shown := strings.Join(strings.Fields(r.Out), " ")
	if r.Code != cli.ExitOK || !strings.Contains(shown, "none, videos are refused: m: "+want) {
		t.Errorf("show: exit code %d, %q, %s, want %q", r.Code, r.Err, shown, want)
	}
}
