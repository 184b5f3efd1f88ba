package imageproc

import (
	"archive/zip"
	"encoding/hex"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"
)

// Ensure that an orientation is found in EXIF blocks and XMP packets wherever Pillow finds it.
func TestOrientationPlaces(t *testing.T) {
	z, err := zip.OpenReader(filepath.Join("testdata", "orientation.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var want map[string]struct {
		Stored, Upright string // RGB in hexadecimal digits
		Width           int    // upright
	}
	if err := json.Unmarshal(files["pillow.json"], &want); err != nil || len(want) < 20 {
		t.Fatalf("%d files, %v", len(want), err)
	}
	for name, w := range want {
		most := 0
		if filepath.Ext(name) == ".JPEG" {
			most = 4 // noise: the inverse transform and the conversion round differently
		}
		for exif, text := range map[bool]string{false: w.Stored, true: w.Upright} {
			pix, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(files[name], name, DecodeOptions{EXIF: exif})
			if err != nil || len(got.Pix) != len(pix) || exif && got.Width != w.Width {
				t.Errorf("%s: got %+v, %v", name, got, err)
				continue
			}
			for i := range pix {
				if d := int(got.Pix[i]) - int(pix[i]); d > most || -d > most {
					t.Errorf("%s, EXIF %v: byte %d: got %d, want %d", name, exif, i, got.Pix[i],
						pix[i])
					break
				}
			}
		}
	}
}
