// Package scene draws synthetic pictures whose every question has one short true answer: the world
// that the embedded model was trained on, and the benchmark that measures what a reduction costs.
//
// A picture is 336x336 RGB: a pale background with a slight gradient, one to seven coloured shapes
// that do not overlap, in half of the pictures a white plate with a two-digit number, and Gaussian
// noise over all of it. Layout, paint and questions come from three independent streams of one
// seed, so a picture does not change with the questions asked about it.
//
// The distribution is the same as in the training code, tools/train/scenes.py; the random numbers
// are not, so equal seeds give different pictures here and there. Other worlds (see World) differ
// from it in one respect each, which the model has not met.
package scene

import (
	"image"
	"math/rand/v2"
	"strconv"
)

// Size is the width and height of a picture in pixels.
const Size = 336

// EvalSeed is the first seed of evaluation pictures. Training stayed clear of it: encoder pictures
// began at 1,000 and ended far below, the tokenizer's began at 10,000,000, conversations at
// 20,000,000.
const EvalSeed = 5_000_000

// MaxObjects is the largest number of shapes in one picture.
const MaxObjects = 7

// Placement of objects and plate, in pixels.
const (
	plateMargin = 4 // least distance of the plate from the picture's edge
	// a shape stays within this many radii of its centre (a star's tip is at 1.1)
	objectReach  = 1.2
	edgeMargin   = 2  // least distance of that reach from the picture's edge
	objectMargin = 4  // added to the reach when objects are kept apart
	placeTries   = 60 // draws of size and place before an object is given up
)

// colours holds each name's mean colour; a drawn object strays from it by up to jitter levels a
// channel.
var colours = []struct {
	name string
	rgb  [3]float64
}{
	{"red", [3]float64{214, 39, 40}},
	{"green", [3]float64{44, 150, 60}},
	{"blue", [3]float64{40, 80, 200}},
	{"yellow", [3]float64{240, 205, 30}},
	{"purple", [3]float64{140, 70, 170}},
	{"orange", [3]float64{245, 130, 30}},
	{"black", [3]float64{30, 30, 30}},
	{"pink", [3]float64{240, 140, 190}},
}

var shapes = []string{"circle", "square", "triangle", "star", "diamond", "cross"}

// Colours returns the eight colour names in their fixed order.
func Colours() []string {
	names := make([]string, len(colours))
	for i, c := range colours {
		names[i] = c.name
	}
	return names
}

// Shapes returns the six shape names in their fixed order.
func Shapes() []string { return append([]string(nil), shapes...) }

// Object is one shape. X, Y and R are in pixels; Y grows downwards.
type Object struct {
	Colour string  `json:"colour"`
	Shape  string  `json:"shape"`
	X      float64 `json:"x"` // centre
	Y      float64 `json:"y"`
	R      float64 `json:"r"` // radius: 15 to 21 (small) or 28 to 42 (large) in the plain world
}

// Scene is the content of one picture. It is immutable after New.
type Scene struct {
	World   World
	Seed    int64
	Objects []Object
	Number  string          // two to four digits, or "" when the picture has no plate
	Plate   image.Rectangle // empty without a number

	dot int // pixels a dot of the number's digits
}

// Streams of one seed, so that layout, paint and questions do not depend on each other.
const (
	streamLayout uint64 = 1 + iota
	streamPaint
	streamQuestions
)

func (s *Scene) rand(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(s.Seed), stream))
}

// New lays out the plain picture of a seed.
func New(seed int64) *Scene { return NewIn(Plain, seed) }

// NewIn lays out the picture of a seed in a world.
func NewIn(w World, seed int64) *Scene {
	s := &Scene{World: w, Seed: seed, dot: plainDot}
	rng := s.rand(streamLayout)
	var taken []box
	if w == Plates || rng.Float64() < 0.5 {
		taken = append(taken, s.placePlate(rng))
	}
	count := 1 + rng.IntN(MaxObjects)
	if w == Crowd {
		count = MaxObjects + 1 + rng.IntN(MaxCrowd-MaxObjects)
	}
	for range count {
		for range placeTries {
			r := w.radius(rng)
			lo, hi := r*objectReach+edgeMargin, Size-r*objectReach-edgeMargin
			x, y := uniform(rng, lo, hi), uniform(rng, lo, hi)
			q := r*objectReach + objectMargin
			b := box{x - q, y - q, x + q, y + q}
			if b.touchesAny(taken) {
				continue
			}
			taken = append(taken, b)
			colour, shape := s.dress(rng)
			s.Objects = append(s.Objects, Object{Colour: colour, Shape: shape, X: x, Y: y, R: r})
			break
		}
	}
	return s
}

// placePlate draws the number and where its plate is.
func (s *Scene) placePlate(rng *rand.Rand) box {
	low, high := 10, 99
	if s.World == Plates {
		low = pick(rng, []int{10, 100, 1000})
		high = 10*low - 1
		s.dot = pick(rng, []int{2, 3, 4, 6})
	}
	s.Number = strconv.Itoa(low + rng.IntN(high-low+1))
	w, h := plateSize(len(s.Number), s.dot)
	x := plateMargin + rng.IntN(Size-w-2*plateMargin+1)
	y := plateMargin + rng.IntN(Size-h-2*plateMargin+1)
	s.Plate = image.Rect(x, y, x+w, y+h)
	return box{float64(x), float64(y), float64(x + w), float64(y + h)}
}

// dress draws the next object's colour and shape; one in four shares one of them with an earlier
// object.
func (s *Scene) dress(rng *rand.Rand) (colour, shape string) {
	colour, shape = colours[rng.IntN(len(colours))].name, shapes[rng.IntN(len(shapes))]
	if len(s.Objects) > 0 && rng.Float64() < 0.25 {
		like := s.Objects[rng.IntN(len(s.Objects))]
		if rng.Float64() < 0.5 {
			colour = like.Colour
		} else {
			shape = like.Shape
		}
	}
	return colour, shape
}

type box struct{ x0, y0, x1, y1 float64 }

func (b box) touchesAny(others []box) bool {
	for _, o := range others {
		if b.x1 >= o.x0 && o.x1 >= b.x0 && b.y1 >= o.y0 && o.y1 >= b.y0 {
			return true
		}
	}
	return false
}

func uniform(rng *rand.Rand, lo, hi float64) float64 { return lo + (hi-lo)*rng.Float64() }
