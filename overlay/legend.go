package overlay

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/restore-vlm/restore/reduce"
)

const (
	textPx    = 17
	headPx    = 20
	lineGap   = 10
	margin    = 14
	sampleGap = 12
)

// faces are the fonts in use. A face keeps a glyph buffer and must not be used by two drawings at once: lock.
type faces struct {
	lock              sync.Mutex
	head, text, count font.Face
	narrow            font.Face // counts of three digits and more
}

var fonts = sync.OnceValue(func() *faces {
	load := func(ttf []byte, px float64) font.Face {
		f, err := opentype.Parse(ttf)
		if err != nil { // the fonts are part of x/image
			panic("overlay: " + err.Error())
		}
		face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: px, DPI: 72, Hinting: font.HintingFull})
		if err != nil {
			panic("overlay: " + err.Error())
		}
		return face
	}
	return &faces{
		head: load(gobold.TTF, headPx), text: load(goregular.TTF, textPx),
		count: load(gobold.TTF, 14), narrow: load(gobold.TTF, 11),
	}
})

// write puts s with its baseline at y, starting at x.
func write(im *image.NRGBA, face font.Face, c color.NRGBA, x, y int, s string) {
	d := font.Drawer{Dst: im, Src: image.NewUniform(c), Face: face, Dot: fixed.P(x, y)}
	d.DrawString(s)
}

// writeCount centres a number in a patch.
func writeCount(im *image.NRGBA, patch image.Rectangle, n int) {
	f := fonts()
	f.lock.Lock()
	defer f.lock.Unlock()
	s, face, rise := strconv.Itoa(n), f.count, 5
	if len(s) > 2 {
		face, rise = f.narrow, 4
	}
	w := font.MeasureString(face, s).Round()
	write(im, face, color.NRGBA{255, 255, 255, 255}, (patch.Min.X+patch.Max.X-w)/2, (patch.Min.Y+patch.Max.Y)/2+rise, s)
}

// legend explains the drawing's marks and counts them.
type legend struct {
	method        string
	before, after int // patches and tokens
	kept, merged  int // tokens
	extra         int // tokens that are no patch: class token, zero vectors
	inMerged      int // patches
	dropped       int // patches
	drawn, unseen bool
	below         bool   // drawings stand below each other
	grids         []grid // of drawings that are more than one
	newlines      bool   // rows end in tokens that are no patches
}

// grid is a drawing's patches.
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
		if n := len(r.Stages); n > 0 && r.Options.EncoderBlocks > 0 {
			l.method += fmt.Sprintf(" · after block %d of %d of the encoder", r.Stages[n-1].From, r.Options.EncoderBlocks)
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
		}
	}
	for _, g := range r.Group {
		if g < 0 {
			l.dropped++
		}
	}
}

// title is a base's name as its paper writes it: the start of its title in the table, before what it does.
func title(base string) string {
	for _, m := range reduce.Methods() {
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
	add(l.drawn && l.kept > 0, plural(l.kept, patch, patches)+" kept: each is one token, as it is", func(im *image.NRGBA, r image.Rectangle) {
		fill(im, r, plain)
		frameInside(im, r, 2, keptEdge)
		frameInside(im, r, 1, groupEdge)
	})
	add(l.drawn && l.merged > 0, fmt.Sprintf("%s merged into %s: patches of one colour are one token, "+
		"their average; the disc is on its anchor and says how many there are",
		plural(l.inMerged, patch, patches), plural(l.merged, "token", "tokens")), func(im *image.NRGBA, r image.Rectangle) {
		fill(im, r, plain)
		wash(im, r, tint, tintShare)
		drawDisc(im, r, tint, (l.inMerged+l.merged/2)/l.merged)
	})
	add(l.drawn && l.dropped > 0, plural(l.dropped, patch, patches)+" dropped: the answer is given without them", func(im *image.NRGBA, r image.Rectangle) {
		fill(im, r, plain)
		wash(im, r, color.NRGBA{0, 0, 0, 255}, droppedShare)
	})
	add(l.extra > 0, plural(l.extra, "token that is no patch", "tokens that are no patch"), nil)
	add(l.unseen, "outside the model's frame: never seen", func(im *image.NRGBA, r image.Rectangle) {
		fill(im, r, plain)
		wash(im, r, paper, unseenShare)
		frameInside(im, r, 1, color.NRGBA{190, 190, 190, 255})
	})
	return out
}

// views says what each of several drawings shows.
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
		parts = append(parts, fmt.Sprintf("%s: %s, %dx%d patches", places[min(i, 1)], what, g.rows, g.cols))
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
	s := fmt.Sprintf("%s → %s", plural(l.before, unit, units), plural(l.after, "visual token", "visual tokens"))
	if l.method != "" {
		s += " · " + l.method
	}
	return s
}

// textLeft is where text beside a sample starts.
const textLeft = margin + patchPx + sampleGap

// wrap breaks text into lines of at most width pixels; a word longer than that stands alone.
func wrap(face font.Face, text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		if n := len(lines); n > 0 {
			if longer := lines[n-1] + " " + word; font.MeasureString(face, longer).Ceil() <= width {
				lines[n-1] = longer
				continue
			}
		}
		lines = append(lines, word)
	}
	return lines
}

// height is the legend's, in a drawing of the given width.
func (l *legend) height(width int) int {
	f := fonts()
	f.lock.Lock()
	defer f.lock.Unlock()
	h := 2*margin + len(wrap(f.head, l.head(), width-2*margin))*(headPx+4)
	for _, e := range l.entries() {
		h += entryHeight(wrap(f.text, e.text, width-textLeft-margin)) + lineGap
	}
	return h
}

func entryHeight(lines []string) int { return max(patchPx, len(lines)*(textPx+4)) }

// draw writes the legend from row top to the end of the drawing.
func (l *legend) draw(im *image.NRGBA, top int) {
	width := im.Bounds().Dx()
	draw.Draw(im, image.Rect(0, top, width, im.Bounds().Dy()), image.NewUniform(paper), image.Point{}, draw.Src)
	f := fonts()
	y := top + margin
	f.lock.Lock()
	for _, line := range wrap(f.head, l.head(), width-2*margin) {
		write(im, f.head, ink, margin, y+headPx-3, line)
		y += headPx + 4
	}
	f.lock.Unlock()
	for _, e := range l.entries() {
		y += lineGap
		if e.sample != nil {
			e.sample(im, image.Rect(margin, y, margin+patchPx, y+patchPx))
		}
		f.lock.Lock()
		lines := wrap(f.text, e.text, width-textLeft-margin)
		at := y + (entryHeight(lines)-len(lines)*(textPx+4))/2
		for i, line := range lines {
			write(im, f.text, ink, textLeft, at+i*(textPx+4)+textPx-1, line)
		}
		f.lock.Unlock()
		y += entryHeight(lines)
	}
}
