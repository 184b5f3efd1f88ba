package imageproc

import (
	"reflect"
	"strings"
	"testing"
)

// Ensure that a limit on pixels is one on tiles: the largest square of them, or their number. The
// tiles are those of transformers 5.24 (Idefics3ImageProcessorPil with that longest_edge,
// GotOcr2's get_optimal_tiled_canvas with that many tiles).
func TestLimitTiles(t *testing.T) {
	sizes := [][2]int{
		{1, 1}, {3000, 200}, {200, 3000}, {640, 480}, {480, 641}, {2048, 2048}, {100, 33},
		{5000, 4999},
	}
	splits, err := ParseProcessor([]byte(`{"image_processor_type":"Idefics3ImageProcessor",`+
		`"size":{"longest_edge":2048},"max_image_size":{"longest_edge":512}}`),
		[]Kind{{Classes: []string{"Idefics3ImageProcessor"}, New: NewSplits}})
	if err != nil {
		t.Fatal(err)
	}
	const tile = 512 * 512
	for hi, want := range map[int][][2]int{
		tile:       make([][2]int, len(sizes)), // no tiles
		4*tile - 1: make([][2]int, len(sizes)),
		4 * tile:   {{2, 2}, {1, 2}, {2, 1}, {2, 2}, {2, 2}, {2, 2}, {1, 2}, {2, 2}},
		9 * tile:   {{3, 3}, {1, 3}, {3, 1}, {3, 3}, {3, 3}, {3, 3}, {1, 3}, {3, 3}},
	} {
		p, err := LimitPixels(splits, 0, hi)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range sizes {
			if got := p.(*Splits).Split(s[0], s[1]); got != want[i] {
				t.Errorf("at most %d pixels: %v: got %v, want %v", hi, s, got, want[i])
			}
		}
	}
	cut, err := ParseProcessor([]byte(`{"image_processor_type":"GotOcr2ImageProcessor",`+
		`"size":{"height":448,"width":448}}`), crops)
	if err != nil {
		t.Fatal(err)
	}
	for hi, want := range map[int][][2]int{
		448 * 448:     {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
		4 * 448 * 448: {{1, 1}, {1, 4}, {4, 1}, {1, 1}, {2, 1}, {2, 2}, {1, 3}, {2, 2}},
		6 * 448 * 448: {{1, 1}, {1, 6}, {6, 1}, {2, 3}, {3, 2}, {2, 2}, {1, 3}, {2, 2}},
	} {
		p, err := LimitPixels(cut, 0, hi)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range sizes {
			if rows, cols := p.(*Crops).Grid(s[0], s[1]); [2]int{rows, cols} != want[i] {
				t.Errorf("at most %d pixels: %v: got %d by %d, want %v", hi, s, rows, cols, want[i])
			}
		}
	}
	p, err := LimitPixels(cut, 3*448*448-5, 3*448*448)
	if c := p.(*Crops); err != nil || c.least != 3 || c.most != 3 {
		t.Errorf("three tiles: got %+v, %v", p, err)
	}

	whole := *splits.(*Splits)
	whole.split = false
	for _, c := range []struct {
		p      Processor
		lo, hi int
		names  string
	}{
		{splits, 0, tile - 1, "max-pixels: got 262143, want at least 262144"},
		{splits, 5, 0, "min-pixels: got 5, which has no effect with Idefics3ImageProcessor"},
		{&whole, 0, tile, "where do_image_splitting is false"},
		{cut, 0, 448*448 - 1, "max-pixels: got 200703, want at least 200704"},
		{cut, -1, 0, "min-pixels"}, {cut, 0, 1 << 30, "256 tiles"},
		{cut, 14 * 448 * 448, 0, "min-pixels: got 2809856 (14 tiles of 448x448 pixels)"},
	} {
		if _, err := LimitPixels(c.p, c.lo, c.hi); err == nil ||
			!strings.Contains(err.Error(), c.names) {
			t.Errorf("%d to %d: got %v, want %q", c.lo, c.hi, err, c.names)
		}
	}
	// defaults that have no use are dropped one by one
	a := Adjust{MinPixels: 5, MaxPixels: tile, Defaults: []string{"min-pixels", "max-pixels"}}
	if p, err := a.To(splits); err != nil || p.(*Splits).longest != 512 {
		t.Errorf("defaults: got %+v, %v, want the limit that has a use", p, err)
	}
}

// Ensure that a limit on pixels prepares pictures as if the checkpoint had only the canvases within
// it, and that one without effect, or below the smallest canvas, is refused.
func TestLimitCanvases(t *testing.T) {
	kinds := []Kind{{Classes: []string{"LlavaNextImageProcessor"}, New: NewTiles}}
	tiles := func(canvases string) Processor {
		t.Helper()
		p, err := ParseProcessor([]byte(`{"image_processor_type":"LlavaNextImageProcessor",`+
			`"crop_size":8,"size":8,"image_grid_pinpoints":`+canvases+`}`), kinds)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := tiles(`[[8,16],[16,8],[16,16],[24,8],[8,24]]`)
	var pics []*Picture
	for _, s := range [][2]int{{5, 5}, {40, 9}, {9, 40}, {20, 21}, {300, 2}} {
		p := &Picture{Width: s[0], Height: s[1], Pix: make([]byte, 3*s[0]*s[1])}
		for i := range p.Pix {
			p.Pix[i] = byte(i * i)
		}
		pics = append(pics, p)
	}
	for hi, canvases := range map[int]string{
		128: `[[8,16],[16,8]]`, 191: `[[8,16],[16,8]]`, 192: `[[8,16],[16,8],[24,8],[8,24]]`,
	} {
		limited, err := LimitPixels(all, 0, hi)
		if err != nil {
			t.Fatal(err)
		}
		got, err := limited.Process(pics)
		if err != nil {
			t.Fatal(err)
		}
		want, err := tiles(canvases).Process(pics)
		if err != nil {
			t.Fatal(err)
		}
		if want.MostPixels = hi; !reflect.DeepEqual(got, want) {
			t.Errorf("at most %d pixels: got canvases %v, want %v", hi, got.CanvasSizes,
				want.CanvasSizes)
		}
	}
	for _, c := range []struct {
		lo, hi int
		names  string
	}{
		{0, 127, "max-pixels: got 127, want at least 128 (the smallest canvas of " +
			"image_grid_pinpoints, 8x16 pixels)"},
		{0, -1, "max-pixels: got -1, want at least 128"},
		{0, 256, "max-pixels: got 256, which has no effect where no canvas"},
		{5, 0, "min-pixels: got 5, which has no effect with LlavaNextImageProcessor"},
		{5, 128, "min-pixels: got 5, which has no effect"},
	} {
		if _, err := LimitPixels(all, c.lo, c.hi); err == nil ||
			!strings.Contains(err.Error(), c.names) {
			t.Errorf("%d to %d: got %v, want %q", c.lo, c.hi, err, c.names)
		}
	}
}
