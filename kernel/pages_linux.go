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
	start := (uintptr(unsafe.Pointer(&b[0])) + hugePage - 1) &^ (hugePage - 1)
	skip := int(start - uintptr(unsafe.Pointer(&b[0])))
	_ = syscall.Madvise(b[skip:skip+(n-skip)&^(hugePage-1)], madvHugePage)
	return b
}

// madvHugePage is MADV_HUGEPAGE of Linux on every architecture but alpha,
// parisc and xtensa, none of which Go has.
const madvHugePage = 14
