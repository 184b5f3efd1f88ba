package imageproc

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// jpegFile is a JPEG file while it is decoded: sequential or progressive, 8 bits, Huffman codes.
type jpegFile struct {
	data          []byte
	at            int // what follows was not read
	sof           byte
	precision     byte
	width, height int
	parts         []jpegPart
	hMost, vMost  int
	across, down  int // units of hMost×vMost blocks
	blocks        int64
	progressive   bool
	restart       int // units between restart markers; 0: there are none
	scans         int64
	quant         [4]*[64]uint16
	codes         [2][4]*jpegCode // for DC and AC
	jfif          bool
	adobe         bool
	transform     byte // of the Adobe marker
	exif, xmp     []byte
}

// jpegPart is a component.
type jpegPart struct {
	id           byte
	h, v         int // blocks in a unit
	table        byte
	across, down int // blocks that hold the picture's samples
	stride, rows int // blocks of whole units
	quant        *[64]uint16
	dc, ac       *jpegCode // of the current scan
	last         int       // DC of the block before
	coefs        []int16   // in rows, block after block; of a progressive file
	pix          []byte
}

// xmpHeader begins a segment with an XMP packet.
const xmpHeader = "http://ns.adobe.com/xap/1.0/\x00"

// nextMarker returns the next marker from at on, and where it ends; 0 if there is none.
func nextMarker(data []byte, at int) (marker byte, end int) {
	for {
		i := bytes.IndexByte(data[at:], 0xff)
		if i < 0 {
			return 0, len(data)
		}
		at += i
		for at < len(data) && data[at] == 0xff { // fill bytes
			at++
		}
		if at < len(data) && data[at] != 0 {
			return data[at], at + 1
		}
	}
}

// openJPEG reads the segments up to the frame header.
func openJPEG(data []byte) (*jpegFile, error) {
	f := &jpegFile{data: data, at: 2}
	for f.sof == 0 {
		more, err := f.segment()
		if err != nil {
			return nil, err
		}
		if !more {
			return nil, fmt.Errorf("%w: no frame header", errTruncated)
		}
	}
	return f, nil
}

// segment reads the next segment. At the end of the picture, more is false.
func (f *jpegFile) segment() (more bool, err error) {
	marker, at := nextMarker(f.data, f.at)
	f.at = at
	switch {
	case marker == 0:
		return false, fmt.Errorf("%w: no end marker", errTruncated)
	case marker == 0xd9:
		return false, nil
	case marker == 1 || marker >= 0xd0 && marker <= 0xd8:
		return true, nil
	}
	n := 0
	if at+2 <= len(f.data) {
		n = int(f.data[at])<<8 | int(f.data[at+1])
	}
	if n < 2 || at+n > len(f.data) {
		return false, fmt.Errorf("%w: segment %x of %d bytes", errTruncated, marker, n)
	}
	body := f.data[at+2 : at+n]
	f.at = at + n
	switch marker {
	case 0xc4:
		return true, f.huffman(body)
	case 0xda:
		return true, f.scanned(body)
	case 0xdb:
		return true, f.quantisation(body)
	case 0xdd:
		if len(body) < 2 {
			return false, errors.New("restart interval too short")
		}
		f.restart = int(body[0])<<8 | int(body[1])
	case 0xc8, 0xcc:
	default:
		if marker >= 0xc0 && marker <= 0xcf {
			return true, f.frame(marker, body)
		}
		if f.scans == 0 { // what describes a picture precedes its scans
			f.describe(marker, body)
		}
	}
	return true, nil
}

// describe reads a segment of an application.
func (f *jpegFile) describe(marker byte, body []byte) {
	switch {
	case marker == 0xe0 && len(body) >= 14 && bytes.HasPrefix(body, []byte("JFIF\x00")):
		f.jfif = true
	case marker == 0xe1 && f.exif == nil && bytes.HasPrefix(body, []byte("Exif\x00\x00")):
		f.exif = body
	case marker == 0xe1 && bytes.HasPrefix(body, []byte(xmpHeader)):
		f.xmp = body
	case marker == 0xee && len(body) >= 12 && bytes.HasPrefix(body, []byte("Adobe")):
		f.adobe, f.transform = true, body[11]
	}
}

// frame reads a frame header.
func (f *jpegFile) frame(marker byte, b []byte) error {
	switch {
	case f.sof != 0:
		return errors.New("a second frame header")
	case len(b) < 6 || len(b) < 6+3*int(b[5]):
		return errors.New("frame header too short")
	}
	f.sof, f.precision, f.progressive = marker, b[0], marker == 0xc2
	f.height, f.width = int(b[1])<<8|int(b[2]), int(b[3])<<8|int(b[4])
	for i := range int(b[5]) {
		c := b[6+3*i:]
		f.parts = append(f.parts, jpegPart{id: c[0], h: int(c[1] >> 4), v: int(c[1] & 15),
			table: c[2] & 3})
		f.hMost, f.vMost = max(f.hMost, int(c[1]>>4)), max(f.vMost, int(c[1]&15))
	}
	return nil
}

// variant names an unsupported variant; it is empty if the file is supported.
func (f *jpegFile) variant() string {
	switch n := len(f.parts); {
	case f.sof >= 0xc9:
		return "arithmetic coding"
	case f.sof == 0xc3 || f.sof >= 0xc5:
		return "lossless or hierarchical coding"
	case f.precision != 8:
		return fmt.Sprintf("%d bits a sample", f.precision)
	case n != 1 && n != 3 && n != 4:
		return fmt.Sprintf("%d components", n)
	}
	h, v := f.hMost, f.vMost
	for _, p := range f.parts {
		if p.h < 1 || p.v < 1 || max(h, v) > 4 || h%p.h != 0 || v%p.v != 0 {
			return fmt.Sprintf("component %d of %d×%d blocks next to others of %d×%d", p.id, p.h,
				p.v, h, v)
		}
	}
	return ""
}

func jpegSize(data []byte) (w, h int64, err error) {
	f, err := openJPEG(data)
	if err != nil {
		return 0, 0, err
	}
	return int64(f.width), int64(f.height), nil
}

// decode reads the scans. Then parts have their samples.
func (f *jpegFile) decode() error {
	if v := f.variant(); v != "" {
		return unsupported(v)
	}
	if len(f.parts) == 1 { // a unit is a block, whatever the header says
		f.parts[0].h, f.parts[0].v, f.hMost, f.vMost = 1, 1, 1, 1
	}
	f.across, f.down = up(f.width, 8*f.hMost), up(f.height, 8*f.vMost)
	for i := range f.parts {
		p := &f.parts[i]
		p.stride, p.rows = f.across*p.h, f.down*p.v
		p.across = up(up(f.width*p.h, f.hMost), 8)
		p.down = up(up(f.height*p.v, f.vMost), 8)
		f.blocks += int64(p.across) * int64(p.down)
	}
	// Every block takes at least one bit, whatever the Huffman code.
	if f.blocks/8 > int64(len(f.data)) {
		return fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels", errTruncated, len(f.data),
			f.width, f.height)
	}
	for i := range f.parts {
		p := &f.parts[i]
		p.pix = make([]byte, p.stride*p.rows*64)
		if f.progressive {
			p.coefs = make([]int16, len(p.pix))
		}
	}
	for more := true; more; {
		var err error
		if more, err = f.segment(); err != nil {
			return err
		}
	}
	for i := range f.parts {
		p := &f.parts[i]
		if p.quant == nil {
			return fmt.Errorf("%w: no scan of component %d", errTruncated, p.id)
		}
		if f.progressive {
			p.inverseDCTs()
		}
	}
	return nil
}

// up returns n/by, rounded up.
func up(n, by int) int { return (n + by - 1) / by }

// A picture may have maxScans scans, as in libjpeg's cjpeg (usual are 10), or more if it is so
// small that they visit maxVisits blocks in all. A scan may be a few bytes, but visits each block.
const (
	maxScans  = 100
	maxVisits = 1 << 26
)

// scanned reads a scan.
func (f *jpegFile) scanned(header []byte) error {
	if f.sof == 0 {
		return errors.New("a scan before the frame header")
	}
	if f.scans++; f.scans > maxScans && f.scans*f.blocks > maxVisits {
		return unsupported(fmt.Sprintf("got %d scans of %dx%d pixels, want at most %d", f.scans,
			f.width, f.height, maxScans))
	}
	return f.scan(header)
}

// inverseDCTs computes the samples of a progressive file.
func (p *jpegPart) inverseDCTs() {
	band := max(up(p.rows, runtime.GOMAXPROCS(0)), minBand/8)
	var wg sync.WaitGroup
	for y := 0; y < p.rows; y += band {
		wg.Go(func() {
			for i := y * p.stride; i < min(y+band, p.rows)*p.stride; i++ {
				inverseDCT(p.pix[(i/p.stride*p.stride*8+i%p.stride)*8:], p.stride*8,
					(*[64]int16)(p.coefs[i*64:]), p.quant)
			}
		})
	}
	wg.Wait()
}

// quantisation reads quantisation tables.
func (f *jpegFile) quantisation(b []byte) error {
	for len(b) > 0 {
		id, size := b[0]&15, 1+int(b[0]>>4)
		if id > 3 || size > 2 || len(b) < 1+64*size {
			return errors.New("quantisation table too short, or of an unknown kind")
		}
		t := new([64]uint16)
		for k, at := range zigzag {
			for _, v := range b[1+k*size : 1+(k+1)*size] {
				t[at] = t[at]<<8 | uint16(v)
			}
		}
		f.quant[id] = t
		b = b[1+64*size:]
	}
	return nil
}

// huffman reads Huffman tables.
func (f *jpegFile) huffman(b []byte) error {
	for len(b) > 0 {
		if len(b) < 17 {
			return errors.New("table of Huffman codes too short")
		}
		class, id, n := b[0]>>4, b[0]&15, 0
		for _, count := range b[1:17] {
			n += int(count)
		}
		if class > 1 || id > 3 || n > 256 || len(b) < 17+n {
			return errors.New("table of Huffman codes too short, or of an unknown kind")
		}
		symbols := b[17 : 17+n]
		for _, v := range symbols {
			if class == 0 && v > 15 {
				return fmt.Errorf("table of Huffman codes for DC with symbol %d", v)
			}
		}
		code, err := newJPEGCode(b[1:17], symbols)
		if err != nil {
			return err
		}
		f.codes[class][id] = code
		b = b[17+n:]
	}
	return nil
}

// jpegColour is how components become red, green and blue.
type jpegColour uint8

const (
	jpegGrey jpegColour = iota
	jpegRGB
	jpegYCC
	jpegCMYK // inverted, as Adobe's and Pillow reads all
	jpegYCCK
)

// colour is what the markers say, as libjpeg reads them.
func (f *jpegFile) colour() jpegColour {
	switch len(f.parts) {
	case 1:
		return jpegGrey
	case 4:
		if f.adobe && f.transform != 0 {
			return jpegYCCK
		}
		return jpegCMYK
	}
	ids := string([]byte{f.parts[0].id, f.parts[1].id, f.parts[2].id})
	if !f.jfif && (f.adobe && f.transform == 0 || !f.adobe && ids == "RGB") {
		return jpegRGB
	}
	return jpegYCC
}

func decodeJPEG(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	f, err := openJPEG(data)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if err := f.decode(); err != nil {
		return nil, 0, 0, 0, err
	}
	orientation = 1
	if o.EXIF {
		orientation = orientationOf(f.exif, f.xmp)
	}
	return f.rgb(f.colour()), f.width, f.height, orientation, nil
}
