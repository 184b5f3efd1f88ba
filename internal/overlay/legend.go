package overlay

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"strconv"
	"strings"
	"sync"

	xdraw "golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/wrap"
	"github.com/restore-vlm/restore/reduce"
)

// Sizes of a legend in pixels, for a drawing of width plainWidth.
const (
	textPx    = 17
	headPx    = 20
	leading   = 4 // between lines
	lineGap   = 10
	margin    = 14
	sampleGap = 12

	plainWidth = 672 // 24 patches
	leastWidth = 320 // room for a legend
	mostScale  = 4
)

// typeface is a font at several sizes. A face keeps a glyph buffer, so two drawings must not use it
// at once: lock.
type typeface struct {
	lock  sync.Mutex
	font  *opentype.Font
	sizes map[int]font.Face
}

func newTypeface(ttf []byte) *typeface {
	f, err := opentype.Parse(ttf)
	if err != nil { // the fonts are part of x/image
		panic("overlay: " + err.Error())
	}
	return &typeface{font: f, sizes: map[int]font.Face{}}
}

var (
	bold    = sync.OnceValue(func() *typeface { return newTypeface(gobold.TTF) })
	regular = sync.OnceValue(func() *typeface { return newTypeface(goregular.TTF) })
)

// with calls do with the face of a size; do must not keep the face.
func (t *typeface) with(px int, do func(font.Face)) {
	t.lock.Lock()
	defer t.lock.Unlock()
	face := t.sizes[px]
	if face == nil {
		var err error
		face, err = opentype.NewFace(t.font,
			&opentype.FaceOptions{Size: float64(px), DPI: 72, Hinting: font.HintingFull})
		if err != nil {
			panic("overlay: " + err.Error())
		}
		t.sizes[px] = face
	}
	do(face)
}

// lines breaks text into lines of at most width pixels.
func (t *typeface) lines(px int, text string, width int) (lines []string) {
	t.with(px, func(f font.Face) {
		lines = wrap.Lines(text, func(line string) bool {
			return font.MeasureString(f, line).Ceil() <= width
		})
	})
	return lines
}

// write puts s with its baseline at y, starting at x.
func write(im *image.NRGBA, face font.Face, c color.NRGBA, x, y int, s string) {
	d := font.Drawer{Dst: im, Src: image.NewUniform(c), Face: face, Dot: fixed.P(x, y)}
	d.DrawString(s)
}

// writeCount centres a number in a patch.
func writeCount(im *image.NRGBA, patch image.Rectangle, n int) {
	s, px, rise := strconv.Itoa(n), 14, 5
	if len(s) > 2 {
		px, rise = 11, 4
	}
	bold().with(px, func(face font.Face) {
		w := font.MeasureString(face, s).Round()
		white := color.NRGBA{255, 255, 255, 255}
		write(im, face, white, (patch.Min.X+patch.Max.X-w)/2, (patch.Min.Y+patch.Max.Y)/2+rise, s)
	})
}

// legend explains the drawing's marks and counts them.
type legend struct {
	scale         float64 // scale of its sizes
	perRow        int     // number of drawings side by side
	method        string
	before, after int // patches and tokens
	encoded       int // patches that a method before the base left; 0: there was none
	kept, merged  int // tokens
	extra         int // tokens that are not patches: class token, zero vectors
	inMerged      int // patches
	counted       int // patches that kept tokens count for
	counting      int // kept tokens that count for others
	dropped       int // patches
	drawn, unseen bool
	below         bool   // drawings are below each other
	grids         []grid // of the drawings, if there are several
	newlines      bool   // rows end in newline tokens
}

// grid is the patch grid of a drawing.
type grid struct {
	rows, cols int
	tiles      bool
}

func (l *legend) count(panels []*panel, r *reduce.Reduction) {
	for _, p := range panels {
		l.unseen = l.unseen || p.unseen
		l.newlines = l.newlines || p.ends != nil
		if len(panels) > 1 {
			l.grids = append(l.grids, grid{p.gridH, p.gridW, p.tile > 0})
		}
		p.each(func(int32, image.Rectangle) { l.before++ })
	}
	if r == nil {
		l.after, l.kept = l.before, l.before
		return
	}
	l.before, l.after = r.N, len(r.Rows)
	if b := r.Options.Base; b != "" && b != "none" {
		l.method = title(b)
		if r.Options.Restore {
			l.method = "RESTORE over " + l.method
		}
		if before := r.Options.Before; before != nil {
			l.encoded = before.NVis
			l.method += " after " + title(before.Base)
		}
		if n := len(r.Stages); n > 0 && r.Stages[n-1].From == 0 {
			l.method += " · before the decoder"
		} else if n > 0 && r.Options.EncoderBlocks > 0 {
			l.method += fmt.Sprintf(" · after block %d of %d of the encoder", r.Stages[n-1].From,
				r.Options.EncoderBlocks)
		} else if n > 0 {
			l.method += fmt.Sprintf(" · from layer %d on", r.Stages[n-1].From)
		}
	}
	for _, row := range r.Rows {
		switch {
		case row.Merged:
			l.merged++
			l.inMerged += len(row.Members)
		case len(row.Members) == 0:
			l.extra++
		default:
			l.kept++
			if others := len(row.Members) - 1; others > 0 {
				l.counting, l.counted = l.counting+1, l.counted+others
			}
		}
	}
	for _, g := range r.Group {
		if g < 0 {
			l.dropped++
		}
	}
}

// title is a base's name as in its paper: the start of its title in the table.
func title(base string) string {
	for _, m := range methods.Methods() {
		if name, _, ok := strings.Cut(m.Title, ":"); ok && m.Name == base {
			return name
		}
	}
	return base
}

// entry is one line of the legend: a sample of the mark and what it means.
type entry struct {
	sample func(im *image.NRGBA, patch image.Rectangle)
	text   string
}

func (l *legend) entries() []entry {
	var out []entry
	add := func(when bool, text string, sample func(*image.NRGBA, image.Rectangle)) {
		if when {
			out = append(out, entry{sample, text})
		}
	}
	plain := color.NRGBA{150, 175, 205, 255}
	tint := color.NRGBA{240, 150, 60, 255}
	fill := func(im *image.NRGBA, r image.Rectangle, c color.NRGBA) {
		draw.Draw(im, r, image.NewUniform(c), image.Point{}, draw.Src)
	}
	add(!l.drawn, "the patch grid is not known, so no patches are marked", nil)
	patch, patches := "patch", "patches"
	if l.newlines {
		patch, patches = "patch or newline", "patches and newlines"
	}
	add(l.drawn && len(l.grids) > 0, l.views(), nil)
	add(l.drawn && l.newlines, "the narrow column holds the newlines that end the rows", nil)
	add(
		l.drawn && l.kept > 0,
		plural(l.kept, patch, patches)+" kept: each is one token, as it is",
		func(im *image.NRGBA, r image.Rectangle) {
			fill(im, r, plain)
			frameInside(im, r, 2, keptEdge)
			frameInside(im, r, 1, groupEdge)
		},
	)
	add(
		l.drawn && l.counted > 0,
		fmt.Sprintf("%s not read, but counted by %s: the disc is on the token and says how many "+
			"patches it counts for", plural(l.counted, patch, patches),
			plural(l.counting, "kept token", "kept tokens")),
		func(im *image.NRGBA, r image.Rectangle) {
			fill(im, r, plain)
			tinted(im, r, tint)
			frameInside(im, r, edgePx, tint)
		},
	)
	add(
		l.drawn && l.merged > 0,
		fmt.Sprintf("%s merged into %s: patches of one colour are one token, "+
			"their average; the disc is on its anchor and says how many there are",
			plural(l.inMerged, patch, patches), plural(l.merged, "token", "tokens")),
		func(im *image.NRGBA, r image.Rectangle) {
			fill(im, r, plain)
			tinted(im, r, tint)
			frameInside(im, r, edgePx, tint)
			drawDisc(im, r, tint, (l.inMerged+l.merged/2)/l.merged)
		},
	)
	add(
		l.drawn && l.dropped > 0,
		plural(l.dropped, patch, patches)+" dropped: the answer is given without them",
		func(im *image.NRGBA, r image.Rectangle) {
			fill(im, r, plain)
			wash(im, r, color.NRGBA{0, 0, 0, 255}, droppedShare)
		},
	)
	add(l.extra > 0, plural(l.extra, "token that is no patch", "tokens that are no patch"), nil)
	add(
		l.unseen,
		"outside the model's frame: never seen",
		func(im *image.NRGBA, r image.Rectangle) {
			fill(im, r, plain)
			wash(im, r, paper, unseenShare)
			frameInside(im, r, 1, color.NRGBA{190, 190, 190, 255})
		},
	)
	return out
}

// views explains each of several drawings.
func (l *legend) views() string {
	places := [2]string{"left", "right"}
	if l.below {
		places = [2]string{"above", "below"}
	}
	var parts []string
	for i, g := range l.grids {
		what := "the whole picture made small"
		if g.tiles {
			what = "the picture in tiles, between the heavy lines"
		}
		parts = append(parts,
			fmt.Sprintf("%s: %s, %dx%d patches", places[min(i, 1)], what, g.rows, g.cols))
	}
	return strings.Join(parts, "; ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func (l *legend) head() string {
	unit, units := "patch", "patches"
	if l.newlines {
		unit, units = "patch or newline", "patches and newlines"
	}
	s := plural(l.before, unit, units)
	if l.encoded > 0 {
		s += fmt.Sprintf(" → %d encoded", l.encoded)
	}
	s += " → " + plural(l.after, "visual token", "visual tokens")
	if l.method != "" {
		s += " · " + l.method
	}
	return s
}

// px scales a size of the legend.
func (l *legend) px(n int) int { return int(float64(n)*l.scale + 0.5) }

// fit chooses the scale for a drawing's width, so that a wide drawing is still readable when it is
// shown small.
func (l *legend) fit(width int) {
	total := float64(width * max(l.perRow, 1))
	l.scale = max(1, min(mostScale, math.Sqrt(total/plainWidth)))
}

// textLeft is where text next to a sample starts.
func (l *legend) textLeft() int { return l.px(margin) + l.px(patchPx) + l.px(sampleGap) }

// headLines and textLines are the wrapped lines of the head and of an entry.
func (l *legend) headLines(width int) []string {
	return bold().lines(l.px(headPx), l.head(), width-2*l.px(margin))
}

func (l *legend) textLines(text string, width int) []string {
	return regular().lines(l.px(textPx), text, width-l.textLeft()-l.px(margin))
}

// height is the legend's height in a drawing of the given width.
func (l *legend) height(width int) int {
	h := 2*l.px(margin) + len(l.headLines(width))*l.px(headPx+leading)
	for _, e := range l.entries() {
		h += l.entryHeight(l.textLines(e.text, width)) + l.px(lineGap)
	}
	return h
}

func (l *legend) entryHeight(lines []string) int {
	return max(l.px(patchPx), len(lines)*l.px(textPx+leading))
}

// draw writes the legend from row top to the end of the drawing.
func (l *legend) draw(im *image.NRGBA, top int) {
	width := im.Bounds().Dx()
	draw.Draw(im, image.Rect(0, top, width, im.Bounds().Dy()), image.NewUniform(paper),
		image.Point{}, draw.Src)
	y := top + l.px(margin)
	for _, line := range l.headLines(width) {
		bold().with(l.px(headPx), func(f font.Face) {
			write(im, f, ink, l.px(margin), y+l.px(headPx-3), line)
		})
		y += l.px(headPx + leading)
	}
	for _, e := range l.entries() {
		y += l.px(lineGap)
		if e.sample != nil {
			l.sample(im, e.sample, l.px(margin), y)
		}
		lines, step := l.textLines(e.text, width), l.px(textPx+leading)
		at := y + (l.entryHeight(lines)-len(lines)*step)/2
		for i, line := range lines {
			regular().with(l.px(textPx), func(f font.Face) {
				write(im, f, ink, l.textLeft(), at+i*step+l.px(textPx-1), line)
			})
		}
		y += l.entryHeight(lines)
	}
}

// sample draws a mark at its size in the drawing, and scales it to the legend's size.
func (l *legend) sample(im *image.NRGBA, draw func(*image.NRGBA, image.Rectangle), x, y int) {
	one := image.NewNRGBA(image.Rect(0, 0, patchPx, patchPx))
	draw(one, one.Rect)
	at := image.Rect(x, y, x+l.px(patchPx), y+l.px(patchPx))
	xdraw.CatmullRom.Scale(im, at, one, one.Rect, xdraw.Src, nil)
}
