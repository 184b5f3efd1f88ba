package kernel

import (
	"syscall"
	"unsafe"
)

// hugePage is the usual size of a huge page. With another size the advice is only less useful.
const hugePage = 2 << 20

// largeBytes allocates n zero bytes. For large n it requests huge pages: a product of one row reads
// each weight once, and with small pages the page-table walks take a third of the time. It ignores
// a refusal.
func largeBytes(n int) []byte {
	if n < 2*hugePage {
		return make([]byte, n)
	}
	b := make([]byte, n)
	_ = hugeStart(b)
	return b
}

// workBytes allocates n bytes of scratch memory, in huge pages unless n is small. Tiles read from a
// hundred pages in turn, and the processor caches the addresses of about as many.
func workBytes(n int) []byte {
	if n < hugePage/8 {
		return make([]byte, n)
	}
	n = (n + hugePage - 1) &^ (hugePage - 1)
	return hugeStart(make([]byte, n+hugePage))[:n]
}

// hugeStart requests huge pages for b and returns b from its first huge page on.
func hugeStart(b []byte) []byte {
	start := (uintptr(unsafe.Pointer(&b[0])) + hugePage - 1) &^ (hugePage - 1)
	skip := int(start - uintptr(unsafe.Pointer(&b[0])))
	_ = syscall.Madvise(b[skip:skip+(len(b)-skip)&^(hugePage-1)], madvHugePage)
	return b[skip:]
}

// mapBytes requests n zero bytes from the system; unmapBytes frees them. Memory is used only for
// pages that are written.
func mapBytes(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n+hugePage, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
}

func unmapBytes(b []byte) error { return syscall.Munmap(b) }

// madvHugePage is Linux's MADV_HUGEPAGE on every architecture except alpha, parisc and xtensa,
// which Go does not support.
const madvHugePage = 14
