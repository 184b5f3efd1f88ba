package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/tensor"
)

const (
	// maxHeader is the longest header that the safetensors format allows.
	maxHeader = 100_000_000
	// metadataKey is the header's one key that is not a tensor.
	metadataKey = "__metadata__"
)

// File is one safetensors file. Its tensors are views of the file's bytes and are
// valid until Close. It is safe for concurrent reads.
type File struct {
	Tensors  map[string]*tensor.Tensor
	Metadata map[string]string // nil when the file has none

	mem *Mapping
}

// OpenSafetensors maps the file at path and parses its header. Changing or
// truncating the file before Close is undefined, as with any mapping.
func OpenSafetensors(path string) (*File, error) {
	mem, err := MapFile(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	f, err := ParseSafetensors(mem.Data)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s: %w", path, err), mem.Close())
	}
	f.mem = mem
	return f, nil
}

// Close releases the mapping. The tensors must not be used afterwards.
func (f *File) Close() error {
	mem := f.mem
	f.mem = nil
	if mem == nil {
		return nil
	}
	return mem.Close()
}

// ReadSafetensors parses a whole file in memory. The tensors are views of b, with the alignment
// that the file has.
//
// The reader is strict: the header is one JSON object of at most 100,000,000 bytes, nested at most
// 128 deep, without repeated keys; types are the format's; byte ranges match shapes and cover the
// data without holes or overlap.
func ReadSafetensors(b []byte) (map[string]*tensor.Tensor, error) {
	f, err := ParseSafetensors(b)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: safetensors: %w", err)
	}
	return f.Tensors, nil
}

// entry is one tensor of a header, with its byte range in the data after it.
type entry struct {
	name       string
	t          *tensor.Tensor
	begin, end uint64
}

// ParseSafetensors parses a whole file in memory like ReadSafetensors, and keeps its metadata.
func ParseSafetensors(b []byte) (*File, error) {
	header, data, err := splitHeader(b)
	if err != nil {
		return nil, As(errs.ErrDamaged, err)
	}
	f := &File{Tensors: map[string]*tensor.Tensor{}}
	if err := CheckObject(header); err != nil {
		return nil, As(errs.ErrDamaged, fmt.Errorf("header: %w", err))
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(header, &fields); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	entries := make([]entry, 0, len(fields))
	for name, raw := range fields {
		if name == metadataKey {
			var err error
			if f.Metadata, err = parseMetadata(raw); err != nil {
				return nil, err
			}
			continue
		}
		e, err := parseEntry(name, raw)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	// Sort by offset in the file, and then by name, so that errors do not depend on the order of a
	// map.
	slices.SortFunc(entries, func(x, y entry) int {
		if x.begin != y.begin {
			return cmpUint(x.begin, y.begin)
		}
		if x.end != y.end {
			return cmpUint(x.end, y.end)
		}
		return bytes.Compare([]byte(x.name), []byte(y.name))
	})
	if err := checkRanges(entries, uint64(len(data))); err != nil {
		return nil, As(errs.ErrDamaged, err)
	}
	for _, e := range entries {
		e.t.Data = data[e.begin:e.end:e.end]
		f.Tensors[e.name] = e.t
	}
	return f, nil
}

// splitHeader returns the two parts of a file.
func splitHeader(b []byte) (header, data []byte, err error) {
	if len(b) < 8 {
		return nil, nil, fmt.Errorf(
			"file too short: got %d bytes, want at least 8 (the header's length)", len(b))
	}
	n := binary.LittleEndian.Uint64(b)
	switch {
	case n > maxHeader:
		return nil, nil, fmt.Errorf(
			"header length: got %d, want at most %d (is this a safetensors file?)", n, maxHeader)
	case n > uint64(len(b)-8):
		return nil, nil, fmt.Errorf(
			"header length: got %d, want at most the %d bytes that follow it (truncated file?)", n,
			len(b)-8)
	case n == 0:
		return nil, nil, errors.New("header length: got 0, want a JSON object")
	}
	return b[8 : 8+n], b[8+n:], nil
}

func cmpUint(x, y uint64) int {
	if x < y {
		return -1
	}
	return 1
}

// checkRanges returns an error unless the sorted ranges cover [0, size) exactly.
func checkRanges(entries []entry, size uint64) error {
	for _, e := range entries {
		if e.end > size {
			return fmt.Errorf(
				"tensor %q: data_offsets [%d %d], got %d bytes of data (truncated file?)", e.name,
				e.begin, e.end, size)
		}
	}
	var at uint64
	for _, e := range entries {
		switch {
		case e.begin > at:
			return fmt.Errorf(
				"tensor %q: data_offsets [%d %d], want a start at %d (no tensor owns the "+
					"bytes between)", e.name, e.begin, e.end, at)
		case e.begin < at:
			return fmt.Errorf(
				"tensor %q: data_offsets [%d %d], want a start at %d (two tensors share bytes)",
				e.name, e.begin, e.end, at)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf(
			"trailing data: got %d bytes of data, want the %d that the tensors take", size, at)
	}
	return nil
}

func parseMetadata(raw json.RawMessage) (map[string]string, error) {
	var values map[string]*string // pointers, to distinguish null from ""
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, fmt.Errorf("%s: got %s, want an object of strings", metadataKey, Excerpt(raw))
	}
	if values == nil {
		return nil, nil
	}
	m := make(map[string]string, len(values))
	for k, v := range values {
		if v == nil {
			return nil, fmt.Errorf("%s: %q: got null, want a string", metadataKey, k)
		}
		m[k] = *v
	}
	return m, nil
}

// parseEntry reads one tensor's dtype, shape and data_offsets and checks that they agree. Unknown
// fields are allowed, as in the reference library.
func parseEntry(name string, raw json.RawMessage) (entry, error) {
	e := entry{name: name}
	fail := func(format string, args ...any) (entry, error) {
		return entry{}, fmt.Errorf("tensor %q: %s", name, fmt.Sprintf(format, args...))
	}
	// A map, because encoding/json matches struct fields in any letter case.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return fail("got %s, want an object with dtype, shape and data_offsets", Excerpt(raw))
	}
	for _, k := range []string{"dtype", "shape", "data_offsets"} {
		if fields[k] == nil {
			return fail("%s missing", k)
		}
	}
	var typeName string
	if err := json.Unmarshal(fields["dtype"], &typeName); err != nil {
		return fail("dtype: got %s, want a string", Excerpt(fields["dtype"]))
	}
	d, ok := tensor.ParseDType(typeName)
	if !ok {
		return fail("dtype: got %s, want a safetensors type such as F32, F16 or BF16",
			Excerpt([]byte(strconv.Quote(typeName))))
	}
	dims, err := parseUints(fields["shape"])
	if err != nil {
		return fail("shape: %v", err)
	}
	offsets, err := parseUints(fields["data_offsets"])
	if err != nil {
		return fail("data_offsets: %v", err)
	}
	if len(offsets) != 2 || offsets[0] > offsets[1] {
		return fail("data_offsets: got %s, want [begin end] in rising order",
			Excerpt(fields["data_offsets"]))
	}
	e.begin, e.end = offsets[0], offsets[1]
	e.t = &tensor.Tensor{DType: d, Shape: make([]int, len(dims))}
	bits := uint64(1)
	for i, n := range append([]uint64{uint64(d.Bits())}, dims...) {
		if n > math.MaxInt || n != 0 && bits > math.MaxInt64/n {
			return fail(
				"shape: got %s, want fewer elements (the size overflows)", Excerpt(fields["shape"]))
		}
		bits *= n
		if i > 0 {
			e.t.Shape[i-1] = int(n)
		}
	}
	if bits%8 != 0 || bits/8 != e.end-e.begin {
		return fail("data_offsets [%d %d]: got %d bytes, want %g for %v", e.begin, e.end,
			e.end-e.begin, float64(bits)/8, e.t)
	}
	return e, nil
}

// maxDims limits the dimensions of a tensor; published ones have five.
const maxDims = 64

// parseUints reads an array of integers that are neither negative nor written as floating-point
// numbers.
func parseUints(raw json.RawMessage) ([]uint64, error) {
	if n := bytes.Count(raw, []byte(",")) + 1; n > maxDims {
		return nil, fmt.Errorf("got %d numbers, want at most %d", n, maxDims)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil || items == nil {
		return nil, fmt.Errorf("got %s, want an array of integers", Excerpt(raw))
	}
	v := make([]uint64, len(items))
	for i, item := range items {
		u, err := strconv.ParseUint(string(item), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("got %s, want integers that are not negative", Excerpt(raw))
		}
		v[i] = u
	}
	return v, nil
}

// WriteSafetensors writes tensors in the order of their names, after a header that is padded with
// spaces to a multiple of 8 bytes. The same input gives the same bytes. If a tensor's data and
// shape disagree, it returns an error and writes nothing.
func WriteSafetensors(
	w io.Writer,
	tensors map[string]*tensor.Tensor,
	metadata map[string]string,
) error {
	heads := make(map[string]tensor.Tensor, len(tensors))
	for name, t := range tensors {
		n, bits := int64(t.Len()), int64(t.DType.Bits())
		if n < 0 || bits == 0 || n > math.MaxInt64/bits || n*bits%8 != 0 ||
			n*bits/8 != int64(len(t.Data)) {
			return fmt.Errorf("checkpoint: write: tensor %q: got %d bytes, want what %v takes",
				name, len(t.Data), t)
		}
		heads[name] = *t
	}
	return StreamSafetensors(w, heads, metadata, func(w io.Writer, name string) error {
		_, err := w.Write(tensors[name].Data)
		return err
	})
}

// StreamSafetensors is WriteSafetensors for tensors whose data write produces, one tensor after
// another in the order of their names; their Data is not read.
func StreamSafetensors(
	w io.Writer,
	tensors map[string]tensor.Tensor,
	metadata map[string]string,
	write func(w io.Writer, name string) error,
) error {
	names := slices.Sorted(maps.Keys(tensors))
	var h bytes.Buffer
	h.WriteByte('{')
	if metadata != nil {
		text, err := marshal(metadata)
		if err != nil {
			return fmt.Errorf("checkpoint: write: metadata: %w", err)
		}
		fmt.Fprintf(&h, "%q:%s", metadataKey, text)
	}
	at := 0
	for _, name := range names {
		t := tensors[name]
		if name == metadataKey || !utf8.ValidString(name) {
			return fmt.Errorf("checkpoint: write: tensor name: got %q, want UTF-8 other than %s",
				name, metadataKey)
		}
		key, err := marshal(name)
		if err != nil {
			return fmt.Errorf("checkpoint: write: tensor %q: %w", name, err)
		}
		shape, err := json.Marshal(append([]int{}, t.Shape...)) // [] for a scalar, never null
		if err != nil {
			return fmt.Errorf("checkpoint: write: tensor %q: %w", name, err)
		}
		if h.Len() > 1 {
			h.WriteByte(',')
		}
		size := t.Len() * t.DType.Bits() / 8
		fmt.Fprintf(&h, `%s:{"dtype":"%v","shape":%s,"data_offsets":[%d,%d]}`, key, t.DType,
			shape, at, at+size)
		at += size
	}
	h.WriteByte('}')
	for h.Len()%8 != 0 {
		h.WriteByte(' ')
	}
	if h.Len() > maxHeader {
		return fmt.Errorf(
			"checkpoint: write: header: got %d bytes, want at most %d", h.Len(), maxHeader)
	}
	if _, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(h.Len()))); err != nil {
		return fmt.Errorf("checkpoint: write: %w", err)
	}
	if _, err := w.Write(h.Bytes()); err != nil {
		return fmt.Errorf("checkpoint: write: %w", err)
	}
	for _, name := range names {
		if err := write(w, name); err != nil {
			return fmt.Errorf("checkpoint: write: tensor %q: %w", name, err)
		}
	}
	return nil
}

// marshal is json.Marshal without HTML escapes.
func marshal(v any) ([]byte, error) {
	text, err := files.JSON(v, "")
	return bytes.TrimSuffix(text, []byte("\n")), err
}
