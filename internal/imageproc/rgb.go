package imageproc

import (
	"fmt"
	"image"
	"image/color"
)

// div255 is v/255 rounded, for 0 ≤ v ≤ 255·255.
func div255(v uint32) uint32 {
	v += 128
	return (v + v>>8) >> 8
}

// over composites a channel on white.
func over(v, a uint32) byte { return byte(div255(v*a + 255*(255-a))) }

// toRGB copies img's pixels as 8-bit RGB. Deeper channels are read by their high byte. The caller
// handles YCbCr pictures, because the interpolation of chroma depends on the format.
func toRGB(img image.Image) ([]byte, error) {
	b := img.Bounds()
	w, h := b.Dx(), b.Dy()
	out := make([]byte, w*h*3)
	// rows calls f with the bytes of each source row and of each result row.
	rows := func(pix []byte, stride int, f func(dst, src []byte)) {
		for y := range h {
			f(out[y*w*3:][:w*3], pix[y*stride:])
		}
	}
	switch m := img.(type) {
	case *image.Gray:
		rows(m.Pix, m.Stride, func(dst, src []byte) { copyGray(dst, src, 1) })
	case *image.Gray16:
		rows(m.Pix, m.Stride, func(dst, src []byte) { copyGray(dst, src, 2) })
	case *image.RGBA: // opaque, or premultiplied: see below
		if !m.Opaque() {
			rows(m.Pix, m.Stride, func(dst, src []byte) { premultipliedOnWhite(dst, src, 1) })
		} else {
			rows(m.Pix, m.Stride, func(dst, src []byte) { copyRGB(dst, src, 1) })
		}
	case *image.RGBA64:
		if !m.Opaque() {
			rows(m.Pix, m.Stride, func(dst, src []byte) { premultipliedOnWhite(dst, src, 2) })
		} else {
			rows(m.Pix, m.Stride, func(dst, src []byte) { copyRGB(dst, src, 2) })
		}
	case *image.NRGBA:
		rows(m.Pix, m.Stride, func(dst, src []byte) { rgbOnWhite(dst, src, 1) })
	case *image.NRGBA64:
		rows(m.Pix, m.Stride, func(dst, src []byte) { rgbOnWhite(dst, src, 2) })
	case *image.Paletted:
		table, err := paletteRGB(m.Palette)
		if err != nil {
			return nil, err
		}
		rows(m.Pix, m.Stride, func(dst, src []byte) {
			for i := 0; i+2 < len(dst); i += 3 {
				copy(dst[i:], table[src[i/3]][:])
			}
		})
	case *image.CMYK:
		rows(m.Pix, m.Stride, copyCMYK)
	default:
		return nil, fmt.Errorf("pixel layout %T is not supported", img)
	}
	return out, nil
}

// copyGray repeats the first byte of each sample of size bytes (big-endian).
func copyGray(dst, src []byte, size int) {
	for i := 0; i+2 < len(dst); i += 3 {
		v := src[i/3*size]
		dst[i], dst[i+1], dst[i+2] = v, v, v
	}
}

// copyRGB takes the high bytes of three of four channels.
func copyRGB(dst, src []byte, size int) {
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+4*size {
		dst[i], dst[i+1], dst[i+2] = src[j], src[j+size], src[j+2*size]
	}
}

// rgbOnWhite composites unassociated RGBA.
func rgbOnWhite(dst, src []byte, size int) {
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+4*size {
		a := uint32(src[j+3*size])
		for c := range 3 {
			dst[i+c] = over(uint32(src[j+c*size]), a)
		}
	}
}

// premultipliedOnWhite composites RGBA whose colours are already multiplied by
// alpha (TIFF's associated alpha).
func premultipliedOnWhite(dst, src []byte, size int) {
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+4*size {
		a := uint32(src[j+3*size])
		for c := range 3 {
			dst[i+c] = byte(min(uint32(src[j+c*size])+255-a, 255))
		}
	}
}

// copyCMYK converts without a profile: R = (255-K) - C·(255-K)/255.
func copyCMYK(dst, src []byte) {
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+4 {
		white := 255 - uint32(src[j+3])
		for c := range 3 {
			dst[i+c] = byte(white - div255(uint32(src[j+c])*white))
		}
	}
}

// paletteRGB resolves a palette. Entries past its end are black.
func paletteRGB(p color.Palette) (*[256][3]byte, error) {
	var t [256][3]byte
	if len(p) > len(t) {
		return nil, fmt.Errorf("palette has %d entries, limit %d", len(p), len(t))
	}
	for i, c := range p {
		var r, g, b, a uint8
		switch c := c.(type) {
		case color.RGBA:
			r, g, b, a = c.R, c.G, c.B, c.A
		case color.NRGBA:
			r, g, b, a = c.R, c.G, c.B, c.A
		default: // TIFF palettes have 16 bits and are opaque
			r16, g16, b16, _ := c.RGBA()
			r, g, b, a = uint8(r16>>8), uint8(g16>>8), uint8(b16>>8), 255
		}
		t[i] = [3]byte{
			over(uint32(r), uint32(a)), over(uint32(g), uint32(a)), over(uint32(b), uint32(a)),
		}
	}
	return &t, nil
}
