package imageproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// bmpHeader has the fields of a BMP's headers that decoding needs.
type bmpHeader struct {
	w, h        int64
	topDown     bool
	bits        int
	compression uint32
	masks       [4]uint32 // red, green, blue, alpha; 0 is absent
	palette     []byte    // entries of entrySize bytes: blue, green, red
	entrySize   int
	pixels      uint32 // offset of the rows
}

// parseBMP reads the file header and the OS/2 (12 bytes) or Windows (40 and
// more) information header.
func parseBMP(data []byte) (*bmpHeader, error) {
	if len(data) < 26 {
		return nil, fmt.Errorf("%w: header incomplete", errTruncated)
	}
	le := binary.LittleEndian
	h := &bmpHeader{pixels: le.Uint32(data[10:]), entrySize: 4}
	size := le.Uint32(data[14:])
	colours := uint32(0)
	switch {
	case size == 12:
		h.w, h.h, h.bits, h.entrySize = int64(le.Uint16(data[18:])), int64(le.Uint16(data[20:])),
			int(le.Uint16(data[24:])), 3
	case size < 40 || size > 256:
		return nil, unsupported(fmt.Sprintf("header of %d bytes", size))
	case uint64(len(data)) < 14+uint64(size):
		return nil, fmt.Errorf("%w: header incomplete", errTruncated)
	default:
		h.w, h.h = int64(int32(le.Uint32(data[18:]))), int64(int32(le.Uint32(data[22:])))
		h.bits, h.compression, colours = int(le.Uint16(data[28:])), le.Uint32(data[30:]),
			le.Uint32(data[46:])
	}
	if h.h < 0 {
		h.h, h.topDown = -h.h, true
	}
	end := 14 + int64(size)
	switch h.compression {
	case 1, 2: // run-length codes of 8 and of 4 bits
		if want := map[uint32]int{1: 8, 2: 4}[h.compression]; h.bits != want {
			return nil, fmt.Errorf("run-length codes of %d bits a pixel, want %d", h.bits, want)
		} else if h.topDown {
			return nil, errors.New("run-length codes from the top down, want from the bottom up")
		}
	case 0:
		h.masks = map[int][4]uint32{16: {0x7c00, 0x3e0, 0x1f}, 32: {0xff0000, 0xff00, 0xff}}[h.bits]
	case 3: // masks are in the header, or after a short one
		if size == 40 {
			end += 12
		}
		n := 3
		if size >= 56 {
			n = 4
		}
		if len(data) < 54+4*n {
			return nil, fmt.Errorf("%w: header incomplete", errTruncated)
		}
		for i := range n {
			h.masks[i] = le.Uint32(data[54+4*i:])
		}
		if err := h.checkMasks(); err != nil {
			return nil, err
		}
	default:
		name := map[uint32]string{
			4: "JPEG", 5: "PNG", 11: "CMYK", 12: "CMYK RLE8", 13: "CMYK RLE4",
		}[h.compression]
		return nil, unsupported(fmt.Sprintf("compression %d %s; convert it to PNG", h.compression,
			name))
	}
	switch h.bits {
	case 1, 2, 4, 8:
		if colours == 0 || colours > 1<<h.bits {
			colours = 1 << h.bits
		}
		h.palette = data[min(end, int64(len(data))):]
		h.palette = h.palette[:min(len(h.palette), int(colours)*h.entrySize)]
		end += int64(colours) * int64(h.entrySize)
	case 16, 24, 32:
	default:
		return nil, unsupported(fmt.Sprintf("%d bits a pixel", h.bits))
	}
	// some writers give no offset of the rows, or the palette's
	if h.pixels == 0 || h.pixels == 14+size && h.bits <= 8 {
		h.pixels = uint32(end)
	}
	return h, nil
}

// checkMasks replaces masks that are all 0, of 32 bits, as the reference does, and refuses those
// that are not read.
func (h *bmpHeader) checkMasks() error {
	colours := [3]uint32(h.masks[:3])
	switch {
	case h.bits == 32 && h.masks == [4]uint32{}:
		h.masks = [4]uint32{0xff0000, 0xff00, 0xff, 0xff000000}
	case h.bits == 24 && colours == [3]uint32{0xff0000, 0xff00, 0xff}:
	case h.bits != 16 && h.bits != 32, colours == [3]uint32{}:
		return unsupported(fmt.Sprintf("colour masks %x of %d bits a pixel; convert it to PNG",
			colours, h.bits))
	}
	return nil
}

func bmpSize(data []byte) (w, h int64, err error) {
	head, err := parseBMP(data)
	if err != nil {
		return 0, 0, err
	}
	return head.w, head.h, nil
}

func decodeBMP(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	head, err := parseBMP(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if head.compression == 1 || head.compression == 2 {
		pix, err = head.runs(data)
		return pix, int(head.w), int(head.h), 1, err
	}
	stride := (head.w*int64(head.bits) + 31) / 32 * 4
	if int64(head.pixels)+stride*head.h > int64(len(data)) {
		return nil, 0, 0, 0, fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels of %d bits",
			errTruncated, len(data), head.w, head.h, head.bits)
	}
	row, err := head.rowReader()
	if err != nil {
		return nil, 0, 0, 0, err
	}
	w, h = int(head.w), int(head.h)
	pix = make([]byte, w*h*3)
	for y := range h {
		src := y
		if !head.topDown {
			src = h - 1 - y
		}
		row(pix[y*w*3:][:w*3], data[int64(head.pixels)+int64(src)*stride:][:stride])
	}
	return pix, w, h, 1, nil
}

// rowReader returns a function that converts one row to RGB.
func (h *bmpHeader) rowReader() (func(dst, src []byte), error) {
	switch h.bits {
	case 24:
		return func(dst, src []byte) {
			for i := 0; i+2 < len(dst); i += 3 {
				dst[i], dst[i+1], dst[i+2] = src[i+2], src[i+1], src[i]
			}
		}, nil
	case 16, 32:
		return h.maskedRow()
	}
	table := h.table()
	perByte := 8 / h.bits
	return func(dst, src []byte) {
		for i := 0; i+2 < len(dst); i += 3 {
			x := i / 3
			v := src[x/perByte] >> (8 - h.bits - x%perByte*h.bits) & (1<<h.bits - 1)
			copy(dst[i:], table[v][:])
		}
	}, nil
}

// table returns the palette; missing entries are black.
func (h *bmpHeader) table() (t [256][3]byte) {
	for i := range len(h.palette) / h.entrySize {
		e := h.palette[i*h.entrySize:]
		t[i] = [3]byte{e[2], e[1], e[0]}
	}
	return t
}

// runs decodes run-length codes. A pair of bytes n, v means n pixels of v (in RLE4 its two halves
// alternate). After a 0 byte, 0 ends the row, 1 ends the picture, 2 is followed by offsets to the
// right and up, and a larger number is followed by that many literal pixels, padded to 16 bits.
// Skipped pixels have colour 0.
func (h *bmpHeader) runs(data []byte) ([]byte, error) {
	w, rows, half := int(h.w), int(h.h), h.bits == 4
	if int64(h.pixels) > int64(len(data)) {
		return nil, fmt.Errorf("%w: the pixels begin at byte %d of %d", errTruncated, h.pixels,
			len(data))
	}
	in := data[h.pixels:]
	table := h.table()
	pix := make([]byte, 3*w*rows)
	for i := 0; i < len(pix); i += 3 {
		copy(pix[i:], table[0][:])
	}
	x, y := 0, 0 // y from the bottom
	put := func(v byte) {
		if x < w && y < rows {
			copy(pix[3*((rows-1-y)*w+x):], table[v][:])
		}
		x++
	}
	nibble := func(v byte, i int) byte {
		if !half {
			return v
		}
		if i%2 == 0 {
			return v >> 4
		}
		return v & 15
	}
	for len(in) >= 2 && y < rows {
		n, v := int(in[0]), in[1]
		in = in[2:]
		switch {
		case n > 0:
			for i := range n {
				put(nibble(v, i))
			}
		case v == 0:
			x, y = 0, y+1
		case v == 1:
			return pix, nil
		case v == 2:
			if len(in) < 2 {
				return nil, fmt.Errorf("%w: a run-length code is cut", errTruncated)
			}
			x, y, in = x+int(in[0]), y+int(in[1]), in[2:]
		default:
			size := int(v)
			if half {
				size = (size + 1) / 2
			}
			if len(in) < size {
				return nil, fmt.Errorf("%w: %d pixels follow, of which %d bytes are there",
					errTruncated, v, len(in))
			}
			for i := range int(v) {
				at := i
				if half {
					at = i / 2
				}
				put(nibble(in[at], i))
			}
			in = in[min(size+size%2, len(in)):]
		}
	}
	if y < rows-1 || y == rows-1 && x < w {
		return nil, fmt.Errorf("%w: %d of %d rows are there", errTruncated, y, rows)
	}
	return pix, nil
}

// maskedRow reads 16- and 32-bit pixels. A channel of n bits is scaled by
// 255/(2ⁿ-1), rounded down, as in the reference.
func (h *bmpHeader) maskedRow() (func(dst, src []byte), error) {
	var shift, top [4]uint32
	for i, m := range h.masks {
		if m == 0 {
			continue
		}
		shift[i] = uint32(bits.TrailingZeros32(m))
		top[i] = m >> shift[i]
		if top[i]&(top[i]+1) != 0 {
			return nil, errors.New("colour mask has a gap")
		}
	}
	channel := func(v uint32, i int) uint32 {
		if top[i] == 0 {
			return 0
		}
		return uint32(uint64((v&h.masks[i])>>shift[i]) * 255 / uint64(top[i]))
	}
	size := h.bits / 8
	return func(dst, src []byte) {
		for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+size {
			v := uint32(src[j]) | uint32(src[j+1])<<8
			if size == 4 {
				v |= uint32(src[j+2])<<16 | uint32(src[j+3])<<24
			}
			r, g, b := channel(v, 0), channel(v, 1), channel(v, 2)
			if a := channel(v, 3); h.masks[3] != 0 {
				dst[i], dst[i+1], dst[i+2] = over(r, a), over(g, a), over(b, a)
			} else {
				dst[i], dst[i+1], dst[i+2] = byte(r), byte(g), byte(b)
			}
		}
	}, nil
}
