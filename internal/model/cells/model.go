package cells

import (
	"strconv"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Tower is the sizes that all towers have.
type Tower struct {
	Hidden, Heads, Layers, MLP, Out int
	Patch, Frames, Merge            int     // pixels, frames per patch, patches along a cell's side
	Theta                           float64 // base of the rotation
}

// Cell returns the number of patches in a cell.
func (t *Tower) Cell() int { return t.Merge * t.Merge }

// Values returns the number of values of a patch.
func (t *Tower) Values() int { return 3 * t.Frames * t.Patch * t.Patch }

// CheckHeads refuses heads that cannot be rotated by rows and columns, and other sizes under
// transformers' second names for num_heads and depth. heads and width are the names of Heads and
// Hidden.
func (t *Tower) CheckHeads(v *model.Values, heads, width string) {
	v.Unsupported(map[string]string{
		"num_attention_heads": strconv.Itoa(t.Heads), "num_hidden_layers": strconv.Itoa(t.Layers),
	})
	if t.Hidden%t.Heads != 0 {
		v.Fail(heads, "got %d, which does not divide %s %d", t.Heads, width, t.Hidden)
	} else if dim := t.Hidden / t.Heads; dim%4 != 0 {
		v.Fail(heads, "got %d, which gives heads of %d, want a multiple of 4 (rotary "+
			"pairs of rows and columns)", t.Heads, dim)
	}
}

// Shape returns the shape of a picture of grid g, or, with the positions of its moments on the time
// axis, of a video.
func (t *Tower) Shape(g [3]int, times []float64) *model.Shape {
	rows, cols := g[1]/t.Merge, g[2]/t.Merge
	n := g[0] * rows * cols
	s := &model.Shape{
		N: n, C: t.Out, NoClass: true, T: n + 1, Cv: t.Out, Blocks: t.Layers, Depth: t.Layers,
		Closed: "its merger joins 2x2 patches; no such method is defined for this",
	}
	if g[0] == 1 {
		s.Grid(rows, cols)
	} else {
		s.Fixed = "this is a video"
		s.FrameH, s.FrameW = rows, cols
	}
	if times != nil {
		s.Moments(times, rows, cols)
	}
	return s
}

// Tokens are the ids that stand for pictures and videos, and those before and after each.
type Tokens struct {
	Image, Video  int32 // Video -1: the model takes no videos
	Before, After int32
}

// Check refuses a picture's id that the vocabulary does not have, and one id for both. A video's
// that it does not have means that there are no videos: small models keep transformers' default.
func (t *Tokens) Check(v *model.Values, vocab int) {
	if int(t.Image) >= vocab {
		v.Fail("image_token_id", "got %d, want an id below vocab_size %d", t.Image, vocab)
	}
	if t.Video == t.Image {
		v.Fail("video_token_id", "got %d, want another id than image_token_id", t.Video)
	}
	if int(t.Video) >= vocab {
		t.Video = -1
	}
}

// Model is what Qwen's models have in common.
type Model struct {
	llama.Model
	Name   string // for errors
	Vision *Encoder
	Tokens Tokens
}

// Sizes returns the sizes for a picture of that many visual tokens.
func (m *Model) Sizes(tokens int) *model.Sizes {
	s := m.Vision.Sizes(tokens)
	s.Text, s.Vocab = m.Text.Tower(), m.Text.Vocab
	return s
}

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(px *imageproc.Pixels, share float64) (rows int, attention float64) {
	return m.Vision.Work(px, share)
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(px *imageproc.Pixels, share float64) int64 {
	return m.Vision.Bytes(px, share, 0)
}

// Marks implements model.Marked.
func (m *Model) Marks() (before, after int32) { return m.Tokens.Before, m.Tokens.After }

// Project implements model.Multimodal: features already passed the merger.
func (m *Model) Project(_ *model.Run, features []float32, rows int) []float32 {
	return append([]float32(nil), features[:rows*m.Vision.Out]...)
}

// Picture returns a picture, or a video, of which px are the patches of parts.
func (m *Model) Picture(px []float32, parts []Part, shape *model.Shape) model.Picture {
	return &picture{m, px, parts, model.Rigid{Of: shape}}
}

// Together returns the pictures of px, a video with all its moments, with the shapes that shape
// returns for a grid. px.Data: [patches, 3·frames·patch²], the patches of all pictures
// concatenated, cell by cell; px.GridTHW: their grids.
func (m *Model) Together(
	px *imageproc.Pixels, shape func(g [3]int) *model.Shape,
) ([]model.Picture, error) {
	row := m.Vision.Values()
	if err := Check(px, row, m.Vision.Merge, m.Name); err != nil {
		return nil, err
	}
	pics := make([]model.Picture, len(px.GridTHW))
	at := 0
	for i, g := range px.GridTHW {
		n := g[0] * g[1] * g[2] * row
		pics[i] = m.Picture(px.Data[at:at+n], Moments(g), shape(g))
		at += n
	}
	return pics, nil
}

// Encode implements model.Multimodal.
func (m *Model) Encode(
	r *model.Run, pics []model.Picture, need model.Needs,
) ([]*model.Visual, error) {
	px := make([][]float32, len(pics))
	var parts []Part
	for i, p := range pics {
		p := p.(*picture)
		px[i], parts = p.px, append(parts, p.parts...)
	}
	out, err := m.Vision.Encode(r, nn.Joined(px), parts, need)
	if err != nil {
		return nil, err
	}
	return out.Visuals(pics, &m.Vision.Attn), nil
}

// picture is the patches [patches, 3·frames·patch²] of one picture or video.
type picture struct {
	m     *Model
	px    []float32
	parts []Part
	model.Rigid
}

// Only implements model.Divisible.
func (p *picture) Only(s *model.Shape, logSize []float32) model.Picture {
	kept := s.Pruned.Kept
	part := Part{Grid: p.parts[0].Grid, Kept: kept, LogSize: logSize}
	t := &p.m.Vision.Tower
	return p.m.Picture(nn.Gathered(p.px, kept, t.Cell()*t.Values()), []Part{part}, s)
}

// Shrink implements model.Picture.
func (p *picture) Shrink(
	r *model.Run, rows, cols int,
) (x []float32, deep [][]float32, err error) {
	if p.Of.Fixed != "" {
		return p.Rigid.Shrink(r, rows, cols)
	}
	t := &p.m.Vision.Tower
	to := [3]int{1, rows * t.Merge, cols * t.Merge}
	small := shrink(r, p.px, p.parts[0].Grid, to, 3*t.Frames, t.Patch, t.Merge)
	out, err := p.m.Vision.Encode(r, small, Moments(to), model.Needs{})
	if err != nil {
		return nil, nil, err
	}
	return out.X, out.Deep, nil
}
