//go:build unix

package lineedit

import "golang.org/x/sys/unix"

// stop stops the processes of this job, as Ctrl-Z does.
var stop = func() { _ = unix.Kill(0, unix.SIGTSTP) }
