//go:build unix

package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// claim locks an unfinished file for the life of the process. It returns false if another process
// holds the lock or removed the file, so only files of dead processes can be claimed. own says that
// this process made the file: then a file system without locks is accepted.
func claim(f *os.File, own bool) bool {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return own && !errors.Is(err, unix.EWOULDBLOCK)
	}
	here, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(here, named)
}
