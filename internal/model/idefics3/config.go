package idefics3

import (
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Config is a config.json of Idefics3 or SmolVLM.
type Config struct {
	Vision     clip.Config
	Text       llama.Config
	ImageToken int32
	Scale      int // patches along the side of a cell, which is one token
}

// ParseConfig reads config.json; every problem is in the error.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{
		Vision:     clip.ParseIdefics3(v.Object("vision_config", true)),
		ImageToken: int32(v.Int("image_token_id", 128257, 0, 1<<30)),
		Scale:      v.Int("scale_factor", 2, 1, 16),
		Text:       parseText(v),
	}
	if int(c.ImageToken) >= c.Text.Vocab {
		v.Fail("image_token_id", "got %d, want an id below vocab_size %d", c.ImageToken,
			c.Text.Vocab)
	}
	if side := c.Vision.Grid(); side%c.Scale != 0 {
		v.Fail("scale_factor", "got %d, which does not divide the %d patches along a side "+
			"(image_size / patch_size)", c.Scale, side)
	}
	return c
})

// parseText reads the decoder's part. Whether the head is tied is said in v alone; text_config's
// own key has no effect in transformers 5.
func parseText(v *model.Values) llama.Config {
	c := llama.ParseText(v, "llama")
	c.Tied = v.Bool("tie_word_embeddings", false)
	return c
}

// side returns the number of tokens along the side of a tile.
func (c *Config) side() int { return c.Vision.Grid() / c.Scale }
