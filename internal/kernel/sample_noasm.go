//go:build !amd64 || purego

package kernel

func microLoop(_ isa, _ bool, f Format, m int) (loop func(), ops int) {
	return microLoopGo(f, m)
}
