package torch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
)

// Limits of one pickle. A state dictionary has about 20 values per tensor, and its pickler leaves
// at most 2,000 of them on the stack.
const (
	maxPickle = 32 << 20
	maxValues = 1 << 21
	maxStack  = 1 << 16
	maxMarks  = 1 << 10
)

// The values of a pickle, in addition to nil, bool, int64, float64 and string.
type (
	tuple []any
	list  struct{ items []any }
	dict  struct {
		pairs []pair
		at    map[string]int // index in pairs by text key
	}
	pair struct{ key, value any }
	// long is an integer of more than 64 bits, little-endian.
	long string
	// global is a name that the pickle may use.
	global string
)

// The globals that a file of tensors needs. Any other global is an error.
const (
	orderedDict      global = "collections.OrderedDict"
	rebuildTensor    global = "torch._utils._rebuild_tensor_v2"
	rebuildParameter global = "torch._utils._rebuild_parameter"
	size             global = "torch.Size"
)

// machine runs one pickle. It can build containers, numbers, strings and tensors, and cannot call
// anything else.
type machine struct {
	data  []byte
	at    int
	stack []any
	marks []int
	memo  map[uint32]any
	made  int // values so far
	// storage returns the value of a persistent id.
	storage func(id any) (any, error)
	// call returns the result of one of the globals.
	call func(f global, args tuple) (any, error)
}

// opcodes are the opcodes of files of tensors. Any other opcode is an error.
var opcodes [256]func(m *machine) error

func init() {
	for code, run := range map[byte]func(m *machine) error{
		0x80: (*machine).protocol,
		0x95: func(m *machine) error { _, err := m.take(8); return err }, // FRAME
		'(':  (*machine).mark,
		'N':  constant(nil), 0x88: constant(true), 0x89: constant(false), // NONE, NEWTRUE, NEWFALSE
		// BININT, BININT1, BININT2
		'J': integer(4, true), 'K': integer(1, false), 'M': integer(2, false),
		0x8a: (*machine).long1,
		'G':  (*machine).binFloat,
		// BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
		'X': text(4, false), 0x8c: text(1, false), 0x8d: text(8, false),
		'T': text(4, true), 'U': text(1, false), // BINSTRING, SHORT_BINSTRING
		']': func(m *machine) error { return m.push(new(list)) },
		'a': (*machine).appendOne, 'e': (*machine).appendAll,
		')': func(m *machine) error { return m.push(tuple{}) },
		't': func(m *machine) error {
			return m.tuple(-1)
		}, 0x85: func(m *machine) error { return m.tuple(1) },
		0x86: func(m *machine) error {
			return m.tuple(2)
		}, 0x87: func(m *machine) error { return m.tuple(3) },
		'}': func(m *machine) error { return m.push(new(dict)) },
		's': (*machine).setItem, 'u': (*machine).setItems,
		// BINGET, LONG_BINGET, BINPUT, LONG_BINPUT
		'h': get(1), 'j': get(4), 'q': put(1), 'r': put(4),
		0x94: (*machine).memoize,
		'c':  (*machine).global, 0x93: (*machine).stackGlobal,
		'R': (*machine).reduce, 'b': (*machine).build, 'Q': (*machine).persistent,
	} {
		opcodes[code] = run
	}
}

// refused names opcodes that are not allowed, for the error.
var refused = map[byte]string{
	'0': "POP", '1': "POP_MARK", '2': "DUP", 'F': "FLOAT", 'I': "INT", 'L': "LONG", 'S': "STRING",
	'V': "UNICODE",
	'P': "PERSID", 'd': "DICT", 'l': "LIST", 'g': "GET", 'p': "PUT", 'i': "INST", 'o': "OBJ",
	'B': "BINBYTES", 'C': "SHORT_BINBYTES",
	0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x8b: "LONG4", 0x8e: "BINBYTES8",
	0x8f: "EMPTY_SET", 0x90: "ADDITEMS",
	0x91: "FROZENSET", 0x92: "NEWOBJ_EX", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER",
	0x98: "READONLY_BUFFER",
}

// run runs the pickle at m.at and returns its value. m.at is then after its STOP.
func (m *machine) run() (any, error) {
	m.stack, m.marks, m.memo = nil, nil, map[uint32]any{}
	for {
		start := m.at
		b, err := m.take(1)
		if err != nil {
			return nil, fmt.Errorf("byte %d: no STOP at the end", start)
		}
		if b[0] == '.' {
			if len(m.stack) != 1 || len(m.marks) != 0 {
				return nil, fmt.Errorf("byte %d: STOP with %d values on the stack, want one", start,
					len(m.stack))
			}
			return m.stack[0], nil
		}
		run := opcodes[b[0]]
		if run == nil {
			name := refused[b[0]]
			if name == "" {
				name = "which does not exist"
			}
			return nil, fmt.Errorf(
				"byte %d: opcode %#02x (%s) is refused: a file of tensors has none", start, b[0],
				name)
		}
		if err := run(m); err != nil {
			return nil, fmt.Errorf("byte %d: %w", start, err)
		}
	}
}

// take returns the next n bytes.
func (m *machine) take(n uint64) ([]byte, error) {
	if n > uint64(len(m.data)-m.at) {
		return nil, fmt.Errorf("%w: got %d bytes, want %d more", errs.ErrDamaged,
			len(m.data)-m.at, n)
	}
	b := m.data[m.at : m.at+int(n)]
	m.at += int(n)
	return b, nil
}

func (m *machine) push(v any) error {
	if len(m.stack) >= maxStack {
		return fmt.Errorf("stack: got more than %d values, want fewer", maxStack)
	}
	if m.made++; m.made > maxValues {
		return fmt.Errorf("got more than %d values, want fewer", maxValues)
	}
	m.stack = append(m.stack, v)
	return nil
}

// bottom returns the smallest stack length that an opcode may leave.
func (m *machine) bottom() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

// pop removes the last n values and returns them, oldest first. They are valid until the next push.
func (m *machine) pop(n int) ([]any, error) {
	at := len(m.stack) - n
	if at < m.bottom() {
		return nil, errors.New("the stack is empty")
	}
	v := m.stack[at:]
	m.stack = m.stack[:at]
	return v, nil
}

// popMark removes the values above the last mark, and the mark.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("no mark on the stack")
	}
	v, err := m.pop(len(m.stack) - m.bottom())
	m.marks = m.marks[:len(m.marks)-1]
	return v, err
}

// top returns the last value.
func (m *machine) top() (any, error) {
	if len(m.stack) <= m.bottom() {
		return nil, errors.New("the stack is empty")
	}
	return m.stack[len(m.stack)-1], nil
}

func (m *machine) protocol() error {
	b, err := m.take(1)
	if err == nil && (b[0] < 2 || b[0] > 5) {
		err = fmt.Errorf("pickle protocol %d, want 2 to 5", b[0])
	}
	return err
}

func (m *machine) mark() error {
	if len(m.marks) >= maxMarks {
		return fmt.Errorf("got more than %d marks, want fewer", maxMarks)
	}
	m.marks = append(m.marks, len(m.stack))
	return nil
}

func constant(v any) func(*machine) error {
	return func(m *machine) error { return m.push(v) }
}

// unsigned reads a little-endian number of n bytes.
func (m *machine) unsigned(n int) (uint64, error) {
	b, err := m.take(uint64(n))
	var whole [8]byte
	copy(whole[:], b)
	return binary.LittleEndian.Uint64(whole[:]), err
}

func integer(n int, signed bool) func(*machine) error {
	return func(m *machine) error {
		v, err := m.unsigned(n)
		if err != nil {
			return err
		}
		if signed {
			return m.push(int64(int32(v)))
		}
		return m.push(int64(v))
	}
}

// long1 reads LONG1, a two's complement integer of up to 255 bytes.
func (m *machine) long1() error {
	n, err := m.unsigned(1)
	if err != nil {
		return err
	}
	b, err := m.take(n)
	if err != nil {
		return err
	}
	if n > 8 {
		return m.push(long(b))
	}
	var v int64
	for i, c := range b {
		v |= int64(c) << (8 * i)
	}
	if shift := 64 - 8*n; n > 0 {
		v = v << shift >> shift
	}
	return m.push(v)
}

func (m *machine) binFloat() error {
	b, err := m.take(8)
	if err != nil {
		return err
	}
	return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
}

// text reads a string whose length has n bytes.
func text(n int, signed bool) func(*machine) error {
	return func(m *machine) error {
		length, err := m.unsigned(n)
		if err != nil {
			return err
		}
		if signed && int32(length) < 0 {
			return fmt.Errorf("string: length %d, want 0 or more", int32(length))
		}
		b, err := m.take(length)
		if err != nil {
			return fmt.Errorf("string: %w", err)
		}
		if !utf8.Valid(b) {
			return errors.New("string: not valid UTF-8")
		}
		return m.push(string(b))
	}
}

func (m *machine) appendOne() error {
	v, err := m.pop(1)
	if err != nil {
		return err
	}
	return m.extend(v)
}

func (m *machine) appendAll() error {
	v, err := m.popMark()
	if err != nil {
		return err
	}
	return m.extend(v)
}

func (m *machine) extend(v []any) error {
	top, err := m.top()
	if err != nil {
		return err
	}
	l, ok := top.(*list)
	if !ok {
		return fmt.Errorf("append to a %s, want a list", kind(top))
	}
	l.items = append(l.items, v...)
	return nil
}

// tuple makes a tuple of the last n values; with -1, of those above the mark.
func (m *machine) tuple(n int) error {
	var v []any
	var err error
	if n < 0 {
		v, err = m.popMark()
	} else {
		v, err = m.pop(n)
	}
	if err != nil {
		return err
	}
	return m.push(append(tuple{}, v...))
}

func (m *machine) setItem() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	return m.set(v)
}

func (m *machine) setItems() error {
	v, err := m.popMark()
	if err != nil {
		return err
	}
	return m.set(v)
}

// set adds alternating keys and values to the dictionary on the stack.
func (m *machine) set(v []any) error {
	top, err := m.top()
	if err != nil {
		return err
	}
	d, ok := top.(*dict)
	if !ok {
		return fmt.Errorf("item of a %s, want a dictionary", kind(top))
	}
	if len(v)%2 != 0 {
		return errors.New("items: a key without a value")
	}
	for i := 0; i < len(v); i += 2 {
		if err := d.add(v[i], v[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// add returns an error for a repeated text key, because readers differ in which value they use.
func (d *dict) add(key, value any) error {
	if name, ok := key.(string); ok {
		if d.at == nil {
			d.at = map[string]int{}
		}
		if _, twice := d.at[name]; twice {
			return fmt.Errorf("key %.80q occurs twice", name)
		}
		d.at[name] = len(d.pairs)
	}
	d.pairs = append(d.pairs, pair{key, value})
	return nil
}

func get(n int) func(*machine) error {
	return func(m *machine) error {
		i, err := m.unsigned(n)
		if err != nil {
			return err
		}
		v, ok := m.memo[uint32(i)]
		if !ok {
			return fmt.Errorf("memo: nothing was put at %d", i)
		}
		return m.push(v)
	}
}

func put(n int) func(*machine) error {
	return func(m *machine) error {
		i, err := m.unsigned(n)
		if err != nil {
			return err
		}
		return m.keep(uint32(i))
	}
}

func (m *machine) memoize() error { return m.keep(uint32(len(m.memo))) }

func (m *machine) keep(i uint32) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	if m.memo[i] = v; len(m.memo) > maxValues {
		return fmt.Errorf("memo: got more than %d values, want fewer", maxValues)
	}
	return nil
}

func (m *machine) global() error {
	var name [2]string
	for i := range name {
		end := bytes.IndexByte(m.data[m.at:], '\n')
		if end < 0 || end > 256 {
			return errors.New("global: a name without an end")
		}
		name[i] = string(m.data[m.at : m.at+end])
		m.at += end + 1
	}
	return m.pushGlobal(name[0], name[1])
}

func (m *machine) stackGlobal() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	module, ok := v[0].(string)
	name, also := v[1].(string)
	if !ok || !also {
		return errors.New("global: names that are no strings")
	}
	return m.pushGlobal(module, name)
}

func (m *machine) pushGlobal(module, name string) error {
	g := global(module + "." + name)
	switch g {
	case orderedDict, rebuildTensor, rebuildParameter, size:
		return m.push(g)
	}
	if _, ok := storageTypes[g]; ok {
		return m.push(g)
	}
	return fmt.Errorf(
		"global %.80q is refused: a file of tensors needs none but those that rebuild them", g)
}

func (m *machine) reduce() error {
	v, err := m.pop(2)
	if err != nil {
		return err
	}
	f, ok := v[0].(global)
	args, also := v[1].(tuple)
	if !ok || !also {
		return fmt.Errorf("call of a %s with a %s, want a known function and a tuple", kind(v[0]),
			kind(v[1]))
	}
	made, err := m.call(f, args)
	if err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return m.push(made)
}

// build takes the attributes of an ordered dictionary (_metadata), which do not concern tensors.
func (m *machine) build() error {
	if _, err := m.pop(1); err != nil {
		return err
	}
	top, err := m.top()
	if err != nil {
		return err
	}
	if _, ok := top.(*dict); !ok {
		return fmt.Errorf("state of a %s, want a dictionary", kind(top))
	}
	return nil
}

func (m *machine) persistent() error {
	v, err := m.pop(1)
	if err != nil {
		return err
	}
	s, err := m.storage(v[0])
	if err != nil {
		return err
	}
	return m.push(s)
}

// shown is a number of at most 64 bits, or what else a value is, for an error.
func shown(v any) string {
	switch v := v.(type) {
	case bool, int64, float64:
		return fmt.Sprint(v)
	case string:
		return fmt.Sprintf("%.80q", v)
	}
	return "a " + kind(v)
}

// kind names a value's type, for an error.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "truth value"
	case int64, long:
		return "whole number"
	case float64:
		return "number"
	case string:
		return "string"
	case tuple:
		return "tuple"
	case *list:
		return "list"
	case *dict:
		return "dictionary"
	case global:
		return fmt.Sprintf("%.80q", string(v))
	case *storage:
		return "storage"
	case *array:
		return "tensor"
	}
	return "value"
}
