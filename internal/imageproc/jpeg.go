package imageproc

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
)

// jpegHeader is what the markers tell.
type jpegHeader struct {
	width, height int64
	blocks        int64 // 8×8 blocks of all components
	sof           byte  // second byte of the frame marker
	precision     int
	components    int
	adobe         []int // where Adobe markers say the colour transform of the components
	exif, xmp     []byte
	scans         int64
	large         []byte // ids of components with several blocks in an MCU
	restarts      bool   // within a scan of one large component
}

// xmpHeader begins a segment with an XMP packet.
const xmpHeader = "http://ns.adobe.com/xap/1.0/\x00"

// parseJPEG walks the markers to the end of the picture. What describes it precedes its scans.
func parseJPEG(data []byte) (jpegHeader, error) {
	var h jpegHeader
	at, alone := 2, false // alone: in a scan of one large component
	for {
		next := bytes.IndexByte(data[at:], 0xff) // after stray bytes, or a scan's data
		if next < 0 {
			break
		}
		at += next
		for at < len(data) && data[at] == 0xff { // fill bytes
			at++
		}
		if at >= len(data) {
			break
		}
		marker := data[at]
		at++
		h.restarts = h.restarts || alone && marker >= 0xd0 && marker <= 0xd7
		if marker == 0 || marker == 1 || marker >= 0xd0 && marker <= 0xd8 {
			continue
		}
		if marker == 0xd9 || at+2 > len(data) {
			break
		}
		n := int(data[at])<<8 | int(data[at+1])
		if n < 2 || at+n > len(data) {
			break
		}
		body := data[at+2 : at+n]
		at += n
		switch {
		case marker == 0xda:
			h.scans++
			alone = len(body) > 1 && body[0] == 1 && bytes.IndexByte(h.large, body[1]) >= 0
		case marker == 0xee && len(body) >= 12 && bytes.HasPrefix(body, []byte("Adobe")):
			h.adobe = append(h.adobe, at-len(body)+11)
		case h.scans > 0:
		case marker == 0xe1 && h.exif == nil && bytes.HasPrefix(body, []byte("Exif\x00\x00")):
			h.exif = body
		case marker == 0xe1 && bytes.HasPrefix(body, []byte(xmpHeader)):
			h.xmp = body
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 &&
			marker != 0xcc && h.sof == 0:
			if err := h.frame(marker, body); err != nil {
				return h, err
			}
		}
	}
	if h.sof == 0 {
		return h, fmt.Errorf("%w: no frame header", errTruncated)
	}
	return h, nil
}

// frame reads a start-of-frame segment.
func (h *jpegHeader) frame(marker byte, b []byte) error {
	if len(b) < 6 || len(b) < 6+3*int(b[5]) {
		return errors.New("frame header too short")
	}
	h.sof, h.precision, h.components = marker, int(b[0]), int(b[5])
	h.height, h.width = int64(b[1])<<8|int64(b[2]), int64(b[3])<<8|int64(b[4])
	var hmax, vmax int64 = 1, 1
	for i := range h.components {
		f := b[6+3*i+1]
		hmax, vmax = max(hmax, int64(f>>4)), max(vmax, int64(f&15))
	}
	for i := range h.components {
		f := b[6+3*i+1]
		if h.components > 1 && f>>4*(f&15) > 1 {
			h.large = append(h.large, b[6+3*i])
		}
		h.blocks += (h.width*int64(f>>4)/hmax + 7) / 8 * ((h.height*int64(f&15)/vmax + 7) / 8)
	}
	return nil
}

// variant names an unsupported variant; it is empty if the file is supported.
func (h *jpegHeader) variant() string {
	switch {
	case h.sof >= 0xc9:
		return "arithmetic coding"
	case h.sof == 0xc3 || h.sof >= 0xc5:
		return "lossless or hierarchical coding"
	case h.precision != 8:
		return fmt.Sprintf("%d bits a sample", h.precision)
	case h.components != 1 && h.components != 3 && h.components != 4:
		return fmt.Sprintf("%d components", h.components)
	case h.components == 4 && h.adobe == nil:
		return "4 components without an Adobe marker, so whether they are inverted is unknown"
	}
	return ""
}

func jpegSize(data []byte) (w, h int64, err error) {
	head, err := parseJPEG(data)
	return head.width, head.height, err
}

// A picture may have maxScans scans, as in libjpeg's cjpeg (usual are 10), or more if it is so
// small that they visit maxVisits blocks in all. A scan may be a few bytes, but visits each block.
const (
	maxScans  = 100
	maxVisits = 1 << 26
)

func decodeJPEG(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	head, err := parseJPEG(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if v := head.variant(); v != "" {
		return nil, 0, 0, 0, unsupported(v)
	}
	// Every block takes at least one bit, whatever the Huffman table.
	if head.blocks/8 > int64(len(data)) {
		return nil, 0, 0, 0, fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels", errTruncated,
			len(data), head.width, head.height)
	}
	if head.scans > maxScans && head.scans*head.blocks > maxVisits {
		return nil, 0, 0, 0, unsupported(fmt.Sprintf("got %d scans of %dx%d pixels, want at most "+
			"%d", head.scans, head.width, head.height, maxScans))
	}
	inks := head.components == 4 && data[head.adobe[len(head.adobe)-1]] != 0 // YCCK
	if inks {
		data = bytes.Clone(data)
		for _, i := range head.adobe {
			data[i] = 0
		}
	}
	img, err := jpeg.Decode(bytes.NewReader(data))
	if err != nil && head.restarts { // image/jpeg counts several blocks as one
		err = unsupported("restart markers in a scan of luma alone, next to smaller chroma; save " +
			"it without restart markers")
	}
	if err != nil {
		return nil, 0, 0, 0, err
	}
	orientation = 1
	if o.EXIF {
		orientation = orientationOf(head.exif, head.xmp)
	}
	b := img.Bounds()
	if m, ok := img.(*image.CMYK); ok && inks {
		fromYCCK(m, len(head.large) > 0)
	}
	if m, ok := img.(*image.YCbCr); ok {
		pix = jpegRGB(m)
	} else if pix, err = toRGB(img); err != nil {
		return nil, 0, 0, 0, err
	}
	return pix, b.Dx(), b.Dy(), orientation, nil
}

// fromYCCK makes CMYK of m, which has the planes of a YCCK picture, each 255 less the value: its
// chroma is repeated if it is halved in both directions, and the others are full.
func fromYCCK(m *image.CMYK, halved bool) {
	step, ratio := 1, image.YCbCrSubsampleRatio444
	if halved {
		step, ratio = 2, image.YCbCrSubsampleRatio420
	}
	p := image.NewYCbCr(m.Rect, ratio)
	for y := range m.Rect.Dy() {
		for x := range m.Rect.Dx() {
			from := m.Pix[m.PixOffset(x, y):][:3]
			p.Y[p.YOffset(x, y)] = 255 - from[0]
			if x%step == 0 && y%step == 0 {
				i := p.COffset(x, y)
				p.Cb[i], p.Cr[i] = 255-from[1], 255-from[2]
			}
		}
	}
	rgb := jpegRGB(p) // cyan, magenta and yellow, which Adobe inverts
	for i := 0; i < len(m.Pix); i += 4 {
		copy(m.Pix[i:i+3], rgb[i/4*3:])
	}
}
