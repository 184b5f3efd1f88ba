package llavanext

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Config is a LLaVA-NeXT config.json.
type Config struct {
	*llava.Config
	// [height, width] in pixels to which a picture is resized (image_grid_pinpoints)
	Canvases [][2]int
}

// ParseConfig reads config.json; every problem is in the error.
func ParseConfig(data []byte) (*Config, error) {
	v, err := model.ParseConfig(data)
	if err != nil {
		return nil, err
	}
	c := &Config{
		Config:   llava.ReadConfig(v),
		Canvases: v.Pairs("image_grid_pinpoints", imageproc.Canvases, 1, 1<<20),
	}
	v.Unsupported(map[string]string{
		"vision_feature_select_strategy": `"default"`, "use_image_newline_parameter": "true",
	})
	for _, p := range c.Canvases {
		side := c.Vision.ImageSide
		if h, w := p[0]/side, p[1]/side; p[0]%side != 0 || p[1]%side != 0 ||
			h > imageproc.MaxTiles || h*w > imageproc.MaxTiles {
			v.Fail("image_grid_pinpoints", "got %v, want multiples of the tile side %d "+
				"(vision_config's image_size), at most %d tiles", p, side, imageproc.MaxTiles)
		}
	}
	return c, v.Err()
}
