package imageproc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/gif"
)

func gifSize(data []byte) (w, h int64, err error) {
	if len(data) < 13 {
		return 0, 0, fmt.Errorf("%w: header incomplete", errTruncated)
	}
	return int64(binary.LittleEndian.Uint16(data[6:])), int64(binary.LittleEndian.Uint16(data[8:])),
		nil
}

// decodeGIF draws the first frame on the canvas. The rest of the canvas is the transparent colour
// if the frame has one, otherwise palette entry 0; as in the reference, the background index is
// ignored.
func decodeGIF(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	w64, h64, err := gifSize(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	m, err := gif.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, 0, 0, 0, err
	}
	frame, ok := m.(*image.Paletted)
	if !ok {
		return nil, 0, 0, 0, fmt.Errorf("pixel layout %T is not supported", m)
	}
	table, err := paletteRGB(frame.Palette)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	// RGBA{} are the transparent colour and, if it is not in the palette, all from the palette's
	// end up to it.
	transparent := -1
	for i, c := range frame.Palette {
		if c == (color.RGBA{}) {
			table[i], transparent = [3]byte{}, i
		}
	}
	if transparent >= 0 {
		table[transparent] = [3]byte{255, 255, 255}
	}
	w, h = int(w64), int(h64)
	pix = make([]byte, 0, w*h*3)
	rest := table[max(transparent, 0)]
	b := frame.Rect
	for y := range h {
		for x := range w {
			c := rest
			if x >= b.Min.X && x < b.Max.X && y >= b.Min.Y && y < b.Max.Y {
				c = table[frame.Pix[(y-b.Min.Y)*frame.Stride+x-b.Min.X]]
			}
			pix = append(pix, c[0], c[1], c[2])
		}
	}
	return pix, w, h, 1, nil
}

// gifFrames returns the number of pictures of an animation, up to the first damaged block.
func gifFrames(data []byte) (n int) {
	skipTable := func(at int, flags byte) int {
		if flags&0x80 != 0 {
			at += 3 * (2 << (flags & 7))
		}
		return at
	}
	at := skipTable(13, data[10])
	for at+1 < len(data) {
		switch data[at] {
		case 0x2c:
			if at+10 > len(data) {
				return n
			}
			n++
			at = skipTable(at+10, data[at+9]) + 1
		case 0x21:
			at += 2
		default:
			return n
		}
		for at < len(data) && data[at] != 0 {
			at += 1 + int(data[at])
		}
		at++
	}
	return n
}
