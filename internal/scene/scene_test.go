package scene

import (
	"bytes"
	"image"
	"math"
	"reflect"
	"strings"
	"testing"
)

// The plain plate: two digits of five dots and the gap between them, four pixels per dot.
const plainPlateW, plainPlateH = 52, 36

// A share estimated from n draws differs from the true one by more than this many standard errors
// once in 15,000 tables. The seeds are fixed, so the test either always passes or always fails.
const sigmas = 4

func checkShare(t *testing.T, what string, hits, n int, want float64) {
	t.Helper()
	got, tol := float64(hits)/float64(n), sigmas*math.Sqrt(want*(1-want)/float64(n))
	if !(math.Abs(got-want) <= tol) {
		t.Errorf("%s: share %.3f of %d, want %.3f ± %.3f", what, got, n, want, tol)
	}
}

// Ensure that numbers, counts, sizes, colours and shapes have the frequencies of the model's
// training.
func TestLayoutDistribution(t *testing.T) {
	const scenes = 4000
	plates, objects, small, alone := 0, 0, 0, 0
	byColour, byShape := map[string]int{}, map[string]int{}
	for seed := range int64(scenes) {
		s := New(seed)
		if s.Number != "" {
			plates++
		}
		if len(s.Objects) == 1 {
			alone++
		}
		if len(s.Objects) < 1 || len(s.Objects) > MaxObjects {
			t.Fatalf("seed %d: %d objects, want 1 to %d", seed, len(s.Objects), MaxObjects)
		}
		for _, o := range s.Objects {
			objects++
			byColour[o.Colour]++
			byShape[o.Shape]++
			switch {
			case o.R >= 15 && o.R <= 21:
				small++
			case o.R < 28 || o.R > 42:
				t.Fatalf("seed %d: radius %g, want 15 to 21 or 28 to 42", seed, o.R)
			}
		}
	}
	checkShare(t, "plates", plates, scenes, 0.5)
	checkShare(t, "single objects", alone, scenes, 1./MaxObjects)
	for _, c := range Colours() {
		checkShare(t, c, byColour[c], objects, 1./8)
	}
	for _, sh := range Shapes() {
		checkShare(t, sh, byShape[sh], objects, 1./6)
	}
	// Small objects fit more often when a place is drawn again: the training code gives 0.618 over
	// 2000 scenes.
	checkShare(t, "small objects", small, objects, 0.618)
}

// Ensure that nothing overlaps or leaves the picture, and that a second object shares a colour or a
// shape with the first with the stated chance: 1/4 + 3/4 · (1 - 7/8 · 5/6).
func TestLayoutPlaces(t *testing.T) {
	pairs, sharing := 0, 0
	for seed := range int64(2000) {
		s := New(seed)
		for i, o := range s.Objects {
			reach := 1.2*o.R + 2
			if o.X < reach || o.X > Size-reach || o.Y < reach || o.Y > Size-reach {
				t.Fatalf("seed %d: object %d leaves the picture: %+v", seed, i, o)
			}
			for _, p := range s.Objects[:i] {
				if math.Max(math.Abs(o.X-p.X), math.Abs(o.Y-p.Y)) < 1.2*(o.R+p.R)+8 {
					t.Fatalf("seed %d: %+v and %+v overlap", seed, o, p)
				}
			}
			b := image.Rect(int(o.X-o.R), int(o.Y-o.R), int(o.X+o.R), int(o.Y+o.R))
			if b.Overlaps(s.Plate) {
				t.Fatalf("seed %d: %+v overlaps the plate %v", seed, o, s.Plate)
			}
		}
		if s.Number != "" && !s.Plate.Inset(-4).In(image.Rect(0, 0, Size, Size)) {
			t.Fatalf("seed %d: plate %v nearer than 4 px to the edge", seed, s.Plate)
		}
		if len(s.Objects) > 1 {
			pairs++
			if a, b := s.Objects[0], s.Objects[1]; a.Colour == b.Colour || a.Shape == b.Shape {
				sharing++
			}
		}
	}
	checkShare(t, "sharing pairs", sharing, pairs, 0.25+0.75*(1-7./8*5/6))
}

// Ensure that a seed always gives the same picture and questions, in whatever order they are
// requested, and that neighbouring seeds give others.
func TestDeterminism(t *testing.T) {
	a, b := New(EvalSeed+7), New(EvalSeed+7)
	pa, qa := a.Image(), a.Questions()
	qb, pb := b.Questions(), b.Image()
	if !bytes.Equal(pa.Pix, pb.Pix) || !bytes.Equal(pa.Pix, a.Image().Pix) {
		t.Error("pictures of one seed differ")
	}
	if !reflect.DeepEqual(qa, qb) || !reflect.DeepEqual(qa, a.Questions()) {
		t.Error("questions of one seed differ")
	}
	if bytes.Equal(pa.Pix, New(EvalSeed+8).Image().Pix) {
		t.Error("two seeds gave one picture")
	}
}

// region returns mean and standard deviation of each channel in a part of the picture.
func region(im *image.NRGBA, r image.Rectangle) (mean, dev [3]float64) {
	n := float64(r.Dx() * r.Dy())
	for c := range mean {
		var sum, square float64
		for y := r.Min.Y; y < r.Max.Y; y++ {
			for x := r.Min.X; x < r.Max.X; x++ {
				v := float64(im.Pix[im.PixOffset(x, y)+c])
				sum += v
				square += v * v
			}
		}
		mean[c] = sum / n
		dev[c] = math.Sqrt(square/n - mean[c]*mean[c])
	}
	return mean, dev
}

// Ensure that objects have their colour, their shape's area and their place in the drawn picture.
func TestImageShowsObjects(t *testing.T) {
	// Area in squared radii: π; 1.76²; 2·1.8/2; ten triangles of sin 36°·1.1·0.45/2; 1.6·2.3/2;
	// 4·0.72-0.72².
	area := map[string]float64{
		"circle": math.Pi, "square": 3.0976, "triangle": 1.8,
		"star": 5 * math.Sin(math.Pi/5) * 1.1 * 0.45, "diamond": 1.84, "cross": 2.3616,
	}
	const (
		// growth by a quarter pixel, with half-covered pixels counted whole, on the smallest shape
		areaTol   = 0.11
		centreTol = 1.0 // pixels
		colourTol = jitter + 2
	)
	base := color3(220)
	for _, sh := range Shapes() {
		for _, r := range []float64{18, 35} {
			s := &Scene{
				Seed: 5, Objects: []Object{{Colour: "blue", Shape: sh, X: 120.3, Y: 200.8, R: r}},
			}
			im := s.Image()
			core, _ := region(im, image.Rect(117, 197, 124, 205))
			for c, want := range [3]float64{40, 80, 200} {
				if !(math.Abs(core[c]-want) <= colourTol) {
					t.Errorf("%s: channel %d at the centre is %.0f, want %.0f ± %d", sh, c, core[c],
						want, colourTol)
				}
			}
			var sum, left, right, top, bottom float64
			left, top = Size, Size
			for y := range Size {
				for x := range Size {
					p := im.Pix[im.PixOffset(x, y):]
					if math.Abs(float64(p[0])-core[0]) < math.Abs(float64(p[0])-base[0]) {
						sum++
						left, right = math.Min(left, float64(x)), math.Max(right, float64(x+1))
						top, bottom = math.Min(top, float64(y)), math.Max(bottom, float64(y+1))
					}
				}
			}
			if got, want := sum/(r*r), area[sh]; !(math.Abs(got-want) <= areaTol*want) {
				t.Errorf("%s of radius %g: area %.2f r², want %.2f", sh, r, got, want)
			}
			if got := (left + right) / 2; !(math.Abs(got-120.3) <= centreTol) {
				t.Errorf("%s of radius %g: centred at x %.1f, want 120.3", sh, r, got)
			}
			if top > 200.8-0.8*r || bottom < 200.8+0.7*r {
				t.Errorf("%s of radius %g: reaches from y %.1f to %.1f around 200.8", sh, r, top,
					bottom)
			}
		}
	}
}

func color3(v float64) [3]float64 { return [3]float64{v, v, v} }

// Ensure that the background is pale and that the noise has the right deviation.
func TestImageBackground(t *testing.T) {
	// in levels, for a deviation estimated from 400 pixels; rounding adds 1/12 of variance
	const sigmaTol = 0.5
	for seed := range int64(40) {
		im := (&Scene{Seed: seed}).Image()
		mean, dev := region(im, image.Rect(158, 158, 178, 178))
		for c := range 3 {
			if mean[c] < 178-1 || mean[c] > 252+1 {
				t.Errorf("seed %d: background %.0f in channel %d, want 178 to 252", seed, mean[c],
					c)
			}
			// brighter ones lose noise at 255
			if mean[c] < 240 && !(math.Abs(dev[c]-noiseSigma) <= sigmaTol) {
				t.Errorf("seed %d: noise of %.2f levels, want %d", seed, dev[c], noiseSigma)
			}
		}
		corner, _ := region(im, image.Rect(0, 0, 20, 20))
		if d := math.Abs(corner[0] - mean[0]); d > 21 {
			t.Errorf("seed %d: gradient of %.0f levels to the corner, want at most 20", seed, d)
		}
	}
}

// Ensure that the plate shows its digits dot by dot.
func TestImagePlate(t *testing.T) {
	s := &Scene{
		Seed: 1, Number: "47", dot: plainDot,
		Plate: image.Rect(100, 50, 100+plainPlateW, 50+plainPlateH),
	}
	im := s.Image()
	want := []string{ // 4 and 7 of the 5x7 font, a column apart
		"00010 11111", "00110 00001", "01010 00010", "10010 00100", "11111 01000", "00010 01000", "00010 01000",
	}
	for j, row := range want {
		for i, bit := range row {
			mean, _ := region(im, image.Rect(104+4*i, 54+4*j, 108+4*i, 58+4*j))
			if dark := mean[0] < 128; dark != (bit == '1') {
				t.Errorf("dot (%d, %d) of 47: dark %v, want %c", i, j, dark, bit)
			}
		}
	}
	if mean, _ := region(im, image.Rect(100, 50, 100+plainPlateW, 51)); mean[0] > 70 {
		t.Errorf("outline: level %.0f, want 60", mean[0])
	}
	if s.Plate.Dx() != 52 || s.Plate.Dy() != 36 {
		t.Errorf("plate of %v, want 52x36", s.Plate.Size())
	}
}

// Ensure that the description goes row by row and from left to right, with articles, and with the
// number last.
func TestDescription(t *testing.T) {
	s := &Scene{Number: "47", Objects: []Object{
		{"orange", "star", 300, 20, 18}, {"red", "circle", 60, 90, 18}, {"blue", "cross", 20, 30, 18}, {"black", "square", 168, 168, 18},
	}}
	const want = "A blue cross at the top left, a red circle at the top left, an orange " +
		"star at the top right, " +
		"a black square at the center and the number 47."
	if got := s.Description(); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got, want := (&Scene{Objects: s.Objects[:1]}).Description(),
		"An orange star at the top right."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		x, y float64
		want string
	}{
		{0, 0, "top left"}, {111.9, 112, "middle left"}, {112, 0, "top center"}, {168, 168, "center"},
		{224, 168, "middle right"}, {223.9, 335, "bottom center"}, {336, 336, "bottom right"},
	} {
		if got := Place(c.x, c.y); got != c.want {
			t.Errorf("Place(%g, %g) = %q, want %q", c.x, c.y, got, c.want)
		}
	}
}

// fields returns the variable words of a question: fields("Where is the red star?", "Where is the
// ", "?").
func fields(q, start, end string) (string, bool) {
	if !strings.HasPrefix(q, start) || !strings.HasSuffix(q, end) || len(q) < len(start)+len(end) {
		return "", false
	}
	return q[len(start) : len(q)-len(end)], true
}
