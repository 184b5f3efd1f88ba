package hub

import (
	"io/fs"
	"syscall"
	"time"
)

// accessTime is when a file was last read, or written if that is later.
func accessTime(st fs.FileInfo) time.Time {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		if t := time.Unix(s.Atim.Unix()); t.After(st.ModTime()) {
			return t
		}
	}
	return st.ModTime()
}
