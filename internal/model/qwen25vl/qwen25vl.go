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
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2"
)

// Config is a Qwen2.5-VL config.json.
type Config struct {
	Vision VisionConfig
	Text   qwen2.Config
	Tokens cells.Tokens
}

// ParseConfig reads config.json in the older form (text keys at the top) or in the form of
// transformers 5 (text_config). The error lists every problem.
func ParseConfig(data []byte) (*Config, error) {
	v, err := model.ParseConfig(data)
	if err != nil {
		return nil, err
	}
	text := v
	if v.Has("text_config") {
		text = v.Object("text_config", true)
	} else if !v.Has("hidden_size") {
		v.Fail("text_config", "missing, want an object (or its keys at the top, as in older files)")
	}
	c := &Config{
		Vision: parseVision(v.Object("vision_config", true)),
		Text:   qwen2.ParseConfig(text, qwen2.VL, v.Bool("tie_word_embeddings", false)),
		Tokens: cells.Tokens{
			Image:  int32(v.Int("image_token_id", -1, 0, 1<<30)),
			Video:  -1,
			Before: int32(v.Int("vision_start_token_id", 151652, 0, 1<<30)),
			After:  int32(v.Int("vision_end_token_id", 151653, 0, 1<<30)),
		},
	}
	if v.Has("video_token_id") {
		c.Tokens.Video = int32(v.Int("video_token_id", -1, 0, 1<<30))
	}
	c.Tokens.Check(v, c.Text.Vocab)
	if c.Text.Sections == nil {
		text.Fail("mrope_section",
			"missing, want the numbers of rotary pairs that follow time, height and width")
	}
	return c, v.Err()
}

// Model is a bound Qwen2.5-VL.
type Model struct {
	cells.Model
	cfg    *Config
	vision *encoder
}

// New binds ck; the error lists every weight that does not fit config.json.
func New(ck *model.Source) (model.Multimodal, error) {
	c, err := ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{cfg: c, vision: newEncoder(b.In("visual."), c.Vision)}
	m.Model = cells.Model{
		Name: "qwen25vl", Tower: &c.Vision.Tower, Run: m.vision.encode, Attn: &m.vision.attn,
		Text: llama.New(b, c.Text.Config), Tokens: c.Tokens,
		About: model.Info{Architecture: architecture, EOS: c.Text.EOS, SizesOf: m.sizes},
	}
	if err := b.Finish(); err != nil {
		return nil, err
	}
	if c.Vision.Out != c.Text.Hidden {
		return nil, fmt.Errorf("qwen25vl: config.json: vision_config: out_hidden_size: got "+
			"%d, want the decoder's hidden_size %d", c.Vision.Out, c.Text.Hidden)
	}
	info := &m.About
	info.Params, info.Bytes, info.Types = b.Params()
	v, t := &c.Vision, &c.Text
	info.Vision = []model.Field{
		{Name: "patch (px)", Value: v.Patch}, {Name: "visual token (px)", Value: v.Patch * v.Merge},
		{Name: "window (px)", Value: v.Window}, {Name: "hidden", Value: v.Hidden},
		{Name: "heads", Value: v.Heads},
		{Name: "layers", Value: v.Layers}, {
			Name: "layers that see the whole picture", Value: v.Full,
		}, {Name: "mlp", Value: v.MLP},
	}
	info.Text = t.Fields()
	return m, nil
}

// sizes returns the sizes for a picture of that many visual tokens, in whole windows.
func (m *Model) sizes(tokens int) *model.Sizes {
	v, side := &m.cfg.Vision, m.vision.side()
	s := cells.Sizes(tokens, v.Merge, v.Hidden, v.Out)
	s.Text, s.Vocab = m.cfg.Text.Tower(), m.cfg.Text.Vocab
	s.Patch, s.Projectors = 3*v.Frames*v.Patch*v.Patch, 1
	s.Vision = model.Tower{
		Blocks: v.Layers, Run: v.Layers, Hidden: v.Hidden, Heads: v.Heads, Query: v.Hidden,
		Key: v.Hidden, MLP: v.MLP, Products: 3, Window: side * side * s.Cell, Whole: len(v.Full),
	}
	return s
}

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(
	px *imageproc.Pixels, share float64,
) (rows int, attention float64) {
	e := m.vision
	n := share * float64(px.Shape[0])
	window := share * float64(min(px.Shape[0], e.side()*e.side()*e.Cell()))
	keys := float64(len(e.Full))*n + float64(e.Layers-len(e.Full))*window
	return int(n), 4 * n * keys * float64(e.Hidden)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, share float64) int64 {
	e, n := m.vision, int(share*float64(px.Shape[0]))
	rows := min(n, cells.MostRows)
	tokens := n / e.Cell()
	// a product keeps its widest input
	wide := rows*e.MLP + 2*max(rows*e.MLP, min(tokens, cells.MostRows)*e.Hidden*e.Cell())
	return 4 * int64(n*(5*e.Hidden+e.attn.HeadDim)+rows*e.Hidden+wide+2*tokens*e.Out)
}

// Pictures implements model.Multimodal. px.Data: [patches, 3·frames·patch²], the patches of all
// pictures concatenated, cell by cell; px.GridTHW: their grids.
func (m *Model) Pictures(px *imageproc.Pixels) ([]model.Picture, error) {
	e := m.vision
	if err := cells.Check(px, e.patch.In, e.Merge, "qwen25vl"); err != nil {
		return nil, err
	}
	pics := make([]model.Picture, len(px.GridTHW))
	at := 0
	for i, g := range px.GridTHW {
		n := g[0] * g[1] * g[2] * e.patch.In
		pics[i] = m.Picture(px.Data[at:at+n], cells.Moments(g), m.shape(g, px.SecondsPerMoment))
		at += n
	}
	return pics, nil
}

// shape returns the shape of a picture of grid g, or of a video with the given seconds between
// moments.
func (m *Model) shape(g [3]int, seconds float64) *model.Shape {
	e := m.vision
	rows, cols := g[1]/e.Merge, g[2]/e.Merge
	n := g[0] * rows * cols
	s := &model.Shape{
		N: n, C: e.Out, NoClass: true, T: n + 1, Cv: e.Out,
		Blocks: e.Layers, Depth: e.Layers, Full: e.wholes(),
		Closed: "its blocks attend in windows and its merger joins 2x2 patches; no such " +
			"method is defined for this",
	}
	if g[0] == 1 {
		s.Grid(rows, cols)
	} else {
		s.Fixed = "this is a video"
	}
	if seconds > 0 {
		s.Moments(e.times(g[0], seconds), rows, cols)
	}
	if g[0] > 1 {
		s.FrameH, s.FrameW = rows, cols
	}
	return s
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
