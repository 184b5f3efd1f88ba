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
			v, m := pack(c, h, w), c.Map(h, w)
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
