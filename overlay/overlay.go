// Package overlay draws what a reduction did to a picture, for people who have not read the paper: patches that
// the decoder gets as they are stay clear, patches that were merged into one token share a tint, with the token's
// anchor marked and the number of patches it stands for written on it, and dropped patches are dark.
package overlay

import (
	"image"
	"image/color"
	"image/draw"
	"math"

	xdraw "golang.org/x/image/draw"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/reduce"
)

// patchPx is the width and height of a patch in the drawing, in pixels: room for an anchor's disc and its count.
const patchPx = 28

// beyond is how much of a picture outside the model's frame is shown on each side, as a share of the frame.
const beyond = 0.5

var (
	keptEdge  = color.NRGBA{255, 255, 255, 255}
	groupEdge = color.NRGBA{25, 25, 25, 255}
	paper     = color.NRGBA{255, 255, 255, 255}
	ink       = color.NRGBA{30, 30, 30, 255}
)

// Blending of the desaturated picture, as shares of the colour laid over it.
const (
	tintShare    = 0.50 // the rest is the picture in grey
	droppedShare = 0.74 // of black
	unseenShare  = 0.75 // of white
)

// Draw returns pic scaled so that a patch is 28 pixels wide, with r drawn over it and a legend with counts below.
// gridH and gridW are the rows and columns of patches, r.N = gridH·gridW of them in raster order; frame is the
// part of the picture, in its pixels, that they cover (it may reach beyond the picture where that was padded; an
// empty one means all of it). A nil r means that all patches were kept. Where the grid does not fit r.N the
// picture is drawn without patches and the legend says so. The result shares no memory with pic.
func Draw(pic *imageproc.Picture, r *reduce.Reduction, gridH, gridW int, frame imageproc.Frame) *image.NRGBA {
	if !(frame.W > 0 && frame.H > 0) {
		frame = imageproc.Frame{W: float64(pic.Width), H: float64(pic.Height)}
	}
	fits := gridH > 0 && gridW > 0 && (r == nil || len(r.Group) == gridH*gridW)
	if !fits {
		gridH, gridW = defaultGrid, defaultGrid
	}
	v := newView(pic, frame, gridH, gridW)
	l := legend{drawn: fits, unseen: v.showsUnseen()}
	if r != nil {
		l.count(r)
	} else {
		l.before, l.after, l.kept = gridH*gridW, gridH*gridW, gridH*gridW
	}
	im := image.NewNRGBA(image.Rect(0, 0, v.width, v.height+l.height(v.width)))
	v.drawPicture(im, pic)
	if fits && r != nil {
		m := newMarks(v, r)
		m.drawPatches(im)
		m.drawEdges(im)
		m.drawAnchors(im)
	}
	l.draw(im, v.height)
	return im
}

// defaultGrid only sets the scale of a drawing whose patches are unknown.
const defaultGrid = 24

// view maps patches and source pixels to the drawing.
type view struct {
	gridH, gridW  int
	x0, y0        int             // drawing's pixel of the patch grid's corner
	width, height int             // of the drawing without its legend
	source        image.Rectangle // the shown part of the picture, in its pixels
	target        image.Rectangle // where that part lies in the drawing; it may reach beyond it by a source pixel
}

// newView shows the frame and, around it, what the picture has outside, cut at beyond.
func newView(pic *imageproc.Picture, f imageproc.Frame, gridH, gridW int) view {
	v := view{gridH: gridH, gridW: gridW}
	sx, sy := float64(gridW*patchPx)/f.W, float64(gridH*patchPx)/f.H
	px := func(d float64) int { return int(math.Round(d)) }
	left := max(0, min(f.X0*sx, beyond*float64(gridW*patchPx)))
	top := max(0, min(f.Y0*sy, beyond*float64(gridH*patchPx)))
	right := max(0, min((float64(pic.Width)-f.X0-f.W)*sx, beyond*float64(gridW*patchPx)))
	bottom := max(0, min((float64(pic.Height)-f.Y0-f.H)*sy, beyond*float64(gridH*patchPx)))
	v.x0, v.y0 = px(left), px(top)
	v.width, v.height = v.x0+gridW*patchPx+px(right), v.y0+gridH*patchPx+px(bottom)

	// The source pixels that show at all, and their place: x in the picture lies at x0 + (x - X0)·sx in the drawing.
	shown := func(origin, from, scale float64, size, limit int) (low, high int) {
		low = max(0, min(limit-1, int(math.Floor(from-origin/scale))))
		high = max(low+1, min(limit, int(math.Ceil(from+(float64(size)-origin)/scale))))
		return low, high
	}
	v.source.Min.X, v.source.Max.X = shown(float64(v.x0), f.X0, sx, v.width, pic.Width)
	v.source.Min.Y, v.source.Max.Y = shown(float64(v.y0), f.Y0, sy, v.height, pic.Height)
	place := func(p image.Point) image.Point {
		return image.Pt(v.x0+px((float64(p.X)-f.X0)*sx), v.y0+px((float64(p.Y)-f.Y0)*sy))
	}
	v.target = image.Rectangle{place(v.source.Min), place(v.source.Max)}
	return v
}

// grid is the part of the drawing that the patches cover.
func (v view) grid() image.Rectangle {
	return image.Rect(v.x0, v.y0, v.x0+v.gridW*patchPx, v.y0+v.gridH*patchPx)
}

func (v view) showsUnseen() bool { return v.grid() != image.Rect(0, 0, v.width, v.height) }

// patch is the drawing's rectangle of patch i.
func (v view) patch(i int) image.Rectangle {
	at := image.Pt(v.x0+i%v.gridW*patchPx, v.y0+i/v.gridW*patchPx)
	return image.Rectangle{at, at.Add(image.Pt(patchPx, patchPx))}
}

// drawPicture lays the scaled picture down and fades what lies outside the grid.
func (v view) drawPicture(im *image.NRGBA, pic *imageproc.Picture) {
	all := image.Rect(0, 0, v.width, v.height)
	draw.Draw(im, all, image.NewUniform(color.NRGBA{128, 128, 128, 255}), image.Point{}, draw.Src)
	if !v.target.Empty() {
		src := shrunk(pic, v.source, v.target.Size())
		xdraw.CatmullRom.Scale(im.SubImage(all).(*image.NRGBA), v.target, src, src.Bounds(), xdraw.Src, nil)
	}
	g := v.grid()
	for _, outside := range []image.Rectangle{
		{all.Min, image.Pt(all.Max.X, g.Min.Y)}, {image.Pt(all.Min.X, g.Max.Y), all.Max},
		{image.Pt(all.Min.X, g.Min.Y), image.Pt(g.Min.X, g.Max.Y)}, {image.Pt(g.Max.X, g.Min.Y), image.Pt(all.Max.X, g.Max.Y)},
	} {
		wash(im, outside, paper, unseenShare)
	}
}

// shrunk is the part from of the picture averaged over whole blocks of pixels until it is less than twice as
// large as the drawing needs it, so that a large photograph costs one pass and no second copy of its size.
func shrunk(pic *imageproc.Picture, from image.Rectangle, want image.Point) *image.NRGBA {
	kx, ky := max(1, from.Dx()/want.X), max(1, from.Dy()/want.Y)
	w, h := from.Dx()/kx, from.Dy()/ky
	out := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			var sum [3]int
			for dy := range ky {
				row := pic.Pix[3*((from.Min.Y+y*ky+dy)*pic.Width+from.Min.X+x*kx):]
				for dx := range kx {
					for c := range sum {
						sum[c] += int(row[3*dx+c])
					}
				}
			}
			p := out.Pix[out.PixOffset(x, y):]
			for c := range sum {
				p[c] = uint8(sum[c] / (kx * ky))
			}
			p[3] = 255
		}
	}
	return out
}

// wash desaturates a part of the drawing and lays a share of a colour over it.
func wash(im *image.NRGBA, r image.Rectangle, c color.NRGBA, share float64) {
	r = r.Intersect(im.Bounds())
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			p := im.Pix[im.PixOffset(x, y):]
			grey := (0.299*float64(p[0]) + 0.587*float64(p[1]) + 0.114*float64(p[2])) * (1 - share)
			p[0], p[1], p[2] = uint8(grey+share*float64(c.R)), uint8(grey+share*float64(c.G)), uint8(grey+share*float64(c.B))
		}
	}
}

// marks holds what is drawn over the patches.
type marks struct {
	view
	r    *reduce.Reduction
	tint []color.NRGBA // per row; of merged rows only
}

func newMarks(v view, r *reduce.Reduction) *marks {
	return &marks{v, r, tints(r, v.gridH, v.gridW)}
}

func (m *marks) merged(i int) bool { return m.r.Group[i] >= 0 && m.r.Rows[m.r.Group[i]].Merged }

func (m *marks) drawPatches(im *image.NRGBA) {
	for i, g := range m.r.Group {
		switch {
		case g < 0:
			wash(im, m.patch(i), color.NRGBA{0, 0, 0, 255}, droppedShare)
		case m.merged(i):
			wash(im, m.patch(i), m.tint[g], tintShare)
		}
	}
}

// drawEdges draws a thin dark line between neighbours of different tokens and a light frame in each kept patch.
func (m *marks) drawEdges(im *image.NRGBA) {
	line := func(r image.Rectangle, c color.NRGBA) { draw.Draw(im, r, image.NewUniform(c), image.Point{}, draw.Src) }
	for i, g := range m.r.Group {
		p := m.patch(i)
		if i%m.gridW > 0 && m.r.Group[i-1] != g {
			line(image.Rect(p.Min.X, p.Min.Y, p.Min.X+1, p.Max.Y), groupEdge)
		}
		if i >= m.gridW && m.r.Group[i-m.gridW] != g {
			line(image.Rect(p.Min.X, p.Min.Y, p.Max.X+1, p.Min.Y+1), groupEdge)
		}
	}
	for i, g := range m.r.Group {
		if g >= 0 && !m.merged(i) {
			frameInside(im, m.patch(i), 2, keptEdge)
			frameInside(im, m.patch(i), 1, groupEdge)
		}
	}
}

// frameInside draws a frame of the given width along the inner edge of r.
func frameInside(im *image.NRGBA, r image.Rectangle, width int, c color.NRGBA) {
	u := image.NewUniform(c)
	in := r.Inset(width)
	for _, side := range []image.Rectangle{
		{r.Min, image.Pt(r.Max.X, in.Min.Y)}, {image.Pt(r.Min.X, in.Max.Y), r.Max},
		{r.Min, image.Pt(in.Min.X, r.Max.Y)}, {image.Pt(in.Max.X, r.Min.Y), r.Max},
	} {
		draw.Draw(im, side, u, image.Point{}, draw.Src)
	}
}

// drawAnchors puts a disc on each merged token's anchor, with the number of patches the token stands for.
func (m *marks) drawAnchors(im *image.NRGBA) {
	for g, row := range m.r.Rows {
		if row.Merged && row.Anchor >= 0 && int(row.Anchor) < len(m.r.Group) {
			drawDisc(im, m.patch(int(row.Anchor)), m.tint[g], row.Size)
		}
	}
}

// drawDisc fills most of a patch with a disc in a deep shade of its group's colour, ringed in white, and writes count on it.
func drawDisc(im *image.NRGBA, patch image.Rectangle, tint color.NRGBA, count int) {
	deep := color.NRGBA{uint8(float64(tint.R) * 0.45), uint8(float64(tint.G) * 0.45), uint8(float64(tint.B) * 0.45), 255}
	cx, cy := float64(patch.Min.X+patch.Max.X)/2, float64(patch.Min.Y+patch.Max.Y)/2
	const radius, ring = patchPx/2 - 1, 2
	for y := patch.Min.Y; y < patch.Max.Y; y++ {
		for x := patch.Min.X; x < patch.Max.X; x++ {
			d := math.Hypot(float64(x)+0.5-cx, float64(y)+0.5-cy)
			blend(im, x, y, keptEdge, radius+0.5-d)
			blend(im, x, y, deep, radius-ring+0.5-d)
		}
	}
	writeCount(im, patch, count)
}

// blend lays c over a pixel with the given coverage, cut to [0, 1].
func blend(im *image.NRGBA, x, y int, c color.NRGBA, cover float64) {
	cover = max(0, min(1, cover))
	p := im.Pix[im.PixOffset(x, y):]
	for k, v := range [3]uint8{c.R, c.G, c.B} {
		p[k] = uint8(float64(p[k])*(1-cover) + float64(v)*cover + 0.5)
	}
}
