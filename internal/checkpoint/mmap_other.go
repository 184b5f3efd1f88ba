//go:build !unix

package checkpoint

import (
	"io"
	"os"
)

// mapOpen reads size bytes of f, because files are not mapped on this system.
func mapOpen(f *os.File, size int) (*Mapping, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	return &Mapping{Data: data}, nil
}
