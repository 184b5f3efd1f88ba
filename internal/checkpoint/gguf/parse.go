package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// magic is the beginning of every file.
const magic = "GGUF"

const (
	// maxKeys and maxTensors limit the memory of a file's tables; published files have under 100
	// keys and 3000 tensors.
	maxKeys    = 1 << 14
	maxTensors = 1 << 17
	// maxKeyLen is the longest key name that the format allows.
	maxKeyLen = 1<<16 - 1
	// maxNameLen is the longest tensor name; llama.cpp's own limit is 63.
	maxNameLen = 1 << 10
	// maxAxes is ggml's limit.
	maxAxes = 4
	// maxAlignment is the largest general.alignment; its default is defaultAlignment.
	maxAlignment     = 1 << 16
	defaultAlignment = 32
)

// file is the content of one GGUF file. Strings and data are views of its bytes.
type file struct {
	keys    map[string]value
	tensors []tensorInfo
	wrong   error // of the first key whose value is of another kind than what was read
	joined  bool  // this is a part of one that Ollama wrote, see separate
}

// tensorInfo is a tensor in the form of the file.
type tensorInfo struct {
	name  string
	shape []int // in Hugging Face's order: the longest stride first
	typ   *blockType
	data  []byte
}

// valueType is the type of a key's value, with the format's numbers.
type valueType uint32

const (
	typeUint8 valueType = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
	numTypes
)

// sizes are the bytes of a value, 0 where they vary.
var sizes = [numTypes]int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// value is the value of a key.
type value struct {
	typ   valueType
	elem  valueType // of an array
	count int       // elements of an array; 1 otherwise
	data  []byte    // the elements, concatenated; for strings, without the first one's length
}

// cursor reads little-endian fields and remembers if the bytes ran out.
type cursor struct {
	b     []byte
	at    int
	short bool
}

func (c *cursor) left() int { return len(c.b) - c.at }

// take returns the next n bytes, nil if there are fewer.
func (c *cursor) take(n uint64) []byte {
	if c.short || n > uint64(c.left()) {
		c.short = true
		return nil
	}
	b := c.b[c.at : c.at+int(n) : c.at+int(n)]
	c.at += int(n)
	return b
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) text() []byte { return c.take(c.u64()) }

// errCut returns the error for a file that ends too soon.
func (c *cursor) errCut() error {
	return fmt.Errorf("%w: %d bytes end in the header (incomplete download?)", errs.ErrDamaged,
		len(c.b))
}

// parse reads a whole file.
func parse(b []byte) (*file, error) {
	c := &cursor{b: b}
	f, infos, err := readHeader(c)
	if err != nil {
		return nil, err
	}
	return f, f.place(infos, c)
}

// readHeader reads everything before the tensors' data.
func readHeader(c *cursor) (*file, []placed, error) {
	if err := checkMagic(c); err != nil {
		return nil, nil, err
	}
	tensors, keys := c.u64(), c.u64()
	switch {
	case c.short:
		return nil, nil, c.errCut()
	case keys > maxKeys:
		return nil, nil, fmt.Errorf("got %d keys, want at most %d", keys, maxKeys)
	case tensors > maxTensors:
		return nil, nil, fmt.Errorf("got %d tensors, want at most %d", tensors, maxTensors)
	}
	f := &file{keys: map[string]value{}}
	for range keys {
		if err := f.readKey(c); err != nil {
			return nil, nil, err
		}
	}
	infos := make([]placed, 0, min(tensors, uint64(c.left())/minInfo))
	for range tensors {
		t, err := readInfo(c)
		if err != nil {
			return nil, nil, err
		}
		infos = append(infos, t)
	}
	return f, infos, nil
}

// place sets the tensors' data, which begin at the next multiple of the alignment.
func (f *file) place(infos []placed, c *cursor) error {
	alignment := uint64(defaultAlignment)
	if v, ok := f.keys["general.alignment"]; ok {
		if v.typ != typeUint32 {
			return fmt.Errorf("general.alignment: got %v, want a UINT32", v.typ)
		}
		alignment = v.int(0)
		if alignment > maxAlignment || bits.OnesCount64(alignment) != 1 {
			return fmt.Errorf("general.alignment: got %d, want a power of two of at most %d",
				alignment, maxAlignment)
		}
	}
	if len(infos) == 0 {
		return nil
	}
	b, start := c.b, (uint64(c.at)+alignment-1)&^(alignment-1)
	if start > uint64(len(b)) {
		return fmt.Errorf("%w: %d bytes end before the data of %d tensors (incomplete download?)",
			errs.ErrDamaged, len(b), len(infos))
	}
	data := b[start:]
	order := make([]*placed, len(infos))
	names := make(map[string]bool, len(infos))
	for i := range infos {
		t := &infos[i]
		if names[t.name] {
			return fmt.Errorf("tensor %.80q occurs twice", t.name)
		}
		names[t.name] = true
		if t.offset%alignment != 0 {
			return fmt.Errorf("tensor %.80q: data at %d, want a multiple of the alignment, %d",
				t.name,
				t.offset, alignment)
		}
		if t.offset > uint64(len(data)) || t.size > uint64(len(data))-t.offset {
			return fmt.Errorf("tensor %.80q: %w: %d bytes at %d of %d bytes of data "+
				"(incomplete download?)", t.name, errs.ErrDamaged, t.size, t.offset, len(data))
		}
		t.data = data[t.offset : t.offset+t.size : t.offset+t.size]
		f.tensors = append(f.tensors, t.tensorInfo)
		order[i] = t
	}
	slices.SortFunc(order, func(a, b *placed) int { return cmp.Compare(a.offset, b.offset) })
	for i := 1; i < len(order); i++ {
		if before := order[i-1]; before.offset+before.size > order[i].offset {
			return fmt.Errorf("tensors %.80q and %.80q share bytes", before.name, order[i].name)
		}
	}
	return nil
}

// checkMagic reads the first eight bytes.
func checkMagic(c *cursor) error {
	got := c.take(4)
	switch {
	case len(c.b) == 0:
		return checkpoint.As(errs.ErrDamaged, errors.New("got an empty file, want a GGUF file"))
	case got == nil:
		return c.errCut()
	case string(got) == magic:
	case slices.Contains([]string{"lmgg", "fmgg", "tjgg", "algg", "GGML", "GGJT"}, string(got)):
		return checkpoint.As(errs.ErrUnsupported, fmt.Errorf(
			"got a file of the older format %s, want GGUF: convert it again", got))
	default:
		return checkpoint.As(errs.ErrUnsupported,
			fmt.Errorf("got a file that begins with %q, want GGUF", got))
	}
	switch v := c.u32(); {
	case c.short:
		return c.errCut()
	case v == 2 || v == 3:
		return nil
	case v == 1:
		return fmt.Errorf("GGUF version 1, with counts of 32 bits: %w, want version 2 or 3: "+
			"convert it again", errs.ErrUnsupported)
	case bits.ReverseBytes32(v) <= 3 && v != 0:
		return fmt.Errorf("a big-endian file of GGUF version %d: %w, want a little-endian one",
			bits.ReverseBytes32(v), errs.ErrUnsupported)
	default:
		return fmt.Errorf("GGUF version %d: %w, want 2 or 3", v, errs.ErrUnsupported)
	}
}

// readKey reads a key and its value.
func (f *file) readKey(c *cursor) error {
	name := string(c.text())
	if c.short {
		return c.errCut()
	}
	_, twice := f.keys[name]
	switch {
	case name == "":
		return errors.New("a key without a name")
	case len(name) > maxKeyLen:
		return fmt.Errorf("a key with a name of %d bytes, want at most %d", len(name), maxKeyLen)
	case twice:
		return fmt.Errorf("key %.80q occurs twice", name)
	}
	v := value{typ: valueType(c.u32()), count: 1}
	if v.typ == typeArray {
		v.elem = valueType(c.u32())
		n := c.u64()
		switch {
		case c.short:
			return c.errCut()
		case v.elem == typeArray:
			return fmt.Errorf("key %.80q: an array of arrays, which is not read", name)
		case n > uint64(c.left()):
			return fmt.Errorf("key %.80q: an array of %d elements in the last %d bytes of the file",
				name,
				n, c.left())
		}
		v.count = int(n)
	}
	if c.short {
		return c.errCut()
	}
	elem := v.element()
	if elem >= numTypes {
		return fmt.Errorf("key %.80q: type %d of a value, want one of GGUF's, 0 to %d", name, elem,
			numTypes-1)
	}
	if elem == typeString {
		start := c.at
		for range v.count {
			c.text()
		}
		if !c.short {
			v.data = c.b[start:c.at:c.at]
		}
	} else {
		v.data = c.take(uint64(v.count) * uint64(sizes[elem]))
	}
	if c.short {
		return c.errCut()
	}
	if elem == typeBool {
		for _, x := range v.data {
			if x > 1 {
				return fmt.Errorf("key %.80q: got the byte %d, want a bool of 0 or 1", name, x)
			}
		}
	}
	f.keys[name] = v
	return nil
}

// minInfo is the fewest bytes that a tensor takes in the header.
const minInfo = 8 + 4 + 4 + 8

// placed is a tensor and the offset of its data.
type placed struct {
	tensorInfo
	offset, size uint64
}

// readInfo reads a tensor's description in the header.
func readInfo(c *cursor) (placed, error) {
	t := placed{}
	name := c.text()
	axes := c.u32()
	switch {
	case c.short:
		return t, c.errCut()
	case len(name) > maxNameLen:
		return t, fmt.Errorf("a tensor with a name of %d bytes, want at most %d", len(name),
			maxNameLen)
	case axes > maxAxes:
		return t, fmt.Errorf("tensor %.80q: %d axes, want at most %d", name, axes, maxAxes)
	}
	t.name = string(name)
	elements := uint64(1)
	for range axes {
		n := c.u64()
		if c.short {
			return t, c.errCut()
		}
		high, low := bits.Mul64(elements, n)
		if n == 0 || high != 0 || low > math.MaxInt {
			return t, fmt.Errorf("tensor %.80q: an axis of %d after %d elements", name, int64(n),
				elements)
		}
		elements = low
		t.shape = append(t.shape, int(n))
	}
	kind := c.u32()
	t.offset = c.u64()
	if c.short {
		return t, c.errCut()
	}
	var err error
	if t.typ, err = typeOf(kind); err != nil {
		return t, fmt.Errorf("tensor %.80q: %w", name, err)
	}
	row := 1
	if len(t.shape) > 0 {
		row = t.shape[0]
	}
	if row%t.typ.values != 0 {
		return t, fmt.Errorf("tensor %.80q: rows of %d, want a multiple of %s's %d", name, row,
			t.typ.name, t.typ.values)
	}
	high, size := bits.Mul64(elements/uint64(t.typ.values), uint64(t.typ.bytes))
	if high != 0 {
		return t, fmt.Errorf("tensor %.80q: %d elements, more than a file can hold", name, elements)
	}
	t.size = size
	slices.Reverse(t.shape)
	return t, nil
}

// element returns the type of an array's elements, or of the value itself.
func (v value) element() valueType {
	if v.typ == typeArray {
		return v.elem
	}
	return v.typ
}

// isInt reports whether the elements are whole numbers.
func (t valueType) isInt() bool {
	switch t {
	case typeUint8, typeInt8, typeUint16, typeInt16, typeUint32, typeInt32, typeUint64, typeInt64:
		return true
	}
	return false
}

// int returns element i of whole numbers, sign-extended to 64 bits.
func (v value) int(i int) uint64 {
	switch b := v.data[i*sizes[v.element()]:]; v.element() {
	case typeUint8:
		return uint64(b[0])
	case typeInt8:
		return uint64(int8(b[0]))
	case typeUint16:
		return uint64(binary.LittleEndian.Uint16(b))
	case typeInt16:
		return uint64(int16(binary.LittleEndian.Uint16(b)))
	case typeUint32:
		return uint64(binary.LittleEndian.Uint32(b))
	case typeInt32:
		return uint64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return binary.LittleEndian.Uint64(b)
	}
}

// float returns element i of numbers.
func (v value) float(i int) float64 {
	switch e := v.element(); {
	case e.isInt():
		return float64(int64(v.int(i)))
	case e == typeFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.data[8*i:]))
	default:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.data[4*i:])))
	}
}

// strings calls f for every string.
func (v value) strings(f func(i int, s []byte)) {
	c := &cursor{b: v.data}
	for i := range v.count {
		f(i, c.text())
	}
}

// typeNames are the names of the types in errors.
var typeNames = [numTypes]string{"UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32",
	"BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"}

func (t valueType) String() string {
	if t < numTypes {
		return "a " + typeNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// text returns a string.
func (v value) text() string {
	var s string
	v.strings(func(_ int, t []byte) { s = string(t) })
	return s
}
