package imageproc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"image"
	"image/jpeg"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
		{Limits{MaxPixels: 3974}, "75x53 = 3975 pixels, limit 3974"},
		{Limits{MaxBytes: int64(len(data)) - 1}, "bytes, limit"},
	} {
		_, err := Decode(data, "a.png", DecodeOptions{Limits: c.limits})
		if c.want == "" && err != nil ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: got %v, want %q", c.limits, err, c.want)
		}
	}
	for _, name := range []string{
		"jpg_420.jpg", "gif_static.gif", "webp_lossy.webp", "webp_animated.webp", "bmp_rgb24.bmp", "tiff_rgb_lzw.tif",
	} {
		_, err := Decode(readFile(t, "testdata", "inputs", name), name,
			DecodeOptions{Limits: Limits{MaxPixels: 3974}})
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
		_, err := Decode(data, name, DecodeOptions{EXIF: true})
		if err == nil || !strings.Contains(err.Error(), "truncated") ||
			!strings.Contains(err.Error(), "cannot hold 9000x") {
			t.Errorf("%s: got %v, want truncated", name, err)
		}
	}
}

// tiffOf is a little-endian TIFF: a directory of tags with one LONG each, and data after it.
func tiffOf(entries [][2]uint32, data []byte) []byte {
	le := binary.LittleEndian
	out := append([]byte("II*\x00\x08\x00\x00\x00"), byte(len(entries)), 0)
	for _, e := range entries {
		out = le.AppendUint16(le.AppendUint16(out, uint16(e[0])), 4)
		out = le.AppendUint32(le.AppendUint32(out, 1), e[1])
	}
	return append(append(out, 0, 0, 0, 0), data...)
}

// Ensure a tile that is much larger than its picture is refused before it is allocated.
func TestLargeTile(t *testing.T) {
	const side = 1 << 16
	data := tiffOf([][2]uint32{
		{tagWidth, 1}, {tagHeight, side}, {tagBitsPerSample, 1}, {tagCompression, groupFour},
		{tagPhotometric, blackIsZero}, {tagTileWidth, side}, {tagTileHeight, side},
		{tagTileOffsets, 0}, {tagTileCounts, 9000},
	}, make([]byte, 9000))
	_, err := Decode(data, "a.tif", DecodeOptions{EXIF: true})
	want := "tiles of 65536x65536 pixels, 536870912 bytes"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// Ensure no limit accepts a picture whose bytes an int cannot count. The size in the header is
// 65536·21846·3 = 2³² + 131072 bytes, and its codes are no pixels.
func TestLimitOfInts(t *testing.T) {
	const w, h = 1 << 16, 21846
	if w*h <= MostPixels {
		t.Skip("an int counts the bytes of this picture")
	}
	b := make([]byte, 62, 64)
	copy(b, "BM")
	b[10], b[14], b[26], b[28], b[30], b[46] = 62, 40, 1, 8, 1, 2
	binary.LittleEndian.PutUint32(b[18:], w)
	binary.LittleEndian.PutUint32(b[22:], h)
	p, err := Decode(append(b, 0, 1), "a.bmp",
		DecodeOptions{Limits: Limits{MaxPixels: math.MaxInt32}})
	if err == nil || !strings.Contains(err.Error(), "pixels, limit") {
		t.Errorf("got %+v, %v, want the pixel limit", p, err)
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
	little := "II*\x00\x08\x00\x00\x00" +
		"\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00"
	big := "MM\x00*\x00\x00\x00\x08" +
		"\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x08\x00\x00\x00\x00\x00\x00"
	for block, want := range map[string]int{
		little: 6, big: 8, "Exif\x00\x00" + little: 6, "": 1, "II*\x00": 1, little[:20]: 1,
		"II*\x00\xff\xff\xff\xff":                          1,
		strings.Replace(little, "\x06", "\x09", 1):         1, // 9 is no orientation
		strings.Replace(little, "\x01\x03", "\x01\x01", 1): 1, // a BYTE is none in Pillow
		strings.Replace(little, "\x01\x03", "\x01\x08", 1): 6, // SSHORT
		little[:8] + "\x02" + little[9:22] + // the first of two holds
			"\x12\x01\x03\x00\x01\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00": 6,
		strings.Replace(little, "\x01\x00\x00\x00\x06", "\x09\x00\x00\x00\x0c", 1): 1, // cut
	} {
		if got := orientationOf([]byte(block), nil); got != want {
			t.Errorf("%q: got %d, want %d", block, got, want)
		}
	}
}

// Ensure chroma is stretched as worked out by hand, for every ratio.
func TestUpsampling(t *testing.T) {
	// 0 100 200 40 40 40
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
		u := upsampler{
			plane: p, hRatio: c.h, vRatio: c.v, dst: make([]byte, 3*c.h), sum: make([]int32, 3),
		}
		if got := u.row(c.y); !bytes.Equal(got, c.want) {
			t.Errorf("%d:%d row %d: got %v, want %v", c.h, c.v, c.y, got, c.want)
		}
	}
}

// Ensure rows are independent of how many goroutines convert them.
func TestJPEGBands(t *testing.T) {
	var buf bytes.Buffer
	m := image.NewYCbCr(image.Rect(0, 0, 33, 500), image.YCbCrSubsampleRatio420)
	for i := range m.Y {
		m.Y[i] = byte(i * 7)
	}
	for i := range m.Cb {
		m.Cb[i], m.Cr[i] = byte(i*13), byte(i*29)
	}
	if err := jpeg.Encode(&buf, m, nil); err != nil {
		t.Fatal(err)
	}
	f, err := openJPEG(buf.Bytes())
	if err == nil {
		err = f.decode()
	}
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 33*500*3)
	f.rgbRows(want, jpegYCC, 0, 500)
	if !bytes.Equal(f.rgb(jpegYCC), want) {
		t.Error("bands differ from one pass")
	}
}

// Ensure that JPEG files of every kind are read to the reference's bytes: sampling, sizes, tables,
// restarts, orders of scans, colours.
func TestJPEG(t *testing.T) {
	files := unzip(t, "jpeg.zip")
	var sums map[string]struct {
		Width, Height int
		SHA256        string
	}
	if err := json.Unmarshal(files["sums.json"], &sums); err != nil || len(sums) < 50 {
		t.Fatalf("%d files, %v", len(sums), err)
	}
	for name, want := range sums {
		data := files[name]
		p, err := Decode(data, name, DecodeOptions{})
		if err != nil {
			t.Error(err)
		} else if p.Width != want.Width || p.Height != want.Height || sum(p.Pix) != want.SHA256 {
			t.Errorf("%s: %dx%d, want %dx%d, or other bytes", name, p.Width, p.Height, want.Width,
				want.Height)
		}
		if bytes.Contains(data, []byte("\xff\xc0")) { // sequential: the scan is always all bits
			i := bytes.LastIndex(data, []byte("\xff\xda"))
			i += 1 + int(data[i+3]) // the header's last byte
			other := slices.Concat(data[:i], []byte{0x21}, data[i+1:])
			if q, err := Decode(other, name, DecodeOptions{}); err != nil ||
				!bytes.Equal(q.Pix, p.Pix) {
				t.Errorf("%s: with bits in its scan's header: %v", name, err)
			}
		}
		// cut anywhere, it is an error, never another picture
		for n := len(data) - 1; n > 0; n -= 1 + len(data)/40 {
			if _, err := Decode(data[:n], name, DecodeOptions{}); err == nil {
				t.Errorf("%s: accepted without its last %d bytes", name, len(data)-n)
			}
		}
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
			p, err := Decode(buf.Bytes(), "tiny.jpg", DecodeOptions{EXIF: true})
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

// Ensure that a large JPEG of many scans is refused before it is decoded, and that a small one is
// decoded.
func TestJPEGScans(t *testing.T) {
	for _, c := range []struct {
		side, scans int
		want        string
	}{
		{8000, 100, "JPEG variant is not supported: got 101 scans of 8000x8000 pixels, want at most 100"},
		{64, 1000, ""},
	} {
		segment := func(marker byte, body ...byte) []byte {
			return append([]byte{0xff, marker, 0, byte(len(body) + 2)}, body...)
		}
		// a progressive grey picture, whose blocks are one bit of DC each
		hi, lo, blocks := byte(c.side>>8), byte(c.side), c.side*c.side/64
		table := append([]byte{0, 1}, make([]byte, 15)...) // one code, of one bit
		data := slices.Concat([]byte{0xff, 0xd8},
			segment(0xdb, append([]byte{0}, bytes.Repeat([]byte{1}, 64)...)...),
			segment(0xc2, 8, hi, lo, hi, lo, 1, 1, 0x11, 0), segment(0xc4, append(table, 0)...),
			segment(0xda, 1, 1, 0, 0, 0, 0), make([]byte, (blocks+7)/8))
		table[0] = 0x10
		data = append(data, segment(0xc4, append(table, 0xe0)...)...)
		// scans of AC that leave runs of 1<<14 blocks out, in 15 bits
		run := make([]byte, (blocks>>14+1)*15/8+1)
		for range c.scans {
			data = append(append(data, segment(0xda, 1, 1, 0, 1, 63, 0)...), run...)
		}
		p, err := Decode(append(data, 0xff, 0xd9), "x", DecodeOptions{EXIF: true})
		if c.want == "" && (err != nil || p.Width != c.side || p.Pix[0] != 128) {
			t.Errorf("%d scans: %v", c.scans, err)
		} else if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%d scans: got %v, want %q", c.scans, err, c.want)
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
	compression, photometric := "\x03\x01\x03\x00\x01\x00\x00\x00",
		"\x06\x01\x03\x00\x01\x00\x00\x00"
	for _, c := range []struct {
		data []byte
		want string
	}{
		{patch("jpg_420.jpg", "\xff\xc0", 1, 0xc9), "JPEG variant is not supported: arithmetic coding"},
		{patch("jpg_420.jpg", "\xff\xc0", 4, 12), "JPEG variant is not supported: 12 bits"},
		{patch("jpg_420.jpg", "\xff\xc0", 14, 0x33), "JPEG variant is not supported: component 1 of 2×2 blocks next to others of 3×3"},
		{patch("bmp_pal8.bmp", "BM", 30, 4), "BMP variant is not supported: compression 4 JPEG"},
		{patch("tiff_rgb_raw.tif", compression, 8, 6), "TIFF variant is not supported: old JPEG compression"},
		{patch("tiff_rgb_raw.tif", compression, 8, 2), "TIFF variant is not supported: CCITT run-length compression"},
		{patch("tiff_rgb_raw.tif", photometric, 8, 8), "TIFF variant is not supported: CIELab colours"},
		{patch("tiff_rgb_raw.tif", photometric, 8, 4), "TIFF variant is not supported: transparency mask colours"},
		{patch("tiff_rgb_raw.tif", photometric, 8, 99), "TIFF variant is not supported: photometric interpretation 99"},
		{[]byte("II+\x00\x08\x00\x00\x00"), "BigTIFF is not supported"},
		{[]byte("hello\n"), "looks like text"},
		{[]byte("GIF8"), "GIF is truncated: 4 bytes"},
	} {
		_, err := Decode(c.data, "x", DecodeOptions{EXIF: true})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// Ensure that variants of TIFF and BMP are read as the reference reads them.
func TestVariants(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "variants", "*.png"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".png")
		data, err := os.ReadFile(name)
		if err != nil {
			continue // three.png
		}
		want, err := Decode(readFile(t, file), file, DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(data, name, DecodeOptions{})
		if err != nil || len(got.Pix) != len(want.Pix) || got.Width != want.Width {
			t.Errorf("%s: %v", name, err)
			continue
		}
		most := 0
		switch {
		case strings.Contains(name, "ycbcr_raw"):
			most = 2 // the conversion rounds differently
		case strings.Contains(name, "premultiplied"):
			most = 1 // Pillow divides by alpha, and then multiplies by it
		}
		for i := range want.Pix {
			if d := int(got.Pix[i]) - int(want.Pix[i]); d > most || -d > most {
				t.Errorf("%s: byte %d: got %d, want %d", name, i, got.Pix[i], want.Pix[i])
				break
			}
		}
	}
}

// Ensure that pictures in a file are counted, and that the first is read.
func TestPicturesCounted(t *testing.T) {
	for name, want := range map[string]int{
		"variants/three.gif": 3, "variants/three.webp": 3, "variants/three.png": 3,
		"variants/three.tif": 3, "inputs/tiff_two_pages.tif": 2, "inputs/gif_static.gif": 1,
		"inputs/jpg_420.jpg": 1} {
		p, err := Decode(readFile(t, "testdata", name), name, DecodeOptions{EXIF: true})
		if err != nil || p.Frames != want {
			t.Errorf("%s: %d pictures, %v, want %d", name, p.Frames, err, want)
		}
		if strings.Contains(name, "three") && (p.Pix[0] < 250 || p.Pix[1] > 5) {
			t.Errorf("%s: begins with %v, want red", name, p.Pix[:3])
		}
	}
}

// Ensure that damaged run-length codes and strips are errors, and that pixels that codes pass
// over have colour 0.
func TestRuns(t *testing.T) {
	head := func(bits, compression byte, codes ...byte) []byte {
		b := make([]byte, 54, 80)
		copy(b, "BM")
		b[10], b[14], b[18], b[22], b[26], b[28], b[30], b[46] = 62, 40, 4, 2, 1, bits, compression,
			2
		b = append(b, 10, 20, 30, 0, 1, 2, 3, 0) // colours 0 and 1, blue first
		return append(b, codes...)
	}
	// up: row 0 is 1 0 0 0; then right by 2 and up by 1; 1 1
	got, err := Decode(head(8, 1, 1, 1, 0, 2, 1, 1, 2, 1, 0, 1), "x", DecodeOptions{EXIF: true})
	if err != nil {
		t.Fatal(err)
	}
	zero, one := []byte{30, 20, 10}, []byte{3, 2, 1}
	want := slices.Concat(zero, zero, one, one, one, zero, zero, zero)
	if !bytes.Equal(got.Pix, want) {
		t.Errorf("got %v, want %v", got.Pix, want)
	}
	for name, data := range map[string][]byte{
		"no end":       head(8, 1, 4, 1),
		"cut row":      head(8, 1, 4, 1, 0, 0, 3, 1),
		"cut way":      head(8, 1, 0, 2, 1),
		"cut pixels":   head(8, 1, 0, 5, 1),
		"wrong depth":  head(4, 1, 0, 1),
		"wrong depth4": head(8, 2, 0, 1),
	} {
		if _, err := Decode(data, name, DecodeOptions{EXIF: true}); err == nil {
			t.Errorf("%s: decoded", name)
		}
	}
}

// Ensure that headers which say less than usual, or something else than the data, are understood as
// the reference (Pillow 13.0) understands them, or refused.
func TestHeaders(t *testing.T) {
	input := func(name string) []byte { return readFile(t, "testdata", "inputs", name) }
	set := func(data []byte, at int, values ...byte) []byte {
		data = bytes.Clone(data)
		copy(data[at:], values)
		return data
	}
	le := binary.LittleEndian
	alpha, exif, three := input("webp_lossy_alpha.webp"), input("webp_lossy_exif8.webp"),
		readFile(t, "testdata", "variants", "three.webp")
	at := bytes.Index(alpha, []byte("VP8 "))
	plain := slices.Concat([]byte("RIFF"), le.AppendUint32(nil, uint32(4+len(alpha)-at)),
		[]byte("WEBP"), alpha[at:])
	rgba, pal8 := input("tiff_rgba.tif"), input("bmp_pal8.bmp")
	b32 := set(make([]byte, 74), 0, []byte("BM")...)
	b32[10], b32[14], b32[18], b32[22], b32[26], b32[28], b32[30] = 70, 56, 1, 1, 1, 32, 3
	copy(b32[54:], "\x00\x00\xff\x00\x00\xff\x00\x00\xff\x00\x00\x00\x00\x00\x00\xff"+
		"\x0a\x14\x1e\x80")
	extra := bytes.Index(rgba, []byte{tagExtraSamples & 255, tagExtraSamples >> 8, 3, 0})
	turned, plainPNG := pngChunk(input("png_rgb8_exif6.png"), "eXIf"), input("png_rgb8.png")
	after := slices.Concat(plainPNG, []byte{0, 0, 0, byte(len(turned))}, []byte("eXIf"), turned,
		make([]byte, 4))
	for name, c := range map[string][2][]byte{
		"EXIF after the end of a PNG":         {after, plainPNG},
		"WebP's alpha without its flag":       {set(alpha, 20, 0), plain},
		"WebP's orientation without its flag": {set(exif, 20, 0), input("webp_lossy.webp")},
		"RGBA in TIFF without ExtraSamples":   {set(rgba, extra, 0xe8, 0xfd), rgba},
		"BMP with masks of 0":                 {set(b32, 54, make([]byte, 16)...), b32},
		"BMP without an offset":               {set(pal8, 10, 0, 0), pal8},
		"BMP with the palette's offset":       {set(pal8, 10, 54, 0), pal8},
	} {
		got, err := Decode(c[0], name, DecodeOptions{EXIF: true})
		want, wantErr := Decode(c[1], name, DecodeOptions{EXIF: true})
		if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got another picture, %v, %v", name, err, wantErr)
		}
	}

	// a canvas of 9 by 8 pixels around 8 by 8, opaque and with alpha, and a GIF of 2 by 1 pixels
	// whose frame covers the first and whose transparent colour is beyond its palette
	gif := "GIF89a\x02\x00\x01\x00\x80\x00\x00\x01\x02\x03\x04\x05\x06" +
		"!\xf9\x04\x01\x00\x00\x09\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00;"
	for name, c := range map[string]struct {
		data []byte
		want byte
	}{
		"opaque": {set(three, 24, 8), 0}, "with alpha": {set(three, 20, 0x12, 0, 0, 0, 8), 255},
		"GIF": {[]byte(gif), 255},
	} {
		p, err := Decode(c.data, name, DecodeOptions{})
		if err != nil || p.Pix[3*p.Width-1] != c.want {
			t.Errorf("%s: got %+v, %v, want %d", name, p, err, c.want)
		}
	}

	deflated := input("tiff_rgb_deflate.tif")
	d, _ := openDirectory(deflated)
	end := int(d.first(tagStripOffsets, 0) + d.first(tagStripCounts, 0))
	grey := func(bits, samples, predictor uint32) []byte {
		return tiffOf([][2]uint32{
			{tagWidth, 2}, {tagHeight, 1}, {tagBitsPerSample, bits}, {tagCompression, lempelZiv},
			{tagPhotometric, blackIsZero}, {tagStripOffsets, 140}, {tagSamples, samples},
			{tagStripCounts, 9}, {tagPredictor, predictor},
		}, make([]byte, 40))
	}
	for want, data := range map[string][]byte{
		"WebP is truncated":                      exif[:len(exif)-3],
		"picture 75x53 on a canvas of 76x53":     set(exif, 24, 75),
		"checksum":                               set(deflated, end-1, deflated[end-1]^1),
		"strip or tile 0 has bytes 140 to 149":   grey(8, 1, 1)[:145],
		"directory or a value of it is incomple": grey(8, 1, 1)[:100],
		"2 samples a pixel without ExtraSamples": grey(8, 2, 1),
		"predictor 2 for 4 bits a sample":        grey(4, 1, 2),
		"colour masks [0 0 0] of 16 bits":        set(input("bmp_565.bmp"), 54, make([]byte, 12)...),
		"of 8 bits a pixel":                      set(pal8, 30, 3),
	} {
		if _, err := Decode(data, "x", DecodeOptions{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
