package gemma3

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/nn"
)

// Ensure that an unsupported config is refused with an error of one line that names the member.
func TestConfigRefused(t *testing.T) {
	const layers = `"num_hidden_layers": 34`
	with := func(member string) string { return member + `, ` + layers }
	for _, c := range []struct{ old, new, names string }{
		{`"gemma3_text"`, `"gemma2"`, `"gemma2"`},
		{`"siglip_vision_model"`, `"clip_vision_model"`, "model_type"},
		{`"mm_tokens_per_image": 256`, `"mm_tokens_per_image": 200`, "mm_tokens_per_image"},
		{`"mm_tokens_per_image": 256`, `"mm_tokens_per_image": 225`, "mm_tokens_per_image"},
		{`"image_token_index": 262144`, `"image_token_index": 262208`, "image_token_index"},
		{layers, with(`"attn_logit_softcapping": 50.0`), "attn_logit_softcapping"},
		{layers, with(`"final_logit_softcapping": 30.0`), "final_logit_softcapping"},
		{layers, with(`"use_bidirectional_attention": true`), "use_bidirectional_attention"},
		{layers, with(`"attention_bias": true`), "attention_bias"},
		{layers, with(`"hidden_activation": "silu"`), "hidden_activation"},
		{layers, with(`"num_attention_heads": 6`), "num_key_value_heads"},
		{layers, with(`"query_pre_attn_scalar": 0`), "query_pre_attn_scalar"},
		{layers, with(`"sliding_window_pattern": 0`), "sliding_window_pattern"},
		{layers, with(`"layer_types": ["full_attention"]`), "layer_types"},
		{layers, `"num_hidden_layers": 1, "layer_types": ["chunked_attention"]`, "layer_types"},
		{layers, with(`"rope_parameters": {"rope_theta": 1e6}`), "full_attention"},
		{layers, with(`"rope_parameters": {"full_attention": {}, "sliding_attention": ` +
			`{"rope_type": "linear", "factor": 2}}`), "rope_type"},
		{layers, with(`"rope_parameters": {"full_attention": {}, "sliding_attention": ` +
			`{"type": "linear", "factor": 2}}`), "sliding_attention"},
		{`"rope_type": "linear"`, `"type": "linear"`, "rope_type"},
		{`"linear"`, `"yarn"`, "rope_type"}, {`"factor": 8.0,`, ``, "factor"},
		{`"sliding_window": 1024`, `"sliding_window": null`, "sliding_window"},
	} {
		shape := string(Family.Shape("gemma3-4b"))
		data := strings.Replace(shape, c.old, c.new, 1)
		if data == shape {
			t.Fatalf("%s: nothing to change", c.old)
		}
		_, err := ParseConfig([]byte(data))
		if err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names %s", c.new, err, c.names)
		}
	}
}

// Ensure that the published configs and the defaults of absent members are read as in transformers
// 5.24.
func TestConfig(t *testing.T) {
	c, err := ParseConfig(Family.Shape("gemma3-4b"))
	if err != nil {
		t.Fatal(err)
	}
	text := &c.Text
	if c.Pool != 4 || c.side() != 16 || !c.Vision.LastNorm || text.Window != 1024 ||
		text.Scale != 1./16 || text.Theta != 1e6 || text.LocalTheta != 1e4 ||
		text.Stretch.Factor != 8 || text.EmbedScale != math.Sqrt(2560) ||
		!slices.Equal(c.Text.EOS, []int32{1, 106}) {
		t.Errorf("the published config: %+v", c)
	}
	for i, sliding := range text.Sliding {
		if sliding != (i%6 != 5) {
			t.Errorf("layer %d: window %v", i, sliding)
		}
	}
	if c, err = ParseConfig(Family.Shape("gemma3-27b")); err != nil ||
		c.Text.Scale != 1/math.Sqrt(168) || c.Text.HeadDim != 128 {
		t.Errorf("27B: %+v, %v", c, err)
	}
	const turned = `{"vision_config": {"image_size": 896, "patch_size": 14}, "text_config": ` +
		`{"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "rope_theta": 77.0}}, ` +
		`"tie_word_embeddings": false}`
	if c, err = ParseConfig([]byte(turned)); err != nil || c.Text.Theta != 77 || c.Text.Tied {
		t.Errorf("a base in rope_scaling, a head: %+v, %v", c, err)
	}
	const least = `{"vision_config": {"image_size": 896, "patch_size": 14}, "text_config": {}}`
	if c, err = ParseConfig([]byte(least)); err != nil {
		t.Fatal(err)
	}
	if text = &c.Text; text.Hidden != 2304 || text.Layers != 26 || text.Window != 4096 ||
		text.Stretch.Factor != 0 || c.ImageToken != 262144 || !text.Tied ||
		!slices.Equal(text.EOS, []int32{1}) {
		t.Errorf("without members: %+v", c)
	}
}

// Ensure that rope_scaling replaces the keys that it has in the rotation of layers without a
// window, as in transformers 5.24.
func TestRotations(t *testing.T) {
	for scaling, want := range map[string][2]float64{ // factor and base
		`null`: {2.5, 5e5}, `{}`: {2.5, 5e5}, `{"rope_type": "default"}`: {0, 5e5},
		`{"factor": 4.0}`:                           {4, 5e5},
		`{"rope_theta": 77.0}`:                      {2.5, 77},
		`{"rope_type": "linear", "rope_theta": 77}`: {2.5, 77},
	} {
		c, err := ParseConfig([]byte(`{"vision_config": {"image_size": 896, "patch_size": 14},
			"text_config": {"rope_theta": 1e3, "rope_scaling": ` + scaling + `,
			"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.5,
			"rope_theta": 5e5}, "sliding_attention": {"rope_type": "default"}}}}`))
		if err != nil || c.Text.Stretch.Factor != want[0] || c.Text.Theta != want[1] ||
			c.Text.LocalTheta != 1e4 {
			t.Errorf("%s: %+v, %v, want factor and base %v", scaling, c, err, want)
		}
	}
}

// Ensure that each cell has its patches, row by row, also of a picture that is no square.
func TestCells(t *testing.T) {
	got := (&Config{Pool: 2}).cells(2, 4)
	if len(got) != 2 || !slices.Equal(got[0].From, []int32{0, 1, 4, 5}) ||
		!slices.Equal(got[1].From, []int32{2, 3, 6, 7}) {
		t.Errorf("got %v", got)
	}
}

// Ensure that pixel values of another shape are refused.
func TestPictures(t *testing.T) {
	m := &Model{cfg: &Config{Pool: 2}, proj: &nn.Linear{Out: 8}}
	m.vision = &clip.Encoder{Config: clip.Config{ImageSide: 4, Patch: 2, SigLIP: true}}
	m.cfg.Vision = m.vision.Config
	for _, shape := range [][]int{{1, 3, 4}, {0, 3, 4, 4}, {1, 4, 4, 4}, {1, 3, 4, 6}} {
		got, err := m.Pictures(&imageproc.Pixels{Shape: shape})
		if err == nil || !strings.HasPrefix(err.Error(), "gemma3: pixel_values: ") {
			t.Errorf("%v: got %v, %v, want an error", shape, got, err)
		}
	}
	var pics []model.Picture
	pics, err := m.Pictures(&imageproc.Pixels{
		Shape: []int{2, 3, 4, 4}, Data: make([]float32, 2*3*4*4),
	})
	if err != nil || len(pics) != 2 {
		t.Errorf("%v, %v, want two pictures", pics, err)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that the cells of every accepted
// one cover its patches.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("gemma3-4b"))
	f.Add(Family.Shape("gemma3-27b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil || c.Vision.Grid() > 64 {
			return
		}
		n, cells := c.Vision.Grid(), c.cells(c.Vision.Grid(), c.Vision.Grid())
		if len(cells) != c.side()*c.side() || len(cells)*c.Pool*c.Pool != n*n {
			t.Fatalf("%d cells of %d patches along a side, %d along theirs", len(cells), n, c.Pool)
		}
	})
}
