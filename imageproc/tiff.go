package imageproc

import (
	"bytes"
	"fmt"

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
	img, err := tiff.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	pix, err = toRGB(img, o.Alpha)
	return pix, img.Bounds().Dx(), img.Bounds().Dy(), int(first[tagOrientation]), err
}

// tiffVariant names what the decoder lacks, or is empty.
func tiffVariant(first, count map[int]uint32) string {
	photometric := map[uint32]string{4: "transparency mask", 5: "CMYK", 6: "YCbCr", 8: "CIELab", 32845: "LogLuv", 32844: "LogL", 32803: "camera raw"}
	if name := photometric[first[tagPhotometric]]; name != "" {
		return name + " colours; convert it to RGB"
	}
	compression := map[uint32]string{6: "old JPEG", 7: "JPEG", 34712: "JPEG 2000", 50000: "Zstandard", 50001: "WebP", 34925: "LZMA", 34887: "LERC"}
	if name := compression[first[tagCompression]]; name != "" {
		return name + " compression; convert it to PNG"
	}
	if first[tagPlanar] == 2 && count[tagBitsPerSample] > 1 {
		return "one plane for each colour; convert it to PNG"
	}
	return ""
}
