package idefics3

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
)

// published are the settings of SmolVLM-256M and SmolVLM2-2.2B.
var published = map[string]struct {
	family *model.Family
	config string
}{
	"smolvlm-256m": {&Family, `{"image_processor_type":"Idefics3ImageProcessor","resample":1,` +
		`"do_image_splitting":true,"size":{"longest_edge":2048},` +
		`"max_image_size":{"longest_edge":512},"do_pad":true,"processor_class":"Idefics3Processor"}`},
	"smolvlm2-2.2b": {&SmolVLM2, `{"image_processor_type":"SmolVLMImageProcessorFast",` +
		`"size":{"longest_edge":1536},"max_image_size":{"longest_edge":384},` +
		`"video_sampling":{"fps":1,"max_frames":64}}`},
}

func processor(t *testing.T, name string) imageproc.Processor {
	t.Helper()
	p, err := imageproc.ParseProcessor([]byte(published[name].config),
		published[name].family.Processors)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Ensure that pictures have the pixel values of transformers' classes for Pillow, bit for bit: also
// grey ones, and a transparent one on white.
func TestPixels(t *testing.T) {
	var cases map[string]struct {
		Picture string
		Shape   []int
		SHA256  string
	}
	golden.JSON(t, "testdata/pixels.json", &cases)
	if len(cases) < 14 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, c := range cases {
		kind, _, _ := strings.Cut(name, "/")
		raw, err := os.ReadFile(filepath.Join("../../imageproc/testdata", c.Picture))
		if err != nil {
			t.Fatal(err)
		}
		pic, err := imageproc.Decode(raw, name, imageproc.DecodeOptions{EXIF: true})
		if err != nil {
			t.Fatal(err)
		}
		px, err := processor(t, kind).Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, px.Data); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b.Bytes())
		if fmt.Sprint(px.Shape) != fmt.Sprint(c.Shape) || hex.EncodeToString(sum[:]) != c.SHA256 {
			t.Errorf("%s: shape %v, other values than the reference's of %v", name, px.Shape,
				c.Shape)
		}
	}
}

// Ensure that pictures of many sizes are cut as transformers does.
func TestSplits(t *testing.T) {
	var cases [][6]int // width, height, then rows and columns of each kind
	golden.JSON(t, "testdata/splits.json", &cases)
	if len(cases) < 300 {
		t.Fatalf("%d cases", len(cases))
	}
	for i, kind := range []string{"smolvlm-256m", "smolvlm2-2.2b"} {
		p := processor(t, kind).(*imageproc.Splits)
		for _, c := range cases {
			want := [2]int{c[2+2*i], c[3+2*i]}
			if got := p.Split(c[0], c[1]); got != want {
				t.Errorf("%s: %dx%d: got %v, want %v", kind, c[0], c[1], got, want)
			}
		}
	}
}

// Ensure that settings that would change the result are refused by name.
func TestSettings(t *testing.T) {
	for change, want := range map[string]string{
		`"do_pad":true -> "do_resize":false`:                            "do_resize",
		`"size":{"longest_edge":2048} -> "size":{"height":9,"width":9}`: "size",
		`"longest_edge":512 -> "longest_edge":0`:                        "max_image_size",
		`"longest_edge":512 -> "longest_edge":64`:                       "tiles",
		`"longest_edge":2048 -> "longest_edge":99999`:                   "size",
		`"do_pad":true -> "do_center_crop":true`:                        "do_center_crop",
		`"resample":1 -> "resample":9`:                                  "resample",
	} {
		from, to, _ := strings.Cut(change, " -> ")
		config := strings.Replace(published["smolvlm-256m"].config, from, to, 1)
		if _, err := imageproc.ParseProcessor([]byte(config), Family.Processors); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", change, err, want)
		}
	}
}
