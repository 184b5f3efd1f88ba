package onevision

import (
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Config is a LLaVA-OneVision config.json.
type Config struct {
	*llava.Config
	Most int // most patches of a map, in views (N of anyres_max_N)
}

// ParseConfig reads config.json; every problem is in the error.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	text := llava.ReadText(v, "qwen2")
	vision := clip.ParseSigLIP(v.Object("vision_config", true))
	videoKey := "video_token_index"
	if v.Has("video_token_id") { // the newer key has the last word, as for pictures
		videoKey = "video_token_id"
	}
	c := &Config{
		Config: &llava.Config{
			Vision: vision, Text: text,
			// below 0: no token of the vocabulary stands for one
			ImageToken: v.ImageToken(151646, -1<<30, text.Vocab),
			VideoToken: int32(v.Int(videoKey, 151647, -1<<30, 1<<30)),

			Features: v.EncoderStates(vision.Layers, -1),
			Act:      v.Activation("projector_hidden_act", "gelu"),
			Bias:     v.Bool("multimodal_projector_bias", true),
		},
		Most: most(v),
	}
	c.ReadTiles(v, canvases(vision.ImageSide), "full")
	if c.VideoToken == c.ImageToken && c.ImageToken >= 0 {
		v.Fail(videoKey, "got %d, want another id than a picture's", c.VideoToken)
	}
	if int(c.VideoToken) >= text.Vocab { // as in small models, which keep transformers' default
		c.VideoToken = -1
	}
	return c
})

// most reads N of vision_aspect_ratio, "anyres_max_N".
func most(v *model.Values) int {
	const key, prefix = "vision_aspect_ratio", "anyres_max_"
	s := v.String(key, prefix+"9")
	n, err := strconv.Atoi(strings.TrimPrefix(s, prefix))
	if err != nil || !strings.HasPrefix(s, prefix) || n < 1 || n > imageproc.MaxTiles {
		v.Fail(key, "got %q, want %s1 to %s%d", s, prefix, prefix, imageproc.MaxTiles)
		return 1
	}
	return n
}
