package internvl

import (
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Config is an InternVL config.json.
type Config struct {
	Vision     clip.Config
	Text       llama.Config
	Merge      int // patches along a cell's side, which become one token
	Feature    int // encoder state that enters the projector: 0 the embedding, k block k−1
	ImageToken int32
}

// ParseConfig reads config.json. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{
		Vision:     clip.ParseIntern(v.Object("vision_config", true)),
		Merge:      merge(v),
		ImageToken: int32(v.Int("image_token_id", 151667, 0, 1<<30)),
	}
	c.readText(v)
	if int(c.ImageToken) >= c.Text.Vocab {
		v.Fail("image_token_id", "got %d, want an id below vocab_size %d", c.ImageToken,
			c.Text.Vocab)
	}
	layers := c.Vision.Layers
	c.Feature = layers // -1
	if v.Has("vision_feature_layer") {
		c.Feature = v.Int("vision_feature_layer", 0, -layers-1, layers)
	}
	if c.Feature < 0 {
		c.Feature += layers + 1
	}
	if grid := c.Vision.Grid(); grid%c.Merge != 0 {
		v.Fail("downsample_ratio", "got 1/%d, which does not divide a view of %d by %d patches",
			c.Merge, grid, grid)
	}
	v.Unsupported(map[string]string{"vision_feature_select_strategy": `"default"`})
	v.String("projector_hidden_act", "gelu", "gelu")
	return c
})

// merge reads how many patches along a side become one token.
func merge(v *model.Values) int {
	const key = "downsample_ratio"
	ratio := v.Float(key, 0.5)
	for n := 1; n <= 8; n *= 2 {
		if ratio*float64(n) == 1 {
			return n
		}
	}
	v.Fail(key, "got %v, want 1, 0.5, 0.25 or 0.125", ratio)
	return 1
}

// readText reads the decoder's sizes.
func (c *Config) readText(v *model.Values) {
	c.Text = llama.ParseText(v, "qwen2")
	c.Text.ReadDenied(v)
}

// cell returns the number of patches in a cell.
func (c *Config) cell() int { return c.Merge * c.Merge }

// side returns the number of cells along a view's side.
func (c *Config) side() int { return c.Vision.Grid() / c.Merge }

// tokens returns the number of visual tokens of a view.
func (c *Config) tokens() int { return c.side() * c.side() }

// width returns the width of a cell's features.
func (c *Config) width() int { return c.Vision.Hidden * c.cell() }
