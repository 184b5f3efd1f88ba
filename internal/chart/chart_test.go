package chart

import (
	"bytes"
	"image/png"
	"strings"
	"testing"
)

// Ensure drawings hold what they were made of, and are as large as it needs.
func TestDrawings(t *testing.T) {
	panels := []Panel{
		{
			Title: "left", X: "tokens", Y: "%", Ticks: []float64{64, 128}, LogX: true, High: 100,
			Series: []Series{{Name: "one", X: []float64{64, 128}, Y: []float64{1, 2}}},
		},
		{Title: "right", Series: []Series{
			{Name: "one", X: []float64{0, 1}, Y: []float64{1, 2}},
			{Name: "two", Style: 1, Bare: true, X: []float64{0, 1}, Y: []float64{2, 1}},
		}},
	}
	caption := strings.Repeat("what was measured ", 20)
	var b bytes.Buffer
	if err := Draw(&b, "svg", caption, panels); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{">left<", ">right<", ">one<", ">two<", "128"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("%q is not there", text)
		}
	}
	size := func(draw func() error) (int, int) {
		b.Reset()
		if err := draw(); err != nil {
			t.Fatal(err)
		}
		c, err := png.DecodeConfig(&b)
		if err != nil {
			t.Fatal(err)
		}
		return c.Width, c.Height
	}
	w1, h1 := size(func() error { return Draw(&b, "png", "", panels) })
	w2, h2 := size(func() error { return Draw(&b, "png", caption, panels) })
	if w1 != w2 || h2 <= h1 {
		t.Errorf("a caption makes %dx%d of %dx%d, want more height", w2, h2, w1, h1)
	}
	w1, h1 = size(func() error { return Text(&b, "png", "one line\n") })
	w2, h2 = size(func() error { return Text(&b, "png", "one line\nand a longer one\n") })
	if w2 <= w1 || h2 <= h1 {
		t.Errorf("%dx%d for more text than %dx%d", w2, h2, w1, h1)
	}
	if err := Draw(&b, "gif", "", panels); err == nil {
		t.Error("an unknown format is taken")
	}
}
