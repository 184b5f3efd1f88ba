package imageproc

import (
	"archive/zip"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"
)

// unzip returns the files of an archive in testdata.
func unzip(t testing.TB, archive string) map[string][]byte {
	t.Helper()
	z, err := zip.OpenReader(filepath.Join("testdata", archive))
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
	return files
}

// Ensure that an orientation is found in EXIF blocks and XMP packets wherever Pillow finds it.
func TestOrientationPlaces(t *testing.T) {
	files := unzip(t, "orientation.zip")
	var want map[string]struct {
		Stored, Upright string // RGB in hexadecimal digits
		Width           int    // upright
	}
	if err := json.Unmarshal(files["pillow.json"], &want); err != nil || len(want) < 20 {
		t.Fatalf("%d files, %v", len(want), err)
	}
	for name, w := range want {
		for exif, text := range map[bool]string{false: w.Stored, true: w.Upright} {
			pix, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(files[name], name, DecodeOptions{EXIF: exif})
			if err != nil || !bytes.Equal(got.Pix, pix) || exif && got.Width != w.Width {
				t.Errorf("%s, EXIF %v: got %+v, %v, want %s", name, exif, got, err, text)
			}
		}
	}
}
