// Package overlay draws the effect of a reduction on a picture, for people who have not read the
// paper. Patches that the decoder reads unchanged stay clear. Patches that were merged into one
// token share a tint; the token's anchor is marked with the number of patches that it stands for.
// Dropped patches are dark.
package overlay

import (
	"image"
	"image/color"
	"image/draw"
	"math"
	"slices"

	xdraw "golang.org/x/image/draw"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/reduce"
)

// patchPx is the width and height of a patch in the drawing, in pixels: room for an anchor's disc
// and its count.
const patchPx = 28

// beyond is how much of a picture outside the model's frame is shown on each side, as a share of
// the frame.
const beyond = 0.5

// longest limits a patch's longer side in the drawing, as a multiple of its shorter side. Up to
// this limit a patch has the shape that it has in the picture.
const longest = 4

var (
	keptEdge  = color.NRGBA{255, 255, 255, 255}
	groupEdge = color.NRGBA{25, 25, 25, 255}
	paper     = color.NRGBA{255, 255, 255, 255}
	ink       = color.NRGBA{30, 30, 30, 255}
)

// Blending: shares of the colour drawn over the picture, whose own colours stay visible.
const (
	lightShare   = 0.30 // white over merged patches
	tintShare    = 0.12 // the group's colour over merged patches
	droppedShare = 0.72 // black over dropped patches
	unseenShare  = 0.75 // white over unseen parts
)

// edgePx is the width of a group's outline.
const edgePx = 2

// Draw returns pic scaled so that a patch's shorter side is 28 pixels, with r drawn over it and a
// legend with counts below. grids say where r's tokens are, one drawing per grid: for a model that
// sees a picture whole and in tiles, the whole and the tiles. A nil r means that all patches were
// kept. If the grids do not fit r, the picture is drawn without patches and the legend says so. The
// result shares no memory with pic.
func Draw(pic *imageproc.Picture, r *reduce.Reduction, grids []imageproc.Grid) *image.NRGBA {
	n := 0
	if r != nil {
		n = groups(r)
	}
	return drawOne(pic, r, grids, newTinter(n), 1)
}

// drawOne is Draw with the colours of t, for one of several drawings; perRow is how many are side
// by side.
func drawOne(
	pic *imageproc.Picture,
	r *reduce.Reduction,
	grids []imageproc.Grid,
	t *tinter,
	perRow int,
) *image.NRGBA {
	var panels []*panel
	for _, g := range grids {
		if !fits(g, r) {
			panels = nil
			break
		}
		if p := newPanel(pic, g); p != nil {
			panels = append(panels, p)
		}
	}
	l := legend{drawn: len(panels) > 0, perRow: perRow}
	if !l.drawn {
		panels = []*panel{newPanel(pic, imageproc.Grid{Rows: defaultGrid, Cols: defaultGrid})}
	}
	l.count(panels, r)
	if l.drawn && r != nil {
		tint := t.tints(r, panels)
		for _, p := range panels {
			p.marks = &marks{r, tint}
		}
	}
	return compose(pic, panels, &l)
}

// strip is how many drawings of stages are side by side.
const strip = 3

// DrawStages returns the drawings of the rows that remained after each stage of a method inside the
// encoder or the decoder, in reading order, made like Draw's. r must have stages.
func DrawStages(pic *imageproc.Picture, r *reduce.Reduction, grids []imageproc.Grid) *image.NRGBA {
	var all []*image.NRGBA
	width, height := 0, 0 // of the largest drawing
	most := 0
	for i := range r.Stages {
		most = max(most, groups(r.AfterStage(i)))
	}
	t := newTinter(most)
	for i := range r.Stages {
		im := drawOne(pic, r.AfterStage(i), grids, t, min(strip, len(r.Stages)))
		all = append(all, im)
		width, height = max(width, im.Rect.Dx()), max(height, im.Rect.Dy())
	}
	cols := min(strip, len(all))
	rows := (len(all) + cols - 1) / cols
	out := image.NewNRGBA(image.Rect(0, 0, cols*width+(cols-1)*margin, rows*height+(rows-1)*margin))
	draw.Draw(out, out.Rect, image.NewUniform(paper), image.Point{}, draw.Src)
	for i, im := range all {
		at := image.Pt(i%cols*(width+margin), i/cols*(height+margin))
		draw.Draw(out, im.Rect.Add(at), im, image.Point{}, draw.Src)
	}
	return out
}

// fits reports whether every patch of g has a token of r, or none has.
func fits(g imageproc.Grid, r *reduce.Reduction) bool {
	if g.Rows < 1 || g.Cols < 1 || g.Tokens != nil && len(g.Tokens) != g.Rows*g.Cols ||
		g.Ends != nil && len(g.Ends) != g.Rows {
		return false
	}
	if r == nil {
		return true
	}
	if g.Tokens == nil && len(r.Group) != g.Rows*g.Cols {
		return false
	}
	for _, t := range slices.Concat(g.Tokens, g.Ends) {
		if t < -1 || int(t) >= len(r.Group) {
			return false
		}
	}
	return true
}

// compose puts the panels side by side, or below each other if they are wide, and the legend below
// all.
func compose(pic *imageproc.Picture, panels []*panel, l *legend) *image.NRGBA {
	l.below = pic.Width >= pic.Height
	var at []image.Point
	width, height := 0, 0
	for _, p := range panels {
		if l.below {
			if height > 0 {
				height += margin
			}
			at = append(at, image.Pt(0, height))
			width, height = max(width, p.width), height+p.height
			continue
		}
		if width > 0 {
			width += margin
		}
		at = append(at, image.Pt(width, 0))
		width, height = width+p.width, max(height, p.height)
	}
	width = max(width, leastWidth)
	l.fit(width)
	im := image.NewNRGBA(image.Rect(0, 0, width, height+l.height(width)))
	draw.Draw(im, image.Rect(0, 0, width, height), image.NewUniform(paper), image.Point{}, draw.Src)
	for i, p := range panels {
		one := p.draw(pic)
		draw.Draw(im, one.Bounds().Add(at[i]), one, image.Point{}, draw.Src)
	}
	l.draw(im, height)
	return im
}

// panel is the drawing of one grid, cut to the patches that are tokens.
type panel struct {
	view
	tokens     []int32 // [gridH*gridW] token of each patch, -1 none
	ends       []int32 // [gridH] token that ends each row, -1 none; nil: there are none
	tile       int     // patches along a tile's side, 0: no tiles
	row0, col0 int     // rows and columns that were cut off at the start
	unseen     bool    // shows more than the patches
	marks      *marks  // nil: only the picture
}

// newPanel returns nil for a grid without tokens.
func newPanel(pic *imageproc.Picture, g imageproc.Grid) *panel {
	if !(g.Frame.W > 0 && g.Frame.H > 0) {
		g.Frame = imageproc.Frame{W: float64(pic.Width), H: float64(pic.Height)}
	}
	if g.Tokens == nil {
		g.Tokens = make([]int32, g.Rows*g.Cols)
		for i := range g.Tokens {
			g.Tokens[i] = int32(i)
		}
	}
	used := image.Rectangle{}
	for i, t := range g.Tokens {
		if t >= 0 {
			used = used.Union(image.Rect(i%g.Cols, i/g.Cols, i%g.Cols+1, i/g.Cols+1))
		}
	}
	if used.Empty() {
		return nil
	}
	p := &panel{tile: g.Tile, row0: used.Min.Y, col0: used.Min.X}
	for y := used.Min.Y; y < used.Max.Y; y++ {
		p.tokens = append(p.tokens, g.Tokens[y*g.Cols+used.Min.X:y*g.Cols+used.Max.X]...)
		if g.Ends != nil {
			p.ends = append(p.ends, g.Ends[y])
		}
	}
	w, h := g.Frame.W/float64(g.Cols), g.Frame.H/float64(g.Rows)
	around := beyond
	if g.Tile > 0 { // the drawing of the whole shows parts outside of the patches
		around = 0
	}
	p.view = newView(pic, imageproc.Frame{
		X0: g.Frame.X0 + float64(used.Min.X)*w, Y0: g.Frame.Y0 + float64(used.Min.Y)*h,
		W: float64(used.Dx()) * w, H: float64(used.Dy()) * h,
	}, used.Dy(), used.Dx(), around)
	p.unseen = p.grid() != image.Rect(0, 0, p.width, p.height)
	if p.ends != nil {
		p.width += endPx
	}
	return p
}

// endPx is the width of the column of tokens that end rows.
const endPx = patchPx / 2

func (p *panel) draw(pic *imageproc.Picture) *image.NRGBA {
	im := image.NewNRGBA(image.Rect(0, 0, p.width, p.height))
	p.drawPicture(im, pic)
	if p.marks != nil {
		p.drawPatches(im)
		p.drawEdges(im)
	}
	p.drawTiles(im)
	if p.marks != nil {
		p.drawAnchors(im)
	}
	return im
}

// defaultGrid only sets the scale of a drawing whose patches are unknown.
const defaultGrid = 24

// view maps patches and source pixels to the drawing.
type view struct {
	gridH, gridW  int
	cell          image.Point     // a patch's width and height in the drawing
	x0, y0        int             // drawing's pixel of the patch grid's corner
	width, height int             // the drawing's size without its legend
	source        image.Rectangle // the shown part of the picture, in its pixels
	// where that part is in the drawing; it may extend one source pixel beyond it
	target image.Rectangle
}

// newView shows the frame and the parts of the picture around it, up to a share of the frame on
// each side.
func newView(pic *imageproc.Picture, f imageproc.Frame, gridH, gridW int, around float64) view {
	v := view{gridH: gridH, gridW: gridW}
	px := func(d float64) int { return int(math.Round(d)) }
	w, h := f.W/float64(gridW), f.H/float64(gridH)
	v.cell.X = px(patchPx * max(1, min(longest, w/h)))
	v.cell.Y = px(patchPx * max(1, min(longest, h/w)))
	width, height := float64(gridW*v.cell.X), float64(gridH*v.cell.Y)
	sx, sy := width/f.W, height/f.H
	left := max(0, min(f.X0*sx, around*width))
	top := max(0, min(f.Y0*sy, around*height))
	right := max(0, min((float64(pic.Width)-f.X0-f.W)*sx, around*width))
	bottom := max(0, min((float64(pic.Height)-f.Y0-f.H)*sy, around*height))
	v.x0, v.y0 = px(left), px(top)
	v.width, v.height = v.x0+gridW*v.cell.X+px(right), v.y0+gridH*v.cell.Y+px(bottom)

	// The visible source pixels and their place: x in the picture is at x0 + (x - X0)·sx in the
	// drawing.
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
	return image.Rect(v.x0, v.y0, v.x0+v.gridW*v.cell.X, v.y0+v.gridH*v.cell.Y)
}

// patch is the drawing's rectangle of patch i.
func (v view) patch(i int) image.Rectangle {
	at := image.Pt(v.x0+i%v.gridW*v.cell.X, v.y0+i/v.gridW*v.cell.Y)
	return image.Rectangle{at, at.Add(v.cell)}
}

// drawPicture draws the scaled picture and fades the parts outside the grid.
func (v view) drawPicture(im *image.NRGBA, pic *imageproc.Picture) {
	all := im.Bounds()
	draw.Draw(im, all, image.NewUniform(color.NRGBA{128, 128, 128, 255}), image.Point{}, draw.Src)
	if !v.target.Empty() {
		src := shrunk(pic, v.source, v.target.Size())
		xdraw.CatmullRom.Scale(im.SubImage(all).(*image.NRGBA), v.target, src, src.Bounds(),
			xdraw.Src, nil)
	}
	g := v.grid()
	for _, outside := range []image.Rectangle{
		{all.Min, image.Pt(all.Max.X, g.Min.Y)}, {image.Pt(all.Min.X, g.Max.Y), all.Max},
		{image.Pt(all.Min.X, g.Min.Y), image.Pt(g.Min.X, g.Max.Y)},
		{image.Pt(g.Max.X, g.Min.Y), image.Pt(all.Max.X, g.Max.Y)},
	} {
		wash(im, outside, paper, unseenShare)
	}
}

// shrunk is the part from of the picture, averaged over whole blocks of pixels until it is less
// than twice the needed size. So a large photograph takes one pass and no second copy of its size.
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

// wash draws a colour over a part of the drawing, with the given share.
func wash(im *image.NRGBA, r image.Rectangle, c color.NRGBA, share float64) {
	r = r.Intersect(im.Bounds())
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			p := im.Pix[im.PixOffset(x, y):]
			for k, v := range [3]uint8{c.R, c.G, c.B} {
				p[k] = uint8((1-share)*float64(p[k]) + share*float64(v) + 0.5)
			}
		}
	}
}

// marks are the marks drawn over the patches.
type marks struct {
	r    *reduce.Reduction
	tint []color.NRGBA // by row; only for groups
}

// grouped reports whether a row stands for a group: a merged row, or a kept token that counts for
// others.
func grouped(r *reduce.Row) bool { return r.Merged || len(r.Members) > 1 }

// grouped reports whether token t is in a group.
func (m *marks) grouped(t int32) bool {
	return m.r.Group[t] >= 0 && grouped(&m.r.Rows[m.r.Group[t]])
}

// kept reports whether token t is read unchanged.
func (m *marks) kept(t int32) bool {
	if m.r.Group[t] < 0 {
		return false
	}
	row := &m.r.Rows[m.r.Group[t]]
	return !row.Merged && (row.Anchor == t || len(row.Members) == 1)
}

// end is the drawing's rectangle of the token that ends row y.
func (p *panel) end(y int) image.Rectangle {
	top := p.y0 + y*p.cell.Y
	return image.Rect(p.width-endPx, top, p.width, top+p.cell.Y)
}

// each calls do for every token with its rectangle.
func (p *panel) each(do func(token int32, at image.Rectangle)) {
	for i, t := range p.tokens {
		if t >= 0 {
			do(t, p.patch(i))
		}
	}
	for y, t := range p.ends {
		if t >= 0 {
			do(t, p.end(y))
		}
	}
}

func (p *panel) drawPatches(im *image.NRGBA) {
	m := p.marks
	p.each(func(t int32, at image.Rectangle) {
		switch {
		case m.r.Group[t] < 0:
			wash(im, at, color.NRGBA{0, 0, 0, 255}, droppedShare)
		case m.grouped(t) && !m.kept(t):
			tinted(im, at, m.tint[m.r.Group[t]])
		}
	})
}

// tinted lightens a patch and tints it in its group's colour.
func tinted(im *image.NRGBA, at image.Rectangle, tint color.NRGBA) {
	wash(im, at, paper, lightShare)
	wash(im, at, tint, tintShare)
}

// drawEdges draws each group's outline in its colour, a thin dark line between neighbours of
// different tokens, and a light frame in each kept patch.
func (p *panel) drawEdges(im *image.NRGBA) {
	m := p.marks
	line := func(r image.Rectangle, c color.NRGBA) {
		draw.Draw(im, r, image.NewUniform(c), image.Point{}, draw.Src)
	}
	differ := func(i, j int) bool {
		a, b := p.tokens[i], p.tokens[j]
		return a >= 0 && b >= 0 && m.r.Group[a] != m.r.Group[b]
	}
	for i, t := range p.tokens {
		if t >= 0 && m.grouped(t) {
			p.outline(im, i, m.tint[m.r.Group[t]])
		}
	}
	for i := range p.tokens {
		at := p.patch(i)
		if i%p.gridW > 0 && differ(i, i-1) {
			line(image.Rect(at.Min.X, at.Min.Y, at.Min.X+1, at.Max.Y), groupEdge)
		}
		if i >= p.gridW && differ(i, i-p.gridW) {
			line(image.Rect(at.Min.X, at.Min.Y, at.Max.X+1, at.Min.Y+1), groupEdge)
		}
	}
	p.each(func(t int32, at image.Rectangle) {
		if m.kept(t) {
			frameInside(im, at, 2, keptEdge)
			frameInside(im, at, 1, groupEdge)
		}
	})
}

// outline draws the sides of patch i whose neighbour belongs to another token, or to none.
func (p *panel) outline(im *image.NRGBA, i int, c color.NRGBA) {
	x, y, at := i%p.gridW, i/p.gridW, p.patch(i)
	other := func(dx, dy int) bool {
		u, v := x+dx, y+dy
		if u < 0 || v < 0 || u >= p.gridW || v >= p.gridH {
			return true
		}
		t := p.tokens[v*p.gridW+u]
		return t < 0 || p.marks.r.Group[t] != p.marks.r.Group[p.tokens[i]]
	}
	side := func(minX, minY, maxX, maxY int) {
		draw.Draw(im, image.Rect(minX, minY, maxX, maxY), image.NewUniform(c), image.Point{},
			draw.Src)
	}
	const w = edgePx + 1 // a pixel of it is the line between neighbours
	if other(-1, 0) {
		side(at.Min.X, at.Min.Y, at.Min.X+w, at.Max.Y)
	}
	if other(1, 0) {
		side(at.Max.X-edgePx, at.Min.Y, at.Max.X, at.Max.Y)
	}
	if other(0, -1) {
		side(at.Min.X, at.Min.Y, at.Max.X, at.Min.Y+w)
	}
	if other(0, 1) {
		side(at.Min.X, at.Max.Y-edgePx, at.Max.X, at.Max.Y)
	}
}

// drawTiles draws the borders between tiles.
func (p *panel) drawTiles(im *image.NRGBA) {
	if p.tile == 0 {
		return
	}
	g := p.grid()
	border := func(r image.Rectangle) {
		draw.Draw(im, r.Inset(-1), image.NewUniform(groupEdge), image.Point{}, draw.Src)
		draw.Draw(im, r, image.NewUniform(keptEdge), image.Point{}, draw.Src)
	}
	for x := 1; x < p.gridW; x++ {
		if (p.col0+x)%p.tile == 0 {
			at := g.Min.X + x*p.cell.X
			border(image.Rect(at-1, g.Min.Y, at+1, g.Max.Y))
		}
	}
	for y := 1; y < p.gridH; y++ {
		if (p.row0+y)%p.tile == 0 {
			at := g.Min.Y + y*p.cell.Y
			border(image.Rect(g.Min.X, at-1, g.Max.X, at+1))
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

// drawAnchors puts a disc on the anchor of each group, with the number of patches that its token
// stands for.
func (p *panel) drawAnchors(im *image.NRGBA) {
	m := p.marks
	for i, t := range p.tokens {
		if t < 0 || !m.grouped(t) {
			continue
		}
		g := m.r.Group[t]
		if row := &m.r.Rows[g]; row.Anchor == t {
			drawDisc(im, p.patch(i), m.tint[g], row.Size)
		}
	}
}

// drawDisc fills most of a patch with a disc in a deep shade of its group's colour, ringed in
// white, and writes count on it.
func drawDisc(im *image.NRGBA, patch image.Rectangle, tint color.NRGBA, count int) {
	const shade = 0.55
	deep := color.NRGBA{
		uint8(float64(tint.R) * shade),
		uint8(float64(tint.G) * shade),
		uint8(float64(tint.B) * shade),
		255,
	}
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

// blend draws c over a pixel with the given coverage, clamped to [0, 1].
func blend(im *image.NRGBA, x, y int, c color.NRGBA, cover float64) {
	cover = max(0, min(1, cover))
	p := im.Pix[im.PixOffset(x, y):]
	for k, v := range [3]uint8{c.R, c.G, c.B} {
		p[k] = uint8(float64(p[k])*(1-cover) + float64(v)*cover + 0.5)
	}
}
