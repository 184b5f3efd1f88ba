package scene

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"math/rand/v2"

	"golang.org/x/image/vector"
)

const (
	plainDot     = 4 // pixels a dot of the digits' bitmap
	platePadding = 4

	jitter     = 14  // levels by which an object's colour strays, each channel
	noiseSigma = 3   // levels
	grow       = 0.5 // samples by which edges belong to a shape
	super      = 2   // supersampling
)

// plateSize is the size of a plate with so many digits, each five dots and the gap after it.
func plateSize(digits, dot int) (w, h int) {
	return (6*digits-1)*dot + 2*platePadding, 7*dot + 2*platePadding
}

// digits are 5x7 bitmaps, a row a byte, the leftmost dot in bit 4.
var digits = [10][7]byte{
	{0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110},
	{0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110},
	{0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111},
	{0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110},
	{0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010},
	{0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110},
	{0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110},
	{0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000},
	{0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110},
	{0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100},
}

// Image draws the picture: background, objects, plate, noise, in this order. Equal scenes give
// equal bytes. About 20 ms.
func (s *Scene) Image() *image.NRGBA {
	rng := s.rand(streamPaint)
	canvas := background(rng)
	if s.World == Clutter {
		newGround(rng).paint(canvas)
	}
	for _, o := range s.Objects {
		drawObject(canvas, o, strayed(rng, o.Colour))
	}
	if s.Number != "" {
		s.drawPlate(canvas)
	}
	return shrink(canvas, rng)
}

// PNG is the picture's file. About 10 ms after Image.
func (s *Scene) PNG() []byte {
	var b bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestSpeed} // of noise, others gain little
	if err := e.Encode(&b, s.Image()); err != nil {
		panic(err) // a picture of this size always encodes
	}
	return b.Bytes()
}

// background is a pale colour with a linear gradient of up to 20 levels in x and in y,
// supersampled.
func background(rng *rand.Rand) *image.RGBA {
	var base [3]float64
	for c := range base {
		base[c] = uniform(rng, 190, 240) + uniform(rng, -12, 12)
	}
	gx, gy := uniform(rng, -20, 20), uniform(rng, -20, 20)
	im := image.NewRGBA(image.Rect(0, 0, super*Size, super*Size))
	for y := range Size {
		row := im.Pix[im.PixOffset(0, super*y):]
		for x := range Size {
			slope := gx*(float64(x)/Size-0.5) + gy*(float64(y)/Size-0.5)
			pixel := [4]uint8{
				level(base[0] + slope), level(base[1] + slope), level(base[2] + slope), 255,
			}
			for s := range super {
				copy(row[4*(super*x+s):], pixel[:])
			}
		}
		for s := range super - 1 {
			copy(row[(s+1)*im.Stride:], row[:im.Stride])
		}
	}
	return im
}

// strayed is a colour's mean with every channel moved by up to jitter levels.
func strayed(rng *rand.Rand, colour string) color.RGBA {
	var rgb [3]float64
	for _, c := range colours {
		if c.name == colour {
			rgb = c.rgb
		}
	}
	for i := range rgb {
		rgb[i] += uniform(rng, -jitter, jitter)
	}
	return color.RGBA{R: level(rgb[0]), G: level(rgb[1]), B: level(rgb[2]), A: 255}
}

// level cuts a value to a channel's range, dropping the fraction.
func level(v float64) uint8 { return uint8(max(0, min(255, v))) }

// outline returns a shape's corners around the origin for radius 1; nil for the circle.
func outline(shape string) [][2]float64 {
	switch shape {
	case "square":
		const q = 0.88
		return [][2]float64{{-q, -q}, {q, -q}, {q, q}, {-q, q}}
	case "diamond":
		return [][2]float64{{0, -1.15}, {0.8, 0}, {0, 1.15}, {-0.8, 0}}
	case "triangle":
		return [][2]float64{{0, -1}, {1, 0.8}, {-1, 0.8}}
	case "star":
		var pts [][2]float64
		for i := range 10 {
			q := 1.1
			if i%2 == 1 {
				q = 0.45
			}
			sin, cos := math.Sincos(-math.Pi/2 + float64(i)*math.Pi/5)
			pts = append(pts, [2]float64{q * cos, q * sin})
		}
		return pts
	case "cross":
		const q = 0.36
		return [][2]float64{
			{-q, -1}, {q, -1}, {q, -q}, {1, -q}, {1, q}, {q, q},
			{q, 1}, {-q, 1}, {-q, q}, {-1, q}, {-1, -q}, {-q, -q},
		}
	}
	return nil
}

// drawObject fills a shape in the supersampled canvas. A sample is inside or outside, as in the
// training pictures: anti-aliasing comes from the shrinking alone.
func drawObject(canvas *image.RGBA, o Object, fill color.RGBA) {
	reach := int(math.Ceil(super*o.R*objectReach)) + 2
	left, top := int(super*o.X)-reach, int(super*o.Y)-reach
	w := 2*reach + 1

	// The training pictures' rasteriser fills edges inclusively, which makes a shape half a sample
	// larger.
	cx, cy, r := super*o.X-float64(left), super*o.Y-float64(top), super*o.R+grow
	z := vector.NewRasterizer(w, w)
	at := func(p [2]float64) (float32, float32) {
		return float32(cx + r*p[0]), float32(cy + r*p[1])
	}
	if pts := outline(o.Shape); pts != nil {
		z.MoveTo(at(pts[0]))
		for _, p := range pts[1:] {
			z.LineTo(at(p))
		}
	} else {
		const k = 0.5522847498 // control distance of a quarter circle: 4/3·(√2-1)
		z.MoveTo(at([2]float64{1, 0}))
		for _, q := range [][3][2]float64{
			{{1, k}, {k, 1}, {0, 1}}, {{-k, 1}, {-1, k}, {-1, 0}},
			{{-1, -k}, {-k, -1}, {0, -1}}, {{k, -1}, {1, -k}, {1, 0}},
		} {
			x1, y1 := at(q[0])
			x2, y2 := at(q[1])
			x3, y3 := at(q[2])
			z.CubeTo(x1, y1, x2, y2, x3, y3)
		}
	}
	z.ClosePath()
	mask := image.NewAlpha(image.Rect(0, 0, w, w))
	z.Draw(mask, mask.Bounds(), image.Opaque, image.Point{})
	for i, a := range mask.Pix {
		mask.Pix[i] = 0
		if a >= 128 {
			mask.Pix[i] = 255
		}
	}
	draw.DrawMask(canvas, mask.Bounds().Add(image.Pt(left, top)), image.NewUniform(fill),
		image.Point{}, mask, image.Point{}, draw.Over)
}

// drawPlate draws the white plate with its dark outline, a pixel wide, and the number's digits.
func (s *Scene) drawPlate(canvas *image.RGBA) {
	fill := func(r image.Rectangle, v uint8) {
		r.Min, r.Max = r.Min.Mul(super), r.Max.Mul(super)
		draw.Draw(canvas, r, image.NewUniform(color.RGBA{v, v, v, 255}), image.Point{}, draw.Src)
	}
	fill(s.Plate, 60)
	fill(s.Plate.Inset(1), 252)
	for k, ch := range s.Number {
		for j, row := range digits[ch-'0'] {
			for i := range 5 {
				if row>>(4-i)&1 == 1 {
					at := s.Plate.Min.Add(image.Pt(platePadding+(k*6+i)*s.dot,
						platePadding+j*s.dot))
					fill(image.Rectangle{Min: at, Max: at.Add(image.Pt(s.dot, s.dot))}, 10)
				}
			}
		}
	}
}

// shrink averages the samples of each pixel, rounded, and adds the noise.
func shrink(canvas *image.RGBA, rng *rand.Rand) *image.NRGBA {
	im := image.NewNRGBA(image.Rect(0, 0, Size, Size))
	for y := range Size {
		for x := range Size {
			p := im.Pix[im.PixOffset(x, y):]
			for c := range 3 {
				sum := 0
				for dy := range super {
					for dx := range super {
						sum += int(canvas.Pix[canvas.PixOffset(super*x+dx, super*y+dy)+c])
					}
				}
				mean := (sum + super*super/2) / (super * super)
				p[c] = level(float64(mean) + noiseSigma*rng.NormFloat64() + 0.5)
			}
			p[3] = 255
		}
	}
	return im
}
