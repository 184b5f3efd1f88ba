package files

import (
	"errors"
	"os"
)

// ErrInUse is returned when another process, or this one, holds the lock.
var ErrInUse = errors.New("another process uses it")

// Locked is an open file that this process has locked.
type Locked struct{ *os.File }

// Close releases the lock and closes the file. Closing alone would leave the lock to a process that
// this one is just starting, which holds all files until it runs.
func (l *Locked) Close() error { return errors.Join(unlock(l.File), l.File.Close()) }

// OpenLocked opens the file at path, makes it with mode perm if it is missing, and locks it.
func OpenLocked(path string, perm os.FileMode) (*Locked, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, perm)
	if err != nil {
		return nil, err
	}
	if err := Lock(f); err != nil {
		f.Close()
		return nil, err
	}
	return &Locked{f}, nil
}

// Lock locks a file until it is closed, at the latest until the process ends. It does not wait: it
// returns ErrInUse if the lock is held, or if the file was removed, since others may have locked a
// new one.
func Lock(f *os.File) error {
	if err := lock(f); err != nil {
		return err
	}
	locked, err := f.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Stat(f.Name()); err != nil || !os.SameFile(locked, named) {
		return ErrInUse
	}
	return nil
}
