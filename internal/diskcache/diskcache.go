// Package diskcache stores blobs in a folder, one file each. The files survive restarts, and
// several programs may share the folder.
//
// A file is named by its key and holds a header with version, length and SHA-256. It is written
// under a temporary name and renamed. It is read only if the whole header matches, so neither a
// kill at any moment nor damage yields a wrong blob. Files with names of this cache that do not
// match are counted and removed; other files are left alone.
package diskcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	magic     = "RSTF\x00\x00\x00\x01" // includes the version of the format
	headerLen = len(magic) + 8 + sha256.Size
	suffix    = ".features"
	temporary = ".writing-"

	// maxBlob is the size limit of a blob in bytes.
	maxBlob = 1 << 30

	// stale is the age from which a temporary file counts as left over by a kill.
	stale = time.Minute
)

// Cache is a folder of blobs. It is safe for concurrent use.
type Cache struct {
	dir  string
	warn func(error)

	hits, corrupt, entries, bytes atomic.Int64
	failed                        atomic.Bool // writing failed, and warn was called
}

// Stats are counters and sizes of a cache.
type Stats struct {
	Hits, Corrupt, Entries, Bytes int64
}

// Open makes the folder if it is missing, removes leftover temporary files, and checks that it can
// write. It calls warn once each time that writing starts to fail.
func Open(dir string, warn func(error)) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("diskcache: %w", err)
	}
	c := &Cache{dir: dir, warn: warn}
	probe, err := os.CreateTemp(dir, temporary+"probe-*")
	if err != nil {
		return nil, fmt.Errorf("diskcache: %w", err)
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, fmt.Errorf("diskcache: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("diskcache: %w", err)
	}
	for _, f := range files {
		info, err := f.Info()
		switch {
		case err != nil:
		case strings.HasPrefix(f.Name(), temporary) && time.Since(info.ModTime()) > stale:
			_ = os.Remove(filepath.Join(dir, f.Name())) // another process may have removed it
		case isOurs(f.Name()) && info.Mode().IsRegular():
			c.entries.Add(1)
			c.bytes.Add(info.Size())
		}
	}
	return c, nil
}

// isOurs reports whether a name has the form of an entry's name.
func isOurs(name string) bool {
	key, ok := strings.CutSuffix(name, suffix)
	if !ok || len(key) != 2*sha256.Size {
		return false
	}
	_, err := hex.DecodeString(key)
	return err == nil
}

func (c *Cache) path(key [sha256.Size]byte) string {
	return filepath.Join(c.dir, hex.EncodeToString(key[:])+suffix)
}

// Load returns the blob of a key; false if there is none.
func (c *Cache) Load(key [sha256.Size]byte) ([]byte, bool) {
	path := c.path(key)
	data, size, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err != nil {
		c.corrupt.Add(1)
		c.remove(path, size)
		return nil, false
	}
	c.hits.Add(1)
	return data, true
}

// Reject removes the entry of a key whose blob Load returned but whose content is wrong.
func (c *Cache) Reject(key [sha256.Size]byte) {
	c.hits.Add(-1)
	c.corrupt.Add(1)
	info, err := os.Lstat(c.path(key))
	if err == nil {
		c.remove(c.path(key), info.Size())
	}
}

// remove removes an entry of size bytes; size -1 means that it was not counted.
func (c *Cache) remove(path string, size int64) {
	if os.Remove(path) == nil && size >= 0 {
		c.entries.Add(-1)
		c.bytes.Add(-size)
	}
}

// read returns the blob of a file and the file's size, -1 if it is not a regular file.
func read(path string) (blob []byte, size int64, err error) {
	// Without O_NONBLOCK, opening a FIFO would block until it has a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, -1, err
	}
	if !info.Mode().IsRegular() {
		return nil, -1, fmt.Errorf("diskcache: %s: not a regular file", path)
	}
	size = info.Size()
	n := size - int64(headerLen)
	head := make([]byte, headerLen)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, size, err
	}
	if string(head[:len(magic)]) != magic || n < 0 || n > maxBlob ||
		binary.LittleEndian.Uint64(head[len(magic):]) != uint64(n) {
		return nil, size, fmt.Errorf("diskcache: %s: damaged or foreign", path)
	}
	blob = make([]byte, n)
	if _, err := io.ReadFull(f, blob); err != nil {
		return nil, size, err
	}
	if sum := sha256.Sum256(blob); !bytes.Equal(sum[:], head[len(magic)+8:]) {
		return nil, size, fmt.Errorf("diskcache: %s: damaged", path)
	}
	return blob, size, nil
}

// Save stores a blob. If writing fails, the blob is not stored.
func (c *Cache) Save(key [sha256.Size]byte, blob []byte) {
	if len(blob) > maxBlob {
		return
	}
	if err := c.save(key, blob); err == nil {
		c.failed.Store(false)
	} else if !c.failed.Swap(true) {
		c.warn(fmt.Errorf("diskcache: %w", err))
	}
}

func (c *Cache) save(key [sha256.Size]byte, blob []byte) error {
	f, err := os.CreateTemp(c.dir, temporary+"*")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(blob)
	head := binary.LittleEndian.AppendUint64([]byte(magic), uint64(len(blob)))
	_, err = f.Write(append(head, sum[:]...))
	if err == nil {
		_, err = f.Write(blob)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		before, missing := os.Lstat(c.path(key))
		if err = os.Rename(f.Name(), c.path(key)); err == nil {
			if missing != nil {
				c.entries.Add(1)
			} else {
				c.bytes.Add(-before.Size())
			}
			c.bytes.Add(int64(headerLen + len(blob)))
			return nil
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// Stats returns the current numbers. Each program that shares the folder counts its own.
func (c *Cache) Stats() Stats {
	return Stats{Hits: c.hits.Load(), Corrupt: c.corrupt.Load(),
		Entries: max(0, c.entries.Load()), Bytes: max(0, c.bytes.Load())}
}
