// Package qwen25vl is Qwen2.5-VL: a vision transformer on pictures of any size, most of whose
// blocks attend within windows, a merger of 2×2 patches and a Qwen2 decoder with M-RoPE. Source:
// arXiv 2502.13923 and Hugging Face transformers 4.49 Qwen2_5_VLForConditionalGeneration.
//
//	x = Conv(px), cells of merge² patches put in window order                               (1)
//	h = x + Wo·Attn(RoPE₂(Wq·n + bq), RoPE₂(Wk·n + bk), Wv·n + bv) + bo,  n = RMSNorm(x)    (2)
//	y = h + Wd·(SiLU(Wg·m + bg) ⊙ (Wu·m + bu)) + bd,  m = RMSNorm(h)                        (3)
//	X = W2·GELU(W1·c + b1) + b2,  c = the RMSNorm rows of a cell side by side, raster order (4)
//
// RoPE₂ turns the first half of a head's pairs by the patch's row and the second half by its
// column. In the blocks in fullatt_block_indexes, Attn sees a whole picture, in the others a
// window. A picture that starts at position s has its tokens at (s, s+row, s+column); text
// continues at s + max(rows, columns).
//
// There is no class token. The scores for reducers are the attention that a token's patches receive
// in each head of the last full block, averaged over the queries of the picture and over the
// patches. The keys are that block's, after the rotation, averaged over the patches. The
// features before the projector do not have one row per token, so those after the merger are used,
// and Project returns them unchanged.
//
// A video is moments of two frames each, encoded like pictures. A video that starts at position s
// has the tokens of the moment x seconds later at (s + ⌊x·tokens_per_second⌋, s+row, s+column).
package qwen25vl

import (
	"math"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2vl"
)

// Config is a Qwen2.5-VL config.json.
type Config struct {
	Vision VisionConfig
	qwen2vl.Decoder
}

// ParseConfig reads config.json. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{
		Vision:  parseVision(v.Object("vision_config", true)),
		Decoder: qwen2vl.ParseDecoder(v),
	}
	return c
})

// Model is a bound Qwen2.5-VL.
type Model struct {
	cells.Model
	vision VisionConfig
}

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	c.Tie(b.Has("lm_head.weight"))
	m := &Model{vision: c.Vision}
	m.Model = cells.Model{
		Name: "qwen25vl", Vision: m.vision.encoder(b.In("visual.")), Tokens: c.Tokens,
		Model: llama.Model{
			Text: llama.New(b, c.Text), Image: c.Tokens.Image, Video: c.Tokens.Video,
		},
	}
	if err := m.Finish(b, architecture); err != nil {
		return nil, err
	}
	if err := c.CheckWidth(m.Name, "out_hidden_size", c.Vision.Out); err != nil {
		return nil, err
	}
	m.About.SizesOf = m.sizes
	m.About.Vision = append(c.Vision.Fields(),
		model.Field{Name: "window (px)", Value: c.Vision.Window},
		model.Field{Name: "layers that see the whole picture", Value: c.Vision.Full})
	return m, nil
}

// sizes returns the sizes for a picture of that many visual tokens, in whole windows.
func (m *Model) sizes(tokens int) *model.Sizes {
	s := m.Sizes(tokens)
	s.Vision.Products, s.Vision.Window, s.Vision.Whole = 3, m.Vision.Windows.Patches,
		len(m.vision.Full)
	return s
}

// Pictures implements model.Multimodal.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	return m.Together(px, func(g [3]int) *model.Shape {
		var times []float64
		if px.SecondsPerMoment > 0 {
			times = m.vision.times(g[0], px.SecondsPerMoment)
		}
		s := m.Vision.Shape(g, times)
		s.Full = m.vision.wholes()
		s.Closed = "its blocks attend in windows and its merger joins 2x2 patches; no such " +
			"method is defined for this"
		return s
	})
}

// times returns the positions on the time axis of moments with the given seconds between them, in
// float32 as in the reference.
func (c *VisionConfig) times(moments int, seconds float64) []float64 {
	out := make([]float64, moments)
	for t := range out {
		out[t] = math.Floor(float64(float32(float32(t)*float32(seconds)) * float32(c.Rate)))
	}
	return out
}
