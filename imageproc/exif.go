package imageproc

import (
	"bytes"
	"encoding/binary"
)

// TIFF tags, which EXIF shares.
const (
	tagWidth         = 256
	tagHeight        = 257
	tagBitsPerSample = 258
	tagCompression   = 259
	tagPhotometric   = 262
	tagOrientation   = 274
	tagPlanar        = 284
	tagExtraSamples  = 338
)

// directory reads the first value of each integer entry (BYTE, SHORT or LONG)
// of the first directory of a TIFF stream, and the values' counts. Anything
// unreadable is left out; ok is false when there is no directory at all.
func directory(data []byte) (first, count map[int]uint32, ok bool) {
	var order binary.ByteOrder
	switch {
	case matches(data, "II*\x00"):
		order = binary.LittleEndian
	case matches(data, "MM\x00*"):
		order = binary.BigEndian
	default:
		return nil, nil, false
	}
	if len(data) < 8 {
		return nil, nil, false
	}
	at := uint64(order.Uint32(data[4:]))
	if at+2 > uint64(len(data)) {
		return nil, nil, false
	}
	entries := int(order.Uint16(data[at:]))
	body := data[at+2:]
	first, count = map[int]uint32{}, map[int]uint32{}
	for i := 0; i < entries && len(body) >= (i+1)*12; i++ {
		e := body[i*12:][:12]
		tag, kind, n := int(order.Uint16(e)), order.Uint16(e[2:]), order.Uint32(e[4:])
		size := map[uint16]uint64{1: 1, 3: 2, 4: 4}[kind]
		if size == 0 || n == 0 {
			continue
		}
		v := e[8:]
		if total := size * uint64(n); total > 4 {
			off := uint64(order.Uint32(v))
			if off+size > uint64(len(data)) {
				continue
			}
			v = data[off:]
		}
		count[tag] = n
		switch kind {
		case 1:
			first[tag] = uint32(v[0])
		case 3:
			first[tag] = uint32(order.Uint16(v))
		default:
			first[tag] = order.Uint32(v)
		}
	}
	return first, count, true
}

// exifOrientation returns the orientation of an EXIF block, with or without
// the "Exif\0\0" header, or 1.
func exifOrientation(block []byte) int {
	first, _, ok := directory(bytes.TrimPrefix(block, []byte("Exif\x00\x00")))
	if v := first[tagOrientation]; ok && v >= 1 && v <= 8 {
		return int(v)
	}
	return 1
}

// turned returns p as its orientation says it should be seen: 2 mirrored
// left-right, 3 turned by 180°, 4 mirrored top-bottom, 5 transposed, 6 turned
// clockwise, 7 transposed over the other diagonal, 8 turned anticlockwise.
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
	return &Picture{Width: ow, Height: oh, Pix: out, Format: p.Format}
}
