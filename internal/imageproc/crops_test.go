package imageproc

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
)

// crops are the kinds of processors of these tests.
var crops = []Kind{{Classes: []string{"GotOcr2ImageProcessor"}, New: NewCrops}}

// Ensure that the tiles of a picture are those of transformers 5.24, for 2,500 sizes and limits.
func TestCropsGrid(t *testing.T) {
	var rows [][7]int
	golden.JSON(t, "testdata/crops.json", &rows)
	if len(rows) < 1500 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		c := Crops{Square: Square{Side: r[2]}, least: r[3], most: r[4]}
		if down, across := c.Grid(r[0], r[1]); across != r[5] || down != r[6] {
			t.Errorf("%v: got %d by %d, want %d by %d", r[:5], across, down, r[5], r[6])
		}
	}
}

// Ensure that settings are read as transformers' processor of InternVL reads them, that others are
// refused by name, and that the number of tiles is bounded.
func TestCropsSettings(t *testing.T) {
	const head = `{"image_processor_type":"GotOcr2ImageProcessorFast","size":{"height":8,"width":8}`
	pic := &Picture{Width: 30, Height: 10, Pix: make([]byte, 3*30*10)}
	for more, want := range map[string]int{
		``: 4, `,"crop_to_patches":false`: 4, `,"crop_to_patches":true`: 4, `,"max_patches":1`: 1,
		`,"max_patches":2`: 3, `,"min_patches":4,"max_patches":4`: 5,
		`,"min_patches":9,"max_patches":2`: 1, `,"crop_size":null,"do_center_crop":null`: 4,
	} {
		proc, err := ParseProcessor([]byte(head+more+"}"), crops)
		if err != nil {
			t.Errorf("%s: %v", more, err)
			continue
		}
		px, err := proc.Process([]*Picture{pic, pic})
		if err != nil || px.Shape[0] != 2*want || px.Tiles[1] != want ||
			len(px.Data) != 2*want*3*8*8 || len(px.CanvasSizes) != 2 {
			t.Errorf("%s: %v, %v, want %d views", more, px.Shape, err, want)
		}
	}
	for more, names := range map[string]string{
		`,"max_patches":0`: "max_patches", `,"max_patches":257`: "max_patches",
		`,"min_patches":-1`: "min_patches", `,"max_patches":"x"`: "max_patches",
		`,"do_resize":false`: "do_resize", `,"do_center_crop":true`: "do_center_crop",
		`,"crop_to_patches":1`: "crop_to_patches", `,"do_pad":true`: "do_pad",
	} {
		_, err := ParseProcessor([]byte(head+more+"}"), crops)
		if err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: got %v, want an error about %s", more, err, names)
		}
	}
	size := strings.Replace(head, `"width":8`, `"width":9`, 1)
	if _, err := ParseProcessor([]byte(size+"}"), crops); err == nil ||
		!strings.Contains(err.Error(), "size") {
		t.Errorf("%s: got %v, want an error about size", size, err)
	}
}
