package nn

import (
	"math"
	"slices"
	"testing"
)

// resizeTol is absolute: a handful of float32 products of values up to 100.
const resizeTol = 2e-5

// Ensure that both kernels give the values worked out by hand for a step, in the middle and at the
// edges.
func TestResize(t *testing.T) {
	step := []float32{0, 0, 0, 0, 64, 64, 64, 64}
	for _, c := range []struct {
		smooth bool
		want   []float32
	}{
		// Halves lie between two samples, with weights -3/32, 19/32, 19/32, -3/32.
		{false, []float32{0, -6, 70, 64}},
		// Eight samples at 1/4 to 7/4 have the weights 111, 29, -9 and -3 of 256 on each side.
		// Samples outside are missing from the sum of weights too: 17 of 256 for the first value,
		// -3 for the second.
		{true, []float32{64 * -3. / 239, 64 * 17. / 259, 64 - 64*17./259, 64 + 64*3./239}},
	} {
		got := Resize(step, 1, 1, 8, 1, 1, 4, c.smooth)
		for i := range c.want {
			if !(math.Abs(float64(got[i]-c.want[i])) <= resizeTol) {
				t.Errorf("smooth %v: got %v, want %v", c.smooth, got, c.want)
				break
			}
		}
	}
}

// Ensure that Unpatch restores the picture that Patches cut.
func TestUnpatch(t *testing.T) {
	px := make([]float32, 2*5*6*8)
	for i := range px {
		px[i] = float32(i)
	}
	cut, back := make([]float32, len(px)), make([]float32, len(px))
	Patches(cut, px, 2, 5, 6, 8, 2)
	Unpatch(back, cut, 2, 5, 6, 8, 2)
	if !slices.Equal(back, px) || slices.Equal(cut, px) {
		t.Error("not the inverse")
	}
	// Item 1, row 2, column 3, channel 4, line 1, dot 0.
	if got, want := cut[((1*3+2)*4+3)*20+4*4+2], px[((1*5+4)*6+5)*8+6]; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	// The third line and column are in no whole patch.
	Patches(cut, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8}, 1, 1, 3, 3, 2)
	if want := []float32{0, 1, 3, 4}; !slices.Equal(cut[:4], want) {
		t.Errorf("got %v, want %v", cut[:4], want)
	}
}

// Ensure that an unchanged size changes no bit, that a constant stays constant at every size, and
// that rows, columns and channels do not mix.
func TestResizeProperties(t *testing.T) {
	x := make([]float32, 2*6*4*3)
	for i := range x {
		x[i] = float32(i%3) * 10 // a constant for each channel
	}
	if got := Resize(x, 2, 6, 4, 3, 6, 4, true); !slices.Equal(got, x) {
		t.Error("the same size is another picture")
	}
	for _, smooth := range []bool{false, true} {
		for rows := 1; rows <= 9; rows++ {
			for cols := 1; cols <= 9; cols++ {
				got := Resize(x, 2, 6, 4, 3, rows, cols, smooth)
				if len(got) != 2*rows*cols*3 {
					t.Fatalf("%dx%d: %d values", rows, cols, len(got))
				}
				for i, v := range got {
					if !(math.Abs(float64(v)-float64(i%3)*10) <= resizeTol) {
						t.Fatalf("%dx%d, smooth %v: value %d is %v, want %d", rows, cols, smooth, i,
							v, i%3*10)
					}
				}
			}
		}
	}
}
