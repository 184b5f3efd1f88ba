package imageproc

import (
	"image"
	"runtime"
	"sync"
)

// plane is a chroma plane, cropped to the picture's samples, so that samples beyond the picture in
// the coded blocks do not affect it.
type plane struct {
	pix    []byte
	stride int
	w, h   int
}

// row returns row y, clamped to the plane.
func (p plane) row(y int) []byte {
	y = min(max(y, 0), p.h-1)
	return p.pix[y*p.stride:][:p.w]
}

// chroma returns the planes of m, whose chroma is halved in both directions.
func chroma(m *image.YCbCr) (cb, cr plane) {
	w, h := up(m.Rect.Dx(), 2), up(m.Rect.Dy(), 2)
	return plane{m.Cb, m.CStride, w, h}, plane{m.Cr, m.CStride, w, h}
}

// rgb converts the samples of a decoded file, chroma with libjpeg's "fancy" upsampling.
//
//	R = Y + 1.40200·Cr
//	G = Y - 0.34414·Cb - 0.71414·Cr
//	B = Y + 1.77200·Cb              in 16-bit fixed point
func (f *jpegFile) rgb(c jpegColour) []byte {
	out := make([]byte, f.width*f.height*3)
	// Rows are independent: one band for each processor.
	band := max(up(f.height, runtime.GOMAXPROCS(0)), minBand)
	var wg sync.WaitGroup
	for y := 0; y < f.height; y += band {
		wg.Go(func() { f.rgbRows(out, c, y, min(y+band, f.height)) })
	}
	wg.Wait()
	return out
}

// minBand is the least number of rows for which a goroutine pays off.
const minBand = 64

// rgbRows converts rows [from, to).
func (f *jpegFile) rgbRows(out []byte, c jpegColour, from, to int) {
	stretch := make([]upsampler, len(f.parts))
	for i := range f.parts {
		stretch[i] = f.upsampler(&f.parts[i])
	}
	var inks []byte
	if len(f.parts) == 4 {
		inks = make([]byte, 4*f.width)
	}
	var rows [4][]byte
	for y := from; y < to; y++ {
		for i := range stretch {
			rows[i] = stretch[i].row(y)[:f.width]
		}
		dst := out[y*f.width*3:][:f.width*3]
		switch c {
		case jpegGrey:
			copyGray(dst, rows[0], 1)
		case jpegYCC:
			fromYCC(dst, rows[0], rows[1], rows[2])
		case jpegRGB:
			interleave(dst, 0, rows[:3])
		case jpegCMYK:
			interleave(inks, 0xff, rows[:4])
			copyCMYK(dst, inks)
		case jpegYCCK: // of colours, which are inks inverted
			fromYCC(dst, rows[0], rows[1], rows[2])
			for x, k := range rows[3] {
				copy(inks[4*x:4*x+3], dst[3*x:])
				inks[4*x+3] = ^k
			}
			copyCMYK(dst, inks)
		}
	}
}

// interleave sets dst to the samples of rows, with the bits of mask inverted, pixel after pixel.
func interleave(dst []byte, mask byte, rows [][]byte) {
	for i, row := range rows {
		for x, v := range row {
			dst[x*len(rows)+i] = v ^ mask
		}
	}
}

// fromYCC sets dst to the pixels of a row.
func fromYCC(dst, luma, cb, cr []byte) {
	cb, cr = cb[:len(luma)], cr[:len(luma)]
	for x, yy := range luma {
		d := dst[3*x:]
		if len(d) < 3 {
			break
		}
		l, b, r := int32(yy), cb[x], cr[x]
		d[0] = clampByte(l + crToR[r])
		d[1] = clampByte(l + (cbToG[b]+crToG[r])>>16)
		d[2] = clampByte(l + cbToB[b])
	}
}

// The products of the JPEG conversion, by chroma byte; the green ones keep 16
// fractional bits, because they are rounded together.
var crToR, cbToB, cbToG, crToG = jpegTables()

func jpegTables() (crR, cbB, cbG, crG [256]int32) {
	for i := range crR {
		v := int32(i) - 128
		crR[i] = (91881*v + 32768) >> 16
		cbB[i] = (116130*v + 32768) >> 16
		cbG[i] = -22554 * v
		crG[i] = -46802*v + 32768
	}
	return crR, cbB, cbG, crG
}

func clampByte(v int32) byte {
	if uint32(v) > 255 {
		return byte(^(v >> 31)) // 0 below, 255 above
	}
	return byte(v)
}

// upsampler stretches a component's rows to the picture's width. Halved directions are
// interpolated, weights 3/4 and 1/4; others are repeated, and so are planes of one or two columns
// that are halved horizontally, as in the reference.
type upsampler struct {
	plane
	hRatio, vRatio int
	dst            []byte
	sum            []int32 // scratch, one row of vertical sums
}

// upsampler returns the upsampler of a component.
func (f *jpegFile) upsampler(p *jpegPart) upsampler {
	w, h := up(f.width*p.h, f.hMost), up(f.height*p.v, f.vMost)
	u := upsampler{
		plane:  plane{p.pix, p.stride * 8, w, h},
		hRatio: f.hMost / p.h, vRatio: f.vMost / p.v,
	}
	u.dst, u.sum = make([]byte, w*u.hRatio), make([]int32, w)
	return u
}

// row returns the component's samples for row y of the picture.
func (u *upsampler) row(y int) []byte {
	at := y / u.vRatio
	near, dst := u.plane.row(at), u.dst
	far := at + 1 // the neighbouring row on the side where y lies
	if y%u.vRatio == 0 {
		far = at - 1
	}
	switch {
	case u.hRatio == 1 && u.vRatio == 2: // 4:4:0
		other, round := u.plane.row(far), 1+int32(y&1)
		for i, v := range near {
			dst[i] = byte((3*int32(v) + int32(other[i]) + round) >> 2)
		}
	case u.hRatio == 1:
		return near
	case u.hRatio > 2, u.vRatio > 2, u.w <= 2:
		for i := range dst {
			dst[i] = near[i/u.hRatio]
		}
	case u.vRatio == 1: // 4:2:2
		n := len(near)
		for i, v := range near {
			left, right := near[max(i-1, 0)], near[min(i+1, n-1)]
			dst[2*i] = byte((3*int32(v) + int32(left) + 1) >> 2)
			dst[2*i+1] = byte((3*int32(v) + int32(right) + 2) >> 2)
		}
	default: // 4:2:0
		other, s := u.plane.row(far), u.sum
		for i, v := range near {
			s[i] = 3*int32(v) + int32(other[i])
		}
		a, d := s[0], dst[1:]
		dst[0] = byte((4*a + 8) >> 4)
		for _, b := range s[1:] {
			if len(d) < 2 {
				break
			}
			d[0] = byte((3*a + b + 7) >> 4)
			d[1] = byte((3*b + a + 8) >> 4)
			a, d = b, d[2:]
		}
		d[0] = byte((4*a + 7) >> 4)
	}
	return dst
}

// webpRGB converts the 4:2:0 limited-range BT.601 planes of a lossy WebP. A
// chroma value is interpolated from the nearest sample a, its horizontal and
// vertical neighbours b and c, and the diagonal one d:
//
//	((a + 3b + 3c + d + 8) >> 3 + a) >> 1       ≈ (9a + 3b + 3c + d)/16
//
// at the left and right edge (3a + c + 2) >> 2; rows are mirrored at the top
// and the bottom.
func webpRGB(m *image.YCbCr) []byte {
	w, h := m.Rect.Dx(), m.Rect.Dy()
	out := make([]byte, w*h*3)
	us, vs := chroma(m)
	u, v := make([]byte, w), make([]byte, w)
	for y := range h {
		webpChroma(u, us, y)
		webpChroma(v, vs, y)
		luma := m.Y[y*m.YStride:][:w]
		dst := out[y*w*3:][:w*3]
		for x, yy := range luma {
			l, cb, cr := int32(yy)*19077>>8, int32(u[x]), int32(v[x])
			d := dst[x*3 : x*3+3 : x*3+3]
			d[0] = clampByte((l + cr*26149>>8 - 14234) >> 6)
			d[1] = clampByte((l - cb*6419>>8 - cr*13320>>8 + 8708) >> 6)
			d[2] = clampByte((l + cb*33050>>8 - 17685) >> 6)
		}
	}
	return out
}

// webpChroma fills the chroma of luma row y.
func webpChroma(dst []byte, p plane, y int) {
	near, far := p.row(y/2), p.row(y/2-1+y%2*2)
	edge := func(i int) byte { return byte((3*int32(near[i]) + int32(far[i]) + 2) >> 2) }
	for x := range dst {
		i := x / 2
		j := i - 1 + x%2*2
		if j < 0 || j >= p.w {
			dst[x] = edge(i)
			continue
		}
		a, b, c, d := int32(near[i]), int32(near[j]), int32(far[i]), int32(far[j])
		dst[x] = byte(((a+3*b+3*c+d+8)>>3 + a) >> 1)
	}
}
