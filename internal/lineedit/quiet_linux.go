package lineedit

import "golang.org/x/sys/unix"

const getState, setState = unix.TCGETS, unix.TCSETS
