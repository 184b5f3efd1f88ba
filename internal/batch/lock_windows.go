package batch

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockFile opens path and locks it as long as the file is open; the lock ends at the latest with
// the process.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	how := uint32(windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY)
	if err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0,
		new(windows.Overlapped)); err != nil {
		f.Close()
		if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
			err = ErrInUse
		}
		return nil, err
	}
	return f, nil
}
