// Package atomicfile writes files atomically: a file is complete or does not exist.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

var count atomic.Uint64

// Write writes data to a temporary file next to path and renames it. It makes missing folders.
// Processes and goroutines may write the same path at once: the last one wins.
func Write(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	tmp := fmt.Sprintf("%s.%d-%d.new", path, os.Getpid(), count.Add(1))
	err := os.WriteFile(tmp, data, 0o666)
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
