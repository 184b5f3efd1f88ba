package overlay

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/reduce"
	"golang.org/x/image/font"
)

// flat is a picture of one colour.
func flat(w, h int, c color.NRGBA) *imageproc.Picture {
	return &imageproc.Picture{
		Width:  w,
		Height: h,
		Pix:    bytes.Repeat([]byte{c.R, c.G, c.B}, w*h),
		Format: "PNG",
	}
}

// worked is a grid of 2x3 patches: 0 kept, 1 2 merged (anchor 1), 4 merged alone, 3 5 dropped.
func worked() *reduce.Reduction {
	return &reduce.Reduction{
		Options: reduce.Resolved{Base: "holov", N: 6, NVis: 3, Restore: true},
		N:       6, Group: []int32{0, 1, 1, -1, 2, -1}, Kept: []int32{0}, Anchors: []int32{1, 4},
		Rows: []reduce.Row{
			{Members: []int32{0}, Anchor: 0, Size: 1},
			{Members: []int32{1, 2}, Anchor: 1, Merged: true, Size: 2, Position: 1},
			{Members: []int32{4}, Anchor: 4, Merged: true, Size: 1, Position: 4},
		},
	}
}

var sky = color.NRGBA{120, 180, 240, 255}

// whole is a grid of h by w patches over f.
func whole(h, w int, f imageproc.Frame) []imageproc.Grid {
	return []imageproc.Grid{{Rows: h, Cols: w, Frame: f}}
}

// corner is the drawing's colour between centre and edge of a patch, where neither frame nor disc
// lie.
func corner(im *image.NRGBA, patch, gridW int) color.NRGBA {
	return im.NRGBAAt(patch%gridW*patchPx+3, patch/gridW*patchPx+3)
}

// Ensure each fate of a patch looks as the legend says.
func TestDrawWorkedExample(t *testing.T) {
	im := Draw(flat(42, 28, sky), worked(), whole(2, 3, imageproc.Frame{W: 42, H: 28}))
	if im.Bounds().Dx() != leastWidth || im.Bounds().Dy() <= 2*patchPx {
		t.Fatalf("size %v, want width %d and a legend below %d", im.Bounds().Size(), leastWidth,
			2*patchPx)
	}
	if got := corner(im, 0, 3); got != sky {
		t.Errorf("kept patch: %v, want the picture's %v", got, sky)
	}
	if got := im.NRGBAAt(1, 1); got != keptEdge {
		t.Errorf("kept patch's frame: %v, want %v", got, keptEdge)
	}
	a, b, c := corner(im, 1, 3), corner(im, 2, 3), corner(im, 4, 3)
	if a != b {
		t.Errorf("patches of one group: %v and %v", a, b)
	}
	if a == c || a == sky || c == sky {
		t.Errorf("groups %v and %v over %v: want three colours", a, c, sky)
	}
	for _, i := range []int{3, 5} {
		if d := corner(im, i, 3); int(d.R)+int(d.G)+int(d.B) > 180 || d.R >= d.G || d.G >= d.B {
			t.Errorf("dropped patch %d: %v, want a dark shade of the picture's colour", i, d)
		}
	}
	ring := func(patch int) color.NRGBA { // the disc's white ring, above the centre
		return im.NRGBAAt(patch%3*patchPx+patchPx/2, patch/3*patchPx+2)
	}
	for patch, want := range []bool{false, true, false, false, true, false} {
		if got := ring(patch) == keptEdge; got != want {
			t.Errorf("patch %d: disc %v, want %v", patch, got, want)
		}
	}
}

// Ensure the legend counts patches and tokens, in the right number.
func TestLegend(t *testing.T) {
	var l legend
	l.count(nil, worked())
	l.drawn = true
	if got, want := l.head(), "6 patches → 3 visual tokens · RESTORE over HoloV"; got != want {
		t.Errorf("head %q, want %q", got, want)
	}
	before := worked()
	before.Options.Before = &reduce.Before{Base: "pixelprune", N: 6, NVis: 4}
	l = legend{}
	l.count(nil, before)
	l.drawn = true
	const both = "6 patches → 4 encoded → 3 visual tokens · RESTORE over HoloV after PixelPrune"
	if got := l.head(); got != both {
		t.Errorf("head %q, want %q", got, both)
	}
	want := []string{
		"1 patch kept: each is one token, as it is",
		"3 patches merged into 2 tokens: patches of one colour are one token, their average; the disc is on its anchor and says how many there are",
		"2 patches dropped: the answer is given without them",
	}
	got := l.entries()
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i, e := range got {
		if e.text != want[i] {
			t.Errorf("entry %d: %q, want %q", i, e.text, want[i])
		}
	}
}

// Ensure a kept token that counts others is shown as it is, with a disc, and those that it counts
// in its colour.
func TestCounted(t *testing.T) {
	r := worked() // token 0 is kept; 3 and 5 are dropped, and now counted by it
	r.Rows[0].Members, r.Rows[0].Size = []int32{0, 3, 5}, 3
	r.Group[3], r.Group[5] = r.Group[0], r.Group[0]
	var l legend
	l.count(nil, r)
	l.drawn = true
	want := "2 patches not read, but counted by 1 kept token: " +
		"the disc is on the token and says how many patches it counts for"
	if got := l.entries(); len(got) != 3 || got[1].text != want {
		t.Errorf("got %v, want 3 entries with %q", got, want)
	}
	im := Draw(flat(42, 28, sky), r, whole(2, 3, imageproc.Frame{W: 42, H: 28}))
	if got := corner(im, 0, 3); got != sky {
		t.Errorf("kept patch: %v, want the picture's %v", got, sky)
	}
	a, b, merged := corner(im, 3, 3), corner(im, 5, 3), corner(im, 4, 3)
	if a != b || a == sky || a == merged {
		t.Errorf("counted patches: %v and %v, want one colour, not %v or %v", a, b, sky, merged)
	}
	if got := im.NRGBAAt(patchPx/2, 2); got != keptEdge {
		t.Errorf("no disc on the kept patch: %v", got)
	}
}

// Ensure the frame decides where patches lie: centre-cropped, padded and whole pictures.
func TestFrames(t *testing.T) {
	for _, c := range []struct {
		name          string
		w, h          int
		frame         imageproc.Frame
		width, height int // of the drawing without legend, grid 4x4
		x0, y0        int
	}{
		{"whole", 56, 56, imageproc.Frame{W: 56, H: 56}, 112, 112, 0, 0},
		{"no frame", 56, 56, imageproc.Frame{}, 112, 112, 0, 0},
		{"cropped", 96, 56, imageproc.Frame{X0: 20, W: 56, H: 56}, 192, 112, 40, 0},
		// half a frame on each side
		{"cropped far", 1056, 56, imageproc.Frame{X0: 500, W: 56, H: 56}, 224, 112, 56, 0},
		{"padded", 56, 28, imageproc.Frame{Y0: -14, W: 56, H: 56}, 112, 112, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newView(flat(c.w, c.h, sky), c.frame, 4, 4, beyond)
			if c.frame.W == 0 {
				v = newView(flat(c.w, c.h, sky), imageproc.Frame{W: 56, H: 56}, 4, 4, beyond)
			}
			if v.width != c.width || v.height != c.height || v.x0 != c.x0 || v.y0 != c.y0 {
				t.Errorf("%dx%d with patches from (%d, %d), want %dx%d from (%d, %d)", v.width,
					v.height, v.x0, v.y0, c.width, c.height, c.x0, c.y0)
			}
			im := Draw(flat(c.w, c.h, sky), nil, whole(4, 4, c.frame))
			if got := im.NRGBAAt(v.x0+56, v.y0+56); got != sky {
				t.Errorf("centre of the frame: %v, want %v", got, sky)
			}
			if c.name == "padded" && im.NRGBAAt(56, 4) == sky {
				t.Error("padding shows the picture")
			}
			if c.x0 > 0 && im.NRGBAAt(2, 56) == sky {
				t.Error("what the model never saw is not faded")
			}
		})
	}
}

// Ensure a reduction that does not fit the grid is not drawn in the wrong places.
func TestUnknownGrid(t *testing.T) {
	pic := flat(50, 50, sky)
	for _, grid := range [][2]int{{0, 0}, {2, 2}, {-1, -6}} {
		im := Draw(pic, worked(), whole(grid[0], grid[1], imageproc.Frame{W: 50, H: 50}))
		for _, at := range []image.Point{{30, 30}, {300, 300}, {600, 40}} {
			if got := im.NRGBAAt(at.X, at.Y); got != sky {
				t.Errorf("grid %v: %v at %v, want the bare picture", grid, got, at)
			}
		}
	}
}

// extreme are the sizes of large and thin pictures.
var extreme = [][2]int{{6000, 4000}, {1, 100_000}, {100_000, 1}, {1, 1}}

// central is the largest square in the middle of a picture.
func central(w, h int) imageproc.Frame {
	side := float64(min(w, h))
	return imageproc.Frame{
		X0: (float64(w) - side) / 2, Y0: (float64(h) - side) / 2, W: side, H: side,
	}
}

// Ensure large and thin pictures cost no memory in proportion to their length.
func TestExtremePictures(t *testing.T) {
	const most = 48 << 20 // bytes; the largest of the pictures has 72 MB
	for _, c := range extreme {
		pic, grid := flat(c[0], c[1], sky), whole(24, 24, central(c[0], c[1]))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		im := Draw(pic, nil, grid)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > most {
			t.Errorf("%v: %d bytes, want at most %d", c, n, most)
		}
		if im.Bounds().Dx() > 48*patchPx || im.Bounds().Dy() > 60*patchPx {
			t.Errorf("%v: drawing of %v", c, im.Bounds().Size())
		}
	}
}

func BenchmarkDraw(b *testing.B) {
	for _, c := range extreme {
		pic, grid := flat(c[0], c[1], sky), whole(24, 24, central(c[0], c[1]))
		b.Run(fmt.Sprintf("%dx%d", c[0], c[1]), func(b *testing.B) {
			for b.Loop() {
				Draw(pic, nil, grid)
			}
		})
	}
}

// Ensure drawings at the same time do not disturb each other, and that drawing is deterministic.
func TestConcurrentDraws(t *testing.T) {
	pic := flat(42, 28, sky)
	want := Draw(pic, worked(), whole(2, 3, imageproc.Frame{W: 42, H: 28}))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := Draw(pic, worked(), whole(2, 3, imageproc.Frame{W: 42,
				H: 28})); !bytes.Equal(got.Pix, want.Pix) {
				t.Error("two drawings differ")
			}
		})
	}
	wg.Wait()
}

// Ensure 64 groups get 64 colours, and groups that touch get colours far apart.
func TestTints(t *testing.T) {
	seen := map[color.NRGBA]bool{}
	for _, c := range palette(64) {
		rgb, ok := c.rgb()
		if !ok || seen[rgb] {
			t.Errorf("colour %v: in gamut %v, repeated %v", rgb, ok, seen[rgb])
		}
		seen[rgb] = true
	}
	if n := len(palette(5000)); n != 5000 {
		t.Errorf("%d colours, want 5000", n)
	}

	const grid = 12 // stripes of two columns, 6 groups
	r := &reduce.Reduction{
		N:     grid * grid,
		Rows:  make([]reduce.Row, grid/2),
		Group: make([]int32, grid*grid),
	}
	for i := range r.Group {
		r.Group[i] = int32(i % grid / 2)
	}
	for g := range r.Rows {
		r.Rows[g] = reduce.Row{Merged: true, Size: 2 * grid}
	}
	tint := newTinter(groups(r)).tints(r, []*panel{newPanel(flat(9, 9, sky),
		imageproc.Grid{Rows: grid, Cols: grid})})
	for g := 1; g < len(tint); g++ {
		a, b := tint[g-1], tint[g]
		d := math.Abs(float64(a.R)-float64(b.R)) + math.Abs(float64(a.G)-float64(b.G)) +
			math.Abs(float64(a.B)-float64(b.B))
		const apart = 100 // levels over three channels; a tint at half strength still differs by 50
		if !(d >= apart) {
			t.Errorf("neighbours %d and %d: %v and %v are %v levels apart, want %d", g-1, g, a, b,
				d, apart)
		}
	}
}

// Ensure the colour conversion agrees with published values: OKLab of sRGB red and white.
func TestLab(t *testing.T) {
	for _, c := range []struct {
		lab  lab
		want color.NRGBA
	}{
		{lab{0.627955, 0.224863, 0.125846}, color.NRGBA{255, 0, 0, 255}},
		{lab{0.9999, 0, 0}, color.NRGBA{255, 255, 255, 255}},
		{lab{0, 0, 0}, color.NRGBA{0, 0, 0, 255}},
	} {
		if got, _ := c.lab.rgb(); got != c.want {
			t.Errorf("%v = %v, want %v", c.lab, got, c.want)
		}
	}
}

// Ensure a picture in tiles is drawn once whole and once in tiles, each token at its place in both,
// without the padding, with the tiles' borders and the newlines.
func TestDrawTiles(t *testing.T) {
	// Tokens 0..3: the whole. 4..7: a map of 1x4 patches in two tiles, in a canvas of 2x4 whose
	// second row is padding. 8: its newline.
	r := &reduce.Reduction{
		N: 9, Group: []int32{0, -1, 1, -1, 1, 1, -1, 2, 3}, Anchors: []int32{5},
		Options: reduce.Resolved{Base: "holov", Restore: true},
		Rows: []reduce.Row{
			{
				Members: []int32{0},
				Anchor:  0,
				Size:    1,
			}, {Members: []int32{2, 4, 5}, Anchor: 5, Merged: true, Size: 3},
			{Members: []int32{7}, Anchor: 7, Size: 1}, {Members: []int32{8}, Anchor: 8, Size: 1},
		},
	}
	grids := []imageproc.Grid{
		{Rows: 2, Cols: 2, Tokens: []int32{0, 1, 2, 3}, Frame: imageproc.Frame{W: 80, H: 20}},
		{
			Rows:   2,
			Cols:   4,
			Tile:   2,
			Tokens: []int32{4, 5, 6, 7, -1, -1, -1, -1},
			Ends:   []int32{8, -1},
			Frame:  imageproc.Frame{W: 80, H: 40},
		},
	}
	im := Draw(flat(80, 20, sky), r, grids)
	// a patch of the whole; where the second drawing begins
	const wide, second = 4 * patchPx, 2*patchPx + margin
	if im.Bounds().Dx() < 2*wide {
		t.Fatalf("width %d, want %d", im.Bounds().Dx(), 2*wide)
	}
	dark := func(c color.NRGBA) bool { return int(c.R)+int(c.G)+int(c.B) < 180 }
	at := func(x, y int) color.NRGBA { return im.NRGBAAt(x, y) }
	if at(10, 8) != sky || !dark(at(wide+10, 8)) || at(10, patchPx+8) != at(6, second+6) ||
		at(6, second+6) == sky {
		t.Errorf("whole: kept %v, dropped %v, merged %v, want %v, dark, %v", at(10, 8),
			at(wide+10, 8), at(10, patchPx+8), sky, at(6, second+6))
	}
	if !dark(at(2*patchPx+8, second+8)) || at(3*patchPx+8, second+8) != sky {
		t.Errorf("tiles: dropped %v, kept %v", at(2*patchPx+8, second+8), at(3*patchPx+8, second+8))
	}
	if at(2*patchPx, second+8) != keptEdge || at(2*patchPx-2, second+8) != groupEdge {
		t.Errorf("border of tiles: %v next to %v", at(2*patchPx, second+8),
			at(2*patchPx-2, second+8))
	}
	if disc := at(patchPx+patchPx/2, second+2); disc != keptEdge {
		t.Errorf("anchor's disc: %v", disc)
	}
	if end := at(4*patchPx+1, second+1); end != keptEdge {
		t.Errorf("newline kept: %v, want its frame %v", end, keptEdge)
	}
	if got := at(20, second+patchPx+4); got != paper { // no second row
		t.Errorf("below the map: %v, want the legend's %v", got, paper)
	}
	var l legend
	l.count([]*panel{newPanel(flat(80, 20, sky), grids[0]), newPanel(flat(80, 20, sky), grids[1])},
		nil)
	if l.before != 9 || l.kept != 9 {
		t.Errorf("not reduced: %d tokens, %d kept, want 9", l.before, l.kept)
	}
	for _, bad := range []imageproc.Grid{
		{Rows: 2, Cols: 2, Tokens: []int32{0, 1, 2}}, {Rows: 2, Cols: 2, Tokens: []int32{0, 1, 2, 9}}, {Rows: 2, Cols: 2, Tokens: []int32{0, 1, 2, -2}},
		{Rows: 1, Cols: 9, Ends: []int32{0, 1}}, {Rows: 1, Cols: 9, Ends: []int32{12}},
	} {
		if got := Draw(flat(80, 20, sky), r, []imageproc.Grid{grids[0], bad}); got.NRGBAAt(30,
			30) != sky ||
			got.NRGBAAt(500, 300) != sky {
			t.Errorf("%+v: drawn, want the bare picture", bad)
		}
	}
}

// Ensure patches have the shape that they have in the picture.
func TestPatchShape(t *testing.T) {
	for _, c := range []struct {
		w, h, rows, cols int
		cell             image.Point
	}{
		{131, 97, 3, 5, image.Pt(28, 35)}, {60, 20, 4, 4, image.Pt(84, 28)}, {3, 300, 4, 4, image.Pt(28, 112)}, {56, 56, 4, 4, image.Pt(28, 28)},
	} {
		p := newPanel(flat(c.w, c.h, sky), imageproc.Grid{Rows: c.rows, Cols: c.cols})
		if p.cell != c.cell || p.width != c.cols*c.cell.X || p.height != c.rows*c.cell.Y ||
			p.unseen {
			t.Errorf("%dx%d in %dx%d: patches of %v, drawing of %dx%d", c.w, c.h, c.rows, c.cols,
				p.cell, p.width, p.height)
		}
	}
}

// hue is a colour's hue in degrees, and its chroma.
func hue(c color.NRGBA) (h, chroma float64) {
	r, g, b := float64(c.R), float64(c.G), float64(c.B)
	high, low := max(r, g, b), min(r, g, b)
	switch chroma = high - low; {
	case chroma == 0:
		return 0, 0
	case high == r:
		h = math.Mod((g-b)/chroma+6, 6)
	case high == g:
		h = (b-r)/chroma + 2
	default:
		h = (r-g)/chroma + 4
	}
	return 60 * h, chroma
}

// Ensure that a merged patch shows the picture's own colour, whatever its group's is, and that
// its outline has the group's.
func TestOwnColours(t *testing.T) {
	const grid = 6
	for _, own := range []color.NRGBA{
		{40, 160, 60, 255}, {210, 30, 40, 255}, {30, 60, 200, 255}, {240, 200, 20, 255},
	} {
		r := &reduce.Reduction{
			N:       grid * grid,
			Group:   make([]int32, grid*grid),
			Options: reduce.Resolved{Base: "holov"},
		}
		for i := range r.Group {
			g := i % grid
			r.Group[i] = int32(g)
			if len(r.Rows) <= g {
				r.Rows = append(r.Rows, reduce.Row{Merged: true, Size: grid, Anchor: int32(g)})
			}
			r.Rows[g].Members = append(r.Rows[g].Members, int32(i))
		}
		im := Draw(flat(84, 84, own), r, whole(grid, grid, imageproc.Frame{W: 84, H: 84}))
		want, _ := hue(own)
		edges := map[color.NRGBA]bool{}
		for g := range grid {
			at := image.Pt(g*patchPx+6, 3*patchPx+14)
			got, chroma := hue(im.NRGBAAt(at.X, at.Y))
			if d := math.Abs(math.Remainder(got-want, 360)); d > 25 || chroma < 40 {
				t.Errorf("%v in group %d: %v, hue %.0f, want near %.0f", own, g,
					im.NRGBAAt(at.X, at.Y), got, want)
			}
			edges[im.NRGBAAt((g+1)*patchPx-1, 3*patchPx+14)] = true
		}
		if len(edges) != grid {
			t.Errorf("%d groups have outlines of %d colours", grid, len(edges))
		}
	}
}

// Ensure that a group keeps its colour from stage to stage, also when it grows and when others
// go.
func TestColoursAreStable(t *testing.T) {
	const grid = 6
	stage := func(groups int) *reduce.Reduction {
		r := &reduce.Reduction{
			N:     grid * grid,
			Group: make([]int32, grid*grid),
			Rows:  make([]reduce.Row, groups),
		}
		for i := range r.Group {
			g := i * groups / len(r.Group)
			r.Group[i] = int32(g)
			r.Rows[g].Merged, r.Rows[g].Members = true, append(r.Rows[g].Members, int32(i))
			r.Rows[g].Size++
		}
		return r
	}
	panels := []*panel{newPanel(flat(9, 9, sky), imageproc.Grid{Rows: grid, Cols: grid})}
	tinter := newTinter(12)
	first := tinter.tints(stage(12), panels)
	second := tinter.tints(stage(6), panels)
	for g, c := range second {
		if c != first[2*g] && c != first[2*g+1] {
			t.Errorf("group %d: %v, want %v or %v as before", g, c, first[2*g], first[2*g+1])
		}
	}
	if third := tinter.tints(stage(6), panels); !slices.Equal(third, second) {
		t.Errorf("nothing changed, and colours did: %v, %v", second, third)
	}
}

// Ensure that text is as large in wide drawings as it must be where they are shown small, and
// that narrow ones have room for it.
func TestLegendScale(t *testing.T) {
	for _, c := range []struct{ width, perRow, text int }{
		{320, 1, 17}, {672, 1, 17}, {672, 3, 29}, {4000, 1, 41}, {40000, 1, 68},
	} {
		l := legend{
			perRow:   c.perRow,
			drawn:    true,
			kept:     5,
			merged:   3,
			inMerged: 20,
			dropped:  2,
			before:   30,
			after:    8,
		}
		l.fit(c.width)
		if got := l.px(textPx); got != c.text {
			t.Errorf("%d wide, %d in a row: text of %d pixels, want %d", c.width, c.perRow,
				got, c.text)
		}
		for _, e := range l.entries() {
			for _, line := range l.textLines(e.text, c.width) {
				regular().with(l.px(textPx), func(f font.Face) {
					if w := l.textLeft() + font.MeasureString(f, line).Ceil(); w > c.width {
						t.Errorf("%d wide: %q ends at %d", c.width, line, w)
					}
				})
			}
		}
	}
}
