//go:build unix

package batch

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile opens path and locks it as long as the file is open; the lock ends at the latest with
// the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, err
	}
	return f, nil
}
