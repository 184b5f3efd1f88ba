//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package lineedit

import "golang.org/x/sys/unix"

const getState, setState = unix.TIOCGETA, unix.TIOCSETA
