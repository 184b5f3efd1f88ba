package qwen3vl

import (
	"math"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Config is a Qwen3-VL config.json.
type Config struct {
	Vision VisionConfig
	Text   llama.Config
	Tokens cells.Tokens
}

// VisionConfig holds the encoder's sizes.
type VisionConfig struct {
	cells.Tower
	Table int   // learned positions along a side
	Deep  []int // blocks whose output the decoder reads too, by merger
}

// ParseConfig reads config.json. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{
		Vision: parseVision(v.Object("vision_config", true)),
		Text:   parseText(v),
		Tokens: cells.Tokens{
			Image:  int32(v.Int("image_token_id", 151655, 0, 1<<30)),
			Video:  int32(v.Int("video_token_id", 151656, 0, 1<<30)),
			Before: int32(v.Int("vision_start_token_id", 151652, 0, 1<<30)),
			After:  int32(v.Int("vision_end_token_id", 151653, 0, 1<<30)),
		},
	}
	c.Text.Deep = len(c.Vision.Deep)
	c.Tokens.Check(v, c.Text.Vocab)
	if c.Text.Deep > c.Text.Layers {
		v.Fail("deepstack_visual_indexes", "got %d, want at most the decoder's %d layers",
			c.Text.Deep, c.Text.Layers)
	}
	if c.Vision.Out != c.Text.Hidden {
		v.Fail("out_hidden_size", "got %d, want the decoder's hidden_size %d", c.Vision.Out,
			c.Text.Hidden)
	}
	return c
})

// parseText reads the text_config object of v. A tied head is said in it, which transformers 4.57
// reads, or in v, which 5.x reads.
func parseText(v *model.Values) llama.Config {
	text := v.Object("text_config", true)
	const kind = "qwen3_vl_text"
	c := llama.Parse(text, text.String("model_type", kind, kind))
	onTop := v.Bool("tie_word_embeddings", false)
	c.Tied = c.Tied || onTop
	c.Ends(v)
	return c
}

// parseVision reads a vision_config object. Absent keys take the defaults of transformers'
// Qwen3VLVisionConfig.
func parseVision(v *model.Values) VisionConfig {
	c := VisionConfig{Tower: cells.Tower{
		Hidden: v.Int("hidden_size", 1152, 1, 1<<16),
		Heads:  v.Int("num_heads", 16, 1, 1<<10),
		Layers: v.Int("depth", 27, 1, 1<<10),
		MLP:    v.Int("intermediate_size", 4304, 1, 1<<18),
		Out:    v.Int("out_hidden_size", 3584, 1, 1<<16),
		Patch:  v.Int("patch_size", 16, 1, 512),
		Frames: v.Int("temporal_patch_size", 2, 1, 16),
		Merge:  v.Int("spatial_merge_size", 2, 1, 16),
		Theta:  cells.Theta(v),
	}}
	c.Deep = v.Ints("deepstack_visual_indexes", []int{8, 16, 24})
	n := v.Int("num_position_embeddings", 2304, 1, 1<<20)
	if c.Table = int(math.Sqrt(float64(n))); c.Table*c.Table != n {
		v.Fail("num_position_embeddings", "got %d, want a square number", n)
	}
	v.String("hidden_act", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
	v.Unsupported(map[string]string{"in_channels": "3"})
	v.String("model_type", "qwen3_vl", "qwen3_vl", "qwen3_vl_vision")
	c.CheckHeads(v, "num_heads", "hidden_size")
	seen := map[int]bool{}
	for _, i := range c.Deep {
		if i < 0 || i >= c.Layers || seen[i] {
			v.Fail("deepstack_visual_indexes", "got %d, want different ones of 0 to %d (depth %d)",
				i, c.Layers-1, c.Layers)
		}
		seen[i] = true
	}
	return c
}
