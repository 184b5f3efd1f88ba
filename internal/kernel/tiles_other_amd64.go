//go:build !linux && !purego

package kernel

import "errors"

// requestTiles tells that this system has no way to ask for AMX's tiles that is known here.
func requestTiles() error {
	return errors.New("amx: used on Linux only")
}
