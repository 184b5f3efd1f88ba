package pixtral

import (
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Config is a config.json.
type Config struct {
	Vision     cells.Tower // its Out is the width of the projector's input
	Act        string      // of the tower's blocks: silu or gelu
	Text       llama.Config
	Bias       bool // of the projector
	ImageToken int32
}

// ParseConfig reads a config.json of LLaVA's class. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{Text: llava.ReadText(v, "llama")}
	c.read(v, 1, true, 32000, -2)
	if v.String("vision_feature_select_strategy", "default", "default", "full") != "full" {
		v.Fail("vision_feature_select_strategy", "got \"default\" (also when absent), which takes "+
			"the tower's first patch for a class token, want \"full\"")
	}
	return c
})

// ParseMistral3 reads a config.json of Mistral Small 3.1 or Ministral 3. The error lists every
// problem.
var ParseMistral3 = model.Parser(func(v *model.Values) *Config {
	c := &Config{Text: llava.ReadText(v, "mistral")}
	c.Text.ReadDenied(v)
	c.read(v, v.Int("spatial_merge_size", 2, 1, 16), false, 10, -1)
	return c
})

// read reads what both classes have, over their own defaults.
func (c *Config) read(v *model.Values, merge int, bias bool, token, layer int) {
	vision := v.Object("vision_config", true)
	c.Vision, c.Act = parseVision(vision), vision.String("hidden_act", "gelu",
		append([]string{"gelu"}, llama.SiLU...)...)
	c.Vision.Merge = merge
	c.Bias = v.Bool("multimodal_projector_bias", bias)
	v.String("projector_hidden_act", "gelu", "gelu")
	if states := v.EncoderStates(c.Vision.Layers, layer); len(states) != 1 ||
		states[0] != c.Vision.Layers {
		v.Fail("vision_feature_layer", "got states %v of 0 to %d, which are not supported, want "+
			"the last alone (-1; %d when absent)", states, c.Vision.Layers, layer)
	}
	c.ImageToken = v.ImageToken(token, 0, c.Text.Vocab)
}

// parseVision reads a vision_config object. Absent keys take the defaults of transformers'
// PixtralVisionConfig. Positions have no limit, so image_size has no effect.
func parseVision(v *model.Values) cells.Tower {
	v.String("model_type", towerType, towerType)
	c := cells.Tower{
		Hidden: v.Int("hidden_size", 1024, 1, 1<<16),
		Heads:  v.Int("num_attention_heads", 16, 1, 1<<10),
		Layers: v.Int("num_hidden_layers", 24, 1, 1<<10),
		MLP:    v.Int("intermediate_size", 4096, 1, 1<<18),
		Patch:  v.Int("patch_size", 16, 1, 512),
		Frames: 1,
		Theta:  cells.Theta(v),
	}
	c.Out = c.Hidden
	v.Unsupported(map[string]string{"num_channels": "3"})
	c.CheckHeads(v, "num_attention_heads", "hidden_size")
	if dim := c.Hidden / c.Heads; v.Int("head_dim", dim, 1, 1<<16) != dim {
		v.Fail("head_dim", "want hidden_size/num_attention_heads %d", dim)
	}
	return c
}
