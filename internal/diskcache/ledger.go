package diskcache

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

// lockName is the file that a program locks while it changes the folder. Its content is the ledger:
// the magic bytes, then the size of all entries in bytes and their number. The ledger changes
// before a file appears and after a file is gone, so the size is never too small. It is too large
// after a kill, or when another program removed files, until the next scan.
const (
	lockName    = ".lock"
	ledgerMagic = "RSTL\x00\x00\x00\x01" // includes the version of the format
	ledgerLen   = len(ledgerMagic) + 8 + 8
)

// Time limits for the folder's lock, which a program holds while it writes one file.
const (
	openTime = 10 * time.Second
	saveTime = time.Second

	// lockEvery is how often a held lock is tried again. Longer pauses would let a program that
	// writes without a pause keep the others out.
	lockEvery = 2 * time.Millisecond
)

// held is the folder while this program holds its lock.
type held struct {
	c              *Cache
	lock           *files.Locked
	bytes, entries int64
}

// locked calls f with the folder's lock. It waits for other programs as long as patience says.
func (c *Cache) locked(patience time.Duration, f func(*held) error) error {
	if patience > 0 {
		c.writing.Lock()
	} else if !c.writing.TryLock() {
		return files.ErrInUse
	}
	defer c.writing.Unlock()
	lock, err := lockFolder(c.dir, patience)
	if err != nil {
		return err
	}
	defer lock.Close()
	h := &held{c: c, lock: lock}
	if !h.readLedger() {
		if _, err := h.scan(); err != nil {
			return err
		}
	}
	err = f(h)
	if h.writeLedger() != nil { // on a full disk
		err = errors.Join(err, lock.Truncate(0))
	}
	c.bytes.Store(h.bytes)
	c.entries.Store(h.entries)
	return err
}

// lockFolder locks a folder.
func lockFolder(dir string, patience time.Duration) (*files.Locked, error) {
	path := filepath.Join(dir, lockName)
	for ; ; patience -= lockEvery {
		f, err := files.OpenLocked(path, 0o600)
		if err == nil || !errors.Is(err, files.ErrInUse) {
			return f, err
		}
		if patience <= 0 {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		time.Sleep(lockEvery)
	}
}

// readLedger returns false if there is no ledger.
func (h *held) readLedger() bool {
	var b [ledgerLen]byte
	n := len(ledgerMagic)
	if _, err := h.lock.ReadAt(b[:], 0); err != nil || string(b[:n]) != ledgerMagic {
		return false
	}
	h.bytes = int64(binary.LittleEndian.Uint64(b[n:]))
	h.entries = int64(binary.LittleEndian.Uint64(b[n+8:]))
	return h.bytes >= 0 && h.entries >= 0
}

func (h *held) writeLedger() error {
	b := binary.LittleEndian.AppendUint64([]byte(ledgerMagic), uint64(h.bytes))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.entries))
	_, err := h.lock.WriteAt(b, 0)
	return err
}

// scan counts the entries and removes temporary files: all are left over by a kill, since only the
// holder of the lock writes.
func (h *held) scan() ([]fs.FileInfo, error) {
	names, err := os.ReadDir(h.c.dir)
	if err != nil {
		return nil, err
	}
	h.bytes, h.entries = 0, 0
	var list []fs.FileInfo
	for _, f := range names {
		info, err := f.Info()
		switch {
		case err != nil: // it was removed
		case strings.HasPrefix(f.Name(), files.Unfinished):
			if os.Remove(filepath.Join(h.c.dir, f.Name())) != nil {
				h.bytes += info.Size()
			}
		case isOurs(f.Name()) && info.Mode().IsRegular():
			h.bytes += info.Size()
			h.entries++
			list = append(list, info)
		}
	}
	return list, nil
}

// evict counts the entries and, if there is no room for n more bytes, removes those that were not
// used for the longest time, until there is room for a tenth of the limit more.
func (h *held) evict(n int64) error {
	list, err := h.scan()
	limit := h.c.limit
	if err != nil || h.bytes+n <= limit {
		return err
	}
	slices.SortStableFunc(list, func(a, b fs.FileInfo) int {
		return a.ModTime().Compare(b.ModTime())
	})
	for _, info := range list {
		if h.bytes == 0 || h.bytes+n <= limit-limit/10 {
			return nil
		}
		if err := h.remove(filepath.Join(h.c.dir, info.Name()), info); err != nil {
			return err
		}
		h.c.evicted.Add(1)
	}
	return nil
}

// remove removes a file, unless it is no longer the one that info describes.
func (h *held) remove(path string, info fs.FileInfo) error {
	now, err := os.Stat(path)
	if err != nil || !os.SameFile(info, now) {
		return nil
	}
	entry, err := os.Lstat(path) // what a scan counts
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil && entry.Mode().IsRegular() {
		h.bytes -= entry.Size()
		h.entries--
	}
	return err
}

// save writes an entry.
func (h *held) save(key [sha256.Size]byte, blob []byte) error {
	path, n := h.c.path(key), int64(headerLen+len(blob))
	if n > h.c.limit || len(blob) > maxBlob {
		return fmt.Errorf("an entry of %d bytes, want at most %d", n, min(h.c.limit, maxBlob))
	}
	if h.bytes+n > h.c.limit {
		if err := h.evict(n); err != nil {
			return err
		}
	}
	h.bytes += n
	h.entries++
	err := h.writeLedger()
	var f *files.New
	if err == nil {
		f, err = h.c.write(key, blob)
	}
	if err == nil {
		before, missing := os.Lstat(path)
		if err = f.Rename(path); err == nil {
			if missing == nil && before.Mode().IsRegular() {
				h.bytes -= before.Size()
				h.entries--
			}
			return nil
		}
		err = errors.Join(err, f.Discard())
	}
	h.bytes -= n
	h.entries--
	return err
}
