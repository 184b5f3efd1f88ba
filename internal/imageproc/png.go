package imageproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
)

// pngSize reads IHDR, the first chunk, whose checksum must hold.
func pngSize(data []byte) (w, h int64, err error) {
	body := data[8:]
	if len(body) == 0 {
		return 0, 0, fmt.Errorf("%w: no IHDR", errTruncated)
	}
	if len(body) < 25 {
		return 0, 0, fmt.Errorf("%w: header incomplete", errTruncated)
	}
	if string(body[4:8]) != "IHDR" || binary.BigEndian.Uint32(body) != 13 {
		return 0, 0, errors.New("the first chunk is not IHDR")
	}
	if crc32.ChecksumIEEE(body[4:21]) != binary.BigEndian.Uint32(body[21:]) {
		return 0, 0, errors.New("IHDR checksum mismatch")
	}
	return int64(binary.BigEndian.Uint32(body[8:])), int64(binary.BigEndian.Uint32(body[12:])), nil
}

// maxDeflate is the highest ratio of deflate: 258 bytes for 2 bits.
const maxDeflate = 1032

func decodePNG(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	w64, h64, err := pngSize(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	// A header may claim more pixels than the data can hold: refuse before allocating them.
	depth, channels := int64(data[24]), int64([]int{1, 1, 3, 1, 2, 1, 4, 1}[data[25]&7])
	if raw := (w64*depth*channels + 7) / 8 * h64; raw/maxDeflate > int64(len(data)) {
		return nil, 0, 0, 0, fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels", errTruncated,
			len(data), w64, h64)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	orientation = 1
	if o.EXIF {
		orientation = exifOrientation(pngChunk(data, "eXIf"))
	}
	pix, err = toRGB(img, o.Alpha)
	return pix, img.Bounds().Dx(), img.Bounds().Dy(), orientation, err
}

// pngChunk returns the data of the first chunk of the given type, or nil.
func pngChunk(data []byte, kind string) []byte {
	for body := data[8:]; len(body) >= 12; {
		n := uint64(binary.BigEndian.Uint32(body))
		if n+12 > uint64(len(body)) {
			return nil
		}
		if string(body[4:8]) == kind {
			return body[8 : 8+n]
		}
		body = body[12+n:]
	}
	return nil
}

// pngFrames returns the number of pictures of an animation.
func pngFrames(data []byte) int {
	if b := pngChunk(data, "acTL"); len(b) >= 4 {
		return int(binary.BigEndian.Uint32(b) & 0x7fffffff)
	}
	return 1
}
