package imageproc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// zigzag is where a block's coefficients lie in rows, in the order of the file.
var zigzag = [64]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
}

// jpegCode is a Huffman code.
type jpegCode struct {
	short   [1 << shortBits]uint16 // by the next bits: length<<8 | symbol; 0: longer, or none
	after   [17]int32              // by length: one more than its last code
	from    [17]int32              // by length: index of its first symbol less its first code
	symbols []byte
}

const shortBits = 9

// newJPEGCode makes the code with counts[n-1] codes of n bits.
func newJPEGCode(counts, symbols []byte) (*jpegCode, error) {
	c := &jpegCode{symbols: symbols}
	code, at := int32(0), int32(0)
	for n := 1; n <= 16; n++ {
		c.from[n] = at - code
		for range counts[n-1] {
			if code >= 1<<n {
				return nil, errors.New("a Huffman table has too many codes")
			}
			if n <= shortBits {
				first := code << (shortBits - n)
				for i := range int32(1) << (shortBits - n) {
					c.short[first+i] = uint16(n)<<8 | uint16(symbols[at])
				}
			}
			code, at = code+1, at+1
		}
		c.after[n] = code
		code <<= 1
	}
	return c, nil
}

// jpegBits reads the bits of a scan, to the next marker or the end of the data, then zeros.
type jpegBits struct {
	data   []byte
	at     int
	next   uint64 // the low n bits come next, the highest first
	n      int
	zeros  int  // of them, how many the data did not have
	broken bool // no code begins with the next bits, or a block has too many coefficients
}

// fill makes n at least 32.
func (r *jpegBits) fill() {
	if r.at+4 <= len(r.data) {
		v := binary.BigEndian.Uint32(r.data[r.at:])
		if inverted := ^v; (inverted-0x01010101)&^inverted&0x80808080 == 0 { // no byte is ff
			r.next, r.n, r.at = r.next<<32|uint64(v), r.n+32, r.at+4
			return
		}
	}
	for r.n < 32 {
		var v uint64
		switch {
		case r.at < len(r.data) && r.data[r.at] != 0xff:
			v = uint64(r.data[r.at])
			r.at++
		case r.at+1 < len(r.data) && r.data[r.at+1] == 0:
			v = 0xff
			r.at += 2
		default:
			r.zeros += 8
		}
		r.next, r.n = r.next<<8|v, r.n+8
	}
}

// symbol reads a code. Then at least 16 bits are there for a number.
func (r *jpegBits) symbol(c *jpegCode) byte {
	if r.n < 32 {
		r.fill()
	}
	if e := c.short[r.next>>(r.n-shortBits)&(1<<shortBits-1)]; e != 0 {
		r.n -= int(e >> 8)
		return byte(e)
	}
	for n := shortBits + 1; n <= 16; n++ {
		if code := int32(r.next >> (r.n - n) & (1<<n - 1)); code < c.after[n] {
			r.n -= n
			return c.symbols[code+c.from[n]]
		}
	}
	r.broken = true
	return 0
}

// bits reads a number of size bits, at most 16, that are there.
func (r *jpegBits) bits(size int) int {
	r.n -= size
	return int(r.next >> r.n & (1<<size - 1))
}

// number reads a number of size bits whose first one is its sign: 0 means negative.
func (r *jpegBits) number(size int) int {
	v := r.bits(size)
	if v < 1<<size>>1 {
		v -= 1<<size - 1
	}
	return v
}

// bit reads a bit.
func (r *jpegBits) bit() bool {
	if r.n == 0 {
		r.fill()
	}
	return r.bits(1) == 1
}

// jpegScan is a scan while it is read.
type jpegScan struct {
	jpegBits
	from, to, low int // coefficients in zigzag order, and the bit that is read first
	refine        bool
	left          int // blocks that a progressive scan leaves out
}

// sequential reads a whole block into b, which is zero.
func (s *jpegScan) sequential(b *[64]int16, p *jpegPart) {
	p.last += s.number(int(s.symbol(p.dc)))
	b[0] = int16(p.last)
	for k := 1; k < 64; k++ {
		v := s.symbol(p.ac)
		size := int(v & 15)
		if size == 0 && v != 0xf0 {
			return
		}
		if k += int(v >> 4); k > 63 {
			s.broken = true
			return
		}
		if size > 0 {
			b[zigzag[k]] = int16(s.number(size))
		}
	}
}

// progressive reads a part of a block.
func (s *jpegScan) progressive(b *[64]int16, p *jpegPart) {
	switch {
	case s.from == 0 && s.refine:
		if s.bit() {
			b[0] |= 1 << s.low
		}
	case s.from == 0:
		p.last += s.number(int(s.symbol(p.dc)))
		b[0] = int16(p.last << s.low)
	case s.refine:
		s.correct(b, p)
	case s.left > 0:
		s.left--
	default:
		s.first(b, p)
	}
}

// first reads the first bits of a block's coefficients.
func (s *jpegScan) first(b *[64]int16, p *jpegPart) {
	for k := s.from; k <= s.to; k++ {
		v := s.symbol(p.ac)
		run, size := int(v>>4), int(v&15)
		if size == 0 && run < 15 {
			s.left = 1<<run + s.bits(run) - 1
			return
		}
		if k += run; k > s.to {
			s.broken = true
			return
		}
		if size > 0 {
			b[zigzag[k]] = int16(s.number(size) << s.low)
		}
	}
}

// correct reads one more bit of a block's coefficients.
func (s *jpegScan) correct(b *[64]int16, p *jpegPart) {
	k, unit := s.from, int16(1)<<s.low
	for k <= s.to && s.left == 0 {
		v := s.symbol(p.ac)
		run, size, new := int(v>>4), v&15, int16(0)
		switch {
		case size == 0 && run < 15:
			s.left = 1<<run + s.bits(run)
			continue
		case size > 1:
			s.broken = true
			return
		case size == 1 && s.bit():
			new = unit
		case size == 1:
			new = -unit
		}
		for ; k <= s.to; k++ { // to the place after run zeros
			c := &b[zigzag[k]]
			if *c == 0 && run == 0 {
				*c = new
				k++
				break
			}
			if *c == 0 {
				run--
			}
			s.grow(c, unit)
		}
	}
	if s.left > 0 {
		for ; k <= s.to; k++ {
			s.grow(&b[zigzag[k]], unit)
		}
		s.left--
	}
}

// grow reads a bit of a coefficient that is not 0.
func (s *jpegScan) grow(c *int16, unit int16) {
	switch {
	case *c == 0 || !s.bit():
	case *c > 0:
		*c += unit
	default:
		*c -= unit
	}
}

// scan reads the scan whose header is body and whose data begin at f.at.
func (f *jpegFile) scan(body []byte) error {
	parts, s, err := f.scanHeader(body)
	if err != nil {
		return err
	}
	s.data, s.at = f.data, f.at
	read := s.sequential
	if f.progressive {
		read = s.progressive
	}
	// One component has its own blocks. Several have units of blocks for the same pixels, which may
	// lie beyond the picture.
	across, down := parts[0].across, parts[0].down
	if len(parts) > 1 {
		across, down = f.across, f.down
	}
	var b [64]int16
	block := func(p *jpegPart, x, y int) {
		if f.progressive {
			read((*[64]int16)(p.coefs[(y*p.stride+x)*64:]), p)
			return
		}
		read(&b, p)
		inverseDCT(p.pix[(y*p.stride*8+x)*8:], p.stride*8, &b, p.quant)
		b = [64]int16{}
	}
	for unit := range across * down {
		if f.restart > 0 && unit > 0 && unit%f.restart == 0 {
			if err := s.toRestart(unit/f.restart - 1); err != nil {
				return err
			}
			for _, p := range parts {
				p.last = 0
			}
		}
		x, y := unit%across, unit/across
		if len(parts) == 1 {
			block(parts[0], x, y)
		} else {
			for _, p := range parts {
				for i := range p.h * p.v {
					block(p, x*p.h+i%p.h, y*p.v+i/p.h)
				}
			}
		}
		switch {
		case s.n < s.zeros && s.at < len(s.data)-1:
			return fmt.Errorf("a scan ends after %d of %d units", unit, across*down)
		case s.n < s.zeros:
			return fmt.Errorf("%w: data ends in unit %d of %d", errTruncated, unit, across*down)
		case s.broken:
			return fmt.Errorf("unit %d of a scan has a wrong code", unit)
		}
	}
	f.at = s.at
	return nil
}

// toRestart goes to restart marker i, modulo 8.
func (s *jpegScan) toRestart(i int) error {
	marker, at := nextMarker(s.data, s.at)
	if marker != 0xd0+byte(i%8) {
		return fmt.Errorf("want restart marker %d, got marker %x", i%8, marker)
	}
	s.jpegBits = jpegBits{data: s.data, at: at}
	s.left = 0
	return nil
}

// scanHeader reads a scan's header.
func (f *jpegFile) scanHeader(body []byte) (parts []*jpegPart, s *jpegScan, err error) {
	if len(body) < 4 || len(body) < 4+2*int(body[0]) || body[0] == 0 {
		return nil, nil, errors.New("scan header too short")
	}
	n := int(body[0])
	tail := body[1+2*n:]
	s = &jpegScan{from: int(tail[0]), to: int(tail[1]), low: int(tail[2] & 15)}
	s.refine = tail[2]>>4 != 0
	if f.progressive && (s.from > s.to || s.to > 63 || s.from == 0 && s.to > 0 || s.from > 0 &&
		n > 1 || s.low > 13 || s.refine && int(tail[2]>>4) != s.low+1) {
		return nil, nil, fmt.Errorf("a progressive scan of coefficients %d to %d, bits %d and %d",
			s.from, s.to, tail[2]>>4, s.low)
	}
	dcRead := !f.progressive || s.from == 0 && !s.refine
	acRead := !f.progressive || s.from > 0
	blocks := 0
	for i := range n {
		var p *jpegPart
		for j := range f.parts {
			if f.parts[j].id == body[1+2*i] {
				p = &f.parts[j]
			}
		}
		if p == nil {
			return nil, nil, fmt.Errorf("a scan of component %d, which the frame does not have",
				body[1+2*i])
		}
		dc, ac := body[2+2*i]>>4&3, body[2+2*i]&3
		p.dc, p.ac, p.last = f.codes[0][dc], f.codes[1][ac], 0
		if dcRead && p.dc == nil || acRead && p.ac == nil {
			return nil, nil, fmt.Errorf("component %d has no Huffman table", p.id)
		}
		if p.quant == nil { // the table of a component's first scan is for all
			if p.quant = f.quant[p.table]; p.quant == nil {
				return nil, nil, fmt.Errorf("component %d has no quantisation table", p.id)
			}
		}
		parts, blocks = append(parts, p), blocks+p.h*p.v
	}
	if n > 1 && blocks > 10 {
		return nil, nil, fmt.Errorf("a scan of units of %d blocks, want at most 10", blocks)
	}
	return parts, s, nil
}
