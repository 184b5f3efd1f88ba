//go:build unix

package eval

import (
	"os"

	"golang.org/x/sys/unix"
)

// claim locks a file for this process, until it is closed or the process ends. It returns an error
// if another process has locked it.
func claim(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
