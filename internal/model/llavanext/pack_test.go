package llavanext

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// Ensure that canvas, map and number of tokens equal transformers' for 600 picture sizes,
// from 1x1 to very long ones.
func TestPackSizes(t *testing.T) {
	data, err := os.ReadFile("testdata/anyres.json")
	if err != nil {
		t.Fatal(err)
	}
	var tables map[string]struct {
		Canvases [][2]int `json:"image_grid_pinpoints"`
		Side     int      `json:"image_size"`
		Patch    int      `json:"patch_size"`
		Rows     [][]int
	}
	if err := json.Unmarshal(data, &tables); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, table := range tables {
		c := &Config{
			Config:   &llava.Config{Vision: clip.Config{ImageSide: table.Side, Patch: table.Patch}},
			Canvases: table.Canvases,
		}
		for _, r := range table.Rows {
			n++
			h, w := r[0], r[1]
			l := c.pack(h, w)
			ch, cw := imageproc.Canvas(c.Canvases, w, h)
			if ch != r[2] || cw != r[3] || l.rows != r[6] || l.cols != r[7] ||
				len(l.source) != r[8] {
				t.Errorf("%s: %dx%d: canvas %dx%d, map %dx%d, %d tokens, want %v", name, h, w, ch,
					cw, l.rows, l.cols, len(l.source), r)
			}
			checkLayout(t, c, &l)
		}
	}
	if n != 600 {
		t.Errorf("%d sizes, want 600", n)
	}
}

// checkLayout ensures that no patch occurs twice, that newlines end rows, and that tokens are in
// reading order.
func checkLayout(t *testing.T, c *Config, l *layout) {
	t.Helper()
	p2 := c.Vision.Grid() * c.Vision.Grid()
	seen := map[int32]bool{}
	for i, s := range l.source {
		end := i >= p2 && (i-p2)%(l.cols+1) == l.cols
		if (s == newline) != end || s >= int32(l.tiles*p2) || s < newline ||
			s != newline && seen[s] {
			t.Fatalf("token %d of %d comes from %d", i, len(l.source), s)
		}
		seen[s] = true
	}
	if len(l.all) != l.tiles*p2 || len(l.source) != p2+l.rows*(l.cols+1) {
		t.Fatalf("%d patches and %d tokens, want %d and %d", len(l.all), len(l.source), l.tiles*p2,
			p2+l.rows*(l.cols+1))
	}
	at := 0 // tokens stand in reading order
	for _, s := range l.source {
		for s != newline && l.all[at] != s {
			at++
		}
	}
}
