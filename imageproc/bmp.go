package imageproc

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/image/bmp"
)

func bmpSize(data []byte) (w, h int64, err error) {
	if len(data) < 30 {
		return 0, 0, fmt.Errorf("%w: header incomplete", errTruncated)
	}
	if header := binary.LittleEndian.Uint32(data[14:]); header < 40 {
		return 0, 0, unsupported(fmt.Sprintf("header of %d bytes", header))
	}
	w = int64(int32(binary.LittleEndian.Uint32(data[18:])))
	h = int64(int32(binary.LittleEndian.Uint32(data[22:])))
	return w, max(h, -h), nil
}

// decodeBMP ignores the fourth channel of 32-bit files, as the reference does.
func decodeBMP(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	if len(data) < 34 {
		return nil, 0, 0, 0, fmt.Errorf("%w: header incomplete", errTruncated)
	}
	bits, compression := int64(binary.LittleEndian.Uint16(data[28:])), binary.LittleEndian.Uint32(data[30:])
	if bits == 16 || compression == 1 || compression == 2 || compression > 3 {
		return nil, 0, 0, 0, unsupported(fmt.Sprintf("%d bits a pixel, compression %d (%s); convert it to PNG", bits, compression, bmpCompression(compression)))
	}
	w64, h64, err := bmpSize(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if raw := (w64*bits + 31) / 32 * 4 * h64; raw > int64(len(data)) {
		return nil, 0, 0, 0, fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels of %d bits", errTruncated, len(data), w64, h64, bits)
	}
	img, err := bmp.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	pix, err = toRGB(img, Drop)
	return pix, img.Bounds().Dx(), img.Bounds().Dy(), 1, err
}

func bmpCompression(c uint32) string {
	switch c {
	case 0:
		return "5-5-5"
	case 1:
		return "RLE8"
	case 2:
		return "RLE4"
	case 3:
		return "bit masks such as 5-6-5"
	default:
		return "unknown"
	}
}
