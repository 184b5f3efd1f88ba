// Package diskcache stores blobs in a folder, one file each, up to a limit. The files survive
// restarts, and several programs may share the folder.
//
// A file is named by its key and holds a header with version, length, and SHA-256 of key and blob.
// It is written under a temporary name and renamed. It is read only if the whole header matches, so
// neither a kill at any moment nor damage nor another name yields a wrong blob. Files with names of
// this cache that do not match are counted and removed; files that cannot be opened, and other
// files, are left alone.
//
//	diskcache.go  reading and writing blobs
//	ledger.go     the lock, the size of all blobs, and which blobs are evicted
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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

const (
	magic     = "RSTF\x00\x00\x00\x02" // includes the version of the format
	headerLen = len(magic) + 8 + sha256.Size
	suffix    = ".features"

	// maxBlob is the size limit of a blob in bytes.
	maxBlob = 1 << 30
)

// Cache is a folder of blobs. It is safe for concurrent use.
type Cache struct {
	dir   string
	limit int64 // of all files together, in bytes
	warn  func(error)

	writing  sync.Mutex  // held with the folder's lock
	failed   atomic.Bool // writing failed, and warn was called
	unopened atomic.Bool // reading failed, and warn was called

	hits, corrupt, evicted, unsaved, entries, bytes atomic.Int64
}

// Stats are counters of this Cache, and the sizes of the folder when this Cache last wrote to it.
type Stats struct {
	Hits, Corrupt, Evicted, Unsaved int64
	Entries, Bytes                  int64
}

// Open makes the folder if it is missing, removes leftover temporary files, and checks that it can
// write. The blobs of all programs that share the folder take at most limit bytes together; the
// least recently used are removed first. It calls warn once each time that reading or writing
// starts to fail.
func Open(dir string, limit int64, warn func(error)) (*Cache, error) {
	c := &Cache{dir: dir, limit: limit, warn: warn}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = c.locked(openTime, func(h *held) error {
			if err := h.evict(0); err != nil {
				return err
			}
			probe, err := files.Create(dir, 0o600)
			if err != nil {
				return err
			}
			return probe.Discard()
		})
	}
	if err != nil {
		return nil, fmt.Errorf("diskcache: %w", err)
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

// errDamaged is returned for a file that holds no blob.
var errDamaged = errors.New("damaged or foreign")

// Load returns the blob of a key; false if there is none.
func (c *Cache) Load(key [sha256.Size]byte) ([]byte, bool) {
	path := c.path(key)
	data, info, err := read(path, key)
	switch {
	case err == nil:
		c.unopened.Store(false)
		c.hits.Add(1)
		now := time.Now()
		_ = os.Chtimes(path, now, now) // else it may be evicted early
		return data, true
	case errors.Is(err, errDamaged):
		c.corrupt.Add(1)
		// If it stays, it is found again or overwritten.
		_ = c.locked(0, func(h *held) error { return h.remove(path, info) })
	case !errors.Is(err, fs.ErrNotExist) && !c.unopened.Swap(true):
		c.warn(fmt.Errorf("diskcache: %w", err))
	}
	return nil, false
}

// sumOf returns the checksum of a blob under its key.
func sumOf(key [sha256.Size]byte, blob []byte) []byte {
	h := sha256.New()
	h.Write(key[:])
	h.Write(blob)
	return h.Sum(nil)
}

// read returns the blob of a key's file, and the opened file's description.
func read(path string, key [sha256.Size]byte) (blob []byte, info fs.FileInfo, err error) {
	// Without O_NONBLOCK, opening a FIFO would block until it has a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	n := info.Size() - int64(headerLen)
	damaged := fmt.Errorf("%s: %w", path, errDamaged)
	if !info.Mode().IsRegular() || n < 0 || n > maxBlob {
		return nil, info, damaged
	}
	head, blob := make([]byte, headerLen), []byte(nil)
	if _, err = io.ReadFull(f, head); err == nil {
		if string(head[:len(magic)]) != magic ||
			binary.LittleEndian.Uint64(head[len(magic):]) != uint64(n) {
			return nil, info, damaged
		}
		blob = make([]byte, n)
		_, err = io.ReadFull(f, blob)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // it got shorter
		err = damaged
	}
	if err != nil {
		return nil, info, err
	}
	if !bytes.Equal(sumOf(key, blob), head[len(magic)+8:]) {
		return nil, info, damaged
	}
	return blob, info, nil
}

// Save stores a blob. If that fails, the blob is counted as not saved.
func (c *Cache) Save(key [sha256.Size]byte, blob []byte) {
	patience := saveTime
	if c.failed.Load() {
		patience = 0
	}
	err := c.locked(patience, func(h *held) error { return h.save(key, blob) })
	if err == nil {
		c.failed.Store(false)
		return
	}
	c.unsaved.Add(1)
	if !c.failed.Swap(true) {
		c.warn(fmt.Errorf("diskcache: %w", err))
	}
}

// write writes a new file, which has no name yet.
func (c *Cache) write(key [sha256.Size]byte, blob []byte) (*files.New, error) {
	f, err := files.Create(c.dir, 0o600)
	if err != nil {
		return nil, err
	}
	head := binary.LittleEndian.AppendUint64([]byte(magic), uint64(len(blob)))
	_, err = f.Write(append(head, sumOf(key, blob)...))
	if err == nil {
		_, err = f.Write(blob)
	}
	if err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// Stats returns the current numbers.
func (c *Cache) Stats() Stats {
	return Stats{Hits: c.hits.Load(), Corrupt: c.corrupt.Load(), Evicted: c.evicted.Load(),
		Unsaved: c.unsaved.Load(), Entries: c.entries.Load(), Bytes: c.bytes.Load()}
}
