package hub

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

// locksFolder holds one lock file for each blob.
const locksFolder = ".locks"

// lockEvery is how often a held lock is tried again.
const lockEvery = 200 * time.Millisecond

// lock waits until no other process writes the blob; it calls notice once if it must wait. The lock
// file stays, as with huggingface_hub.
func (c *Client) lock(ctx context.Context, n Name, etag string, notice func()) (unlock func(),
	err error) {
	path := filepath.Join(c.cache, locksFolder, n.folder(), etag+".lock")
	for told := false; ; {
		f, err := files.OpenLocked(path, 0o666)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, files.ErrInUse) {
			return nil, err
		}
		if !told {
			notice()
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockEvery):
		}
	}
}

// busy says whether a process is writing a blob of the repository.
func (c *Client) busy(n Name) (bool, error) {
	dir := filepath.Join(c.cache, locksFolder, n.folder())
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		err = files.Lock(f)
		f.Close()
		if errors.Is(err, files.ErrInUse) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}
