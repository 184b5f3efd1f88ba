package checkpoint

import "golang.org/x/sys/unix"

// adviseHuge asks the system to read the file in huge pages, which makes decoding faster. If the
// file is already cached in small pages, or the file system does not support it, the advice has no
// effect.
func adviseHuge(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) }
