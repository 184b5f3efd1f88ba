//go:build unix

package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapOpen maps size bytes of f for reading. The mapping outlives f.
func mapOpen(f *os.File, size int) (*Mapping, error) {
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	adviseHuge(data)
	return &Mapping{
		Data:    data,
		release: func() error { return os.NewSyscallError("munmap", unix.Munmap(data)) },
		drop:    func() { _ = unix.Madvise(data, unix.MADV_DONTNEED) }, // advice
	}, nil
}
