package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"github.com/restore-vlm/restore/internal/files"
)

// Mapping is the bytes of a file, in memory or mapped.
type Mapping struct {
	Data []byte

	release func() error // nil if the garbage collector frees them
	drop    func()       // nil if the pages are not a file's
}

// MapFile maps a regular file, or reads it if the system has no mappings. It refuses a Git LFS
// pointer. Its errors name the path.
// Changing or truncating the file before Close is undefined.
func MapFile(path string) (*Mapping, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() { // opening a pipe would wait
		return nil, fmt.Errorf("%s: got a %s, want a file", path, Kind(info.Mode()))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Map(f)
}

// Map is MapFile for an open file, which may be closed afterwards.
func Map(f *os.File) (*Mapping, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: got a %s, want a file", f.Name(), Kind(info.Mode()))
	}
	if info.Size() > math.MaxInt {
		return nil, fmt.Errorf("%s: got %d bytes, want at most %d on this machine", f.Name(),
			info.Size(), math.MaxInt)
	}
	if info.Size() == 0 {
		return &Mapping{}, nil
	}
	m, err := mapOpen(f, int(info.Size()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if err := files.CheckPointer(m.Data); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), m.Close())
	}
	return m, nil
}

// ErrCut is the error of Guard for a mapped file that was cut short.
var ErrCut = errors.New("checkpoint: a mapped file was cut short")

// Guard calls f. If f faults while it reads a mapping, because someone cut its file short, Guard
// returns ErrCut.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			if !IsFault(v) {
				panic(v)
			}
			err = ErrCut
		}
	}()
	return f()
}

// IsFault reports whether v is the value of a panic that a fault in a mapping caused.
func IsFault(v any) bool {
	_, fault := v.(interface{ Addr() uintptr })
	return fault
}

// Mapped reports whether the bytes are a file's pages.
func (m *Mapping) Mapped() bool { return m.drop != nil }

// Drop frees the pages that were read so far; they are read again when used.
func (m *Mapping) Drop() {
	if m.drop != nil {
		m.drop()
	}
}

// Close releases the bytes, which must not be used afterwards.
func (m *Mapping) Close() error {
	m.Data, m.drop = nil, nil
	if m.release == nil {
		return nil
	}
	err := m.release()
	m.release = nil
	return err
}
