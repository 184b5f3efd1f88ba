// Package pack writes and reads packed files: a model ready to run in one file.
package pack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
)

// A packed file holds a model ready to run: its weights in a plan's types, and its documents. All
// numbers are little-endian.
//
//	head      Magic, the version as a uint32, and zeros up to packHead bytes except for
//	          the note of source.go
//	data      documents, then tensors, then orders of their columns, each at a multiple
//	          of packAlign, zeros between
//	index     one JSON object, packIndex
//	24 bytes  length of data and of index as uint64, CRC-32C of the index and of
//	          the 20 bytes before this field as uint32
//
// The index is at the end, so that the file is written in one pass and a file that was cut short
// has no index. Data is checked in chunks of packChunk bytes.
const (
	Magic       = "RESTOREpack\n" // the beginning of every packed file
	packVersion = 2
	packHead    = 4096 // a page, so that mapped tensors are aligned like the data
	packTail    = 24
	packAlign   = 64
	packChunk   = 1 << 20
	maxIndex    = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// packIndex is a packed file's index.
type packIndex struct {
	checkpoint.Packed
	Name    string       `json:"name"`
	Sources []sourceFile `json:"sources"` // the files that were packed, at that time
	Parts   []packPart   `json:"parts"`
	Tensors []packTensor `json:"tensors"`
	Sums    []byte       `json:"sums"` // CRC-32C of every chunk of data, 4 bytes each
}

type packFile struct {
	Name string `json:"name"`
	At   uint64 `json:"at"`
	Size uint64 `json:"size"`
}

type packPart struct {
	packFile
	From string `json:"from"`
}

type packTensor struct {
	packFile
	DType string    `json:"dtype"`
	Shape []uint64  `json:"shape"`
	Order *packFile `json:"order,omitempty"` // the tensor's Order as int32, none: nil
}

// Writer writes a packed file.
type Writer struct {
	w      io.Writer
	index  packIndex
	orders [][]int32 // of the tensors
	at     uint64    // in data
	sum    uint32    // of the chunk that contains at
}

// NewWriter writes the beginning of a packed file of b to w: everything except the weights, which
// are written by Add.
func NewWriter(w io.Writer, b checkpoint.Bundle, how checkpoint.Packed) (*Writer, error) {
	p := &Writer{w: w, index: packIndex{Packed: how, Name: b.About().Name}}
	if b.About().Packed == nil {
		if err := p.noteSources(b.About().Files); err != nil {
			return nil, fmt.Errorf("checkpoint: pack: %w", err)
		}
	}
	if _, err := w.Write(packStart()); err != nil {
		return nil, err
	}
	var failed error
	b.Parts().Each(func(name string, part *checkpoint.Part) {
		if part.Data == nil || failed != nil {
			return
		}
		at, err := p.put(part.Data)
		p.index.Parts = append(
			p.index.Parts,
			packPart{packFile{name, at, uint64(len(part.Data))}, part.From},
		)
		failed = err
	})
	return p, failed
}

// packStart returns the beginning of every packed file.
func packStart() []byte {
	b := make([]byte, packHead)
	binary.LittleEndian.PutUint32(b[copy(b, Magic):], packVersion)
	return b
}

// Add appends a weight.
func (p *Writer) Add(name string, t *tensor.Tensor) error {
	at, err := p.put(t.Data)
	if err != nil {
		return err
	}
	e := packTensor{packFile: packFile{name, at, uint64(len(t.Data))}, DType: t.DType.String()}
	for _, n := range t.Shape {
		e.Shape = append(e.Shape, uint64(n))
	}
	p.index.Tensors = append(p.index.Tensors, e)
	p.orders = append(p.orders, t.Order)
	return nil
}

// putOrders appends the orders of the tensors' columns.
func (p *Writer) putOrders() error {
	for i, order := range p.orders {
		if order == nil {
			continue
		}
		b := make([]byte, 0, 4*len(order))
		for _, at := range order {
			b = binary.LittleEndian.AppendUint32(b, uint32(at))
		}
		at, err := p.put(b)
		if err != nil {
			return err
		}
		t := &p.index.Tensors[i]
		t.Order = &packFile{t.Name, at, uint64(len(b))}
	}
	return nil
}

// put appends b at the next multiple of packAlign and returns that offset.
func (p *Writer) put(b []byte) (at uint64, err error) {
	var zeros [packAlign]byte
	if err := p.write(zeros[:-p.at%packAlign]); err != nil {
		return 0, err
	}
	at = p.at
	return at, p.write(b)
}

func (p *Writer) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), packChunk-int(p.at%packChunk))
		if _, err := p.w.Write(b[:n]); err != nil {
			return err
		}
		p.sum = crc32.Update(p.sum, castagnoli, b[:n])
		if p.at += uint64(n); p.at%packChunk == 0 {
			p.endChunk()
		}
		b = b[n:]
	}
	return nil
}

func (p *Writer) endChunk() {
	p.index.Sums, p.sum = binary.LittleEndian.AppendUint32(p.index.Sums, p.sum), 0
}

// Close writes the index. It does not close the writer.
func (p *Writer) Close() error {
	if err := p.hashSources(); err != nil {
		return fmt.Errorf("checkpoint: pack: %w", err)
	}
	if err := p.putOrders(); err != nil {
		return err
	}
	if p.at%packChunk != 0 {
		p.endChunk()
	}
	index, err := json.Marshal(p.index)
	if err != nil {
		return fmt.Errorf("checkpoint: pack: %w", err)
	}
	if len(index) > maxIndex {
		return fmt.Errorf(
			"checkpoint: pack: index: got %d bytes, want at most %d",
			len(index),
			maxIndex,
		)
	}
	b := binary.LittleEndian.AppendUint64(index, p.at)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(index)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(index, castagnoli))
	_, err = p.w.Write(
		binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[len(index):], castagnoli)),
	)
	return err
}

// Open opens the packed file at path. It checks index and documents; Load checks the weights.
func Open(path string) (_ *Packed, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint: %s: %w", path, err)
		}
	}()
	mem, err := checkpoint.MapFile(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, mem.Close())
		}
	}()
	index, data, err := parsePack(mem.Data)
	if err != nil {
		return nil, err
	}
	was, _ := seen(mem.Data[:packHead])
	note, err := index.unchanged(was)
	if err != nil {
		return nil, err
	}
	if note != nil {
		remember(path, note)
	}
	p, err := index.bundle(data)
	if err != nil {
		return nil, err
	}
	p.Maps, p.path = []*checkpoint.Mapping{mem}, path
	if abs, err := filepath.Abs(path); err == nil {
		p.What.Files = []string{abs}
	}
	return p, nil
}

// Packed is an open packed file.
type Packed struct {
	checkpoint.Store
	path    string
	data    []byte // checked chunk by chunk against sums; nil once all is copied
	sums    []byte
	tensors []packTensor
	loaded  bool
}

// parsePack returns the index of a packed file and its data. Offsets in the index are checked to be
// within the data; the data is not read.
func parsePack(b []byte) (*packIndex, []byte, error) {
	switch {
	case len(b) < len(Magic)+4 || string(b[:len(Magic)]) != Magic:
		return nil, nil, errors.New(
			"got a file that is not a packed model, want one that `restore pack` wrote",
		)
	case binary.LittleEndian.Uint32(b[len(Magic):]) != packVersion:
		return nil, nil, fmt.Errorf(
			"packed in version %d of the form, want %d: pack the checkpoint again",
			binary.LittleEndian.Uint32(b[len(Magic):]),
			packVersion,
		)
	case len(b) < packHead+packTail:
		return nil, nil, fmt.Errorf(
			"torn: got %d bytes, without the index at the end (an incomplete copy?): pack "+
				"the checkpoint again",
			len(b),
		)
	}
	if _, ok := seen(b[:packHead]); !ok {
		return nil, nil, fmt.Errorf(
			"damaged: the first %d bytes are not a packed file's: pack the checkpoint again",
			packHead,
		)
	}
	tail := b[len(b)-packTail:]
	size, length := binary.LittleEndian.Uint64(tail), binary.LittleEndian.Uint64(tail[8:])
	room := uint64(len(b) - packHead - packTail)
	if crc32.Checksum(
		tail[:packTail-4],
		castagnoli,
	) != binary.LittleEndian.Uint32(
		tail[packTail-4:],
	) ||
		length > room ||
		size != room-length {
		return nil, nil, fmt.Errorf(
			"torn: the %d bytes do not end with their index (an incomplete copy?): "+
				"pack the checkpoint again",
			len(b),
		)
	}
	if length > maxIndex {
		return nil, nil, fmt.Errorf("index: got %d bytes, want at most %d", length, maxIndex)
	}
	data := b[packHead : packHead+int(size)]
	text := b[packHead+int(size) : len(b)-packTail]
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(tail[16:]) {
		return nil, nil, errors.New(
			"damaged: the index differs from its checksum: pack the checkpoint again",
		)
	}
	if err := checkpoint.CheckObject(text); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	index := new(packIndex)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(index); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	if want := 4 * ((size + packChunk - 1) / packChunk); uint64(len(index.Sums)) != want {
		return nil, nil, fmt.Errorf(
			"index: got %d bytes of checksums, want %d",
			len(index.Sums),
			want,
		)
	}
	return index, data, nil
}

// bundle makes the result of Open from a packed file's data.
func (x *packIndex) bundle(data []byte) (*Packed, error) {
	p := &Packed{data: data, sums: x.Sums, tensors: x.Tensors}
	how := x.Packed
	p.What = checkpoint.About{Name: x.Name, Format: "packed file", Packed: &how}
	p.Weights = map[string]*checkpoint.Weight{}
	at := uint64(0)
	take := func(f packFile) ([]byte, error) {
		if f.At < at || f.At%packAlign != 0 || f.At > uint64(len(data)) ||
			f.Size > uint64(len(data))-f.At {
			return nil, fmt.Errorf(
				"index: %q: got bytes %d and %d from there, want them after %d and within "+
					"the %d of the data",
				checkpoint.Excerpt([]byte(f.Name)),
				f.At,
				f.Size,
				at,
				len(data),
			)
		}
		at = f.At + f.Size
		return data[f.At:at:at], nil
	}
	parts := map[string]*checkpoint.Part{}
	p.Docs.Each(func(name string, part *checkpoint.Part) { parts[name], part.From = part, name })
	for _, f := range x.Parts {
		b, err := take(f.packFile)
		if err != nil {
			return nil, err
		}
		part := parts[f.Name]
		if part == nil || part.Data != nil || len(b) > folder.MaxFile {
			return nil, fmt.Errorf(
				"index: part %q of %d bytes: want a known name that occurs once and at most "+
					"%d bytes",
				checkpoint.Excerpt([]byte(f.Name)),
				f.Size,
				folder.MaxFile,
			)
		}
		*part = checkpoint.Part{Data: bytes.Clone(b), From: f.From} // readable after Close too
	}
	if err := p.checkAll(0, at); err != nil {
		return nil, err
	}
	for _, t := range x.Tensors {
		b, err := take(t.packFile)
		if err != nil {
			return nil, err
		}
		w, err := t.tensor(b)
		if err != nil {
			return nil, fmt.Errorf("index: tensor %q: %w", checkpoint.Excerpt([]byte(t.Name)), err)
		}
		if p.Weights[t.Name] != nil {
			return nil, fmt.Errorf(
				"index: tensor %q: occurs twice",
				checkpoint.Excerpt([]byte(t.Name)),
			)
		}
		p.Weights[t.Name] = readable(w)
	}
	for _, t := range x.Tensors {
		if t.Order == nil {
			continue
		}
		b, err := take(*t.Order)
		if err != nil {
			return nil, err
		}
		if err := p.checkAll(t.Order.At, at); err != nil {
			return nil, err
		}
		w := p.Weights[t.Name]
		if w.Order, err = readOrder(&w.Tensor, b); err != nil {
			return nil, fmt.Errorf("index: tensor %q: %w", checkpoint.Excerpt([]byte(t.Name)), err)
		}
	}
	config := &p.Docs.Config
	if config.Data == nil {
		return nil, errors.New("index: config missing")
	}
	if err := checkpoint.CheckObject(config.Data); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	p.Docs.Each(func(_ string, part *checkpoint.Part) {
		part.Data = slices.Clone(part.Data) // it must outlive the mapping
	})
	p.Seal()
	return p, nil
}

// formats are the packed types of weights.
var formats = map[tensor.DType]kernel.Format{
	tensor.Q8:      kernel.Q8,
	tensor.Q4:      kernel.Q4,
	tensor.Q4M:     kernel.Q4M,
	tensor.IQ4:     kernel.IQ4,
	tensor.BF16Dot: kernel.BF16Dot,
}

// readable returns t as a weight whose packed values can be read: [out, …] as an [out, in] matrix.
func readable(t *tensor.Tensor) *checkpoint.Weight {
	w := &checkpoint.Weight{Tensor: *t}
	f, ok := formats[t.DType]
	if !ok || len(t.Shape) == 0 {
		return w
	}
	out := t.Shape[0]
	in := t.Len() / max(1, out)
	w.Read = func(dst []float32, at int) error {
		m := &kernel.Matrix{Format: f, N: out, K: in, Data: w.Data, Order: w.Order}
		if m.Bytes() > len(w.Data) {
			return fmt.Errorf("got %d bytes, want %d for %v", len(w.Data), m.Bytes(), t)
		}
		row := make([]float32, in)
		for len(dst) > 0 {
			m.Row(row, at/in)
			n := copy(dst, row[at%in:])
			dst, at = dst[n:], at+n
		}
		return nil
	}
	return w
}

// tensor returns a view of b. The binder, which knows the layout, checks the size of quantised
// data.
func (t *packTensor) tensor(b []byte) (*tensor.Tensor, error) {
	w := &tensor.Tensor{Data: b, Shape: make([]int, len(t.Shape))}
	for _, d := range []tensor.DType{
		tensor.F32, tensor.F16, tensor.BF16, tensor.Q8, tensor.Q4, tensor.Q4M, tensor.IQ4,
		tensor.BF16Dot,
	} {
		if d.String() == t.DType {
			w.DType = d
		}
	}
	if w.DType.String() != t.DType {
		return nil, fmt.Errorf(
			"dtype: got %q, want F32, F16, BF16, Q8, Q4, Q4M, IQ4 or BF16Dot",
			checkpoint.Excerpt([]byte(t.DType)),
		)
	}
	n := uint64(1)
	for i, d := range t.Shape {
		if most := 2*uint64(len(b)) + 1; d > most ||
			d != 0 && n > most/d { // an element takes at least half a byte
			return nil, fmt.Errorf("shape: got %v for %d bytes", t.Shape, len(b))
		}
		n *= d
		w.Shape[i] = int(d)
	}
	if bits := uint64(w.DType.Bits()); bits != 0 && n*bits/8 != uint64(len(b)) {
		return nil, fmt.Errorf("got %d bytes, want %d for %v", len(b), n*bits/8, w)
	}
	return w, nil
}

// readOrder returns the order of t's columns from b.
func readOrder(t *tensor.Tensor, b []byte) ([]int32, error) {
	if _, ok := formats[t.DType]; !ok || t.DType == tensor.BF16Dot || len(t.Shape) != 2 ||
		len(b) != 4*t.Shape[1] {
		return nil, fmt.Errorf("order: got %d bytes for %v, want 4 for each column of blocks",
			len(b), t)
	}
	order, seen := make([]int32, t.Shape[1]), make([]bool, t.Shape[1])
	for i := range order {
		at := binary.LittleEndian.Uint32(b[4*i:])
		if uint64(at) >= uint64(len(seen)) || seen[at] {
			return nil, fmt.Errorf("order: column %d: got %d, want each below %d once", i, at,
				len(seen))
		}
		order[i], seen[at] = int32(at), true
	}
	return order, nil
}

// chunk is chunk i of the data.
func (p *Packed) chunk(i int) []byte {
	return p.data[i*packChunk : min((i+1)*packChunk, len(p.data))]
}

// checkAll compares the chunks from byte from to byte to with their checksums.
func (p *Packed) checkAll(from, to uint64) error {
	for i := int(from / packChunk); i < int((to+packChunk-1)/packChunk); i++ {
		if err := p.check(i, p.chunk(i)); err != nil {
			return err
		}
	}
	return nil
}

// check compares chunk i, which b holds, with its checksum.
func (p *Packed) check(i int, b []byte) error {
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(p.sums[4*i:]) {
		return fmt.Errorf(
			"damaged: bytes %d to %d differ from their checksum: pack the checkpoint again",
			packHead+i*packChunk,
			packHead+i*packChunk+len(b)-1,
		)
	}
	return nil
}

// Decoding from a copy in huge pages is faster than from the mapping, whose pages are small unless
// the system read the file through it. But the memory must be allocated first, which at worst takes
// as long as reading a disk. So Load copies for at most copyTime, and after the first copyTrial
// bytes only while it is faster than copyRate bytes per second.
var copyTime = time.Second

const (
	copyTrial = 64 << 20
	copyRate  = 3e9
)

// Load checks the weights of a packed file against their checksums. For up to a second, it also
// copies them, starting at the end, where decoders are, to memory from alloc; the rest stays
// mapped. It implements checkpoint.Loader.
func (p *Packed) Load(
	alloc func(n int) []byte,
	run func(n int, task func(i int)),
	progress func(done, total int64),
) error {
	if p.loaded || len(p.tensors) == 0 {
		return nil
	}
	first := int(p.tensors[0].At / packChunk)
	base := first * packChunk
	left := p.data[base:]
	chunks := (len(left) + packChunk - 1) / packChunk
	copied := make([]bool, chunks)
	var into []byte
	var file *os.File
	if p.Maps[0].Mapped() { // otherwise the data is already in memory
		var err error
		if file, err = os.Open(p.path); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		defer file.Close()
		into = alloc(len(left))
	}
	start := time.Now()
	var size atomic.Int64 // number of copied bytes
	worthIt := func() bool {
		spent, n := time.Since(start), size.Load()
		return into != nil && spent < copyTime &&
			(n < copyTrial || float64(n) >= copyRate*spent.Seconds())
	}
	var mu sync.Mutex
	var failed error
	done := int64(0)
	run(chunks, func(i int) {
		i = chunks - 1 - i
		at, end := i*packChunk, min((i+1)*packChunk, len(left))
		b := left[at:end]
		var err error
		if worthIt() {
			b, copied[i] = into[at:end], true
			_, err = file.ReadAt(b, int64(packHead+base+at))
			size.Add(int64(len(b)))
		}
		if err == nil {
			err = p.check(first+i, b)
		}
		mu.Lock()
		defer mu.Unlock()
		done += int64(len(b))
		if err != nil && failed == nil {
			failed = fmt.Errorf("checkpoint: %s: %w", p.path, err)
		}
		if progress != nil && (done%(64*packChunk) == 0 || done == int64(len(left))) {
			progress(done, int64(len(left)))
		}
	})
	if failed != nil {
		return failed
	}
	p.loaded = true
	all := true
	for _, t := range p.tensors {
		at, end := int(t.At)-base, int(t.At+t.Size)-base
		if slices.Contains(copied[at/packChunk:(end+packChunk-1)/packChunk], false) {
			all = false
			continue
		}
		p.Weights[t.Name].Data = into[at:end:end]
	}
	if all {
		p.data = nil
		return p.Close()
	}
	return nil
}
