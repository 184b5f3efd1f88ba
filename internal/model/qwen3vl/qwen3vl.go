// Package qwen3vl is Qwen3-VL (dense): a vision transformer on pictures of any size, a merger of
// 2×2 patches, and a Qwen3 decoder with interleaved M-RoPE whose first layers read the encoder's
// middle blocks too (DeepStack). Source: Hugging Face transformers 5.23
// Qwen3VLForConditionalGeneration, Qwen3 (arXiv 2505.09388), DeepStack (arXiv 2406.04334).
//
//	e = Conv(px) + b                                                                        (1)
//	x = e + P resized to the picture (bilinear, corners aligned)                            (2)
//	h = x + Wo·Attn(RoPE₂(Wq·n + bq), RoPE₂(Wk·n + bk), Wv·n + bv) + bo,  n = LN(x)         (3)
//	y = h + W2·GELU_tanh(W1·m + b1) + b2,  m = LN(h)                                        (4)
//	X = W2·GELU(W1·c + b1) + b2,  c = the LN rows of a cell side by side                    (5)
//	X_l the same after block Deep_l,  c = LN of the cell's rows side by side                (6)
//
// RoPE₂ turns the first half of a head's pairs by the patch's row and the second half by its
// column. Attn sees a whole picture, of a video one moment (two frames). X takes the place of the
// picture's tokens; X_l is added to them after the decoder's layer l. A picture that starts at
// position s has its tokens at (s, s+row, s+column); text continues at s + max(rows, columns).
//
// There is no class token. The scores for reducers are the attention that a token's patches receive
// in each head of the last block, averaged over the queries of the picture and over the patches.
// The keys are that block's, after the rotation, averaged over the patches. Features before the
// projector do not have one row per token, so those after the merger are used.
//
// Each moment of a video is a picture of its own, after a text that tells its time.
package qwen3vl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Model is a bound Qwen3-VL.
type Model struct {
	cells.Model
	deep int // blocks whose output the decoder reads too
}

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{deep: len(c.Vision.Deep), Model: cells.Model{
		Name: "qwen3vl", Vision: newEncoder(b.In("visual."), c.Vision), Tokens: c.Tokens,
		Model: llama.Model{
			Text: llama.New(b, c.Text), Image: c.Tokens.Image, Video: c.Tokens.Video,
		},
	}}
	if err := m.Finish(b, architecture); err != nil {
		return nil, err
	}
	m.About.SizesOf = m.sizes
	m.About.Vision = append(c.Vision.Fields(), model.Field{
		Name: "layers that the decoder reads too", Value: c.Vision.Deep,
	})
	return m, nil
}

// sizes returns the sizes for a picture of that many visual tokens.
func (m *Model) sizes(tokens int) *model.Sizes {
	s := m.Sizes(tokens)
	s.Projectors += m.deep
	return s
}

// The marks around a picture, and around each moment of a video.
const (
	before = "<|vision_start|>"
	after  = "<|vision_end|>"
)

// Clip implements model.Timed.
func (m *Model) Clip() (place, template string) { return before + "<|video_pad|>" + after, "" }

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, share float64) int64 {
	positions := int64(share*float64(px.Shape[0])) * int64(m.Vision.Hidden)
	return m.Vision.Bytes(px, share, m.deep) + 4*positions
}

// Pictures implements model.Multimodal. px.Data: [patches, 3·frames·patch²], the patches of all
// pictures or moments concatenated, cell by cell; px.GridTHW: their grids.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	e := m.Vision
	if err := cells.Check(px, e.Values(), e.Merge, "qwen3vl"); err != nil {
		return nil, err
	}
	var moments []cells.Part
	for _, g := range px.GridTHW {
		moments = append(moments, cells.Moments(g)...)
	}
	if px.Times != nil && len(px.Times) != len(moments) {
		return nil, fmt.Errorf("qwen3vl: video: %d times for %d moments", len(px.Times),
			len(moments))
	}
	pics := make([]model.Picture, len(moments))
	at := 0
	for i, part := range moments {
		n := part.Grid[1] * part.Grid[2] * e.Values()
		s := e.Shape(part.Grid, nil)
		if px.SecondsPerMoment > 0 {
			s.Video, s.Fixed = true, "this is a video"
		}
		if px.Times != nil {
			s.Before, s.After = fmt.Sprintf("<%.1f seconds>", px.Times[i])+before, after
		}
		pics[i] = m.Picture(px.Data[at:at+n], []cells.Part{part}, s)
		at += n
	}
	return pics, nil
}
