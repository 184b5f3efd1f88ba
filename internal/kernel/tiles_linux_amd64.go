//go:build !purego

package kernel

import (
	"fmt"
	"syscall"
)

// requestTiles asks the system to let this process use AMX tiles.
func requestTiles() error {
	const archReqXcompPerm, xTileData = 0x1023, 18
	if _, _, e := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm,
		xTileData, 0); e != 0 {
		return fmt.Errorf("amx: the system does not permit its registers: %w", e)
	}
	return nil
}
