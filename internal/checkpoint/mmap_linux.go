package checkpoint

import "golang.org/x/sys/unix"

// adviseHuge asks that the file be read in huge pages, which decoding is faster
// with. Where it is cached in small ones already, and on file systems without,
// the advice does nothing.
func adviseHuge(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
