//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package lineedit

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// quiet gives a terminal its earlier state, but without echo and lines: what is typed is neither
// shown nor limited to the length of the system's lines.
func quiet(tty *os.File, before *term.State) error {
	fd := int(tty.Fd())
	if err := term.Restore(fd, before); err != nil {
		return err
	}
	t, err := unix.IoctlGetTermios(fd, getState)
	if err != nil {
		return err
	}
	t.Lflag &^= unix.ECHO | unix.ICANON
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, setState, t)
}
