package imageproc

import (
	"fmt"
	"math"
)

// Splits is Idefics3's and SmolVLM's Idefics3ImageProcessor, as the class for Pillow (…Pil)
// computes it; the one for torchvision resizes with another program, which differs in single
// levels. A picture is resized three times:
//
//  1. its longer side to Longest, the other in proportion, rounded down and then up to
//     an even number; if a side is still above 4096, both in proportion
//  2. each side up to a multiple of Side, and cut into tiles row by row
//  3. the result of 2 to one tile, the whole picture
//
// A picture of one tile is only the result of 2. Without splitting, the result of 1 is squashed to
// one tile.
type Splits struct {
	Square
	class   string
	longest int
	split   bool
}

var _ Limiter = (*Splits)(nil)

// Name implements Processor.
func (s *Splits) Name() string { return s.class }

// longestSide is the limit to any side after the first resizing.
const longestSide = 4096

// NewSplits makes a [Splits].
func NewSplits(r *Settings) Processor {
	half := [3]float64{0.5, 0.5, 0.5}
	s := &Splits{class: r.class, split: r.Bool("do_image_splitting", true)}
	s.filter = r.filter(Lanczos)
	s.lut = newLUT(r.normalisation(half, half))
	s.longest = r.longest("size", 4*364)
	s.Side = r.longest("max_image_size", 364)
	if !r.Bool("do_resize", true) {
		r.Fail("do_resize", "got false, which is not supported, want true")
	}
	r.Bool("do_pad", true) // pads only lists of pictures, with views that nothing reads
	if s.tooMany() {
		r.Fail("max_image_size", "got %d, want at most %d tiles of a picture of %d pixels", s.Side,
			MaxTiles, s.longest)
	}
	return s
}

// Whole returns the processor that cuts no picture into tiles, as for the frames of a video.
func (s *Splits) Whole() *Splits {
	out := *s
	out.split, out.longest = false, min(s.longest, longestSide)
	return &out
}

// tooMany reports whether a picture may have more than [MaxTiles] tiles.
func (s *Splits) tooMany() bool {
	tiles := (min(s.longest, longestSide)+1)/max(1, s.Side) + 1
	return tiles*tiles > MaxTiles
}

// Limit implements [Limiter]: Longest becomes the side of the largest square of tiles with at most
// hi pixels. A picture of another ratio has fewer.
func (s *Splits) Limit(lo, hi int) (Processor, error) {
	switch {
	case lo != 0:
		return nil, noLimits(lo, hi, withName(s)+", which resizes all pictures to one length")
	case !s.split:
		return nil, noLimits(lo, hi, "where do_image_splitting is false")
	case hi < s.Side*s.Side:
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want at least %d (one tile of "+
			"%dx%[3]d pixels)", hi, s.Side*s.Side, s.Side)
	}
	out := *s
	out.longest = int(math.Sqrt(float64(hi))) / s.Side * s.Side
	if out.tooMany() {
		return nil, fmt.Errorf("imageproc: max-pixels: got %d, want fewer than %d tiles of "+
			"%dx%[3]d pixels", hi, MaxTiles, s.Side)
	}
	return &out, nil
}

// longest reads a size that is the length of a picture's longest edge. One number is another size
// in transformers.
func (r *Settings) longest(key string, def int) int {
	s := r.size(key, false, size{"longest_edge": def})
	if !r.is(key, s, maxSide, "longest_edge") {
		r.Fail(key, "got %s, want longest_edge", describe(s))
		return def
	}
	return s["longest_edge"]
}

// fit returns the size after the first resizing of a picture of w by h.
func (s *Splits) fit(w, h int) (ow, oh int) {
	ratio := float64(w) / float64(h)
	if w >= h {
		ow, oh = s.longest, even(float64(s.longest)/ratio)
	} else {
		ow, oh = even(float64(s.longest)*ratio), s.longest
	}
	ow, oh = max(ow, 1), max(oh, 1)
	ratio = float64(ow) / float64(oh)
	switch {
	case ow >= oh && ow > longestSide:
		ow, oh = longestSide, int(longestSide/ratio)
	case oh > ow && oh > longestSide:
		ow, oh = int(longestSide*ratio), longestSide
	}
	return max(ow, 1), max(oh, 1)
}

// even returns x rounded down, and then up to an even number.
func even(x float64) int {
	n := int(x)
	return n + n%2
}

// canvas returns the size that the tiles of a picture of w by h cover.
func (s *Splits) canvas(w, h int) (ow, oh int) {
	up := func(n int) int { return (n + s.Side - 1) / s.Side * s.Side }
	ratio := float64(w) / float64(h)
	if w >= h {
		ow = up(w)
		return ow, up(int(float64(ow) / ratio))
	}
	oh = up(h)
	return up(int(float64(oh) * ratio)), oh
}

// Split returns the rows and columns of the tiles of a picture of w by h, 0 and 0 if it has none.
func (s *Splits) Split(w, h int) [2]int {
	if w, h = s.canvas(s.fit(w, h)); !s.split || max(w, h) <= s.Side {
		return [2]int{}
	}
	return [2]int{h / s.Side, w / s.Side}
}

// Process returns [pictures, tiles + 1, 3, Side, Side], where tiles is the largest number of tiles
// of a picture; the others are padded with views of zeros. The whole picture comes after its tiles.
func (s *Splits) Process(pics []*Picture) (*Pixels, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	px, most := &Pixels{}, 1
	for _, p := range pics {
		split := s.Split(p.Width, p.Height)
		px.Splits = append(px.Splits, split)
		whole := Frame{W: float64(p.Width), H: float64(p.Height)}
		px.Frames, px.Canvases = append(px.Frames, whole), append(px.Canvases, whole)
		most = max(most, split[0]*split[1]+1)
	}
	n := 3 * s.Side * s.Side
	if err := checkOutput(len(pics), most*n); err != nil {
		return nil, err
	}
	px.Shape = []int{len(pics), most, 3, s.Side, s.Side}
	px.Data = make([]float32, len(pics)*most*n)
	for i, p := range pics {
		if err := s.views(px.Data[i*most*n:(i+1)*most*n], p); err != nil {
			return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
		}
	}
	return px, nil
}

// views writes the tiles of p and the whole picture to dst.
func (s *Splits) views(dst []float32, p *Picture) error {
	w, h := s.fit(p.Width, p.Height)
	p, err := p.resized(w, h, s.filter)
	if err != nil {
		return err
	}
	if s.split {
		w, h = s.canvas(w, h)
		if p, err = p.resized(w, h, s.filter); err != nil {
			return err
		}
		if max(w, h) > s.Side {
			dst = s.lut.tiles(dst, p.Pix, w, h, s.Side)
		}
	}
	if p, err = p.resized(s.Side, s.Side, s.filter); err != nil {
		return err
	}
	s.lut.tiles(dst, p.Pix, s.Side, s.Side, s.Side)
	return nil
}

// resized returns p resized to w by h.
func (p *Picture) resized(w, h int, f Filter) (*Picture, error) {
	out := &Picture{Width: w, Height: h, Pix: make([]byte, 3*w*h)}
	return out, whole(p).resize(out.Pix, 3*w, w, h, window{w: w, h: h}, f)
}
