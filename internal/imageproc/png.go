package imageproc

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"image/png"
	"io"
	"iter"
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
		exif := pngChunk(data, "eXIf")
		if exif == nil {
			exif = pngProfile(data)
		}
		orientation = orientationOf(exif, pngText(data, "XML:com.adobe.xmp"))
	}
	pix, err = toRGB(img)
	return pix, img.Bounds().Dx(), img.Bounds().Dy(), orientation, err
}

// pngChunks yields the type and the data of each chunk, up to IEND.
func pngChunks(data []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for body := data[8:]; len(body) >= 12; {
			n := uint64(binary.BigEndian.Uint32(body))
			if n+12 > uint64(len(body)) || !yield(string(body[4:8]), body[8:8+n]) ||
				string(body[4:8]) == "IEND" {
				return
			}
			body = body[12+n:]
		}
	}
}

// pngChunk returns the data of the first chunk of the given type, or nil.
func pngChunk(data []byte, kind string) []byte {
	for k, body := range pngChunks(data) {
		if k == kind {
			return body
		}
	}
	return nil
}

// maxPNGText is the most bytes of a compressed text, as in Pillow.
const maxPNGText = 1 << 20

// pngText returns the last text with a keyword, or nil.
func pngText(data []byte, keyword string) (text []byte) {
	for kind, body := range pngChunks(data) {
		key, rest, ok := bytes.Cut(body, []byte{0})
		if !ok || string(key) != keyword {
			continue
		}
		packed := kind == "zTXt"
		switch {
		case packed && len(rest) > 0:
			rest = rest[1:] // the method, always deflate
		case kind == "iTXt" && len(rest) > 1:
			packed = rest[0] != 0
			_, rest, _ = bytes.Cut(rest[2:], []byte{0}) // the language
			_, rest, _ = bytes.Cut(rest, []byte{0})     // the keyword in it
		case kind != "tEXt":
			continue
		}
		if packed {
			z, err := zlib.NewReader(bytes.NewReader(rest))
			if err != nil {
				continue
			}
			if rest, err = io.ReadAll(io.LimitReader(z, maxPNGText)); err != nil {
				continue
			}
		}
		text = rest
	}
	return text
}

// pngProfile returns the EXIF block that older writers keep as a text: a name and a length, a line
// each, and hexadecimal digits.
func pngProfile(data []byte) []byte {
	lines := bytes.SplitN(pngText(data, "Raw profile type exif"), []byte("\n"), 4)
	if len(lines) < 4 {
		return nil
	}
	block, err := hex.DecodeString(string(bytes.Join(bytes.Fields(lines[3]), nil)))
	if err != nil {
		return nil
	}
	return block
}

// pngFrames returns the number of pictures of an animation.
func pngFrames(data []byte) int {
	if b := pngChunk(data, "acTL"); len(b) >= 4 {
		return int(binary.BigEndian.Uint32(b) & 0x7fffffff)
	}
	return 1
}
