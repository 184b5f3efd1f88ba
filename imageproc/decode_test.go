package imageproc

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/jpeg"
	"strings"
	"testing"
)

// Ensure the limits act on the header, at the exact pixel and byte.
func TestLimits(t *testing.T) {
	data := readFile(t, "testdata", "inputs", "png_rgb8.png") // 75x53 = 3975 pixels
	for _, c := range []struct {
		limits Limits
		want   string
	}{
		{Limits{MaxPixels: 3975, MaxBytes: int64(len(data))}, ""},
		{Limits{MaxPixels: 3974}, "75x53 = 3975 pixels, limit 3974 (--max-image-pixels)"},
		{Limits{MaxBytes: int64(len(data)) - 1}, "bytes, limit"},
	} {
		_, err := Decode(data, "a.png", DecodeOptions{Limits: c.limits})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.limits, err, c.want)
		}
	}
	for _, name := range []string{"jpg_420.jpg", "gif_static.gif", "webp_lossy.webp", "webp_animated.webp", "bmp_rgb24.bmp", "tiff_rgb_lzw.tif"} {
		_, err := Decode(readFile(t, "testdata", "inputs", name), name, DecodeOptions{Limits: Limits{MaxPixels: 3974}})
		if err == nil || !strings.Contains(err.Error(), "limit 3974") {
			t.Errorf("%s: got %v, want the pixel limit", name, err)
		}
	}
}

// Ensure a header that promises more than the file can hold is refused before
// its pixels are allocated.
func TestPromises(t *testing.T) {
	j := bytes.Clone(readFile(t, "testdata", "inputs", "jpg_420.jpg"))
	at := bytes.Index(j, []byte{0xff, 0xc0})
	binary.BigEndian.PutUint16(j[at+5:], 7000)
	binary.BigEndian.PutUint16(j[at+7:], 9000)
	b := bytes.Clone(readFile(t, "testdata", "inputs", "bmp_rgb24.bmp"))
	binary.LittleEndian.PutUint32(b[18:], 9000)
	f := bytes.Clone(readFile(t, "testdata", "inputs", "tiff_rgb_raw.tif"))
	at = bytes.Index(f, []byte("\x00\x01\x04\x00\x01\x00\x00\x00")) // ImageWidth, one LONG
	if at < 0 {
		at = bytes.Index(f, []byte("\x00\x01\x03\x00\x01\x00\x00\x00"))
	}
	binary.LittleEndian.PutUint16(f[at+8:], 9000)
	for name, data := range map[string][]byte{"a.jpg": j, "a.bmp": b, "a.tif": f} {
		_, err := Decode(data, name, DefaultDecodeOptions())
		if err == nil || !strings.Contains(err.Error(), "truncated") || !strings.Contains(err.Error(), "cannot hold 9000x") {
			t.Errorf("%s: got %v, want truncated", name, err)
		}
	}
}

// Ensure each orientation moves the corners as its name says. The picture is
//
//	1 2 3
//	4 5 6
func TestOrientations(t *testing.T) {
	p := &Picture{Width: 3, Height: 2}
	for v := byte(1); v <= 6; v++ {
		p.Pix = append(p.Pix, v, v, v)
	}
	for o, want := range map[int]string{
		0: "123/456", 1: "123/456", 9: "123/456",
		2: "321/654", 3: "654/321", 4: "456/123",
		5: "14/25/36", 6: "41/52/63", 7: "63/52/41", 8: "36/25/14",
	} {
		q := p.turned(o)
		got := ""
		for i := range q.Width * q.Height {
			if i > 0 && i%q.Width == 0 {
				got += "/"
			}
			got += string('0' + rune(q.Pix[3*i]))
		}
		if got != want {
			t.Errorf("orientation %d: got %s, want %s", o, got, want)
		}
	}
}

// Ensure EXIF blocks are read in both byte orders and never trusted.
func TestExifOrientation(t *testing.T) {
	little := "II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"
	big := "MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x08\x00\x00\x00\x00\x00\x00"
	for block, want := range map[string]int{
		little: 6, big: 8, "Exif\x00\x00" + little: 6, "": 1, "II*\x00": 1, little[:20]: 1,
		"II*\x00\xff\xff\xff\xff":                  1,
		strings.Replace(little, "\x06", "\x09", 1): 1, // 9 is no orientation
	} {
		if got := exifOrientation([]byte(block)); got != want {
			t.Errorf("%q: got %d, want %d", block, got, want)
		}
	}
}

// Ensure chroma is stretched as worked out by hand, for every ratio.
func TestUpsampling(t *testing.T) {
	// 0 100 200
	// 40 40 40
	p := plane{pix: []byte{0, 100, 200, 40, 40, 40}, stride: 3, w: 3, h: 2}
	for _, c := range []struct {
		h, v, y int
		want    []byte
	}{
		{1, 1, 1, []byte{40, 40, 40}},
		// (3·0+100+2)/4 = 25, (3·100+0+1)/4 = 75, (300+200+2)/4 = 125, (600+100+1)/4 = 175
		{2, 1, 0, []byte{0, 25, 75, 125, 175, 200}},
		// row 1 leans on row 1 of chroma: (3·0+40+2)/4 = 10, (300+40+2)/4 = 85, (600+40+2)/4 = 160
		{1, 2, 1, []byte{10, 85, 160}},
		{1, 2, 2, []byte{30, 55, 80}}, // (120+0+1)/4, (120+100+1)/4, (120+200+1)/4
		// sums 40, 340, 640: (4·40+8)/16 = 10, (120+340+7)/16 = 29, (1020+40+8)/16 = 66,
		// (1020+640+7)/16 = 104, (1920+340+8)/16 = 141, (2560+7)/16 = 160
		{2, 2, 1, []byte{10, 29, 66, 104, 141, 160}},
		{4, 1, 0, []byte{0, 0, 0, 0, 100, 100, 100, 100, 200, 200, 200, 200}},
		{4, 2, 3, []byte{40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40}},
	} {
		u := upsampler{hRatio: c.h, vRatio: c.v, sum: make([]int32, 3)}
		if got := u.row(make([]byte, 3*c.h), p, c.y); !bytes.Equal(got, c.want) {
			t.Errorf("%d:%d row %d: got %v, want %v", c.h, c.v, c.y, got, c.want)
		}
	}
}

// Ensure rows are independent of how many goroutines convert them.
func TestJPEGBands(t *testing.T) {
	m := image.NewYCbCr(image.Rect(0, 0, 33, 500), image.YCbCrSubsampleRatio420)
	for i := range m.Y {
		m.Y[i] = byte(i * 7)
	}
	for i := range m.Cb {
		m.Cb[i], m.Cr[i] = byte(i*13), byte(i*29)
	}
	want := make([]byte, 33*500*3)
	jpegRows(want, m, 0, 500)
	if !bytes.Equal(jpegRGB(m), want) {
		t.Error("bands differ from one pass")
	}
}

// Ensure tiny JPEGs of every parity decode: planes of one or two columns.
func TestTinyJPEG(t *testing.T) {
	for w := 1; w <= 5; w++ {
		for h := 1; h <= 5; h++ {
			var buf bytes.Buffer
			if err := jpeg.Encode(&buf, image.NewRGBA(image.Rect(0, 0, w, h)), nil); err != nil {
				t.Fatal(err)
			}
			p, err := Decode(buf.Bytes(), "tiny.jpg", DefaultDecodeOptions())
			if err != nil || p.Width != w || p.Height != h {
				t.Errorf("%dx%d: got %+v, %v", w, h, p, err)
				continue
			}
			for i, v := range p.Pix {
				if v != 0 {
					t.Errorf("%dx%d: byte %d: got %d, want black", w, h, i, v)
					break
				}
			}
		}
	}
}

// Ensure variants that are not read are named.
func TestUnsupportedVariants(t *testing.T) {
	patch := func(name string, find string, at int, value byte) []byte {
		b := bytes.Clone(readFile(t, "testdata", "inputs", name))
		i := bytes.Index(b, []byte(find))
		if i < 0 {
			t.Fatalf("%s: no %q", name, find)
		}
		b[i+at] = value
		return b
	}
	compression, photometric := "\x03\x01\x03\x00\x01\x00\x00\x00", "\x06\x01\x03\x00\x01\x00\x00\x00"
	for _, c := range []struct {
		data []byte
		want string
	}{
		{patch("jpg_420.jpg", "\xff\xc0", 1, 0xc9), "JPEG variant is not supported: arithmetic coding"},
		{patch("jpg_420.jpg", "\xff\xc0", 4, 12), "JPEG variant is not supported: 12 bits"},
		{patch("bmp_pal8.bmp", "BM", 30, 1), "BMP variant is not supported: compression 1 RLE8"},
		{patch("tiff_rgb_raw.tif", compression, 8, 7), "TIFF variant is not supported: JPEG compression"},
		{patch("tiff_rgb_raw.tif", photometric, 8, 6), "TIFF variant is not supported: YCbCr"},
		{[]byte("II+\x00\x08\x00\x00\x00"), "BigTIFF is not supported"},
		{[]byte("hello\n"), "looks like text"},
		{[]byte("GIF8"), "GIF is truncated: 4 bytes"},
	} {
		_, err := Decode(c.data, "x", DefaultDecodeOptions())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
