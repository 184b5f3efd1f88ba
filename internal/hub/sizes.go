package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/files"
)

// sizeFile keeps the size of a blob that was downloaded whole.
func (c *Client) sizeFile(n Name, etag string) string {
	return filepath.Join(c.cache, locksFolder, n.folder(), etag+".size")
}

// keepSize stores the size of a blob that is whole.
func (c *Client) keepSize(n Name, etag string, size int64) error {
	return files.Write(c.sizeFile(n, etag), strconv.AppendInt(nil, size, 10), 0o666)
}

// etagOf returns the hash of a snapshot's file, "" if it is no link to a blob.
func etagOf(path string) string {
	to, err := os.Readlink(path)
	if err != nil || !etagPattern.MatchString(filepath.Base(to)) {
		return ""
	}
	return filepath.Base(to)
}

// size is the size that a snapshot's file must have, -1 if it is not known: another program
// downloaded the file, or copied it.
func (c *Client) size(n Name, path string) int64 {
	etag := etagOf(path)
	if etag == "" {
		return -1
	}
	text, err := os.ReadFile(c.sizeFile(n, etag))
	if err != nil {
		return -1
	}
	size, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return -1
	}
	return size
}

// sizeError says that a file of the cache is not as it was downloaded.
type sizeError struct {
	name      string
	got, want int64
}

func (e *sizeError) Error() string {
	return fmt.Sprintf("%s: damaged in the cache, got %d bytes, want %d", e.name, e.got, e.want)
}

func (e *sizeError) Is(target error) bool { return target == errs.ErrDamaged }

// checkSizes compares the sizes of a snapshot's files with the downloaded sizes.
func (c *Client) checkSizes(s *Snapshot, names []string) error {
	for _, name := range names {
		path := filepath.Join(s.Dir, filepath.FromSlash(name))
		info, err := stat(path)
		if err != nil {
			return err
		}
		if want := c.size(s.Name, path); want >= 0 && info.Size() != want {
			return &sizeError{name, info.Size(), want}
		}
	}
	return nil
}

// cached looks at a snapshot's file. whole is false if it is missing or damaged, which is an
// errs.ErrDamaged. It keeps the size of a whole file.
func (p *puller) cached(w *wantedFile) (whole bool, err error) {
	path := p.path(w.name)
	info, err := os.Stat(path)
	if err != nil {
		return false, nil
	}
	etag, want := etagOf(path), p.client.size(p.name, path)
	known := want >= 0
	if !known {
		want = w.meta.size
	}
	if want >= 0 && info.Size() != want {
		return false, &sizeError{w.name, info.Size(), want}
	}
	if p.Verify {
		if err := p.verify(path, info.Size(), cmp.Or(etag, w.meta.etag)); err != nil {
			return false, fmt.Errorf("%s: damaged in the cache: %w", w.name, err)
		}
	}
	if !known && want >= 0 && etag == w.meta.etag {
		_ = p.client.keepSize(p.name, etag, want) // a read-only cache stays unchanged
	}
	return true, nil
}

// verify compares a file with its hash.
func (p *puller) verify(path string, size int64, etag string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkContent(f, size, etag)
}

// discard removes a damaged file and its content.
func (p *puller) discard(name string) error {
	path := p.path(name)
	gone := []string{path}
	if etag := etagOf(path); etag != "" {
		gone = append(gone, p.client.blob(p.name, etag), p.client.sizeFile(p.name, etag))
	}
	for _, file := range gone {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
