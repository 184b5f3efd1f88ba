package imageproc

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/errs"
)

// CLIP is CLIPImageProcessor: resize, centre crop, rescale, normalise. SiglipImageProcessor is the
// same without a crop.
//
//	resize   shorter side to ShortestEdge, longer to int(edge·long/short);
//	         or to exactly Height×Width
//	crop     rows from ⌊(h-CropHeight)/2⌋, columns likewise; where the crop is
//	         larger than the picture, byte 0 (before normalising)
//
// With Pad the picture is first centred on a square of its longer side in the
// mean colour, int(255·mean), as the original LLaVA code does for
// image_aspect_ratio "pad".
type CLIP struct {
	Pad bool

	name                  string
	doResize              bool
	edge                  int // shorter side, or 0 if height and width are used
	height, width         int
	doCrop                bool
	cropHeight, cropWidth int
	filter                Filter
	norm                  normalisation
	lut                   *lut
}

// Name returns the class in transformers.
func (c *CLIP) Name() string { return c.name }

// PadSquare returns p with padding to a square before the crop, so that no edges are cut off.
func PadSquare(p Processor) (Processor, error) {
	c, ok := p.(*CLIP)
	if !ok {
		return nil, &errs.OptionError{Name: "pad", Got: "true", Fault: errs.Useless,
			Why: withName(p) + ": it looks at whole pictures"}
	}
	padded := *c
	padded.Pad = true
	return &padded, nil
}

// background is the colour of the padding.
func (n *normalisation) background() [3]byte {
	var b [3]byte
	for i, m := range n.Mean {
		b[i] = byte(min(max(int(float64(m*255)), 0), 255))
	}
	return b
}

// geometry returns the resized size and the crop window of a w×h picture.
func (c *CLIP) geometry(w, h int) (ow, oh int, crop window) {
	ow, oh = w, h
	switch {
	case !c.doResize:
	case c.edge == 0:
		ow, oh = c.width, c.height
	case w <= h:
		ow, oh = c.edge, c.longer(h, w)
	default:
		ow, oh = c.longer(w, h), c.edge
	}
	crop = window{w: ow, h: oh}
	if c.doCrop {
		crop = window{
			floorHalf(ow - c.cropWidth), floorHalf(oh - c.cropHeight), c.cropWidth, c.cropHeight,
		}
	}
	return ow, oh, crop
}

// longer is the longer side of a resized picture, at most math.MaxInt32.
func (c *CLIP) longer(long, short int) int {
	return int(min(float64(c.edge)*float64(long)/float64(short), math.MaxInt32))
}

// floorHalf is ⌊n/2⌋, also for negative n.
func floorHalf(n int) int { return n >> 1 }

// Process returns [pictures, 3, height, width]. Without a centre crop all pictures must have the
// same size after resizing.
func (c *CLIP) Process(pics []*Picture) (*Pixels, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	px := &Pixels{}
	for i, p := range pics {
		u8, crop, frame, err := c.bytes(p)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if err := checkOutput(len(pics), 3*crop.h*crop.w); err != nil {
				return nil, err
			}
			px.Shape = []int{len(pics), 3, crop.h, crop.w}
			px.Data = make([]float32, len(pics)*3*crop.h*crop.w)
		} else if crop.h != px.Shape[2] || crop.w != px.Shape[3] {
			return nil, fmt.Errorf(
				"imageproc: picture %d: resized to %dx%d, the first to %dx%d: without a "+
					"centre crop all must have one size",
				i+1, crop.w, crop.h, px.Shape[3], px.Shape[2])
		}
		n := 3 * crop.h * crop.w
		c.lut.planes(px.Data[i*n:(i+1)*n], u8, crop.w*3, crop.w, crop.h)
		px.ImageSizes = append(px.ImageSizes, [2]int{p.Height, p.Width})
		px.Frames = append(px.Frames, frame)
	}
	return px, nil
}

// bytes returns the resized and cropped picture, 3 bytes per pixel, the crop window in the resized
// picture, and the same window in p's coordinates.
func (c *CLIP) bytes(p *Picture) ([]byte, window, Frame, error) {
	v := whole(p)
	if c.Pad {
		v = padSquare(p, c.norm.background())
	}
	ow, oh, crop := c.geometry(v.width, v.height)
	if max(ow, oh) == math.MaxInt32 {
		return nil, crop, Frame{}, fmt.Errorf(
			"imageproc: picture %dx%d: too elongated to resize its shorter side to %d", p.Width,
			p.Height, c.edge)
	}
	if int64(crop.w)*int64(crop.h) > maxOutputPixels {
		return nil, crop, Frame{}, fmt.Errorf(
			"imageproc: picture %dx%d: becomes %dx%d, limit %d pixels", p.Width, p.Height, crop.w,
			crop.h, maxOutputPixels)
	}
	u8 := make([]byte, crop.w*crop.h*3)
	// Copy the part of the crop inside the picture; the rest stays 0.
	x0, x1 := max(crop.x, 0), min(crop.x+crop.w, ow)
	y0, y1 := max(crop.y, 0), min(crop.y+crop.h, oh)
	if x0 < x1 && y0 < y1 {
		dst := u8[((y0-crop.y)*crop.w+x0-crop.x)*3:]
		if err := v.resize(dst, crop.w*3, ow, oh, window{x0, y0, x1 - x0, y1 - y0},
			c.filter); err != nil {
			return nil, crop, Frame{}, err
		}
	}
	sx, sy := float64(v.width)/float64(ow), float64(v.height)/float64(oh)
	frame := Frame{
		X0: float64(crop.x)*sx - float64(v.x),
		Y0: float64(crop.y)*sy - float64(v.y),
		W:  float64(crop.w) * sx,
		H:  float64(crop.h) * sy,
	}
	return u8, crop, frame, nil
}

// maxOutputPixels limits one picture after resizing.
const maxOutputPixels = 1 << 26

// padSquare centres p on a square of its longer side.
func padSquare(p *Picture, colour [3]byte) view {
	side := max(p.Width, p.Height)
	return view{
		Picture: p, width: side, height: side, x: (side - p.Width) / 2, y: (side - p.Height) / 2,
		border: colour,
	}
}
