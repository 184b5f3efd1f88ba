package cells

import (
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// sizes are those of an encoder.
type sizes struct{ Patch, Frames, Merge int }

// flat lays out a picture [3, rows·patch, cols·patch] as the encoder reads it: cell by cell, with
// patches of channel, frame, y, x.
func flat(px []float32, rows, cols int, c sizes) []float32 {
	var out []float32
	w := cols * c.Patch
	for cy := 0; cy < rows; cy += c.Merge {
		for cx := 0; cx < cols; cx += c.Merge {
			for p := range c.Merge * c.Merge {
				y, x := (cy+p/c.Merge)*c.Patch, (cx+p%c.Merge)*c.Patch
				for ch := range 3 {
					for range c.Frames {
						for line := range c.Patch {
							at := (ch*rows*c.Patch+y+line)*w + x
							out = append(out, px[at:at+c.Patch]...)
						}
					}
				}
			}
		}
	}
	return out
}

// Ensure that a shrunk picture equals the resized picture.
func TestShrink(t *testing.T) {
	c := sizes{Patch: 3, Frames: 2, Merge: 2}
	shrink := func(px []float32, from, to [3]int) []float32 {
		return shrink(&model.Run{}, px, from, to, 3*c.Frames, c.Patch, c.Merge)
	}
	px := make([]float32, 3*6*3*8*3)
	for i := range px {
		px[i] = float32(i*i%101) / 50
	}
	from := [3]int{1, 6, 8}
	if got := shrink(flat(px, 6, 8, c), from, from); !slices.Equal(got, flat(px, 6, 8, c)) {
		t.Error("the same size is another picture")
	}
	for _, to := range [][3]int{{1, 2, 4}, {1, 4, 2}, {1, 6, 4}} {
		want := flat(nn.Resize(px, 3, 18, 24, 1, to[1]*3, to[2]*3, true), to[1], to[2], c)
		if got := shrink(flat(px, 6, 8, c), from, to); !slices.Equal(got, want) {
			t.Errorf("%v: another picture", to)
		}
	}
}
