package imageproc

import (
	"fmt"
	"math"
)

// Pixels is the input of a vision tower.
type Pixels struct {
	// Shape of Data, row-major:
	//
	//	CLIP       [pictures, 3, height, width]
	//	Tiles      [pictures, 1+tiles, 3, height, width], short ones padded with zeros
	//	Splits     [pictures, tiles+1, 3, height, width], likewise
	//	Patches    [patches of all pictures, 3·temporal·patch·patch]
	Shape []int
	Data  []float32
	// ImageSizes are the pictures' [height, width] before any resizing.
	ImageSizes [][2]int
	// GridTHW is, for Patches, the patch grid [frames, rows, columns] of each
	// picture; nil for the others.
	GridTHW [][3]int
	// SecondsPerMoment is the time between two frames of GridTHW if Data is a video; 0 for
	// pictures.
	SecondsPerMoment float64
	// Times are the seconds from the start of a video to each moment, and Seconds its length, for
	// models that read them; nil and 0 for others.
	Times   []float64
	Seconds float64
	// Merge is, for Patches, the side in patches of the blocks that order Data; 0 for the others.
	Merge int
	// RGB are, for Patches, the bytes of each picture as resized, [height, width, 3]; nil for a
	// video and for the others.
	RGB [][]byte
	// Tiles is, for Tiles, the number of tiles of each picture, including the base, and
	// CanvasSizes the size that they cover together, [height, width] in prepared pixels; nil for
	// the others.
	Tiles       []int
	CanvasSizes [][2]int
	// MostPixels is, for Tiles, the limit to the pixels of a canvas that is not the checkpoint's;
	// 0: there is none.
	MostPixels int
	// Splits are, for Splits, the rows and columns of each picture's tiles, 0 and 0 if it has none;
	// nil for the others.
	Splits [][2]int
	// Frames are, for each picture, the part that the patch grid covers (for Tiles and Splits the
	// whole picture's).
	Frames []Frame
	// Canvases are, for Tiles and Splits, the part of each picture that its tiles cover together;
	// nil for the others.
	Canvases []Frame
}

// GridFrames returns the parts of picture i that its patch grids cover, in order; nil if not known.
func (p *Pixels) GridFrames(i int) []Frame {
	var out []Frame
	for _, f := range [][]Frame{p.Frames, p.Canvases} {
		if i < len(f) {
			out = append(out, f[i])
		}
	}
	return out
}

// Frame is a rectangle in the coordinates of a [Picture], in pixels. If a picture was padded, the
// frame extends beyond the picture.
type Frame struct{ X0, Y0, W, H float64 }

// Inside returns the width and height of the part of the frame inside the picture.
func (f Frame) Inside(p *Picture) (w, h float64) {
	if f.W <= 0 || f.H <= 0 { // the whole picture
		return float64(p.Width), float64(p.Height)
	}
	w = min(f.X0+f.W, float64(p.Width)) - max(f.X0, 0)
	h = min(f.Y0+f.H, float64(p.Height)) - max(f.Y0, 0)
	return max(w, 0), max(h, 0)
}

// Processor turns pictures into a vision tower's input. Processors are
// immutable during Process and safe for concurrent use.
type Processor interface {
	// Process returns the pixel values of the pictures, in order. It fails on
	// an empty list, and on pictures that the processor cannot represent.
	Process(pics []*Picture) (*Pixels, error)
	// Name is the transformers class, for example "CLIPImageProcessor".
	Name() string
}

var (
	_ Processor = (*CLIP)(nil)
	_ Processor = (*Tiles)(nil)
	_ Processor = (*Patches)(nil)
)

// CrowdProcessor is a Processor that prepares the only picture of a prompt in another way than each
// of several.
type CrowdProcessor interface {
	Processor
	// Several returns the processor for pictures that are not alone in their prompt.
	Several() Processor
}

// Video is a sequence of frames of one size at a constant rate.
type Video struct {
	Frames []*Picture
	FPS    float64 // frames per second
}

// VideoProcessor is a Processor that also prepares videos.
type VideoProcessor interface {
	Processor
	// ProcessVideo returns the pixel values of one video, with GridTHW and SecondsPerMoment.
	ProcessVideo(v *Video) (*Pixels, error)
}

var _ VideoProcessor = (*Patches)(nil)

// lut maps byte v of channel c to the pixel value lut[c][v].
type lut [3][256]float32

// newLUT tabulates rescaling (in float64, rounded to float32) and normalising
// (in float32), the order and widths of the reference.
func newLUT(n normalisation) *lut {
	var t lut
	for c := range t {
		for v := range t[c] {
			x := float32(v)
			if n.Rescale {
				x = float32(float64(float64(v) * n.Factor))
			}
			if n.Normalize {
				x = float32(x-float32(n.Mean[c])) / float32(n.Std[c])
			}
			t[c][v] = x
		}
	}
	return &t
}

// normalisation is the last step of every processor: bytes to pixel values.
type normalisation struct {
	Rescale   bool
	Factor    float64
	Normalize bool
	Mean, Std [3]float64
}

// planes writes w×h RGB bytes (rows stride bytes apart) as three planes.
func (t *lut) planes(dst []float32, src []byte, stride, w, h int) {
	n := w * h
	r, g, b := dst[:n], dst[n:2*n], dst[2*n:3*n]
	for y := range h {
		s := src[y*stride:][:w*3]
		o := y * w
		for x := range w {
			p := s[x*3:][:3]
			r[o+x], g[o+x], b[o+x] = t[0][p[0]], t[1][p[1]], t[2][p[2]]
		}
	}
}

// tiles writes the squares of side by side pixels of src, an image of w by h, row by row to dst,
// and returns the rest of dst.
func (t *lut) tiles(dst []float32, src []byte, w, h, side int) []float32 {
	n := 3 * side * side
	for y := 0; y < h; y += side {
		for x := 0; x < w; x += side {
			t.planes(dst[:n], src[3*(y*w+x):], 3*w, side, side)
			dst = dst[n:]
		}
	}
	return dst
}

func checkPictures(pics []*Picture) error {
	if len(pics) == 0 {
		return fmt.Errorf("imageproc: no pictures to process")
	}
	for i, p := range pics {
		if err := p.check(); err != nil {
			return fmt.Errorf("%w (picture %d of %d)", err, i+1, len(pics))
		}
	}
	return nil
}

// maxOutputValues limits one call's result: 8 GiB of float32, on 32 bits half a gigabyte.
const maxOutputValues = min(1<<31, math.MaxInt>>4)

// checkOutput returns an error if pictures of n values each exceed maxOutputValues.
func checkOutput(pictures, n int) error {
	if int64(pictures)*int64(n) > maxOutputValues {
		return fmt.Errorf("imageproc: %d pictures of %d pixel values, want at most %d values",
			pictures, n, int64(maxOutputValues))
	}
	return nil
}
