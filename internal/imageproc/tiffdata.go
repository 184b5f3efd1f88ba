package imageproc

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"

	"golang.org/x/image/ccitt"
	"golang.org/x/image/tiff/lzw"
)

// tiffDirectory is a directory of a TIFF stream, which EXIF also uses. Entries that are unreadable,
// or whose tag was there before, count as absent.
type tiffDirectory struct {
	data    []byte
	order   binary.ByteOrder
	entries map[int]tiffEntry
	next    uint32 // offset of the next directory, 0: none
	// cut says that an entry, or a value of a tag up to tagXMP, is beyond the end of the data.
	cut bool
}

// tiffEntry is an entry: its values and their type.
type tiffEntry struct {
	data []byte
	kind uint16
}

// openDirectory reads the first directory; ok is false when there is none.
func openDirectory(data []byte) (d *tiffDirectory, ok bool) {
	d = &tiffDirectory{data: data}
	switch {
	case matches(data, "II*\x00"):
		d.order = binary.LittleEndian
	case matches(data, "MM\x00*"):
		d.order = binary.BigEndian
	default:
		return nil, false
	}
	if len(data) < 8 {
		return nil, false
	}
	return d, d.read(d.order.Uint32(data[4:]))
}

// following returns the next directory.
func (d *tiffDirectory) following() (*tiffDirectory, bool) {
	if d.next == 0 {
		return nil, false
	}
	next := &tiffDirectory{data: d.data, order: d.order}
	return next, next.read(d.next)
}

// kindSize is the size of a value by type: BYTE, SHORT, LONG, SBYTE, UNDEFINED, SSHORT, SLONG and
// IFD.
var kindSize = map[uint16]uint64{1: 1, 3: 2, 4: 4, 6: 1, 7: 1, 8: 2, 9: 4, 13: 4}

// read reads the directory at an offset.
func (d *tiffDirectory) read(offset uint32) bool {
	at := uint64(offset)
	if at+2 > uint64(len(d.data)) {
		return false
	}
	n := int(d.order.Uint16(d.data[at:]))
	body := d.data[at+2:]
	d.entries = map[int]tiffEntry{}
	d.cut = len(body) < 12*n
	for i := 0; i < n && len(body) >= (i+1)*12; i++ {
		e := body[i*12:][:12]
		kind, count := d.order.Uint16(e[2:]), d.order.Uint32(e[4:])
		size := kindSize[kind]
		if _, again := d.entries[int(d.order.Uint16(e))]; again || size == 0 || count == 0 {
			continue
		}
		v := e[8:]
		if total := size * uint64(count); total > 4 {
			off := uint64(d.order.Uint32(v))
			if off+total > uint64(len(d.data)) {
				d.cut = d.cut || d.order.Uint16(e) <= tagXMP
				continue
			}
			v = d.data[off : off+total]
		} else {
			v = v[:total]
		}
		d.entries[int(d.order.Uint16(e))] = tiffEntry{v, kind}
	}
	if len(body) >= n*12+4 {
		d.next = d.order.Uint32(body[n*12:])
	}
	return true
}

// count returns the number of an entry's values.
func (d *tiffDirectory) count(tag int) uint32 {
	e := d.entries[tag]
	return uint32(uint64(len(e.data)) / max(kindSize[e.kind], 1))
}

// bytes returns the raw values of an entry.
func (d *tiffDirectory) bytes(tag int) []byte { return d.entries[tag].data }

// first returns an entry's first value, or def if there is none.
func (d *tiffDirectory) first(tag int, def uint32) uint32 {
	e, ok := d.entries[tag]
	if !ok {
		return def
	}
	return d.value(e, 0)
}

// values returns an entry's values.
func (d *tiffDirectory) values(tag int) []uint32 {
	out := make([]uint32, d.count(tag))
	for i := range out {
		out[i] = d.value(d.entries[tag], i)
	}
	return out
}

// value returns value i of an entry; a negative one becomes a large number.
func (d *tiffDirectory) value(e tiffEntry, i int) uint32 {
	switch e.kind {
	case 3, 8:
		return uint32(d.order.Uint16(e.data[2*i:]))
	case 4, 9, 13:
		return d.order.Uint32(e.data[4*i:])
	}
	return uint32(e.data[i])
}

// maxBelow limits how many bytes of a tile below the picture are read to check the others.
const maxBelow = 1 << 20

// decompress returns at least want bytes of a strip or tile with h rows, if the data has them.
func (p *page) decompress(data []byte, want, h int) ([]byte, error) {
	switch p.compression {
	case lempelZiv:
		r := lzw.NewReader(bytes.NewReader(data), lzw.MSB, 8)
		defer r.Close()
		return readUpTo(r, want)
	case deflate, deflateOld:
		r, err := zlib.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		out, err := readUpTo(r, want)
		if err == nil && len(out) == want { // the checksum is after a tile's rows below the picture
			if _, err = io.CopyN(io.Discard, r, maxBelow); err == io.EOF {
				err = nil
			}
		}
		return out, err
	case packBits:
		return unpackBits(data, want)
	case groupThree, groupFour:
		return p.fax(data, want, h)
	}
	return data, nil
}

// fax decodes CCITT codes. Their white is 0; the photometric interpretation is applied later.
func (p *page) fax(data []byte, want, h int) ([]byte, error) {
	order, form := ccitt.MSB, ccitt.Group4
	if p.d.first(tagFillOrder, 1) == 2 {
		order = ccitt.LSB
	}
	if p.compression == groupThree {
		form = ccitt.Group3
		switch o := p.d.first(tagT4Options, 0); {
		case o&1 != 0:
			return nil, unsupported(
				"CCITT compression in two dimensions (group 3); convert it to PNG")
		case o&4 != 0:
			return nil, unsupported("CCITT compression with fill bits (group 3); convert it to PNG")
		}
	}
	r := ccitt.NewReader(bytes.NewReader(data), order, form, p.tileW, h,
		&ccitt.Options{Invert: true})
	return readUpTo(r, want)
}

// readUpTo reads want bytes, or as many as there are.
func readUpTo(r io.Reader, want int) ([]byte, error) {
	out := make([]byte, want)
	n, err := io.ReadFull(r, out)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil // the caller reports how many bytes are missing
	}
	return out[:n], err
}

// unpackBits undoes PackBits: after n below 128 come n+1 bytes, after n above 128 one byte that is
// repeated 257-n times.
func unpackBits(data []byte, want int) ([]byte, error) {
	out := make([]byte, 0, want)
	for len(out) < want && len(data) > 1 {
		n := int(data[0])
		data = data[1:]
		switch {
		case n < 128:
			n = min(n+1, len(data))
			out, data = append(out, data[:n]...), data[n:]
		case n > 128:
			out, data = append(out, bytes.Repeat(data[:1], 257-n)...), data[1:]
		}
	}
	return out, nil
}

// rgbOf converts a full-range YCbCr colour, as in JPEG and TIFF.
func rgbOf(y, cb, cr byte) (r, g, b byte) {
	l, u, v := int32(y), int32(cb)-128, int32(cr)-128
	clip := func(x int32) byte { return byte(min(max(x, 0), 255)) }
	return clip(l + (91881*v+32768)>>16), clip(l + (-22554*u-46802*v+32768)>>16),
		clip(l + (116130*u+32768)>>16)
}
