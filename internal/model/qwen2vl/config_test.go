package qwen2vl

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// Ensure that the class of pictures that mlx-vlm writes, which keeps the limits under other names,
// is Qwen2-VL's.
func TestMLXProcessor(t *testing.T) {
	const settings = `"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,`
	var made []imageproc.Processor
	for _, config := range []string{
		`{"image_processor_type": "Qwen3VLImageProcessor",` + settings + `
			"min_pixels": 3136, "max_pixels": 1003520, "do_rescale": true,
			"rescale_factor": 0.00392156862745098, "do_normalize": true,
			"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_convert_rgb": true}`,
		`{"image_processor_type": "Qwen2VLImageProcessorFast",` + settings + `
			"size": {"shortest_edge": 3136, "longest_edge": 1003520},
			"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}`,
	} {
		p, err := imageproc.ParseProcessor([]byte(config), Processors)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, p)
	}
	if !reflect.DeepEqual(made[0], made[1]) {
		t.Errorf("got %+v, want %+v", made[0], made[1])
	}
}

// Ensure that keys that change the result are read or refused by name, and that absent keys have
// transformers' defaults.
func TestConfig(t *testing.T) {
	data, err := os.ReadFile("../../engine/testdata/qwen2vl-tiny/config.json")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(from, to string) (*Config, error) {
		if !strings.Contains(string(data), from) {
			t.Fatalf("config.json has no %s", from)
		}
		return ParseConfig([]byte(strings.Replace(string(data), from, to, 1)))
	}
	for from, c := range map[string]struct{ to, names string }{
		`"mlp_ratio": 4`:             {`"mlp_ratio": 1e300`, "mlp_ratio"},
		`"mlp_ratio": 4,`:            {`"mlp_ratio": 0.01,`, "mlp_ratio"},
		`"embed_dim": 32`:            {`"embed_dim": 33`, "num_heads"},
		`"num_heads": 2`:             {`"num_heads": 16`, "multiple of 4"},
		`"in_chans": 3`:              {`"in_channels": 1`, "in_channels"},
		`"in_chans": 3,`:             {`"hidden_act": "silu",`, "hidden_act"},
		`"depth": 3`:                 {`"depth": 0`, "depth"},
		`"depth": 3,`:                {`"depth": 3, "num_hidden_layers": 2,`, "num_hidden_layers"},
		`"num_heads": 2,`:            {`"num_heads": 2, "num_attention_heads": 4,`, "num_attention_heads"},
		`"patch_size": 14`:           {`"patch_size": [14, 14]`, "patch_size"},
		`"spatial_merge_size": 2`:    {`"spatial_merge_size": 0`, "spatial_merge_size"},
		`"temporal_patch_size": 2`:   {`"temporal_patch_size": 0`, "temporal_patch_size"},
		`"image_token_id": 280`:      {`"image_token_id": 302`, "image_token_id"},
		`"image_token_id": 280,`:     {``, "image_token_id"},
		`"type": "mrope"`:            {`"type": "yarn"`, "yarn"},
		`"use_sliding_window": fals`: {`"use_sliding_window": true, "x": fals`, "use_sliding_window"},
		`"hidden_act": "silu"`:       {`"hidden_act": "gelu"`, "hidden_act"},
	} {
		if _, err := parse(from, c.to); err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names %q", c.to, err, c.names)
		}
	}
	c, err := ParseConfig([]byte(`{"image_token_id":5,"rope_scaling":{"mrope_section":[16,24,24]},` +
		`"hidden_size":3584,"num_attention_heads":28,"num_key_value_heads":4,` +
		`"vision_config":{"mlp_ratio":2.5,"rope_theta":50}}`))
	if err != nil {
		t.Fatal(err)
	}
	if v := c.Vision; v.Hidden != 1280 || v.MLP != 3200 || v.Heads != 16 || v.Layers != 32 ||
		v.Out != 3584 || v.Patch != 14 || v.Frames != 2 || v.Merge != 2 || v.Theta != 50 ||
		c.Text.Eps != 1e-5 {
		t.Errorf("got %+v", c)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that heads of an accepted config
// divide evenly.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{
		"qwen2vl-tiny/config.json", "qwen2vl-tied-tiny/config.json", "qwen2vl-tiny/config-5.x.ref",
	} {
		data, err := os.ReadFile("../../engine/testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		if c.Vision.Hidden%c.Vision.Heads != 0 || c.Vision.MLP < 1 ||
			c.Text.Heads%c.Text.KVHeads != 0 {
			t.Fatalf("accepted %+v", c)
		}
	})
}
