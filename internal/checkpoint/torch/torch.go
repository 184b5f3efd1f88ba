// Package torch reads the tensors of PyTorch's files (pytorch_model.bin): zip archives, as PyTorch
// has written them since 1.6, and the older format, pickles followed by storages. A machine that
// builds containers and tensors and executes nothing reads the pickles; an opcode or name that it
// does not need is an error.
package torch

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// The first three pickles of the older form.
const (
	legacyMagic    long  = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
	legacyProtocol int64 = 1001
)

// Read returns the tensors of the file with the bytes b. They are views of b or, if they
// are not contiguous, copies of their elements.
func Read(b []byte) (map[string]*checkpoint.Weight, error) {
	switch {
	case len(b) == 0:
		return nil, checkpoint.As(errs.ErrDamaged,
			errors.New("got an empty file, want one that torch.save wrote"))
	case bytes.HasPrefix(b, []byte("PK")):
		return readZip(b)
	case b[0] == 0x80:
		return readLegacy(b)
	case len(b) > 8 && b[8] == '{' && binary.LittleEndian.Uint64(b) <= uint64(len(b)-8):
		return nil, errors.New(
			"got a safetensors file with another name, want one that torch.save wrote")
	case len(b) > 262 && string(b[257:262]) == "ustar":
		return nil, errors.New(
			"got a tar archive of PyTorch 0.1, want a zip archive or a file of PyTorch 0.2 to 1.5")
	}
	return nil, errors.New(
		"got neither a zip archive nor a pickle, want a file that torch.save wrote")
}

// readZip reads the format of PyTorch 1.6 and later: ROOT/data.pkl, and the storages ROOT/data/KEY,
// which are not compressed.
func readZip(b []byte) (map[string]*checkpoint.Weight, error) {
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, checkpoint.As(errs.ErrDamaged, fmt.Errorf("%w (an incomplete download?)", err))
	}
	root, records := "", map[string][]byte{}
	for _, f := range z.File {
		first, rest, ok := strings.Cut(f.Name, "/")
		switch {
		case !ok || rest == "":
			return nil, fmt.Errorf("record %.80q: want it in a folder", f.Name)
		case root != "" && first != root:
			return nil, fmt.Errorf("record %.80q: want it in the folder %.80q, as the others",
				f.Name, root)
		case records[rest] != nil:
			return nil, fmt.Errorf("record %.80q: occurs twice", f.Name)
		case f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64:
			return nil, fmt.Errorf("record %.80q: compressed, want it stored", f.Name)
		}
		root = first
		at, err := f.DataOffset()
		if err != nil || at < 0 || at > int64(len(b)) ||
			f.UncompressedSize64 > uint64(int64(len(b))-at) {
			return nil, fmt.Errorf("record %.80q: %d bytes at %d, want them within the file's %d",
				f.Name, f.UncompressedSize64, at, len(b))
		}
		end := at + int64(f.UncompressedSize64)
		records[rest] = b[at:end:end]
		if rest == "data.pkl" { // torch does not compare checksums of data
			if err := checksum(f); err != nil {
				return nil, fmt.Errorf("record %q: %w", f.Name, err)
			}
		}
	}
	if order, ok := records["byteorder"]; ok && string(order) != "little" {
		return nil, fmt.Errorf("byteorder: got %.20q, want little", order)
	}
	data, ok := records["data.pkl"]
	if !ok {
		return nil, errors.New("no record data.pkl, want an archive that torch.save wrote")
	}
	if len(data) > maxPickle {
		return nil, fmt.Errorf("data.pkl: got %d bytes, want at most %d", len(data), maxPickle)
	}
	r := reader{file: len(b), storages: map[string]*storage{}}
	m := &machine{data: data, storage: r.storage, call: r.call}
	state, err := m.run()
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	if m.at != len(data) {
		return nil, fmt.Errorf("data.pkl: %d bytes after its end", len(data)-m.at)
	}
	for key, s := range r.storages {
		record, ok := records["data/"+key]
		if !ok {
			return nil, fmt.Errorf("storage %.80q: no such record", key)
		}
		if err := s.fill(record); err != nil {
			return nil, fmt.Errorf("storage %.80q: %w", key, err)
		}
	}
	return r.weights(state)
}

// checksum reads a record and compares it with its CRC-32.
func checksum(f *zip.File) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// readLegacy reads the format of PyTorch 0.2 to 1.5: five pickles (a magic number, the protocol,
// the system, the object, the storages' keys), then each storage's number of elements and its data.
func readLegacy(b []byte) (map[string]*checkpoint.Weight, error) {
	r := reader{file: len(b), storages: map[string]*storage{}}
	m := &machine{data: b[:min(len(b), maxPickle)], storage: r.storage, call: r.call}
	var values [5]any
	for i, what := range []string{"magic number", "protocol", "system", "object", "keys"} {
		var err error
		if values[i], err = m.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		switch {
		case i == 0 && values[0] != any(legacyMagic):
			return nil, errors.New("got a pickle that torch.save did not write")
		case i == 1 && values[1] != any(legacyProtocol):
			return nil, fmt.Errorf("protocol: got %s, want %d", shown(values[1]), legacyProtocol)
		case i == 2:
			if err := littleEndian(values[2]); err != nil {
				return nil, err
			}
		}
	}
	keys, ok := values[4].(*list)
	if !ok {
		return nil, fmt.Errorf("keys: got a %s, want a list", kind(values[4]))
	}
	at := m.at
	for _, k := range keys.items {
		key, ok := k.(string)
		s := r.storages[key]
		if !ok || s == nil || s.data != nil {
			return nil, fmt.Errorf("keys: got %.80q, want each storage of the object once", k)
		}
		if len(b)-at < 8 {
			return nil, fmt.Errorf("storage %.80q: %w: the file ends before it (an incomplete "+
				"download?)", key, errs.ErrDamaged)
		}
		if n := binary.LittleEndian.Uint64(b[at:]); n != uint64(s.count) {
			return nil, fmt.Errorf("storage %.80q: got %d elements, want the object's %d", key, n,
				s.count)
		}
		at += 8
		bytes := s.count * s.dtype.Size()
		if bytes > len(b)-at {
			return nil, fmt.Errorf("storage %.80q: %w: got %d bytes, want %d (an incomplete "+
				"download?)", key, errs.ErrDamaged, len(b)-at, bytes)
		}
		if err := s.fill(b[at : at+bytes : at+bytes]); err != nil {
			return nil, err
		}
		at += bytes
	}
	if len(keys.items) != len(r.storages) {
		return nil, fmt.Errorf("keys: got %d, want the object's %d storages", len(keys.items),
			len(r.storages))
	}
	if at != len(b) {
		return nil, fmt.Errorf("%d bytes after the last storage", len(b)-at)
	}
	return r.weights(values[3])
}

// littleEndian returns an error for the system data of a big-endian machine.
func littleEndian(system any) error {
	d, ok := system.(*dict)
	if !ok {
		return fmt.Errorf("system: got a %s, want a dictionary", kind(system))
	}
	if i, ok := d.at["little_endian"]; ok && d.pairs[i].value != true {
		return errors.New("system: got the byte order big, want little")
	}
	return nil
}

// weights returns the tensors of a state dictionary.
func (r *reader) weights(state any) (map[string]*checkpoint.Weight, error) {
	d, ok := state.(*dict)
	if !ok {
		return nil, fmt.Errorf("got a %s, want a dictionary of tensors", kind(state))
	}
	if len(d.pairs) == 0 {
		return nil, errors.New("got an empty dictionary, want tensors")
	}
	weights := make(map[string]*checkpoint.Weight, len(d.pairs))
	var others []string
	total := 0
	for _, p := range d.pairs {
		name, ok := p.key.(string)
		if !ok {
			return nil, fmt.Errorf("got a %s as a key, want a tensor's name", kind(p.key))
		}
		a, ok := p.value.(*array)
		if !ok {
			others = append(others, fmt.Sprintf("%.80q (a %s)", name, kind(p.value)))
			continue
		}
		// Tensors may share a storage, so few bytes could describe many tensors.
		if total += a.bytes(); total > 4*r.file {
			return nil, fmt.Errorf(
				"tensor %.80q: the tensors take more than four times the file's %d bytes", name,
				r.file)
		}
		weights[name] = a.weight()
	}
	if others != nil {
		slices.Sort(others)
		return nil, fmt.Errorf("got entries that are no tensors, want a state dictionary: %s",
			checkpoint.List(others, ", "))
	}
	return weights, nil
}
