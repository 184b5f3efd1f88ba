package llavanext

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model/clip"
)

// edit returns a config as on the hub with the given members: "a.b" is b in a.
func edit(t testing.TB, members map[string]string) []byte {
	t.Helper()
	c := map[string]any{
		"vision_config": map[string]any{"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 64, "image_size": 56, "patch_size": 14},
		"text_config": map[string]any{
			"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 100,
			"max_position_embeddings": 8192,
		},
		"image_token_index":    90,
		"image_grid_pinpoints": [][2]int{{56, 112}, {112, 56}},
	}
	for path, raw := range members {
		at := c
		key := path
		if group, name, ok := strings.Cut(path, "."); ok {
			at, key = c[group].(map[string]any), name
		}
		var v any
		if raw == "" {
			delete(at, key)
			continue
		}
		if err := json.Unmarshal([]byte(raw), &v); err != nil {
			t.Fatal(err)
		}
		at[key] = v
	}
	out, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Ensure that absent, null and given members mean the same as in transformers.
func TestConfigDefaults(t *testing.T) {
	for _, c := range []struct {
		members map[string]string
		window  int
		kv      int
	}{
		{nil, 4096, 8},
		{map[string]string{"text_config.sliding_window": "null"}, 0, 8},
		{map[string]string{"text_config.sliding_window": "1024", "text_config.num_key_value_heads": "2"}, 1024, 2},
		// not smaller than the context
		{map[string]string{"text_config.sliding_window": "8192"}, 0, 8},
		{map[string]string{"text_config.max_position_embeddings": "2048"}, 0, 8},
		{map[string]string{"text_config.num_attention_heads": "4", "text_config.num_key_value_heads": "null"}, 4096, 4},
		{map[string]string{"text_config.model_type": `"llama"`}, 0, 8},
		{map[string]string{"text_config.model_type": `"llama"`, "text_config.num_attention_heads": "16"}, 0, 16},
	} {
		got, err := ParseConfig(edit(t, c.members))
		if err != nil {
			t.Errorf("%v: %v", c.members, err)
			continue
		}
		if got.Text.Window != c.window || got.Text.KVHeads != c.kv {
			t.Errorf("%v: window %d and %d kv heads, want %d and %d", c.members, got.Text.Window,
				got.Text.KVHeads, c.window, c.kv)
		}
	}
	c, err := ParseConfig(edit(t, map[string]string{"image_grid_pinpoints": "",
		"vision_config.image_size": "336"}))
	if err != nil || len(c.Canvases) != 5 || c.Canvases[3] != [2]int{1008, 336} {
		t.Errorf("without image_grid_pinpoints: %v, %v", c, err)
	}
	c, err = ParseConfig(edit(t, map[string]string{"vision_config": "{}",
		"image_grid_pinpoints": "[[224,448]]"}))
	want := clip.Config{ // CLIPVisionConfig() of transformers 4.49, 4.57 and 5.24
		Hidden: 768, Heads: 12, Layers: 12, MLP: 3072, ImageSide: 224, Patch: 32, Eps: 1e-5,
		Act: "quick_gelu",
	}
	if err != nil || c.Vision != want {
		t.Errorf("empty vision_config: %+v, %v, want %+v", c, err, want)
	}
}

// Ensure that an unsupported config is refused with an error of one line that names the member and
// the value.
func TestConfigRefused(t *testing.T) {
	for _, c := range []struct{ path, value, names string }{
		{"image_grid_pinpoints", "[]", "image_grid_pinpoints"},
		{"image_grid_pinpoints", "[[56,100]]", "100"},
		{"image_grid_pinpoints", "[[56]]", "two numbers"},
		{"image_grid_pinpoints", `"336"`, "list of pairs"},
		{"image_grid_pinpoints", "[[0,56]]", "0"},
		{"image_grid_pinpoints", "[[57344,56]]", "tiles"},
		{"vision_feature_select_strategy", `"full"`, "full"},
		{"use_image_newline_parameter", "false", "use_image_newline_parameter"},
		{"text_config.sliding_window", "-1", "sliding_window"},
		{"text_config.model_type", `"gemma"`, "gemma"},
		{"text_config.num_key_value_heads", "3", "num_key_value_heads"},
		{"image_token_index", "100", "image_token_index"},
		{"image_grid_pinpoints", "[[56,1048577]]", "1048577"},
		{"text_config.eos_token_id", "[2,4294967298]", "4294967298"},
	} {
		_, err := ParseConfig(edit(t, map[string]string{c.path: c.value}))
		if err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: got %v, want one line that names %s", c.path, c.value, err, c.names)
		}
	}
}

// Ensure that a SigLIP tower is read with all of its patches, and refused where one would be taken
// for a class token, and from llama.cpp's files.
func TestSigLIP(t *testing.T) {
	siglip := map[string]string{
		"vision_config.model_type": `"siglip_vision_model"`, "vision_feature_layer": "[-3,-1]",
	}
	if _, err := ParseConfig(edit(t, siglip)); err == nil ||
		!strings.Contains(err.Error(), "want full") {
		t.Errorf("default strategy: got %v, want a refusal", err)
	}
	siglip["vision_feature_select_strategy"] = `"full"`
	c, err := ParseConfig(edit(t, siglip))
	if err != nil || !c.Vision.SigLIP || c.Full || !slices.Equal(c.Features, []int{1, 3}) {
		t.Errorf("got %+v, %v", c, err)
	}
	err = convert(&checkpoint.Converted{Vision: map[string]any{"model_type": clip.SigLIPType}})
	if !errors.Is(err, errs.ErrUnsupported) {
		t.Errorf("llama.cpp: got %v, want a refusal", err)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that every picture can be packed
// under an accepted config.
func FuzzConfig(f *testing.F) {
	f.Add(edit(f, nil), uint16(97), uint16(131))
	f.Add(edit(f, map[string]string{"image_grid_pinpoints": "[[56,56]]"}), uint16(1), uint16(65535))
	if data, err := os.ReadFile(
		"../../engine/testdata/llavanext-mistral-tiny/config.json"); err == nil {
		f.Add(data, uint16(3), uint16(300))
	}
	f.Fuzz(func(t *testing.T, data []byte, h, w uint16) {
		c, err := ParseConfig(data)
		if err != nil || h == 0 || w == 0 || c.Vision.Grid() > 64 {
			return
		}
		checkLayout(t, c, pack(c, c.Map(int(h), int(w))), c.Map(int(h), int(w)))
	})
}
