//go:build !linux

package hub

import (
	"io/fs"
	"time"
)

// accessTime is when a file was written; this system does not tell when it was read.
func accessTime(st fs.FileInfo) time.Time { return st.ModTime() }
