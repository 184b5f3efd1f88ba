package imageproc

import (
	"bytes"
	"regexp"
)

// xmpOrientation is an orientation in an XMP packet, as an attribute or an element.
var xmpOrientation = regexp.MustCompile(`tiff:Orientation(?:="|>)([0-9])`)

// orientationOf returns the orientation of an EXIF block, with or without the "Exif\0\0" header, or
// else of an XMP packet, or 1.
func orientationOf(exif, xmp []byte) int {
	d, ok := openDirectory(bytes.TrimPrefix(exif, []byte("Exif\x00\x00")))
	if !ok {
		d = new(tiffDirectory)
	}
	return d.orientation(xmp)
}

// orientation returns what the directory says, or an XMP packet if the directory has no such tag,
// or 1. A BYTE or UNDEFINED is no number here. Source: Pillow 13.0, Image.getexif, which reads
// fractions, too.
func (d *tiffDirectory) orientation(xmp []byte) int {
	v, m := uint32(1), xmpOrientation.FindSubmatch(xmp)
	switch e, ok := d.entries[tagOrientation]; {
	case ok && kindSize[e.kind] > 1, e.kind == 6:
		v = d.value(e, 0)
	case !ok && m != nil:
		v = uint32(m[1][0] - '0')
	}
	if v >= 1 && v <= 8 {
		return int(v)
	}
	return 1
}

// turned returns p rotated or mirrored by its orientation: 2 mirrored left-right, 3 rotated by
// 180°, 4 mirrored top-bottom, 5 transposed, 6 rotated clockwise, 7 transposed over the other
// diagonal, 8 rotated anticlockwise.
func (p *Picture) turned(orientation int) *Picture {
	w, h := p.Width, p.Height
	ow, oh := w, h
	// Result pixel (x, y) is source pixel origin + x·dx + y·dy.
	var origin, dx, dy int
	switch orientation {
	case 2:
		origin, dx, dy = w-1, -1, w
	case 3:
		origin, dx, dy = w*h-1, -1, -w
	case 4:
		origin, dx, dy = w*(h-1), 1, -w
	case 5:
		ow, oh, origin, dx, dy = h, w, 0, w, 1
	case 6:
		ow, oh, origin, dx, dy = h, w, w*(h-1), -w, 1
	case 7:
		ow, oh, origin, dx, dy = h, w, w*h-1, -w, -1
	case 8:
		ow, oh, origin, dx, dy = h, w, w-1, w, -1
	default:
		return p
	}
	out := make([]byte, len(p.Pix))
	for y := range oh {
		row := out[y*ow*3:][:ow*3]
		s := (origin + y*dy) * 3
		for x := 0; x < len(row); x += 3 {
			src, dst := p.Pix[s:s+3:s+3], row[x:x+3:x+3]
			dst[0], dst[1], dst[2] = src[0], src[1], src[2]
			s += dx * 3
		}
	}
	return &Picture{Width: ow, Height: oh, Pix: out, Format: p.Format, Frames: p.Frames}
}
