// Package qwen2vl is Qwen2-VL: a vision transformer on pictures of any size, a merger of 2×2
// patches and a Qwen2 decoder with M-RoPE. Source: arXiv 2409.12191 and Hugging Face transformers
// 4.45 Qwen2VLForConditionalGeneration.
//
//	x = Conv(px)                                                                            (1)
//	h = x + Wo·Attn(RoPE₂(Wq·n + bq), RoPE₂(Wk·n + bk), Wv·n + bv) + bo,  n = LN(x)         (2)
//	y = h + W2·QuickGELU(W1·m + b1) + b2,  m = LN(h)                                        (3)
//	X = W2·GELU(W1·c + b1) + b2,  c = the LN rows of a cell side by side                    (4)
//
// RoPE₂ turns the first half of a head's pairs by the patch's row and the second half by its
// column. Attn sees a whole picture, of a video one moment (two frames). A picture that starts at
// position s has its tokens at (s, s+row, s+column); text continues after the largest position. A
// video's moment t has its tokens at (s+t, s+row, s+column).
//
// There is no class token. The scores for reducers are the attention that a token's patches receive
// in each head of the last block, averaged over the queries of the picture and over the patches.
// The keys are that block's, after the rotation, averaged over the patches. Features before the
// projector do not have one row per token, so those after the merger are used.
//
// What Qwen2.5-VL has in common with it is here too: the decoder's part of config.json and of
// metadata, the forms of the weights' names, and the video processor.
package qwen2vl

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Model is a bound Qwen2-VL.
type Model struct{ cells.Model }

var names = cells.Names{
	Up: "mlp.fc1", Down: "mlp.fc2",
	Merger: cells.MergerNames{Norm: "ln_q", Up: "mlp.0", Down: "mlp.2"},
}

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	c.Tie(b.Has("lm_head.weight"))
	vision := cells.NewEncoder(b.In("visual."), c.Vision, names)
	vision.Act = nn.QuickGELU
	m := &Model{cells.Model{
		Name: "qwen2vl", Vision: vision, Tokens: c.Tokens, Model: llama.Model{
			Text: llama.New(b, c.Text), Image: c.Tokens.Image, Video: c.Tokens.Video,
		},
	}}
	if err := m.Finish(b, architecture); err != nil {
		return nil, err
	}
	if err := c.CheckWidth(m.Name, "hidden_size", c.Vision.Out); err != nil {
		return nil, err
	}
	m.About.SizesOf = m.Sizes
	m.About.Vision = c.Vision.Fields()
	return m, nil
}

// Pictures implements model.Multimodal.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	return m.Together(px, func(g [3]int) *model.Shape {
		var times []float64
		if px.SecondsPerMoment > 0 {
			for t := range g[0] {
				times = append(times, float64(t))
			}
		}
		s := m.Vision.Shape(g, times)
		s.Closed = "its merger joins 2x2 patches; of those that are left it would join some of " +
			"different squares, and such a row has no place"
		return s
	})
}
