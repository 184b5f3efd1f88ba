package imageproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// TIFF tags.
const (
	tagSubfile       = 254
	tagWidth         = 256
	tagHeight        = 257
	tagBitsPerSample = 258
	tagCompression   = 259
	tagPhotometric   = 262
	tagFillOrder     = 266
	tagStripOffsets  = 273
	tagOrientation   = 274
	tagSamples       = 277
	tagRowsPerStrip  = 278
	tagStripCounts   = 279
	tagPlanar        = 284
	tagT4Options     = 292
	tagPredictor     = 317
	tagColourMap     = 320
	tagTileWidth     = 322
	tagTileHeight    = 323
	tagTileOffsets   = 324
	tagTileCounts    = 325
	tagInkSet        = 332
	tagExtraSamples  = 338
	tagSampleFormat  = 339
	tagJPEGTables    = 347
	tagSubsampling   = 530
	tagXMP           = 700
)

// Photometric interpretations.
const (
	whiteIsZero = 0
	blackIsZero = 1
	trueColour  = 2
	palette     = 3
	cmyk        = 5
	ycbcr       = 6
)

// Compressions.
const (
	uncompressed = 1
	groupThree   = 3
	groupFour    = 4
	lempelZiv    = 5
	jpegStream   = 7
	deflate      = 8
	packBits     = 32773
	deflateOld   = 32946
)

func tiffSize(data []byte) (w, h int64, err error) {
	d, ok := openDirectory(data)
	if !ok {
		return 0, 0, fmt.Errorf("%w: no directory", errTruncated)
	}
	if d.cut {
		return 0, 0, fmt.Errorf("%w: the directory or a value of it is incomplete", errTruncated)
	}
	return int64(d.first(tagWidth, 0)), int64(d.first(tagHeight, 0)), nil
}

// tiffPages counts the pages of a file, without reduced copies of other pages.
func tiffPages(data []byte) (n int) {
	d, ok := openDirectory(data)
	entries := 0
	for seen := map[uint32]bool{}; ok && entries < maxEntries; {
		if d.first(tagSubfile, 0)&1 == 0 {
			n++
		}
		entries += len(d.entries) + 1
		if seen[d.next] { // a cycle
			break
		}
		seen[d.next] = true
		d, ok = d.following()
	}
	return n
}

// maxEntries limits how many directory entries are read to count pages.
const maxEntries = 1 << 18

// decodeTIFF reads the first page and applies its orientation, which is part of the format, not of
// EXIF.
func decodeTIFF(data []byte, o DecodeOptions) (pix []byte, w, h, orientation int, err error) {
	d, _ := openDirectory(data)
	p, err := newPage(d)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	pix, err = p.decode()
	return pix, p.w, p.h, d.orientation(d.bytes(tagXMP)), err
}

// page is the content of a page's directory.
type page struct {
	d             *tiffDirectory
	w, h          int
	depth         int // bits per sample
	samples       int // per pixel, in the file
	colours       int // of these, without extra samples
	photometric   uint32
	compression   uint32
	planes        int // separate planes: 1, or as many as samples
	tileW, tileH  int // of the segments: tiles, or strips as wide as the picture
	across        int // segments per row of segments
	offsets       []uint32
	counts        []uint32
	premultiplied bool // colours are multiplied by alpha
	alpha         bool
	blockW        int // YCbCr: pixels that share one chroma pair
	blockH        int
	table         [256][3]byte // palette
}

// newPage reads and checks the directory; it refuses unsupported variants by name.
func newPage(d *tiffDirectory) (*page, error) {
	p := &page{
		d: d, w: int(d.first(tagWidth, 0)), h: int(d.first(tagHeight, 0)),
		samples:     int(d.first(tagSamples, max(d.count(tagBitsPerSample), 1))),
		depth:       int(d.first(tagBitsPerSample, 1)),
		photometric: d.first(tagPhotometric, whiteIsZero),
		compression: d.first(tagCompression, uncompressed), planes: 1,
	}
	if p.compression == 0 { // some writers use 0 for none
		p.compression = uncompressed
	}
	if err := p.refuse(); err != nil {
		return nil, err
	}
	if d.first(tagPlanar, 1) == 2 && p.samples > 1 {
		p.planes = p.samples
	}
	if err := p.channels(); err != nil {
		return nil, err
	}
	return p, p.segments()
}

// refuse returns an error that names an unsupported variant.
func (p *page) refuse() error {
	d := p.d
	names := map[uint32]string{
		4:     "transparency mask",
		8:     "CIELab",
		9:     "ICCLab",
		10:    "ITULab",
		32844: "LogL",
		32845: "LogLuv",
		32803: "camera raw",
		34892: "camera raw",
	}
	if name := names[p.photometric]; name != "" || p.photometric == 7 || p.photometric > ycbcr {
		if name == "" {
			name = fmt.Sprintf("photometric interpretation %d:", p.photometric)
		}
		return unsupported(name + " colours; convert it to RGB")
	}
	switch p.compression {
	case uncompressed, groupThree, groupFour, lempelZiv, jpegStream, deflate, packBits, deflateOld:
	default:
		names := map[uint32]string{
			2:     "CCITT run-length",
			6:     "old JPEG",
			32809: "ThunderScan",
			34712: "JPEG 2000",
			34887: "LERC",
			34925: "LZMA",
			50000: "Zstandard",
			50001: "WebP",
			50002: "JPEG XL",
		}
		name := names[p.compression]
		if name == "" {
			name = fmt.Sprintf("number %d", p.compression)
		}
		return unsupported(name + " compression; convert it to PNG")
	}
	for _, b := range d.values(tagBitsPerSample) {
		if int(b) != p.depth {
			return unsupported("samples of different depths; convert it to PNG")
		}
	}
	if f := d.first(tagSampleFormat, 1); f != 1 && f != 4 {
		return unsupported("samples that are no unsigned whole numbers; convert it to 8 bits")
	}
	switch p.depth {
	case 1, 2, 4, 8, 16:
	default:
		return unsupported(fmt.Sprintf("%d bits a sample; convert it to 8 bits", p.depth))
	}
	if p.compression == groupThree || p.compression == groupFour {
		if p.depth != 1 || p.samples != 1 {
			return errors.New("CCITT compression of more than one bit a pixel")
		}
	}
	if n := d.first(tagPredictor, 1); n > 2 || n == 2 && p.depth < 8 {
		return unsupported(fmt.Sprintf("predictor %d for %d bits a sample; convert it to PNG", n,
			p.depth))
	}
	return nil
}

const (
	maxSamples    = 8              // of a pixel
	maxPixelBytes = 2 * maxSamples // 16 bits each
	maxTile       = 256 << 20      // bytes of a tile beyond the picture's pixels
)

// channels checks the number of samples of a pixel and their meaning.
func (p *page) channels() error {
	p.colours = map[uint32]int{
		whiteIsZero: 1, blackIsZero: 1, trueColour: 3, palette: 1, cmyk: 4, ycbcr: 3,
	}[p.photometric]
	switch {
	case p.samples < p.colours:
		return fmt.Errorf("%d samples a pixel, want %d", p.samples, p.colours)
	case p.samples > maxSamples:
		return unsupported(fmt.Sprintf("%d samples a pixel; convert it to RGB", p.samples))
	case p.colours > 1 && p.depth < 8 || p.samples > 1 && p.depth < 8:
		return unsupported(fmt.Sprintf("colours of %d bits; convert it to 8 bits", p.depth))
	case p.photometric == palette && p.depth > 8:
		return unsupported(fmt.Sprintf("a palette for %d bits; convert it to RGB", p.depth))
	case p.photometric == cmyk && p.d.first(tagInkSet, 1) != 1:
		return unsupported("inks that are not CMYK; convert it to RGB")
	case p.photometric == cmyk && p.compression == jpegStream:
		return unsupported("CMYK in JPEG compression; convert it to RGB")
	case p.photometric == palette && p.compression == jpegStream:
		return errors.New("a palette in JPEG compression")
	case p.compression == jpegStream && (p.depth != 8 || p.planes != 1):
		return unsupported("JPEG compression of deep or separate samples; convert it to PNG")
	}
	switch kind := p.d.first(tagExtraSamples, 0); {
	case p.samples == p.colours:
	case p.d.count(tagExtraSamples) > 0:
		p.premultiplied, p.alpha = kind == 1, kind == 1 || kind == 2
	case p.photometric == trueColour && p.samples == 4:
		p.alpha = true
	default:
		return unsupported(fmt.Sprintf("%d samples a pixel without ExtraSamples; convert it to "+
			"RGB", p.samples))
	}
	p.blockW, p.blockH = 1, 1
	if p.photometric == palette {
		return p.palette()
	}
	if p.photometric == ycbcr && p.compression != jpegStream {
		p.blockW, p.blockH = 2, 2
		if v := p.d.values(tagSubsampling); len(v) >= 2 {
			p.blockW, p.blockH = int(v[0]), int(v[1])
		}
		ok := func(n int) bool { return n == 1 || n == 2 || n == 4 }
		predicted := p.d.first(tagPredictor, 1) == 2 && p.blockW*p.blockH > 1
		if !ok(p.blockW) || !ok(p.blockH) || p.depth != 8 || p.samples != 3 || p.planes != 1 ||
			predicted {
			return unsupported("this layout of YCbCr; convert it to RGB")
		}
	}
	return nil
}

// palette reads the colour map: 16 bits per channel, all reds before all greens and blues.
func (p *page) palette() error {
	v := p.d.values(tagColourMap)
	n := 1 << p.depth
	if len(v) < 3*n {
		return fmt.Errorf("the palette has %d values, want %d", len(v), 3*n)
	}
	for i := range n {
		p.table[i] = [3]byte{byte(v[i] >> 8), byte(v[n+i] >> 8), byte(v[2*n+i] >> 8)}
	}
	return nil
}

// segments finds strips or tiles.
func (p *page) segments() error {
	d := p.d
	p.tileW, p.tileH = p.w, int(min(d.first(tagRowsPerStrip, uint32(p.h)), uint32(p.h)))
	p.offsets, p.counts = d.values(tagStripOffsets), d.values(tagStripCounts)
	if d.count(tagTileOffsets) > 0 {
		p.tileW, p.tileH = int(d.first(tagTileWidth, 0)), int(d.first(tagTileHeight, 0))
		p.offsets, p.counts = d.values(tagTileOffsets), d.values(tagTileCounts)
	}
	const most = 1 << 16
	if p.tileW < 1 || p.tileH < 1 || p.tileW > max(p.w, most) || p.tileH > max(p.h, most) {
		return fmt.Errorf("strips or tiles of %dx%d pixels", p.tileW, p.tileH)
	}
	p.across = (p.w + p.tileW - 1) / p.tileW
	n := p.across * ((p.h + p.tileH - 1) / p.tileH) * p.planes
	if len(p.counts) == 0 && n == 1 && len(p.offsets) == 1 { // it extends to the file's end
		p.counts = []uint32{uint32(max(len(d.data)-int(p.offsets[0]), 0))}
	}
	if len(p.offsets) < n || len(p.counts) < n {
		return fmt.Errorf("%w: %d strips or tiles, want %d", errTruncated,
			min(len(p.offsets), len(p.counts)), n)
	}
	raw := int64(p.rowBytes()) * int64(p.h) * int64(p.planes) / int64(p.blockH)
	// the most bytes that one byte can decompress to; a row of CCITT takes at least one bit
	ratio := map[uint32]int64{
		uncompressed: 1, lempelZiv: 2731, deflate: maxDeflate, deflateOld: maxDeflate, packBits: 64,
		jpegStream: 1024, groupThree: int64(p.rowBytes()) * 8,
		groupFour: int64(p.rowBytes()) * 8}[p.compression]
	if raw/ratio > int64(len(d.data)) {
		return fmt.Errorf("%w: %d bytes cannot hold %dx%d pixels", errTruncated, len(d.data), p.w,
			p.h)
	}
	// a tile may be larger than the picture; its bytes are allocated before they are read
	tile := int64(p.rowBytes()) * int64(p.tileH) / int64(p.blockH)
	switch most := maxPixelBytes*int64(p.w)*int64(p.h) + maxTile; {
	case tile > most:
		return fmt.Errorf("tiles of %dx%d pixels, %d bytes, want at most %d for %dx%d pixels",
			p.tileW, p.tileH, tile, most, p.w, p.h)
	case tile/ratio > int64(len(d.data)):
		return fmt.Errorf("%w: %d bytes cannot hold a tile of %dx%d pixels", errTruncated,
			len(d.data), p.tileW, p.tileH)
	}
	return nil
}

// rowBytes is the size of a row of a segment; for YCbCr with subsampling, of blockH rows.
func (p *page) rowBytes() int {
	if p.blockW*p.blockH > 1 {
		return (p.tileW + p.blockW - 1) / p.blockW * (p.blockW*p.blockH + 2)
	}
	if p.depth < 8 { // of one sample
		return (p.tileW*p.depth + 7) / 8
	}
	return p.tileW * (p.samples / p.planes) * (p.depth / 8)
}

// decode reads all segments into an RGB picture.
func (p *page) decode() ([]byte, error) {
	out := make([]byte, 3*p.w*p.h)
	samples := make([]byte, 0, p.tileW*p.samples)
	perPlane := len(p.offsets) / p.planes
	down := (p.h + p.tileH - 1) / p.tileH
	rows := make([][]byte, p.planes)
	for i := range p.across * down {
		x0, y0 := i%p.across*p.tileW, i/p.across*p.tileH
		w, h := min(p.tileW, p.w-x0), min(p.tileH, p.h-y0)
		for plane := range p.planes {
			var err error
			if rows[plane], err = p.segment(plane*perPlane+i, h); err != nil {
				return nil, err
			}
		}
		at := func(y int) []byte { return out[3*((y0+y)*p.w+x0):][:3*w] }
		switch {
		case p.compression == jpegStream: // decoded to RGB
			for y := range h {
				copy(at(y), rows[0][3*y*p.tileW:])
			}
		case p.photometric == ycbcr && p.blockW*p.blockH > 1:
			for y := range h {
				p.sharedRow(at(y), rows[0], y)
			}
		default:
			for y := range h {
				samples = p.row(samples[:0], rows, y, w)
				p.convert(at(y), samples)
			}
		}
	}
	return out, nil
}

// row gathers one row's samples as bytes: 16-bit samples by their high byte, samples of fewer than
// 8 bits unchanged.
func (p *page) row(dst []byte, planes [][]byte, y, w int) []byte {
	size := p.rowBytes()
	if p.depth < 8 {
		src := planes[0][y*size:]
		per := 8 / p.depth
		for x := range w {
			dst = append(dst, src[x/per]>>(8-p.depth-x%per*p.depth)&(1<<p.depth-1))
		}
		return dst
	}
	bytes, high := p.depth/8, 0
	if p.depth == 16 && p.d.order == binary.ByteOrder(binary.LittleEndian) {
		high = 1
	}
	if p.planes == 1 {
		src := planes[0][y*size:]
		for i := range w * p.samples {
			dst = append(dst, src[i*bytes+high])
		}
		return dst
	}
	for x := range w {
		for _, plane := range planes {
			dst = append(dst, plane[y*size+x*bytes+high])
		}
	}
	return dst
}

// convert converts one row of samples to RGB.
func (p *page) convert(dst, src []byte) {
	scale := map[int]byte{1: 255, 2: 85, 4: 17, 8: 1, 16: 1}[p.depth]
	for i, j := 0, 0; i+2 < len(dst); i, j = i+3, j+p.samples {
		s, c := src[j:j+p.samples], dst[i:i+3]
		switch p.photometric {
		case palette:
			copy(c, p.table[s[0]][:])
		case cmyk:
			copyCMYK(c, s[:4])
		case ycbcr:
			c[0], c[1], c[2] = rgbOf(s[0], s[1], s[2])
		case trueColour:
			copy(c, s[:3])
		default:
			v := s[0] * scale
			if p.photometric == whiteIsZero {
				v = 255 - v
			}
			c[0], c[1], c[2] = v, v, v
		}
		if !p.alpha {
			continue
		}
		a := uint32(s[p.colours])
		for k := range c {
			v := uint32(c[k])
			if p.premultiplied {
				c[k] = byte(min(v+255-a, 255))
			} else {
				c[k] = over(v, a)
			}
		}
	}
}

// sharedRow converts a row of subsampled YCbCr to RGB.
func (p *page) sharedRow(dst, src []byte, y int) {
	unit := p.blockW*p.blockH + 2
	src = src[y/p.blockH*p.rowBytes():]
	for x := range len(dst) / 3 {
		block := src[x/p.blockW*unit:][:unit]
		luma := block[y%p.blockH*p.blockW+x%p.blockW]
		dst[3*x], dst[3*x+1], dst[3*x+2] = rgbOf(luma, block[unit-2], block[unit-1])
	}
}

// segment returns the bytes of one strip or tile with the prediction undone; h of its rows are
// inside the picture.
func (p *page) segment(i, h int) ([]byte, error) {
	data := p.d.data
	from, n := uint64(p.offsets[i]), uint64(p.counts[i])
	if from > uint64(len(data)) || from+n > uint64(len(data)) && p.compression != uncompressed {
		return nil, fmt.Errorf("%w: strip or tile %d has bytes %d to %d of %d", errTruncated, i,
			from, from+n, len(data))
	}
	data = data[from:min(from+n, uint64(len(data)))]
	if p.compression == jpegStream {
		return p.jpeg(data, h)
	}
	size := p.rowBytes()
	want := size * ((h + p.blockH - 1) / p.blockH)
	fax := p.compression == groupThree || p.compression == groupFour
	if p.d.first(tagFillOrder, 1) == 2 && !fax {
		data = reversedBits(data)
	}
	out, err := p.decompress(data, want, h)
	if err != nil {
		return nil, fmt.Errorf("strip or tile %d: %w", i, err)
	}
	if len(out) < want {
		return nil, fmt.Errorf("%w: strip or tile %d has %d bytes, want %d", errTruncated, i,
			len(out), want)
	}
	if p.d.first(tagPredictor, 1) == 2 &&
		(p.compression == lempelZiv || p.compression == deflate || p.compression == deflateOld) {
		out = bytes.Clone(out)
		for y := range h {
			p.unpredict(out[y*size : (y+1)*size])
		}
	}
	return out, nil
}

// unpredict adds to each sample the previous one.
func (p *page) unpredict(row []byte) {
	n := p.samples / p.planes
	if p.depth == 16 {
		for i := 2 * n; i+1 < len(row); i += 2 {
			p.d.order.PutUint16(row[i:], p.d.order.Uint16(row[i:])+p.d.order.Uint16(row[i-2*n:]))
		}
		return
	}
	for i := n; i < len(row); i++ {
		row[i] += row[i-n]
	}
}

// reversedBits returns data with the bits of each byte reversed.
func reversedBits(data []byte) []byte {
	out := make([]byte, len(data))
	for i, b := range data {
		out[i] = bits.Reverse8(b)
	}
	return out
}

// Markers of a JPEG stream.
const (
	jpegBegin = "\xff\xd8"
	jpegEnd   = "\xff\xd9"
)

// jpeg decodes a strip or tile that is a JPEG stream to RGB rows of tileW pixels; its tables may be
// in the directory.
func (p *page) jpeg(data []byte, h int) ([]byte, error) {
	body, ok := bytes.CutPrefix(data, []byte(jpegBegin))
	if !ok {
		return nil, errors.New("a strip or tile is no JPEG stream")
	}
	stream := []byte(jpegBegin)
	if tables := p.d.bytes(tagJPEGTables); len(tables) > 4 {
		tables = bytes.TrimSuffix(bytes.TrimPrefix(tables, []byte(jpegBegin)), []byte(jpegEnd))
		stream = append(stream, tables...)
	}
	stream = append(stream, body...)
	f, err := openJPEG(stream)
	if err != nil {
		return nil, err
	}
	if f.width != p.tileW || f.height < h || f.height > p.tileH+64 {
		return nil, fmt.Errorf("a strip or tile of %dx%d pixels, want %dx%d", f.width, f.height,
			p.tileW, h)
	}
	if n := len(f.parts); n != p.samples || p.samples != p.colours {
		return nil, unsupported(fmt.Sprintf(
			"JPEG compression of %d components for %d samples; convert it to PNG", n, p.samples))
	}
	if err := f.decode(); err != nil {
		return nil, err
	}
	out := f.rgb(map[uint32]jpegColour{trueColour: jpegRGB, ycbcr: jpegYCC}[p.photometric])
	if p.photometric == whiteIsZero {
		for i := range out {
			out[i] = 255 - out[i]
		}
	}
	return out, nil
}
