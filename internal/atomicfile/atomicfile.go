// Package atomicfile writes files atomically: a file is complete or does not exist, also after a
// crash of the machine.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

var count atomic.Uint64

// Write writes data to a temporary file next to path, of mode perm before umask, and renames it. It
// makes missing folders. Processes and goroutines may write the same path at once: the last one
// wins.
func Write(path string, data []byte, perm os.FileMode) error {
	folder := perm | perm>>2&0o111 // who may read the file may search its folder
	if err := os.MkdirAll(filepath.Dir(path), folder); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d-%d.new", path, os.Getpid(), count.Add(1))
	err := write(tmp, data, perm)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		if gone := os.Remove(tmp); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// write writes a file and syncs it to disk: else a crash of the machine can leave the new name with
// no content.
func write(path string, data []byte, perm os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
