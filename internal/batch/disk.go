package batch

import (
	"io"
	"os"

	"github.com/restore-vlm/restore/internal/files"
)

// disk is what a journal needs of a file system. Tests replace it by one that fails.
type disk interface {
	open(path string, flag int) (file, error)
	rename(from, to string) error
	// syncDir syncs a folder's entries to disk: new files and new names.
	syncDir(path string) error
}

// file is an open file of a disk. It has no position, so an unfinished write moves none.
type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Stat() (os.FileInfo, error)
	Close() error
}

// osDisk is the file system of the operating system.
type osDisk struct{}

func (osDisk) open(path string, flag int) (file, error) {
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osDisk) rename(from, to string) error { return os.Rename(from, to) }

func (osDisk) syncDir(path string) error { return files.SyncFolder(path) }

// writeAt writes all of data at an offset.
func writeAt(w io.WriterAt, data []byte, at int64) error {
	n, err := w.WriteAt(data, at)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	return err
}
