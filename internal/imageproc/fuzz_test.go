package imageproc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzDecode checks that any bytes give a sound picture within the limits or
// an error of one line, under every option.
func FuzzDecode(f *testing.F) {
	const maxSeed = 8 << 10 // large seeds only slow the mutator down
	for _, dir := range []string{"inputs", "malformed", "variants"} {
		entries, err := os.ReadDir(filepath.Join("testdata", dir))
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range entries {
			if b := readFile(f, "testdata", dir, e.Name()); len(b) <= maxSeed {
				f.Add(b, true)
			}
		}
	}
	for _, data := range unzip(f, "jpeg.zip") {
		f.Add(data, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, exif bool) {
		o := DecodeOptions{EXIF: exif, Limits: Limits{MaxPixels: 1 << 14}}
		p, err := Decode(data, "fuzz", o)
		if err != nil {
			if strings.Contains(err.Error(), "\n") ||
				strings.Contains(err.Error(), "runtime error") {
				t.Fatalf("error %q", err)
			}
			return
		}
		if err := p.check(); err != nil {
			t.Fatal(err)
		}
		if p.Width*p.Height > 1<<14 {
			t.Fatalf("got %dx%d, beyond the limit", p.Width, p.Height)
		}
	})
}

// FuzzParseProcessor checks that any configuration is refused or processes a
// picture without a panic.
func FuzzParseProcessor(f *testing.F) {
	for _, c := range processorConfigs {
		f.Add([]byte(c), uint8(3), uint8(5))
	}
	f.Fuzz(func(t *testing.T, config []byte, w, h uint8) {
		proc, err := ParseProcessor(config, kinds)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q", err)
			}
			return
		}
		p := &Picture{Width: int(w) + 1, Height: int(h) + 1}
		p.Pix = make([]byte, p.Width*p.Height*3)
		if tooLarge(proc, p) {
			return // sound, and slow
		}
		px, err := proc.Process([]*Picture{p, p})
		if err != nil {
			return
		}
		n := 1
		for _, d := range px.Shape {
			n *= d
		}
		if n != len(px.Data) || len(px.Frames) != 2 || len(px.ImageSizes) != 2 {
			t.Fatalf("shape %v, %d values, %d frames", px.Shape, len(px.Data), len(px.Frames))
		}
	})
}

// tooLarge keeps the fuzzer to results of a few megabytes.
func tooLarge(proc Processor, p *Picture) bool {
	const limit = 1 << 18
	switch proc := proc.(type) {
	case *CLIP:
		ow, oh, crop := proc.geometry(p.Width, p.Height)
		return ow*oh > limit || crop.w*crop.h > limit
	case *Tiles:
		f := proc.fit(p.Width, p.Height)
		return f.width*f.height > limit
	case *Patches:
		ow, oh, err := proc.size(p)
		return err == nil && ow*oh*proc.Temporal > limit
	}
	return false
}
