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
	"math"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/errs"
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
//	data      documents, then large tensors in the order of their use, then small ones,
//	          then orders of columns, each at a multiple of packAlign, zeros between
//	index     one JSON object, packIndex
//	24 bytes  length of data and of index as uint64, CRC-32C of the index and of
//	          the 20 bytes before this field as uint32
//
// The index is at the end, so that the file is written in one pass and a file that was cut short
// has no index. The index has a checksum for each item of the data, so that opening a file reads
// only documents and index, and each tensor can be checked when it is needed. Small tensors, which
// are read at once, lie together.
const (
	Magic       = "RESTOREpack\n" // the beginning of every packed file
	packVersion = 3
	packHead    = 4096 // a page, so that mapped tensors are aligned like the data
	packTail    = 24
	packAlign   = 64
	packSmall   = 64 << 10 // size of the largest small tensor
	packPart    = 1 << 20  // read and checked at a time
	maxIndex    = 64 << 20
	maxName     = 500
)

// Format is this program's own.
var Format = checkpoint.Format{
	Name: "packed file", Looks: "a packed file",
	Is: func(p *checkpoint.Place) (bool, error) {
		return bytes.HasPrefix(p.Start, []byte(Magic)), nil
	},
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) { return Open(p.Path) },
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// packIndex is a packed file's index.
type packIndex struct {
	checkpoint.Packed
	Name    string       `json:"name"`
	Sources []sourceFile `json:"sources"` // the files that were packed, at that time
	Parts   []packDoc    `json:"parts"`
	Tensors []packTensor `json:"tensors"`
}

type packItem struct {
	Name string `json:"name"`
	At   uint64 `json:"at"`
	Size uint64 `json:"size"`
	Sum  uint32 `json:"sum"` // CRC-32C of the item and the zeros before it
}

type packDoc struct {
	packItem
	From string `json:"from"`
}

type packTensor struct {
	packItem
	DType string    `json:"dtype"`
	Shape []uint64  `json:"shape"`
	Order *packItem `json:"order,omitempty"` // the tensor's Order as int32, none: nil
}

// Writer writes a packed file.
type Writer struct {
	w      io.Writer
	index  packIndex
	small  []smallTensor
	orders []order
	at     uint64 // in data
}

// smallTensor is a tensor that waits for the large ones.
type smallTensor struct {
	name string
	*tensor.Tensor
}

// order is the Order of a tensor of the index.
type order struct {
	tensor  int
	columns []int32
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
		item, err := p.put(name, part.Data)
		p.index.Parts = append(p.index.Parts, packDoc{item, part.From})
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

// Add appends a weight. Weights are added in the order of their use.
func (p *Writer) Add(name string, t *tensor.Tensor) error {
	if len(t.Data) > packSmall {
		return p.add(name, t)
	}
	kept := *t
	kept.Data = bytes.Clone(t.Data)
	p.small = append(p.small, smallTensor{name, &kept})
	return nil
}

func (p *Writer) add(name string, t *tensor.Tensor) error {
	item, err := p.put(name, t.Data)
	if err != nil {
		return err
	}
	e := packTensor{packItem: item, DType: t.DType.String()}
	for _, n := range t.Shape {
		e.Shape = append(e.Shape, uint64(n))
	}
	if t.Order != nil {
		p.orders = append(p.orders, order{len(p.index.Tensors), t.Order})
	}
	p.index.Tensors = append(p.index.Tensors, e)
	return nil
}

// putRest appends the small tensors, then the orders of the tensors' columns.
func (p *Writer) putRest() error {
	for _, t := range p.small {
		if err := p.add(t.name, t.Tensor); err != nil {
			return err
		}
	}
	for _, o := range p.orders {
		b := make([]byte, 0, 4*len(o.columns))
		for _, at := range o.columns {
			b = binary.LittleEndian.AppendUint32(b, uint32(at))
		}
		t := &p.index.Tensors[o.tensor]
		item, err := p.put(t.Name, b)
		if err != nil {
			return err
		}
		t.Order = &item
	}
	return nil
}

// put appends b at the next multiple of packAlign and returns its entry.
func (p *Writer) put(name string, b []byte) (packItem, error) {
	if len(name) > maxName {
		return packItem{}, fmt.Errorf("checkpoint: pack: got a name of %d bytes, want at most %d",
			len(name), maxName)
	}
	zeros := make([]byte, -p.at%packAlign)
	at := p.at + uint64(len(zeros))
	sum := crc32.Update(crc32.Checksum(zeros, castagnoli), castagnoli, b)
	p.at = at + uint64(len(b))
	_, err := p.w.Write(zeros)
	if err == nil {
		_, err = p.w.Write(b)
	}
	return packItem{name, at, uint64(len(b)), sum}, err
}

// Close writes the index. It does not close the writer.
func (p *Writer) Close() error {
	if err := p.hashSources(); err != nil {
		return fmt.Errorf("checkpoint: pack: %w", err)
	}
	if err := p.putRest(); err != nil {
		return err
	}
	index, err := json.Marshal(p.index)
	if err != nil {
		return fmt.Errorf("checkpoint: pack: %w", err)
	}
	if len(index) > maxIndex {
		return fmt.Errorf(
			"checkpoint: pack: index: got %d bytes, want at most %d", len(index), maxIndex)
	}
	b := binary.LittleEndian.AppendUint64(index, p.at)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(index)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(index, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[len(index):], castagnoli))
	_, err = p.w.Write(b)
	return err
}

// Open opens the packed file at path. It reads and checks index and documents; Check checks a
// weight.
func Open(path string) (_ *Packed, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint: %s: %w", path, err)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	mem, err := checkpoint.Map(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, mem.Close(), file.Close())
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
	p.Maps, p.path, p.file = []*checkpoint.Mapping{mem}, path, file
	if abs, err := filepath.Abs(path); err == nil {
		p.What.Files = []string{abs}
	}
	return p, nil
}

// Packed is an open packed file.
type Packed struct {
	checkpoint.Store
	path   string
	file   *os.File // nil if the file is in memory
	data   []byte
	stored map[string]stored
}

// stored is where a weight lies in the data.
type stored struct {
	from, at uint64 // of the zeros before it, and of the weight
	sum      uint32
}

// Close implements checkpoint.Bundle.
func (p *Packed) Close() error {
	err := p.Store.Close()
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
		p.file = nil
	}
	return err
}

// parsePack returns the index of a packed file and its data. Offsets in the index are checked to be
// within the data; the data is not read.
func parsePack(b []byte) (*packIndex, []byte, error) {
	switch {
	case len(b) < len(Magic)+4 || string(b[:len(Magic)]) != Magic:
		return nil, nil, errors.New(
			"got a file that is not a packed model, want one that `restore pack` wrote")
	case binary.LittleEndian.Uint32(b[len(Magic):]) != packVersion:
		return nil, nil, checkpoint.As(errs.ErrUnsupported, fmt.Errorf(
			"packed in version %d of the form, want %d: pack the checkpoint again (restore pack)",
			binary.LittleEndian.Uint32(b[len(Magic):]), packVersion))
	case len(b) < packHead+packTail:
		return nil, nil, checkpoint.As(errs.ErrDamaged, fmt.Errorf(
			"torn: got %d bytes, without the index at the end (an incomplete copy?): pack "+
				"the checkpoint again", len(b)))
	}
	if _, ok := seen(b[:packHead]); !ok {
		return nil, nil, fmt.Errorf(
			"%w: the first %d bytes are not a packed file's: pack the checkpoint again",
			errs.ErrDamaged, packHead)
	}
	tail := b[len(b)-packTail:]
	size, length := binary.LittleEndian.Uint64(tail), binary.LittleEndian.Uint64(tail[8:])
	room := uint64(len(b) - packHead - packTail)
	if crc32.Checksum(tail[:packTail-4], castagnoli) != binary.LittleEndian.Uint32(
		tail[packTail-4:]) || length > room || size != room-length {
		return nil, nil, checkpoint.As(errs.ErrDamaged, fmt.Errorf(
			"torn: the %d bytes do not end with their index (an incomplete copy?): "+
				"pack the checkpoint again", len(b)))
	}
	if length > maxIndex {
		return nil, nil, fmt.Errorf("index: got %d bytes, want at most %d", length, maxIndex)
	}
	data := b[packHead : packHead+int(size)]
	text := b[packHead+int(size) : len(b)-packTail]
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(tail[16:]) {
		return nil, nil, fmt.Errorf(
			"%w: the index differs from its checksum: pack the checkpoint again", errs.ErrDamaged)
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
	return index, data, nil
}

// items takes the items of a packed file's data in their order.
type items struct {
	data []byte
	end  uint64 // of the last item
}

// take returns an item's bytes and its place. Nothing but padding may lie between items.
func (i *items) take(f packItem) ([]byte, stored, error) {
	if len(f.Name) > maxName {
		return nil, stored{}, fmt.Errorf("index: got a name of %d bytes, want at most %d",
			len(f.Name), maxName)
	}
	size := uint64(len(i.data))
	if f.At < i.end || f.At%packAlign != 0 || f.At-i.end >= packAlign || f.At > size ||
		f.Size > size-f.At {
		return nil, stored{}, fmt.Errorf("index: %q: got bytes %d and %d from there, want them at "+
			"the first multiple of %d from %d on and within the %d of the data",
			f.Name, f.At, f.Size, packAlign, i.end, size)
	}
	place := stored{from: i.end, at: f.At, sum: f.Sum}
	i.end = f.At + f.Size
	return i.data[f.At:i.end:i.end], place, nil
}

// read is take for an item that is checked at once.
func (i *items) read(what string, f packItem) ([]byte, error) {
	b, place, err := i.take(f)
	if err != nil {
		return nil, err
	}
	sum := crc32.Checksum(i.data[place.from:i.end], castagnoli)
	return b, differs(what, f.Name, sum, f.Sum)
}

// bundle makes the result of Open from a packed file's data.
func (x *packIndex) bundle(data []byte) (*Packed, error) {
	p := &Packed{data: data, stored: map[string]stored{}}
	how := x.Packed
	p.What = checkpoint.About{Name: x.Name, Packed: &how}
	p.Weights = map[string]*checkpoint.Weight{}
	in := &items{data: data}
	if err := x.readParts(p, in); err != nil {
		return nil, err
	}
	if err := x.readTensors(p, in); err != nil {
		return nil, err
	}
	if in.end != uint64(len(data)) {
		return nil, fmt.Errorf("index: got items up to byte %d, want %d", in.end, len(data))
	}
	config := &p.Docs.Config
	if config.Data == nil {
		return nil, errors.New("index: config missing")
	}
	if err := checkpoint.CheckObject(config.Data); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	p.Seal()
	return p, nil
}

// readParts reads the documents, which can be read after Close too.
func (x *packIndex) readParts(p *Packed, in *items) error {
	parts := map[string]*checkpoint.Part{}
	p.Docs.Each(func(name string, part *checkpoint.Part) { parts[name], part.From = part, name })
	for _, f := range x.Parts {
		b, err := in.read("document", f.packItem)
		if err != nil {
			return err
		}
		part := parts[f.Name]
		if part == nil || part.Data != nil || len(b) > folder.MaxFile {
			return fmt.Errorf("index: part %q of %d bytes: want a known name that occurs once and "+
				"at most %d bytes", f.Name, f.Size, folder.MaxFile)
		}
		*part = checkpoint.Part{Data: bytes.Clone(b), From: f.From}
	}
	return nil
}

// readTensors finds the weights, which are checked later, and reads the orders of their columns.
func (x *packIndex) readTensors(p *Packed, in *items) error {
	for _, t := range x.Tensors {
		b, place, err := in.take(t.packItem)
		if err != nil {
			return err
		}
		w, err := t.tensor(b)
		if err != nil {
			return fmt.Errorf("index: tensor %q: %w", t.Name, err)
		}
		if p.Weights[t.Name] != nil {
			return fmt.Errorf("index: tensor %q: occurs twice", t.Name)
		}
		p.Weights[t.Name], p.stored[t.Name] = readable(w), place
		p.Weights[t.Name].Sum = binary.LittleEndian.AppendUint32(nil, t.Sum)
	}
	for _, t := range x.Tensors {
		if t.Order == nil {
			continue
		}
		b, err := in.read("order of", *t.Order)
		if err != nil {
			return err
		}
		w := p.Weights[t.Name]
		if w.Order, err = readOrder(&w.Tensor, b); err != nil {
			return fmt.Errorf("index: tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

// formats are the packed types of weights.
var formats = map[tensor.DType]kernel.Format{
	tensor.Q8:      kernel.Q8,
	tensor.Q4:      kernel.Q4,
	tensor.Q4M:     kernel.Q4M,
	tensor.IQ4:     kernel.IQ4,
	tensor.BF16Dot: kernel.BF16Dot,
	tensor.Q12:     kernel.Q12,
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
		tensor.BF16Dot, tensor.Q12,
	} {
		if d.String() == t.DType {
			w.DType = d
		}
	}
	if w.DType.String() != t.DType {
		return nil, fmt.Errorf(
			"dtype: got %q, want F32, F16, BF16, Q8, Q4, Q4M, IQ4, BF16Dot or Q12",
			checkpoint.Excerpt([]byte(t.DType)))
	}
	n := uint64(1)
	for i, d := range t.Shape {
		// an element takes at least half a byte
		if most := min(2*uint64(len(b))+1, math.MaxInt); d > most || d != 0 && n > most/d {
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
	if _, ok := formats[t.DType]; !ok || t.DType == tensor.BF16Dot ||
		t.DType == tensor.Q12 || len(t.Shape) != 2 ||
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

// differs returns an error if the checksum of an item is not want.
func differs(what, name string, sum, want uint32) error {
	if sum == want {
		return nil
	}
	return fmt.Errorf("%s %q: %w: got checksum %08x, want %08x: pack the checkpoint again", what,
		name, errs.ErrDamaged, sum, want)
}

// Check implements checkpoint.Checked. It is safe for concurrent use.
func (p *Packed) Check(
	name string, alloc func(n int) []byte, ended func() bool,
) (data []byte, err error) {
	err = checkpoint.Guard(func() error {
		data, err = p.check(name, alloc, ended)
		return err
	})
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, checkpoint.ErrEnded):
		return nil, err
	case errors.Is(err, checkpoint.ErrCut), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("tensor %q: the file was cut short while it was in use: %w", name,
			errs.ErrDamaged)
	}
	return nil, fmt.Errorf("checkpoint: %s: %w", p.path, err)
}

func (p *Packed) check(name string, alloc func(n int) []byte, ended func() bool) ([]byte, error) {
	w, place := p.Weights[name], p.stored[name]
	data := w.Data
	copied := alloc != nil && p.file != nil && p.Maps[0].Mapped() // otherwise it is in memory
	if copied {
		data = alloc(len(w.Data))
	}
	sum := crc32.Checksum(p.data[place.from:place.at], castagnoli)
	for at := 0; at < len(data); at += packPart {
		if ended() {
			return nil, checkpoint.ErrEnded
		}
		b := data[at:min(at+packPart, len(data))]
		if copied {
			if _, err := p.file.ReadAt(b, int64(packHead+place.at)+int64(at)); err != nil {
				return nil, err
			}
		}
		sum = crc32.Update(sum, castagnoli, b)
	}
	return data, differs("tensor", name, sum, place.sum)
}
