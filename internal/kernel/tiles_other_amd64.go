//go:build !linux && !purego

package kernel

import "errors"

// requestTiles returns an error: no way to request AMX tiles from this system is known.
func requestTiles() error {
	return errors.New("amx: used on Linux only")
}
