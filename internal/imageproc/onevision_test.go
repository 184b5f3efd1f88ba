package imageproc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// oneVisionConfig is the published preprocessor_config.json without the canvases, which are the
// default.
const oneVisionConfig = `{"image_processor_type":"LlavaOnevisionImageProcessor","do_pad":true,` +
	`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],"size":{"height":384,"width":384}}`

func oneVision(config string) (Processor, error) {
	return ParseProcessor([]byte(config), []Kind{
		{Classes: []string{"LlavaOnevisionImageProcessor"}, New: NewOneVision},
	})
}

// Ensure that pictures alone and among several have transformers' pixel values, bit for bit.
func TestOneVision(t *testing.T) {
	data, err := os.ReadFile("testdata/onevision.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		Picture string
		Alone   bool
		Shape   []int
		SHA256  string
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 16 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	p, err := oneVision(oneVisionConfig)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		proc := p
		if !c.Alone {
			proc = p.(CrowdProcessor).Several()
		}
		checkPixels(t, name, proc, c.Picture, c.Shape, c.SHA256)
	}
}

// checkPixels compares the pixel values of one picture with the reference's hash of them.
func checkPixels(
	t *testing.T, name string, p Processor, picture string, shape []int, hash string,
) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", picture))
	if err != nil {
		t.Fatal(err)
	}
	pic, err := Decode(raw, name, DefaultDecodeOptions())
	if err != nil {
		t.Fatal(err)
	}
	px, err := p.Process([]*Picture{pic})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, px.Data); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	if fmt.Sprint(px.Shape) != fmt.Sprint(shape) || hex.EncodeToString(sum[:]) != hash {
		t.Errorf("%s: shape %v, other values than the reference's of %v", name, px.Shape, shape)
	}
}

// Ensure that settings that would change the pixels are refused by name.
func TestOneVisionRefused(t *testing.T) {
	for _, c := range []struct{ old, new, names string }{
		{`"height":384`, `"height":383`, "size"},
		{`{"height":384,"width":384}`, `{"shortest_edge":384}`, "size"},
		{`"do_pad":true`, `"do_pad":false`, "do_pad"},
		{`"do_pad":true`, `"do_resize":false`, "do_resize"},
		{`"do_pad":true`, `"do_center_crop":true`, "do_center_crop"},
		{`"do_pad":true`, `"image_grid_pinpoints":[[384,100]]`, "image_grid_pinpoints"},
	} {
		_, err := oneVision(strings.Replace(oneVisionConfig, c.old, c.new, 1))
		if err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: got %v, want an error that names %s", c.new, err, c.names)
		}
	}
}
