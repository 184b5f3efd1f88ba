//go:build !unix && !windows

package batch

import (
	"fmt"
	"os"
	"runtime"
)

// lockFile refuses: without locks two processes could write the same output.
func lockFile(string) (*os.File, error) {
	return nil, fmt.Errorf("%s has no locks on files", runtime.GOOS)
}
