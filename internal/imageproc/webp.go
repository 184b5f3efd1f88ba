package imageproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"

	"golang.org/x/image/webp"
)

// webpFile is the needed part of a WebP container: the first frame and its position. For still
// pictures the canvas is the frame.
type webpFile struct {
	canvasW, canvasH int
	x, y, w, h       int
	alpha            []byte // ALPH chunk, nil without
	data             []byte // VP8 or VP8L chunk
	lossless         bool
	hasAlpha         bool // of the frame
	opaque           bool // the file says that it has no alpha
	animated         bool
	exif, xmp        []byte
}

// Flags of a VP8X chunk: what the file has.
const (
	flagAnimation = 1 << 1
	flagXMP       = 1 << 2
	flagEXIF      = 1 << 3
	flagAlpha     = 1 << 4
)

// webpChunks calls f with each chunk until it returns false. An incomplete chunk is an error.
func webpChunks(data []byte, f func(kind string, body []byte) (bool, error)) error {
	for len(data) >= 8 {
		kind, n := string(data[:4]), uint64(binary.LittleEndian.Uint32(data[4:]))
		if n > uint64(len(data)-8) {
			return fmt.Errorf("%w: chunk %q has %d bytes, of which %d are there", errTruncated,
				kind, n, len(data)-8)
		}
		more, err := f(kind, data[8:8+n])
		if err != nil || !more {
			return err
		}
		data = data[min(8+n+n&1, uint64(len(data))):]
	}
	return nil
}

// webpBody returns the chunks of a file, as long as its header says.
func webpBody(data []byte) ([]byte, error) {
	n := uint64(binary.LittleEndian.Uint32(data[4:]))
	if n > uint64(len(data)-8) {
		return nil, fmt.Errorf("%w: %d bytes, want %d", errTruncated, len(data), n+8)
	}
	return data[12:max(12, 8+n)], nil
}

// webpFrames returns the number of pictures of an animation.
func webpFrames(data []byte) (n int) {
	body, err := webpBody(data)
	if err != nil {
		return 1
	}
	_ = webpChunks(body, func(kind string, _ []byte) (bool, error) {
		if kind == "ANMF" {
			n++
		}
		return true, nil
	}) // a damaged later frame is not counted, and never decoded
	return max(n, 1)
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// parseWebP reads the container without touching compressed data.
func parseWebP(data []byte) (*webpFile, error) {
	f := &webpFile{}
	all, err := webpBody(data)
	if err != nil {
		return nil, err
	}
	var flags byte
	err = webpChunks(all, func(kind string, body []byte) (bool, error) {
		switch kind {
		case "VP8X":
			if len(body) < 10 {
				return false, errors.New("VP8X chunk too short")
			}
			flags, f.animated = body[0], body[0]&flagAnimation != 0
			f.canvasW, f.canvasH = uint24(body[4:])+1, uint24(body[7:])+1
		case "EXIF":
			if flags&flagEXIF != 0 {
				f.exif = body
			}
		case "XMP ":
			if flags&flagXMP != 0 {
				f.xmp = body
			}
		case "ANMF":
			if f.data != nil {
				return true, nil // a later frame
			}
			if len(body) < 16 {
				return false, errors.New("ANMF chunk too short")
			}
			f.x, f.y = 2*uint24(body), 2*uint24(body[3:])
			return true, webpChunks(body[16:], f.frameChunk)
		default:
			if !f.animated {
				return f.frameChunk(kind, body)
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if f.data == nil {
		return nil, fmt.Errorf("%w: no picture data", errTruncated)
	}
	if f.canvasW == 0 { // the simple form
		f.canvasW, f.canvasH = f.w, f.h
	} else {
		// a still picture's lossless data says itself whether it has alpha
		f.opaque = flags&flagAlpha == 0 && (f.animated || !f.lossless)
		f.hasAlpha = f.hasAlpha && !f.opaque
	}
	if !f.animated && (f.w != f.canvasW || f.h != f.canvasH) {
		return nil, fmt.Errorf("picture %dx%d on a canvas of %dx%d", f.w, f.h, f.canvasW, f.canvasH)
	}
	if f.x+f.w > f.canvasW || f.y+f.h > f.canvasH {
		return nil, fmt.Errorf("frame %dx%d at (%d, %d) exceeds the canvas %dx%d", f.w, f.h, f.x,
			f.y, f.canvasW, f.canvasH)
	}
	return f, nil
}

// frameChunk reads the chunks of one frame; the first picture wins.
func (f *webpFile) frameChunk(kind string, b []byte) (bool, error) {
	if f.data != nil {
		return true, nil
	}
	switch kind {
	case "ALPH":
		f.alpha = b
	case "VP8 ":
		if len(b) < 10 {
			return false, fmt.Errorf("%w: VP8 header incomplete", errTruncated)
		}
		f.w, f.h = int(binary.LittleEndian.Uint16(b[6:]))&0x3fff,
			int(binary.LittleEndian.Uint16(b[8:]))&0x3fff
		f.data, f.hasAlpha = b, f.alpha != nil
	case "VP8L":
		if len(b) < 5 {
			return false, fmt.Errorf("%w: VP8L header incomplete", errTruncated)
		}
		bits := binary.LittleEndian.Uint32(b[1:])
		f.w, f.h = int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1
		f.data, f.lossless, f.hasAlpha = b, true, bits>>28&1 != 0
	}
	return true, nil
}

func webpSize(data []byte) (w, h int64, err error) {
	f, err := parseWebP(data)
	if err != nil {
		return 0, 0, err
	}
	return int64(f.canvasW), int64(f.canvasH), nil
}

// still returns the first frame as a WebP file, in the simplest container for it.
func (f *webpFile) still() []byte {
	out := []byte("RIFF\x00\x00\x00\x00WEBP")
	chunk := func(kind string, body []byte) {
		out = append(out, kind...)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(body)))
		out = append(out, body...)
		if len(body)%2 != 0 {
			out = append(out, 0)
		}
	}
	switch {
	case f.lossless:
		chunk("VP8L", f.data)
	case f.hasAlpha:
		w, h := f.w-1, f.h-1
		chunk("VP8X", []byte{
			0x10, 0, 0, 0, byte(w), byte(w >> 8), byte(w >> 16), byte(h), byte(h >> 8),
			byte(h >> 16),
		})
		chunk("ALPH", f.alpha)
		chunk("VP8 ", f.data)
	default:
		chunk("VP8 ", f.data)
	}
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

func decodeWebP(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	f, err := parseWebP(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	img, err := webp.Decode(bytes.NewReader(f.still()))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	switch m := img.(type) {
	case *image.YCbCr:
		pix = webpRGB(m)
	case *image.NYCbCrA:
		pix = webpRGB(&m.YCbCr)
		if f.hasAlpha {
			for y := range f.h {
				for x, a := range m.A[y*m.AStride:][:f.w] {
					d := pix[(y*f.w+x)*3:][:3]
					for c, v := range d {
						d[c] = over(uint32(v), uint32(a))
					}
				}
			}
		}
	default:
		if m, ok := m.(*image.NRGBA); ok && !f.hasAlpha {
			for i := 3; i < len(m.Pix); i += 4 {
				m.Pix[i] = 255
			}
		}
		if pix, err = toRGB(img); err != nil {
			return nil, 0, 0, 0, err
		}
	}
	orientation = 1
	if o.EXIF {
		orientation = orientationOf(f.exif, f.xmp)
	}
	if f.w == f.canvasW && f.h == f.canvasH {
		return pix, f.w, f.h, orientation, nil
	}
	// Around the first frame of an animation the canvas is transparent, or black.
	canvas := make([]byte, f.canvasW*f.canvasH*3)
	for i := 0; i < len(canvas) && !f.opaque; i++ {
		canvas[i] = 255
	}
	for y := range f.h {
		copy(canvas[((f.y+y)*f.canvasW+f.x)*3:], pix[y*f.w*3:][:f.w*3])
	}
	return canvas, f.canvasW, f.canvasH, orientation, nil
}
