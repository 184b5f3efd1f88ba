// Package atomicfile writes files that are there as a whole or not at all.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

var count atomic.Uint64

// Write writes data under a temporary name next to path and renames that. Folders that are missing
// are made. Processes and goroutines may write the same path: the last one stays.
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
