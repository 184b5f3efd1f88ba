package kernel

import (
	"fmt"
	"sync"
	"unsafe"
)

// PageKeys is the number of keys that a [Page] holds.
const PageKeys = 64

// Page is a part of a cache: the keys and values of up to PageKeys tokens in one layer, in float32,
// or in float16 if Halves is not nil. They are stored in the order in which attention reads them,
// head by head, all keys before all values:
//
//	keys   [KVHeads][HeadDim][PageKeys]
//	values [KVHeads][PageKeys][HeadDim rounded up to 16]
//
// so that neither many queries nor a single one need a copy.
type Page struct {
	Floats []float32
	Halves []uint16
}

// attnPad is the length of the longest vector. Rows in memory and buffers of attention are padded
// to a multiple of it.
const attnPad = 16

func padded(n int) int { return (n + attnPad - 1) &^ (attnPad - 1) }

// PageSize returns the number of elements of a page.
func PageSize(kvHeads, headDim int) int {
	return kvHeads * PageKeys * (headDim + padded(headDim))
}

// PageBytes returns the memory of a page in bytes; half means float16.
func PageBytes(kvHeads, headDim int, half bool) int64 {
	size := int64(4)
	if half {
		size = 2
	}
	return size * int64(PageSize(kvHeads, headDim))
}

// NewPage returns a page of zeros in memory of m.
func NewPage(m *Memory, kvHeads, headDim int, half bool) Page {
	n := PageSize(kvHeads, headDim)
	b := unsafe.Pointer(unsafe.SliceData(m.Bytes(int(PageBytes(kvHeads, headDim, half)))))
	if half {
		return Page{Halves: unsafe.Slice((*uint16)(b), n)}
	}
	return Page{Floats: unsafe.Slice((*float32)(b), n)}
}

// pageKeys returns the start of a head's keys, pageValues the start of its values.
func pageKeys(headDim, head int) int { return head * PageKeys * headDim }

func pageValues(kvHeads, headDim, head int) int {
	return PageKeys * (kvHeads*headDim + head*padded(headDim))
}

// check panics if the page does not have the size.
func (g *Page) check(size int) {
	if g == nil || (g.Halves == nil && len(g.Floats) < size) ||
		(g.Halves != nil && len(g.Halves) < size) {
		panic(fmt.Sprintf("kernel.Page: too short, want %d elements", size))
	}
}

const (
	// pageGroup is the number of heads in a task of WritePages.
	pageGroup = 4
	// pageSerial is the number of elements from which WritePages uses several threads.
	pageSerial = 1 << 12
)

// WritePages writes rows keys k and values v, both [rows, kvHeads·headDim], to the pages from key
// at on, rounded to float16 if the pages are.
func WritePages(p *Pool, pages []*Page, at int, k, v []float32, rows, kvHeads, headDim int) {
	if rows == 0 {
		return
	}
	width := kvHeads * headDim
	if at < 0 || rows < 0 || len(k) < rows*width || len(v) < rows*width ||
		at+rows > PageKeys*len(pages) {
		panic(fmt.Sprintf(
			"kernel.WritePages: %d rows of %d from %d on: %d pages, %d and %d elements", rows,
			width, at, len(pages), len(k), len(v)))
	}
	first, last := at/PageKeys, (at+rows-1)/PageKeys
	for _, g := range pages[first : last+1] {
		g.check(PageSize(kvHeads, headDim))
	}
	if rows*width < pageSerial {
		p = nil
	}
	w := pageWrites.Get().(*pageWrite)
	w.pages, w.at, w.k, w.v, w.rows, w.kvHeads, w.headDim = pages, at, k, v, rows, kvHeads, headDim
	p.Run((last-first+1)*w.groups(), w.run)
	w.pages, w.k, w.v = nil, nil, nil
	pageWrites.Put(w)
}

// pageWrite is one call of WritePages. It is recycled, so that decoding does not allocate.
type pageWrite struct {
	pages            []*Page
	at               int
	k, v             []float32
	rows             int
	kvHeads, headDim int
	run              func(i int)
}

var pageWrites = sync.Pool{New: func() any {
	w := new(pageWrite)
	w.run = w.task
	return w
}}

func (w *pageWrite) groups() int { return (w.kvHeads + pageGroup - 1) / pageGroup }

func (w *pageWrite) task(i int) {
	n := w.groups()
	h := i % n * pageGroup
	w.heads(w.at/PageKeys+i/n, h, min(h+pageGroup, w.kvHeads))
}

// heads writes the rows of one page for heads h0 … h1-1.
func (w *pageWrite) heads(page, h0, h1 int) {
	g, d, width := w.pages[page], w.headDim, w.kvHeads*w.headDim
	lo, hi := max(w.at, page*PageKeys), min(w.at+w.rows, (page+1)*PageKeys)
	place, n := lo-page*PageKeys, hi-lo
	for h := h0; h < h1; h++ {
		from := (lo-w.at)*width + h*d
		keys, values := pageKeys(d, h), pageValues(w.kvHeads, d, h)+place*padded(d)
		if g.Halves == nil {
			transposeRows(g.Floats[keys+place:][:PageKeys*d-place], w.k[from:], width, n, d)
			for r := range n {
				copy(g.Floats[values+r*padded(d):][:d], w.v[from+r*width:])
			}
			continue
		}
		transposeHalves(g.Halves[keys+place:][:PageKeys*d-place], w.k[from:], width, n, d)
		for r := range n {
			NarrowHalf(g.Halves[values+r*padded(d):], w.v[from+r*width:][:d])
		}
	}
}

// transposeRowsGo sets dst[i*PageKeys+r] = src[r*stride+i] for r < rows and i < n.
func transposeRowsGo(dst, src []float32, stride, rows, n int) {
	for r := range rows {
		for i, x := range src[r*stride:][:n] {
			dst[i*PageKeys+r] = x
		}
	}
}

// halfRows is the number of rows from which values are transposed before they are rounded.
const halfRows = 16

// pageScratch is one thread's scratch memory.
type pageScratch struct {
	wide   []float32
	narrow []uint16
	seen   uint16 // keeps these loads
}

var pageScratches = sync.Pool{New: func() any { return new(pageScratch) }}

// transposeHalves is transposeRowsGo to float16.
func transposeHalves(dst []uint16, src []float32, stride, rows, n int) {
	sc := pageScratches.Get().(*pageScratch)
	defer pageScratches.Put(sc)
	if rows >= halfRows {
		sc.wide = grow(sc.wide, n*PageKeys)
		transposeRows(sc.wide, src, stride, rows, n)
		for i := range n {
			NarrowHalf(dst[i*PageKeys:], sc.wide[i*PageKeys:][:rows])
		}
		return
	}
	sc.narrow = grow(sc.narrow, n)
	// The stores of a row go to a cache line each, which come from memory one after another. Loads
	// fetch several at once.
	var seen uint16
	for i := range n {
		seen |= dst[i*PageKeys]
	}
	sc.seen = seen
	for r := range rows {
		NarrowHalf(sc.narrow, src[r*stride:][:n])
		for i, x := range sc.narrow {
			dst[i*PageKeys+r] = x
		}
	}
}

// ReadPages copies the keys (or values) from … to-1 of pages as float32 to dst [to-from,
// kvHeads·headDim].
func ReadPages(dst []float32, pages []*Page, from, to, kvHeads, headDim int, values bool) {
	width, d := kvHeads*headDim, headDim
	for j := from; j < to; j++ {
		g, place := pages[j/PageKeys], j%PageKeys
		for h := range kvHeads {
			row := dst[(j-from)*width+h*d:][:d]
			at, step := pageKeys(d, h)+place, PageKeys
			if values {
				at, step = pageValues(kvHeads, d, h)+place*padded(d), 1
			}
			for i := range row {
				if g.Halves == nil {
					row[i] = g.Floats[at+i*step]
				} else {
					row[i] = Half(g.Halves[at+i*step])
				}
			}
		}
	}
}
