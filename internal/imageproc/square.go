package imageproc

import "fmt"

// Square resizes pictures to squares of one size.
type Square struct {
	Side   int // pixels
	colour [3]byte
	filter Filter
	lut    *lut
}

// Square reads the settings of a [Square] with a default of side pixels. number tells that a size
// of one number is a square's where default_to_square is absent.
func (r *Settings) Square(side int, number bool) Square {
	n := r.normalisation(CLIPMean, CLIPStd)
	q := Square{colour: n.background(), filter: r.filter(Bicubic), lut: newLUT(n)}
	s := r.size("size", number, size{"height": side, "width": side})
	if r.is("size", s, maxSide, "height", "width") && s["height"] == s["width"] {
		q.Side = s["height"]
	} else {
		r.Fail("size", "got %s, want equal height and width", describe(s))
	}
	if !r.Bool("do_resize", true) {
		r.Fail("do_resize", "got false, which is not supported, want true")
	}
	return q
}

// Squash returns [pictures, 3, Side, Side]: each picture with its sides made equal.
func (q *Square) Squash(pics []*Picture) ([]float32, error) {
	if err := checkPictures(pics); err != nil {
		return nil, err
	}
	views := make([]view, len(pics))
	for i, p := range pics {
		views[i] = whole(p)
	}
	return q.resize(views)
}

// Centre returns [pictures, 3, Side, Side]: each picture in the middle of a square of its longer
// side in the mean colour, int(255·mean). The frames are these squares.
func (q *Square) Centre(pics []*Picture) ([]float32, []Frame, error) {
	if err := checkPictures(pics); err != nil {
		return nil, nil, err
	}
	views, frames := make([]view, len(pics)), make([]Frame, len(pics))
	for i, p := range pics {
		v := padSquare(p, q.colour)
		side := float64(v.width)
		views[i], frames[i] = v, Frame{X0: -float64(v.x), Y0: -float64(v.y), W: side, H: side}
	}
	data, err := q.resize(views)
	return data, frames, err
}

func (q *Square) resize(views []view) ([]float32, error) {
	n := 3 * q.Side * q.Side
	if err := checkOutput(len(views), n); err != nil {
		return nil, err
	}
	data, u8 := make([]float32, len(views)*n), make([]byte, n)
	for i := range views {
		if err := views[i].resize(u8, 3*q.Side, q.Side, q.Side, window{w: q.Side, h: q.Side},
			q.filter); err != nil {
			return nil, fmt.Errorf("%w (picture %d of %d)", err, i+1, len(views))
		}
		q.lut.planes(data[i*n:(i+1)*n], u8, 3*q.Side, q.Side, q.Side)
	}
	return data, nil
}
