package scene

import (
	"image"
	"math"
	"math/rand/v2"
)

// World is a kind of pictures. All have the same shapes, colours and questions.
type World string

// The worlds. The embedded model was trained on Plain alone.
const (
	Plain   World = "plain"   // the training's pictures
	Clutter World = "clutter" // a ground of blotches, stripes and gradients
	Plates  World = "plates"  // a number of two to four digits in every picture, at four sizes
	Crowd   World = "crowd"   // eight to fifteen objects, as far as they find a place
	Small   World = "small"   // objects of one or two of the encoder's patches
)

// Worlds returns all of them, the plain one first.
func Worlds() []World { return []World{Plain, Clutter, Plates, Crowd, Small} }

// MaxCrowd is the largest number of shapes in a picture of the crowd.
const MaxCrowd = 15

// radius draws the radius of an object.
func (w World) radius(rng *rand.Rand) float64 {
	switch w {
	case Crowd:
		return uniform(rng, 13, 21)
	case Small:
		return uniform(rng, 7, 13)
	}
	r := uniform(rng, 28, 42)
	if rng.Float64() < 0.5 {
		r = uniform(rng, 15, 21)
	}
	return r
}

// ground is the background of a picture of the clutter.
type ground struct {
	slope   [3][2]float64 // levels a channel over the picture's width and height
	blots   []blot
	stripes []stripe
}

// blot is a soft spot; its colour falls off with the distance from its centre.
type blot struct {
	x, y, rx, ry float64 // pixels
	rgb          [3]float64
}

// stripe is a pattern of bands.
type stripe struct {
	dx, dy float64 // direction across the bands, of length 1
	period float64 // pixels
	sharp  bool    // bands with edges, else waves
	rgb    [3]float64
}

// newGround draws a ground: a gradient always, blotches and stripes each in three of four
// pictures, and one of them at least.
func newGround(rng *rand.Rand) *ground {
	g := &ground{}
	// tint is lighter or darker by up to so many levels, and a third of that coloured.
	tint := func(by float64) (rgb [3]float64) {
		grey := uniform(rng, -by, by)
		for c := range rgb {
			rgb[c] = grey + uniform(rng, -by/3, by/3)
		}
		return rgb
	}
	across, down := tint(40), tint(40)
	for c := range g.slope {
		g.slope[c] = [2]float64{across[c], down[c]}
	}
	kinds := rng.IntN(4) // 0: both, 1: both, 2: blotches, 3: stripes
	if kinds != 3 {
		for range 4 + rng.IntN(7) {
			g.blots = append(g.blots, blot{
				x: uniform(rng, 0, Size), y: uniform(rng, 0, Size),
				rx: uniform(rng, 20, 90), ry: uniform(rng, 20, 90), rgb: tint(45),
			})
		}
	}
	if kinds != 2 {
		for range 1 + rng.IntN(2) {
			sin, cos := math.Sincos(uniform(rng, 0, math.Pi))
			g.stripes = append(g.stripes, stripe{
				dx: cos, dy: sin, period: uniform(rng, 14, 70), sharp: rng.IntN(2) == 0,
				rgb: tint(15),
			})
		}
	}
	return g
}

// at returns what the ground adds to a pixel's channels.
func (g *ground) at(x, y float64) (add [3]float64) {
	for c := range add {
		add[c] = g.slope[c][0]*(x/Size-0.5) + g.slope[c][1]*(y/Size-0.5)
	}
	for _, b := range g.blots {
		dx, dy := (x-b.x)/b.rx, (y-b.y)/b.ry
		d := dx*dx + dy*dy
		if d > 9 {
			continue
		}
		weight := math.Exp(-d)
		for c := range add {
			add[c] += weight * b.rgb[c]
		}
	}
	for _, s := range g.stripes {
		wave := math.Sin(2 * math.Pi * (x*s.dx + y*s.dy) / s.period)
		if s.sharp {
			wave = math.Copysign(1, wave)
		}
		for c := range add {
			add[c] += wave * s.rgb[c]
		}
	}
	return add
}

// paint adds the ground to the canvas, which is supersampled.
func (g *ground) paint(canvas *image.RGBA) {
	for y := range Size {
		for x := range Size {
			add := g.at(float64(x), float64(y))
			for s := range super * super {
				p := canvas.Pix[canvas.PixOffset(super*x+s%super, super*y+s/super):]
				for c := range add {
					p[c] = level(float64(p[c]) + add[c])
				}
			}
		}
	}
}
