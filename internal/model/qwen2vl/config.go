package qwen2vl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Decoder is what a config.json says of the decoder and of the tokens that stand for pictures.
type Decoder struct {
	Text   llama.Config
	Tokens cells.Tokens

	onTop bool // the top level says that the head is tied
}

// Tie decides whether the head is the embedding: a model without a head, for which text_config
// denies it, is as the top level says, which transformers 5.24 also reads.
func (d *Decoder) Tie(head bool) { d.Text.Tied = d.Text.Tied || d.onTop && !head }

// parseText reads the decoder's sizes from a config.json in the older form (text keys at the top)
// or in the form of transformers 4.52 and later (text_config).
func parseText(v *model.Values) llama.Config {
	text := v
	if v.Has("text_config") {
		text = v.Object("text_config", true)
	} else if !v.Has("hidden_size") {
		v.Fail("text_config", "missing, want an object (or its keys at the top, as in older files)")
	}
	c := llama.Parse(text, "qwen2_vl_text")
	if !text.Has("tie_word_embeddings") {
		c.Tied = v.Bool("tie_word_embeddings", false)
	}
	c.Ends(v)
	return c
}

// ParseDecoder reads what a config.json says of the decoder.
func ParseDecoder(v *model.Values) Decoder {
	d := Decoder{
		Text: parseText(v),
		Tokens: cells.Tokens{
			Image:  int32(v.Int("image_token_id", -1, 0, 1<<30)),
			Video:  -1,
			Before: int32(v.Int("vision_start_token_id", 151652, 0, 1<<30)),
			After:  int32(v.Int("vision_end_token_id", 151653, 0, 1<<30)),
		},
		onTop: v.Bool("tie_word_embeddings", false),
	}
	if v.Has("video_token_id") {
		d.Tokens.Video = int32(v.Int("video_token_id", -1, 0, 1<<30))
	}
	d.Tokens.Check(v, d.Text.Vocab)
	return d
}

// CheckWidth returns an error unless the tower's rows have the decoder's width, out. name is the
// model's, and key the width's name in vision_config.
func (d *Decoder) CheckWidth(name, key string, out int) error {
	if out == d.Text.Hidden {
		return nil
	}
	return fmt.Errorf("%s: config.json: vision_config: %s: got %d, want the decoder's hidden_size "+
		"%d", name, key, out, d.Text.Hidden)
}

// Config is a Qwen2-VL config.json.
type Config struct {
	Vision cells.Tower
	Decoder
}

// ParseConfig reads config.json. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{
		Vision: parseVision(v.Object("vision_config", true)), Decoder: ParseDecoder(v),
	}
	return c
})

// parseVision reads a vision_config object. Absent keys take the defaults of transformers'
// Qwen2VLVisionConfig.
func parseVision(v *model.Values) cells.Tower {
	c := cells.Tower{
		Hidden: v.Int("embed_dim", 1280, 1, 1<<16),
		Heads:  v.Int("num_heads", 16, 1, 1<<10),
		Layers: v.Int("depth", 32, 1, 1<<10),
		Out:    v.Int("hidden_size", 3584, 1, 1<<16),
		Patch:  v.Int("patch_size", 14, 1, 512),
		Frames: v.Int("temporal_patch_size", 2, 1, 16),
		Merge:  v.Int("spatial_merge_size", 2, 1, 16),
		Theta:  cells.Theta(v),
	}
	ratio := v.Float("mlp_ratio", 4)
	if wide := float64(c.Hidden) * ratio; wide >= 1 && wide <= 1<<18 {
		c.MLP = int(wide)
	} else {
		v.Fail("mlp_ratio", "got %v, want MLPs of 1 to %d with embed_dim %d", ratio, 1<<18,
			c.Hidden)
	}
	v.String("hidden_act", "quick_gelu", "quick_gelu")
	v.Unsupported(map[string]string{"in_chans": "3", "in_channels": "3"})
	c.CheckHeads(v, "num_heads", "embed_dim")
	return c
}
