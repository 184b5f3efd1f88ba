// Package version tells which version of this module a program was built with.
package version

import "runtime/debug"

const module = "github.com/restore-vlm/restore"

// Module returns the version that the build recorded for this module, as the program's own or as
// one that it uses: a released version, or the commit. It is "(devel)" if nothing was recorded.
func Module() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return none
	}
	return of(info)
}

const none = "(devel)"

func of(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && m.Version != "" {
			return m.Version
		}
	}
	return none
}
