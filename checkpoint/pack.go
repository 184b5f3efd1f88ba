package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/tensor"
)

// A packed file holds a model ready to run: its weights as a plan keeps them, and
// the directory's other files. All numbers are little-endian.
//
//	head      packMagic, the version as a uint32, and zeros up to packHead bytes
//	data      files, then tensors, each at a multiple of packAlign, zeros between
//	index     one JSON object, packIndex
//	24 bytes  length of data and of index as uint64, CRC-32C of the index and of
//	          the 20 bytes before this field as uint32
//
// The index ends the file, so that it is written in one go, and a file that was
// cut short has none. Data is checked in chunks of packChunk bytes.
const (
	packMagic   = "RESTOREpack\n"
	packVersion = 1
	packHead    = 4096 // a page, so that mapped tensors are aligned as the data is
	packTail    = 24
	packAlign   = 64
	packChunk   = 1 << 20
	maxIndex    = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Packed says how a packed file's weights are kept.
type Packed struct {
	Layout       string `json:"layout"`        // names the form of quantised data, so that a program with another refuses it
	Quant        string `json:"quant"`         // the plan: of the decoder
	EncoderQuant string `json:"encoder_quant"` // of encoder and projector
}

// packIndex is a packed file's index.
type packIndex struct {
	Packed
	Name    string       `json:"name"`
	Source  packSource   `json:"source"`
	Files   []packFile   `json:"files"`
	Tensors []packTensor `json:"tensors"`
	Sums    []byte       `json:"sums"` // CRC-32C of every chunk of data, 4 bytes each
}

// packSource is the directory that was packed and its files as they were then.
type packSource struct {
	Dir   string       `json:"dir"` // "" when it was none
	Files []sourceFile `json:"files"`
}

type sourceFile struct {
	Name     string `json:"name"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
}

type packFile struct {
	Name string `json:"name"`
	At   uint64 `json:"at"`
	Size uint64 `json:"size"`
}

type packTensor struct {
	packFile
	DType string   `json:"dtype"`
	Shape []uint64 `json:"shape"`
}

// PackWriter writes a packed file.
type PackWriter struct {
	w     io.Writer
	index packIndex
	at    uint64 // in data
	sum   uint32 // of the chunk that at lies in
}

// NewPackWriter writes the beginning of a packed file of c to w: everything but
// the weights, which Add takes.
func (c *Checkpoint) NewPackWriter(w io.Writer, how Packed) (*PackWriter, error) {
	p := &PackWriter{w: w, index: packIndex{Packed: how, Name: c.Name}}
	if err := p.source(c); err != nil {
		return nil, fmt.Errorf("checkpoint: pack: %w", err)
	}
	if _, err := w.Write(packStart()); err != nil {
		return nil, err
	}
	names, err := c.sideFiles()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: pack: %w", err)
	}
	for _, name := range names {
		data, ok, err := c.File(name)
		if err == nil && !ok {
			err = fmt.Errorf("checkpoint: pack: %s: gone while packing", name)
		}
		if err != nil {
			return nil, err
		}
		at, err := p.put(data)
		if err != nil {
			return nil, err
		}
		p.index.Files = append(p.index.Files, packFile{name, at, uint64(len(data))})
	}
	return p, nil
}

// packStart is what every packed file begins with.
func packStart() []byte {
	b := make([]byte, packHead)
	binary.LittleEndian.PutUint32(b[copy(b, packMagic):], packVersion)
	return b
}

// sideFiles are the names of the files that are packed beside the weights.
func (c *Checkpoint) sideFiles() ([]string, error) {
	if c.inMemory != nil {
		return slices.Sorted(maps.Keys(c.inMemory)), nil
	}
	entries, err := fs.ReadDir(c.dir, ".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		ext := path.Ext(e.Name())
		if ext != ".json" && ext != ".jinja" || e.Name() == indexFile {
			continue
		}
		if info, err := fs.Stat(c.dir, e.Name()); err == nil && info.Mode().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// source notes what is packed.
func (p *PackWriter) source(c *Checkpoint) error {
	if c.root == "" {
		return nil
	}
	p.index.Source.Dir = c.root
	entries, err := os.ReadDir(c.root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch path.Ext(e.Name()) {
		case ".json", ".jinja", ".safetensors":
		default:
			continue
		}
		info, err := os.Stat(filepath.Join(c.root, e.Name()))
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		p.index.Source.Files = append(p.index.Source.Files, sourceFile{e.Name(), info.Size(), info.ModTime().UnixNano()})
	}
	return nil
}

// Add appends a weight.
func (p *PackWriter) Add(name string, t *tensor.Tensor) error {
	at, err := p.put(t.Data)
	if err != nil {
		return err
	}
	e := packTensor{packFile: packFile{name, at, uint64(len(t.Data))}, DType: t.DType.String()}
	for _, n := range t.Shape {
		e.Shape = append(e.Shape, uint64(n))
	}
	p.index.Tensors = append(p.index.Tensors, e)
	return nil
}

// put appends b at the next multiple of packAlign and returns where that is.
func (p *PackWriter) put(b []byte) (at uint64, err error) {
	var zeros [packAlign]byte
	if err := p.write(zeros[:-p.at%packAlign]); err != nil {
		return 0, err
	}
	at = p.at
	return at, p.write(b)
}

func (p *PackWriter) write(b []byte) error {
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

func (p *PackWriter) endChunk() {
	p.index.Sums, p.sum = binary.LittleEndian.AppendUint32(p.index.Sums, p.sum), 0
}

// Close writes the index. It does not close the writer.
func (p *PackWriter) Close() error {
	if p.at%packChunk != 0 {
		p.endChunk()
	}
	index, err := marshal(p.index)
	if err != nil {
		return fmt.Errorf("checkpoint: pack: %w", err)
	}
	if len(index) > maxIndex {
		return fmt.Errorf("checkpoint: pack: index: got %d bytes, want at most %d", len(index), maxIndex)
	}
	b := binary.LittleEndian.AppendUint64(index, p.at)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(index)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(index, castagnoli))
	_, err = p.w.Write(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[len(index):], castagnoli)))
	return err
}

// openPack opens a packed file. Index and other files are checked; the weights
// are by Load.
func openPack(file string) (_ *Checkpoint, err error) {
	mem, err := mapFile(file)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, mem.close())
		}
	}()
	index, data, err := parsePack(mem.data)
	if err != nil {
		return nil, err
	}
	if err := index.Source.unchanged(); err != nil {
		return nil, err
	}
	c, err := index.checkpoint(data)
	if err != nil {
		return nil, err
	}
	c.files, c.pack.path = []*mapping{mem}, file
	return c, nil
}

// packed is what a Checkpoint knows of the packed file that it is.
type packed struct {
	Packed
	path    string
	data    []byte // checked chunk by chunk against sums; nil once all is copied
	sums    []byte
	tensors []packTensor
	loaded  bool
}

// parsePack returns the index of a packed file and its data. What the index says
// lies within the data; nothing of the data is read.
func parsePack(b []byte) (*packIndex, []byte, error) {
	switch {
	case len(b) < len(packMagic)+4 || string(b[:len(packMagic)]) != packMagic:
		return nil, nil, errors.New("got a file that is not a packed model, want one that `restore pack` wrote or a model directory")
	case binary.LittleEndian.Uint32(b[len(packMagic):]) != packVersion:
		return nil, nil, fmt.Errorf("packed in version %d of the form, want %d: pack the checkpoint again",
			binary.LittleEndian.Uint32(b[len(packMagic):]), packVersion)
	case len(b) < packHead+packTail:
		return nil, nil, fmt.Errorf("torn: got %d bytes, without the index at the end (an incomplete copy?): pack the checkpoint again", len(b))
	}
	if !bytes.Equal(b[:packHead], packStart()) {
		return nil, nil, fmt.Errorf("damaged: the first %d bytes are not a packed file's: pack the checkpoint again", packHead)
	}
	tail := b[len(b)-packTail:]
	size, length := binary.LittleEndian.Uint64(tail), binary.LittleEndian.Uint64(tail[8:])
	room := uint64(len(b) - packHead - packTail)
	if crc32.Checksum(tail[:packTail-4], castagnoli) != binary.LittleEndian.Uint32(tail[packTail-4:]) || length > room || size != room-length {
		return nil, nil, fmt.Errorf("torn: the %d bytes do not end with an index of theirs (an incomplete copy?): pack the checkpoint again", len(b))
	}
	if length > maxIndex {
		return nil, nil, fmt.Errorf("index: got %d bytes, want at most %d", length, maxIndex)
	}
	data := b[packHead : packHead+int(size)]
	text := b[packHead+int(size) : len(b)-packTail]
	if crc32.Checksum(text, castagnoli) != binary.LittleEndian.Uint32(tail[16:]) {
		return nil, nil, errors.New("damaged: the index differs from its checksum: pack the checkpoint again")
	}
	if err := checkObject(text); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	index := new(packIndex)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(index); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	if want := 4 * ((size + packChunk - 1) / packChunk); uint64(len(index.Sums)) != want {
		return nil, nil, fmt.Errorf("index: got %d bytes of checksums, want %d", len(index.Sums), want)
	}
	return index, data, nil
}

// unchanged compares the files that were packed with those that are in their
// place now, if there is such a place on this machine: a stranger's file must not
// make it ask another (\\host\share).
func (s *packSource) unchanged() error {
	if !filepath.IsAbs(s.Dir) || strings.HasPrefix(s.Dir, `\\`) {
		return nil
	}
	if _, err := os.Stat(s.Dir); err != nil {
		return nil
	}
	for _, f := range s.Files {
		if !plainName(f.Name) {
			return fmt.Errorf("index: source: got file %q, want a plain name", excerpt([]byte(f.Name)))
		}
		info, err := os.Stat(filepath.Join(s.Dir, f.Name))
		if err != nil || info.Size() != f.Size || info.ModTime().UnixNano() != f.Modified {
			return fmt.Errorf("stale: %s has changed since it was packed: pack the checkpoint again", filepath.Join(s.Dir, f.Name))
		}
	}
	return nil
}

// checkpoint makes what Open returns of a packed file.
func (x *packIndex) checkpoint(data []byte) (*Checkpoint, error) {
	p := &packed{Packed: x.Packed, data: data, sums: x.Sums, tensors: x.Tensors}
	c := &Checkpoint{Name: x.Name, inMemory: map[string][]byte{}, tensors: map[string]*tensor.Tensor{}, pack: p}
	at := uint64(0)
	take := func(f packFile) ([]byte, error) {
		if f.At < at || f.At%packAlign != 0 || f.At > uint64(len(data)) || f.Size > uint64(len(data))-f.At {
			return nil, fmt.Errorf("index: %q: got bytes %d and %d from there, want them after %d and within the %d of the data",
				excerpt([]byte(f.Name)), f.At, f.Size, at, len(data))
		}
		at = f.At + f.Size
		return data[f.At:at:at], nil
	}
	for _, f := range x.Files {
		b, err := take(f)
		if err != nil {
			return nil, err
		}
		if !plainName(f.Name) || c.inMemory[f.Name] != nil || f.Size > maxFile {
			return nil, fmt.Errorf("index: file %q of %d bytes: want a plain name that occurs once and at most %d bytes", excerpt([]byte(f.Name)), f.Size, maxFile)
		}
		c.inMemory[f.Name] = b
	}
	for i := range int(at+packChunk-1) / packChunk {
		if err := p.check(i, p.chunk(i)); err != nil {
			return nil, err
		}
	}
	for _, t := range x.Tensors {
		b, err := take(t.packFile)
		if err != nil {
			return nil, err
		}
		w, err := t.tensor(b)
		if err != nil {
			return nil, fmt.Errorf("index: tensor %q: %w", excerpt([]byte(t.Name)), err)
		}
		if c.tensors[t.Name] != nil {
			return nil, fmt.Errorf("index: tensor %q: occurs twice", excerpt([]byte(t.Name)))
		}
		c.tensors[t.Name] = w
		c.names = append(c.names, t.Name)
		c.bytes += int64(t.Size)
	}
	slices.Sort(c.names)
	config := c.inMemory[configFile]
	if config == nil {
		return nil, fmt.Errorf("index: %s missing", configFile)
	}
	if err := checkObject(config); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	// What outlives the mapping is copied.
	for name, b := range c.inMemory {
		c.inMemory[name] = slices.Clone(b)
	}
	c.config = c.inMemory[configFile]
	return c, nil
}

// tensor views b. The size of quantised data is for the binder to check, which
// knows its form.
func (t *packTensor) tensor(b []byte) (*tensor.Tensor, error) {
	w := &tensor.Tensor{Data: b, Shape: make([]int, len(t.Shape))}
	for _, d := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16, tensor.Q8, tensor.Q4, tensor.BF16Dot} {
		if d.String() == t.DType {
			w.DType = d
		}
	}
	if w.DType.String() != t.DType {
		return nil, fmt.Errorf("dtype: got %q, want F32, F16, BF16, Q8, Q4 or BF16Dot", excerpt([]byte(t.DType)))
	}
	n := uint64(1)
	for i, d := range t.Shape {
		if most := 2*uint64(len(b)) + 1; d > most || d != 0 && n > most/d { // half a byte an element is the least
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

// chunk is chunk i of the data.
func (p *packed) chunk(i int) []byte {
	return p.data[i*packChunk : min((i+1)*packChunk, len(p.data))]
}

// check compares chunk i, which b holds, with its checksum.
func (p *packed) check(i int, b []byte) error {
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(p.sums[4*i:]) {
		return fmt.Errorf("damaged: bytes %d to %d differ from their checksum: pack the checkpoint again",
			packHead+i*packChunk, packHead+i*packChunk+len(b)-1)
	}
	return nil
}

// Packed returns how the weights of a packed file are kept, nil for a directory.
func (c *Checkpoint) Packed() *Packed {
	if c.pack == nil {
		return nil
	}
	return &c.pack.Packed
}

// A copy in huge pages makes decoding faster than the mapping does, whose pages
// are small unless the system read the file through it. But the memory must be had
// first, which at worst takes as long as reading a disk: Load copies for copyTime
// at most, and after the first copyTrial bytes only as long as it has gone at
// copyRate bytes a second.
var copyTime = time.Second

const (
	copyTrial = 64 << 20
	copyRate  = 3e9
)

// Load checks the weights of a packed file against their checksums, and copies
// them from the end on, where decoders lie, into memory that alloc gives, for up to
// a second; what is left stays mapped. Of a directory it does nothing. Tensors taken
// before have the new bytes. run calls its task with 0 … n−1, in parallel if it
// can; progress is told the bytes read and may be nil.
func (c *Checkpoint) Load(alloc func(n int) []byte, run func(n int, task func(i int)), progress func(done, total int64)) error {
	p := c.pack
	if p == nil || p.loaded || len(p.tensors) == 0 {
		return nil
	}
	first := int(p.tensors[0].At / packChunk)
	base := first * packChunk
	left := p.data[base:]
	chunks := (len(left) + packChunk - 1) / packChunk
	copied := make([]bool, chunks)
	var into []byte
	var file *os.File
	if c.files[0].drop != nil { // else the data is in memory already
		var err error
		if file, err = os.Open(p.path); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
		defer file.Close()
		into = alloc(len(left))
	}
	start := time.Now()
	var size atomic.Int64 // copied
	worthIt := func() bool {
		spent, n := time.Since(start), size.Load()
		return into != nil && spent < copyTime && (n < copyTrial || float64(n) >= copyRate*spent.Seconds())
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
		c.tensors[t.Name].Data = into[at:end:end]
	}
	if all {
		p.data = nil
		return c.Close()
	}
	return nil
}
