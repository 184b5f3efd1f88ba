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
	palette, transparent, err := gifPalette(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	table, err := paletteRGB(palette)
	if err != nil {
		return nil, 0, 0, 0, err
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

// gifPalette returns the colours of the first frame and its transparent index (-1: none). The
// standard decoder clears the transparent entry, but its stored colour is needed when alpha is
// dropped.
func gifPalette(data []byte) (color.Palette, int, error) {
	at, transparent := 13, -1
	table := func(flags byte) color.Palette {
		n := 0
		if flags&0x80 != 0 {
			n = 2 << (flags & 7)
		}
		if at+3*n > len(data) {
			n = 0
		}
		p := make(color.Palette, n)
		for i := range p {
			p[i] = color.NRGBA{data[at+3*i], data[at+3*i+1], data[at+3*i+2], 255}
		}
		at += 3 * n
		return p
	}
	palette := table(data[10])
	for at+10 <= len(data) {
		switch data[at] {
		case 0x2c: // image descriptor
			flags := data[at+9]
			at += 10
			if local := table(flags); len(local) > 0 {
				palette = local
			}
			if transparent >= 0 && transparent < len(palette) {
				c := palette[transparent].(color.NRGBA)
				c.A = 0
				palette[transparent] = c
			}
			return palette, transparent, nil
		case 0x21: // extension: label, then blocks up to an empty one
			if data[at+1] == 0xf9 && data[at+2] >= 4 && data[at+3]&1 != 0 {
				transparent = int(data[at+6])
			}
			for at += 2; at < len(data) && data[at] != 0; {
				at += 1 + int(data[at])
			}
			at++
		default:
			return nil, 0, fmt.Errorf("unknown block 0x%02x", data[at])
		}
	}
	return nil, 0, fmt.Errorf("%w: no frame", errTruncated)
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
