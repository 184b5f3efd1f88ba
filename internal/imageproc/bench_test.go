package imageproc

import (
	"bytes"
	"image"
	"image/jpeg"
	"testing"
)

// benchJPEG is a 12-megapixel 4:2:0 JPEG.
func benchJPEG(b *testing.B) []byte {
	m := image.NewYCbCr(image.Rect(0, 0, 4000, 3000), image.YCbCrSubsampleRatio420)
	state := uint32(1)
	for y := range 3000 {
		for x := range 4000 {
			state = state*1664525 + 1013904223
			m.Y[y*m.YStride+x] = byte(x/16+y/12) + byte(state>>28)
		}
	}
	for i := range m.Cb {
		m.Cb[i], m.Cr[i] = byte(i/2000), byte(i%2000/8)
	}
	rgba := image.NewRGBA(m.Rect)
	for y := range 3000 {
		for x := range 4000 {
			rgba.Set(x, y, m.At(x, y))
		}
	}
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, rgba, &jpeg.Options{Quality: 85}); err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}

// BenchmarkPicture12MP compares the parts of reading a camera picture; the
// codec should dominate.
func BenchmarkPicture12MP(b *testing.B) {
	data := benchJPEG(b)
	b.Run("codec", func(b *testing.B) {
		for b.Loop() {
			f, err := openJPEG(data)
			if err == nil {
				err = f.decode()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := Decode(data, "bench.jpg", DecodeOptions{EXIF: true}); err != nil {
				b.Fatal(err)
			}
		}
	})
	p, err := Decode(data, "bench.jpg", DecodeOptions{EXIF: true})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"clip", "llava_pad", "llava_next", "qwen_a"} {
		proc := goldenProcessor(b, name)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := proc.Process([]*Picture{p}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
