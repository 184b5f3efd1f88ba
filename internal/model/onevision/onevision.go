// Package onevision is LLaVA-OneVision: a SigLIP encoder, a two-layer projector and a Qwen2
// decoder, for one picture in tiles, several pictures, or a video. Source: arXiv 2408.03326 and
// Hugging Face transformers 5.23 LlavaOnevisionForConditionalGeneration.
//
//	X_t = Projector(SigLIP(view t))                                                    (1)
//	one picture:      [X_0; for each row y of M: M_y, newline], M = X_1 … X_T stitched,
//	                  without the canvas's padding, at most Most views large           (2)
//	of several, each: [X_0; newline]                                                   (3)
//	video:            [X_0 … X_T at half the side; newline]                            (4)
//
// Where M is shrunk, and in videos, a token is a blend of up to four patches. What reducers read is
// blended with the same weights. There is no class token: scores are the attention that a patch
// receives in the last layer, averaged over the patches of its view.
package onevision

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/nn"
)

// wholeAndTiles is the number of views of a square picture on a canvas of three by three tiles, the
// case for which Sizes are reported.
const wholeAndTiles = 10

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	return llava.NewTiled(ck, c.Config, architecture, wholeAndTiles, c.pictures,
		model.Field{Name: "most views in a map of tiles", Value: c.Most})
}

// pictures returns the pictures of px, or the video: px has the shape [pictures, views, 3, side,
// side], or [frames, 3, side, side].
func (c *Config) pictures(m *llava.Model, px *imageproc.Pixels) ([]*llava.Picture, error) {
	switch side := c.Vision.ImageSide; {
	case len(px.Shape) == 4 && m.Square(px.Shape):
		return []*llava.Picture{c.video(m, px)}, nil
	case len(px.Shape) == 4:
		return nil, fmt.Errorf("onevision: pixel_values: shape %v, want [pictures views 3 %d %d] "+
			"(config's image_size), or of a video [frames 3 %[2]d %[3]d]", px.Shape, side, side)
	}
	return m.Cut(px, func(tiles *llava.Map, have int) (*model.Views, []nn.Mix) {
		l := c.single()
		if have != 1 { // a picture in tiles has two views at least
			l = c.pack(tiles)
		}
		return &l.Views, l.rows
	})
}

// video returns the video whose frames px are, as one list of tokens.
func (c *Config) video(m *llava.Model, px *imageproc.Pixels) *llava.Picture {
	l := c.clip(px.Shape[0])
	p := m.Tiles(px.Data, &l.Views, l.rows)
	s := p.Shape()
	s.Fixed, s.Video = "this is a video", true
	s.Views.Count, s.Views.Of = 1, make([]int32, len(l.rows))
	s.FrameH = (c.Vision.Grid() + 1) / 2
	s.FrameW = s.FrameH
	return p
}
