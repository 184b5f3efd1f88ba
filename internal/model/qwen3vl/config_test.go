package qwen3vl

import (
	"strings"
	"testing"
)

// Ensure that published configs are read, and that absent keys have the reference's defaults.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name                 string
		hidden, heads, depth int
		tied                 bool
	}{
		{"qwen3-vl-2b", 2048, 16, 24, true}, {"qwen3-vl-4b", 2560, 32, 24, true},
		{"qwen3-vl-8b", 4096, 32, 27, false},
	} {
		got, err := ParseConfig(Family.Shape(c.name))
		if err != nil {
			t.Fatal(err)
		}
		if got.Text.Hidden != c.hidden || got.Text.Heads != c.heads || got.Text.HeadDim != 128 ||
			got.Text.Tied != c.tied || got.Text.Deep != 3 || got.Vision.Layers != c.depth ||
			got.Vision.Table != 48 || got.Text.Theta != 5e6 {
			t.Errorf("%+v", got)
		}
	}
	const least = `{"text_config":{"hidden_size":3584,"rope_theta":5e6},"vision_config":{}}`
	c, err := ParseConfig([]byte(least))
	if err != nil || c.Vision.Deep[2] != 24 || c.Text.HeadDim != 128 || c.Tokens.Image != 151655 ||
		c.Vision.Theta != 1e4 || c.Text.Tied {
		t.Errorf("defaults: %+v, %v", c, err)
	}
	for _, object := range []string{`{"hidden_size"`, `{"text_config"`} {
		tied := strings.Replace(least, object, `{"tie_word_embeddings":true,`+object[1:], 1)
		if c, err := ParseConfig([]byte(tied)); err != nil || !c.Text.Tied {
			t.Errorf("%s: %+v, %v, want a tied head", tied, c, err)
		}
	}
	// a small vocabulary lacks the default video_token_id
	c, err = ParseConfig([]byte(strings.Replace(least, `{"text_config":{`,
		`{"image_token_id":90,"text_config":{"vocab_size":100,`, 1)))
	if err != nil || c.Tokens.Video != -1 || c.Tokens.Image != 90 {
		t.Errorf("%+v, %v, want no videos", c, err)
	}
	// no rows of middle blocks, and another rotation of the tower
	c, err = ParseConfig([]byte(strings.Replace(least, `"vision_config":{`, `"vision_config":{`+
		`"deepstack_visual_indexes":[],"rope_parameters":{"rope_type":"axial","rope_theta":500}`,
		1)))
	if err != nil || c.Text.Deep != 0 || c.Vision.Theta != 500 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Ensure that an unsupported config is refused with an error of one line that names the member.
func TestConfigRefused(t *testing.T) {
	for _, c := range []struct{ old, new, names string }{
		{`"mrope_interleaved": true`, `"mrope_interleaved": false`, "mrope_interleaved"},
		{`"rope_type": "default"`, `"rope_type": "yarn"`, "rope_type"},
		{`"rope_scaling"`, `"rope_parameters": {"rope_theta": 5e6}, "rope_scaling": {"type": "linear"}, "x"`, "type"},
		{" 24,\n", " -1,\n", "mrope_section"}, {" 24,\n", "", "mrope_section"},
		{`"rope_theta"`, `"theta"`, "rope_theta"},
		{`"qwen3_vl_text"`, `"qwen3_text"`, "model_type"},
		{`"deepstack_visual_indexes"`, `"rope_parameters": {"rope_type": "yarn"}, "deepstack_visual_indexes"`, "rope_type"},
		{`"head_dim": 128`, `"head_dim": 127`, "head_dim"},
		{`"num_position_embeddings": 2304`, `"num_position_embeddings": 2305`, "num_position_embeddings"},
		{`"out_hidden_size": 2048`, `"out_hidden_size": 2049`, "out_hidden_size"},
		{"  5,\n", "  24,\n", "deepstack_visual_indexes"},
		{"  5,\n", "  11,\n", "deepstack_visual_indexes"},
		{`151656`, `151655`, "video_token_id"},
		{`151655`, `151936`, "image_token_id"},
		{`"num_heads": 16`, `"num_heads": 512`, "num_heads"},
		{`"num_key_value_heads": 8`, `"num_key_value_heads": 3`, "num_key_value_heads"},
	} {
		shape := string(Family.Shape("qwen3-vl-2b"))
		data := strings.Replace(shape, c.old, c.new, 1)
		_, err := ParseConfig([]byte(data))
		if data == shape || err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names %s", c.new, err, c.names)
		}
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that an accepted one fits itself.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("qwen3-vl-2b"))
	f.Add([]byte(`{"text_config":{"hidden_size":3584,"rope_theta":5e6},"vision_config":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		if c.Vision.Hidden%c.Vision.Heads != 0 || len(c.Text.Sections) != 3 ||
			c.Text.Heads%c.Text.KVHeads != 0 || c.Text.Deep > c.Text.Layers {
			t.Fatalf("accepted %+v", c)
		}
	})
}
