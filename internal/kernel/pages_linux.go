package kernel

import (
	"syscall"
	"unsafe"
)

// hugePage is the usual size of a huge page; with another the advice is merely
// less useful.
const hugePage = 2 << 20

// largeBytes allocates n zero bytes, and when they are many asks for huge
// pages: a product of one row reads each weight once, and there the walk of
// the page tables costs a third of the time. A refusal is no error.
func largeBytes(n int) []byte {
	if n < 2*hugePage {
		return make([]byte, n)
	}
	b := make([]byte, n)
	_ = hugeStart(b)
	return b
}

// workBytes allocates n bytes of scratch memory, in huge pages where they are not few: tiles read
// from a hundred pages in a row, and the processor knows the places of about as many.
func workBytes(n int) []byte {
	if n < hugePage/8 {
		return make([]byte, n)
	}
	n = (n + hugePage - 1) &^ (hugePage - 1)
	return hugeStart(make([]byte, n+hugePage))[:n]
}

// hugeStart asks for huge pages for b and returns it from its first huge page on.
func hugeStart(b []byte) []byte {
	start := (uintptr(unsafe.Pointer(&b[0])) + hugePage - 1) &^ (hugePage - 1)
	skip := int(start - uintptr(unsafe.Pointer(&b[0])))
	_ = syscall.Madvise(b[skip:skip+(len(b)-skip)&^(hugePage-1)], madvHugePage)
	return b[skip:]
}

// mapBytes asks the system for n zero bytes, and unmapBytes gives them back.
// They need not exist all at once: what is written to, does.
func mapBytes(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n+hugePage, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
}

func unmapBytes(b []byte) error { return syscall.Munmap(b) }

// madvHugePage is MADV_HUGEPAGE of Linux on every architecture but alpha,
// parisc and xtensa, none of which Go has.
const madvHugePage = 14
