package imageproc

import (
	"fmt"
	"math"
)

// resized returns p resampled to width×height with Pillow's arithmetic. The
// result has p's format; sizes must be positive.
func resized(p *Picture, width, height int, f Filter) (*Picture, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if width <= 0 || height <= 0 || int64(width)*int64(height) > math.MaxInt32 {
		return nil, fmt.Errorf("imageproc: resize: size %dx%d, want positive sides and at "+
			"most %d pixels", width, height, math.MaxInt32)
	}
	if f < Nearest || f > Hamming {
		return nil, fmt.Errorf("imageproc: resize: unknown %v, want 0 to 5", f)
	}
	out := &Picture{
		Width: width, Height: height, Pix: make([]byte, width*height*3), Format: p.Format,
	}
	err := whole(p).resize(out.Pix, width*3, width, height, window{w: width, h: height}, f)
	if err != nil {
		return nil, err
	}
	return out, nil
}
