//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package lineedit

import (
	"os"

	"golang.org/x/term"
)

// quiet gives a terminal its earlier state: this system shows what is typed.
func quiet(tty *os.File, before *term.State) error { return term.Restore(int(tty.Fd()), before) }
