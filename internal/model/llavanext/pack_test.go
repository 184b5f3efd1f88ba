package llavanext

import (
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Ensure that canvas, map and number of tokens equal transformers' for 600 picture sizes,
// from 1x1 to very long ones.
func TestPackSizes(t *testing.T) {
	var tables map[string]struct {
		Canvases [][2]int `json:"image_grid_pinpoints"`
		Side     int      `json:"image_size"`
		Patch    int      `json:"patch_size"`
		Rows     [][]int
	}
	golden.JSON(t, "testdata/anyres.json", &tables)
	n := 0
	for name, table := range tables {
		c := &llava.Config{
			Vision:   clip.Config{ImageSide: table.Side, Patch: table.Patch},
			Canvases: table.Canvases,
		}
		for _, r := range table.Rows {
			n++
			h, w := r[0], r[1]
			m := c.Map(h, w)
			v := pack(c, m)
			ch, cw := imageproc.Canvas(c.Canvases, w, h)
			if ch != r[2] || cw != r[3] || m.Rows != r[6] || m.Cols != r[7] ||
				len(v.Source) != r[8] {
				t.Errorf("%s: %dx%d: canvas %dx%d, map %dx%d, %d tokens, want %v", name, h, w, ch,
					cw, m.Rows, m.Cols, len(v.Source), r)
			}
			checkLayout(t, c, v, m)
		}
	}
	if n != 600 {
		t.Errorf("%d sizes, want 600", n)
	}
}

// Ensure that without the canvases above a limit of pixels, pictures have as many views and tokens
// as with transformers 5.24 (image_size_to_num_patches and LlavaNextModel.pack_image_features with
// image_grid_pinpoints without these).
func TestPackLimited(t *testing.T) {
	sizes := [][2]int{ // height, width
		{1, 1}, {200, 3000}, {3000, 200}, {480, 640}, {641, 480}, {1080, 1920}, {2048, 2048},
		{33, 100}, {672, 336},
	}
	for limit, want := range map[int][][2]int{ // views, tokens
		336 * 672: {{3, 1176}, {3, 772}, {3, 816}, {3, 1368}, {3, 1376}, {3, 1608}, {3, 1176},
			{3, 1360}, {3, 1776}},
		672*672 - 1: {{3, 1176}, {4, 868}, {4, 936}, {3, 1368}, {3, 1376}, {3, 1608}, {3, 1176},
			{3, 1360}, {3, 1776}},
	} {
		c := &llava.Config{
			Vision:   clip.Config{ImageSide: 336, Patch: 14},
			Canvases: imageproc.Within(imageproc.Canvases, limit),
		}
		for i, s := range sizes {
			v := pack(c, c.Map(s[0], s[1]))
			if got := [2]int{v.Count, len(v.Source)}; got != want[i] {
				t.Errorf("at most %d pixels: %v: got %v, want %v", limit, s, got, want[i])
			}
		}
	}
}

// checkLayout ensures that no patch occurs twice, that newlines end rows, and that tokens are in
// reading order.
func checkLayout(t *testing.T, c *llava.Config, v *model.Views, m *llava.Map) {
	t.Helper()
	p2 := c.Vision.Grid() * c.Vision.Grid()
	seen := map[int32]bool{}
	for i, s := range v.Source {
		end := i >= p2 && (i-p2)%(m.Cols+1) == m.Cols
		if (s == llava.Newline) != end || s >= int32(v.Count*p2) || s < llava.Newline ||
			s != llava.Newline && seen[s] {
			t.Fatalf("token %d of %d comes from %d", i, len(v.Source), s)
		}
		seen[s] = true
	}
	if len(v.All) != v.Count*p2 || len(v.Source) != p2+m.Rows*(m.Cols+1) {
		t.Fatalf("%d patches and %d tokens, want %d and %d", len(v.All), len(v.Source),
			v.Count*p2, p2+m.Rows*(m.Cols+1))
	}
	at := 0 // tokens stand in reading order
	for _, s := range v.Source {
		for s != llava.Newline && v.All[at] != s {
			at++
		}
	}
}
