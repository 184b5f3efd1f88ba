package imageproc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"

	"golang.org/x/image/tiff"
)

func tiffSize(data []byte) (w, h int64, err error) {
	first, _, ok := directory(data)
	if !ok {
		return 0, 0, fmt.Errorf("%w: no directory", errTruncated)
	}
	return int64(first[tagWidth]), int64(first[tagHeight]), nil
}

// decodeTIFF reads the first page and applies its orientation tag, which is
// part of the format and not EXIF's.
func decodeTIFF(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	first, count, _ := directory(data)
	if v := tiffVariant(first, count); v != "" {
		return nil, 0, 0, 0, unsupported(v)
	}
	if err := tiffPromise(first, count, len(data)); err != nil {
		return nil, 0, 0, 0, err
	}
	cmyk := first[tagPhotometric] == photometricCMYK
	if cmyk {
		data = cmykAsRGBA(data)
	}
	img, err := tiff.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if m, ok := img.(*image.NRGBA); ok && cmyk {
		img = &image.CMYK{Pix: m.Pix, Stride: m.Stride, Rect: m.Rect}
	}
	pix, err = toRGB(img, o.Alpha)
	return pix, img.Bounds().Dx(), img.Bounds().Dy(), int(first[tagOrientation]), err
}

// tiffPromise refuses a picture that the file cannot hold at the highest ratio
// its compression reaches.
func tiffPromise(first, count map[int]uint32, size int) error {
	ratio := map[uint32]int64{
		1:     1,
		5:     2731, // LZW: 4096 bytes for 12 bits
		8:     maxDeflate,
		32946: maxDeflate,
		32773: 64, // PackBits: 128 bytes for 2
	}[first[tagCompression]]
	w, h := int64(first[tagWidth]), int64(first[tagHeight])
	bits := int64(max(first[tagBitsPerSample], 1)) * int64(min(max(count[tagBitsPerSample], 1), 8))
	if raw := (w*min(bits, 512) + 7) / 8 * h; ratio > 0 && raw/ratio > int64(size) {
		return fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels", errTruncated, size, w, h)
	}
	return nil
}

// tiffVariant names what the decoder lacks, or is empty.
func tiffVariant(first, count map[int]uint32) string {
	photometric := map[uint32]string{4: "transparency mask", 6: "YCbCr", 8: "CIELab", 32845: "LogLuv", 32844: "LogL", 32803: "camera raw"}
	if name := photometric[first[tagPhotometric]]; name != "" {
		return name + " colours; convert it to RGB"
	}
	compression := map[uint32]string{6: "old JPEG", 7: "JPEG", 34712: "JPEG 2000", 50000: "Zstandard", 50001: "WebP", 34925: "LZMA", 34887: "LERC"}
	if name := compression[first[tagCompression]]; name != "" {
		return name + " compression; convert it to PNG"
	}
	if first[tagPhotometric] == photometricCMYK && (count[tagBitsPerSample] != 4 || first[tagBitsPerSample] != 8) {
		return fmt.Sprintf("CMYK with %d channels of %d bits; convert it to RGB", count[tagBitsPerSample], first[tagBitsPerSample])
	}
	if first[tagPlanar] == 2 && count[tagBitsPerSample] > 1 {
		return "one plane for each colour; convert it to PNG"
	}
	return ""
}

// photometricCMYK is the photometric interpretation of separated colours.
const photometricCMYK = 5

// cmykAsRGBA returns the file with a new directory behind it that declares its
// four 8-bit channels to be RGB and unassociated alpha, a layout which the
// decoder knows; the samples are untouched. data has a directory.
func cmykAsRGBA(data []byte) []byte {
	var order binary.ByteOrder = binary.LittleEndian
	if data[0] == 'M' {
		order = binary.BigEndian
	}
	entry := func(tag, value uint16) []byte { // one SHORT
		e := make([]byte, 12)
		order.PutUint16(e, tag)
		order.PutUint16(e[2:], 3)
		order.PutUint32(e[4:], 1)
		order.PutUint16(e[8:], value)
		return e
	}
	at := order.Uint32(data[4:])
	n := int(order.Uint16(data[at:]))
	body := data[at+2:]
	body = body[:min(n*12, len(body)/12*12)]
	var entries [][]byte
	extra := false
	for ; len(body) > 0; body = body[12:] {
		switch tag := order.Uint16(body); {
		case tag == tagPhotometric:
			entries = append(entries, entry(tagPhotometric, 2))
			continue
		case tag >= tagExtraSamples && !extra: // entries are sorted by tag
			entries, extra = append(entries, entry(tagExtraSamples, 2)), true
			if tag == tagExtraSamples {
				continue
			}
		}
		entries = append(entries, body[:12])
	}
	if !extra {
		entries = append(entries, entry(tagExtraSamples, 2))
	}
	out := append([]byte(nil), data...)
	order.PutUint32(out[4:], uint32(len(out)))
	out = append(out, 0, 0)
	order.PutUint16(out[len(out)-2:], uint16(len(entries)))
	for _, e := range entries {
		out = append(out, e...)
	}
	return append(out, 0, 0, 0, 0)
}
