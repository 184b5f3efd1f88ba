package internvl

import (
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
	for _, c := range []struct{ old, new, names string }{
		{`"qwen2"`, `"gpt_oss"`, `"gpt_oss"`}, {`"qwen2"`, `"qwen3_moe"`, `"qwen3_moe"`},
		{`"qwen2"`, `"internlm2"`, `"internlm2"`},
		{`"internvl_vision"`, `"clip_vision_model"`, "model_type"},
		{`0.5`, `0.3`, "downsample_ratio"}, {`0.5`, `2`, "downsample_ratio"},
		{`0.5`, `0.125`, "downsample_ratio"}, // 32 patches along a side, but 31 below
		{`"default"`, `"full"`, "vision_feature_select_strategy"},
		{`"vision_feature_layer": -1`, `"vision_feature_layer": [-1]`, "vision_feature_layer"},
		{`"vision_feature_layer": -1`, `"vision_feature_layer": 25`, "vision_feature_layer"},
		{`"projector_hidden_act": "gelu"`, `"projector_hidden_act": "silu"`, "projector_hidden_act"},
		{`151667`, `151674`, "image_token_id"}, {`[448, 448]`, `[448, 224]`, "image_size"},
		{`[448, 448]`, `449`, "image_size"}, {`[448, 448]`, `[448]x`, "config.json"},
		{`[14, 14]`, `[14, 28]`, "patch_size"}, {`[14, 14]`, `0`, "patch_size"},
		{`"layer_norm"`, `"batch_norm"`, "norm_type"},
		{`"use_qk_norm"`, `"use_mean_pooling": false, "use_qk_norm"`, "use_mean_pooling"},
		{`"use_qk_norm"`, `"use_absolute_position_embeddings": false, "use_qk_norm"`, "use_absolute_position_embeddings"},
		{`"num_attention_heads": 16`, `"num_attention_heads": 7`, "num_attention_heads"},
		{`"vocab_size"`, `"use_sliding_window": true, "vocab_size"`, "use_sliding_window"},
		{`"rope_type": "dynamic", "type": "dynamic"`, `"rope_type": "su"`, "rope_type"},
		{`"qwen2"`, `"qwen3", "attention_bias": true`, "attention_bias"},
	} {
		data := strings.Replace(string(Family.Shape("internvl3-1b")), c.old, c.new, 1)
		if c.new == `0.125` {
			data = strings.Replace(data, "[448, 448]", "434", 1)
		}
		_, err := ParseConfig([]byte(data))
		if err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names %s", c.new, err, c.names)
		}
	}
}

// Ensure that the published config and the defaults of absent members are read as in transformers
// 5.24.
func TestConfig(t *testing.T) {
	c, err := ParseConfig(Family.Shape("internvl3-1b"))
	if err != nil {
		t.Fatal(err)
	}
	if v := &c.Vision; c.tokens() != 256 || c.width() != 4096 || c.Feature != 24 || v.NoBias ||
		v.RMS || v.QKNorm || v.Eps != 1e-6 || c.Text.Theta != 1e6 || !c.Text.Bias {
		t.Errorf("the published config: %+v", c)
	}
	const least = `{"vision_config": {}, "text_config": {"model_type": "qwen3"}}`
	if c, err = ParseConfig([]byte(least)); err != nil {
		t.Fatal(err)
	}
	if v, text := &c.Vision, &c.Text; !v.NoBias || v.Hidden != 1024 || v.Grid() != 32 ||
		c.Merge != 2 || c.ImageToken != 151667 || text.HeadDim != 128 || !text.HeadNorm ||
		text.Bias || text.Vocab != 151936 {
		t.Errorf("without members: %+v", c)
	}
}

// Ensure that a head is tied as transformers 5.24 ties it, by what config.json says on top and of
// the decoder, and whether the file has one.
func TestTied(t *testing.T) {
	for _, c := range []struct {
		top, text  string
		head, want bool
	}{
		{"", "", true, false}, {"", "", false, true}, {"true", "", true, false},
		{"true", "false", false, true}, {"false", "", true, false}, {"false", "", false, false},
		{"", "false", false, true}, {"false", "true", false, true}, // as 4.52 reads it
	} {
		said := func(v string) string {
			if v == "" {
				return ""
			}
			return `, "tie_word_embeddings": ` + v
		}
		got, err := ParseConfig([]byte(`{"vision_config": {}, "text_config": {"vocab_size": ` +
			`160000` + said(c.text) + `}` + said(c.top) + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got.Text.Tie(c.head); got.Text.Tied != c.want {
			t.Errorf("%+v: tied %v", c, got.Text.Tied)
		}
	}
}

// Ensure that the layout of a picture in tiles has every cell once, tiles before the whole, and in
// All in reading order.
func TestLayout(t *testing.T) {
	v := layout(2, 3, 2)
	if v.Count != 7 || v.Padded() || !slices.Equal(v.Source[:5], []int32{4, 5, 6, 7, 8}) ||
		!slices.Equal(v.Source[24:], []int32{0, 1, 2, 3}) ||
		!slices.Equal(v.All[:12], []int32{0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 6, 7}) {
		t.Errorf("%+v", v)
	}
	seen := slices.Sorted(slices.Values(v.All))
	if !slices.Equal(seen, slices.Sorted(slices.Values(v.Source))) || len(seen) != 28 {
		t.Errorf("%v", seen)
	}
	if got := cells(2, 4, 2); !slices.Equal(got, []int32{0, 0, 0, 0, 1, 2, 5, 6, 3, 4, 7, 8}) {
		t.Errorf("cells: %v", got)
	}
}

// Ensure that pixel values that do not fit the canvases are refused.
func TestPictures(t *testing.T) {
	c, err := ParseConfig([]byte(`{"vision_config": {"image_size": 4, "patch_size": 2}, ` +
		`"text_config": {"vocab_size": 160000}}`))
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{cfg: c, vision: &clip.Encoder{Config: c.Vision}, w2: &nn.Linear{Out: 8}}
	px := func(n, side int, canvases ...[2]int) *imageproc.Pixels {
		return &imageproc.Pixels{Shape: []int{n, 3, side, side},
			Data: make([]float32, n*3*side*side), CanvasSizes: canvases}
	}
	for name, p := range map[string]*imageproc.Pixels{
		"side": px(1, 5), "views": px(3, 4, [2]int{4, 4}), "few": px(2, 4, [2]int{4, 8}),
		"part": px(3, 4, [2]int{4, 7}), "negative": px(3, 4, [2]int{-4, 8}),
		"huge": px(3, 4, [2]int{1 << 30, 4}), "none": {Shape: []int{1, 3, 4}},
	} {
		if got, err := m.Pictures(p); err == nil || !strings.HasPrefix(err.Error(), "internvl: ") {
			t.Errorf("%s: got %v, %v, want an error", name, got, err)
		}
	}
	var pics []model.Picture
	if pics, err = m.Pictures(px(4, 4, [2]int{4, 8}, [2]int{4, 4})); err != nil ||
		len(pics) != 2 || pics[0].Shape().N != 3 || pics[1].Shape().Views != nil {
		t.Errorf("%v, %v, want a picture of 3 tokens and one of 1", pics, err)
	}
	if pics, err = m.Pictures(px(2, 4)); err != nil || len(pics) != 2 {
		t.Errorf("%v, %v, want two pictures", pics, err)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that the views of every accepted
// one can be laid out.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("internvl3-1b"), uint8(3), uint8(4))
	f.Add([]byte(`{"vision_config": {"image_size": 8, "patch_size": 4}, "downsample_ratio": 1,`+
		`"text_config": {"model_type": "llama"}}`), uint8(1), uint8(2))
	f.Fuzz(func(t *testing.T, data []byte, rows, cols uint8) {
		c, err := ParseConfig(data)
		if err != nil || c.Vision.Grid() > 64 || rows == 0 || cols == 0 || rows > 4 || cols > 4 {
			return
		}
		v := layout(int(rows), int(cols), c.side())
		order := cells(c.Vision.Grid(), c.Vision.Grid(), c.Merge)
		if len(v.Source) != len(v.All) || len(v.Source) != v.Count*c.tokens() ||
			len(order) != c.cell()*(1+c.tokens()) || c.side() < 1 {
			t.Fatalf("%+v: %d and %d cells, %d rows", c, len(v.Source), len(v.All), len(order))
		}
	})
}
