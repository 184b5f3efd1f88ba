// Package filelock locks files between processes.
package filelock

import (
	"errors"
	"os"
)

// ErrInUse is returned when another process, or this one, holds the lock.
var ErrInUse = errors.New("another process uses it")

// Open opens the file at path, makes it with mode perm if it is missing, and locks it. The lock
// ends when the file is closed, at the latest with the process. If the lock is held, or its holder
// removes the file, Open does not wait.
func Open(path string, perm os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, perm)
	if err != nil {
		return nil, err
	}
	if err = lock(f); err == nil && !here(f, path) {
		err = ErrInUse // others may have locked a new file
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// here reports whether path is still the file f.
func here(f *os.File, path string) bool {
	locked, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(locked, named)
}
