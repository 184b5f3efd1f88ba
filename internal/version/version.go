// Package version tells which version of this module a program was built with.
package version

import (
	"runtime/debug"
	"strings"
)

const module = "github.com/restore-vlm/restore"

// linked is the version of a release, as in v1.2.3. Its build sets it with
// -ldflags "-X github.com/restore-vlm/restore/internal/version.linked=v1.2.3".
var linked string

// Module returns the version of the release, or what the build recorded for this module, as the
// program's own or as one that it uses: a released version, or the commit. It is "(devel)" if
// nothing was recorded.
func Module() string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return none
	}
	return of(info)
}

// UserAgent names this program to the servers it asks, as in "restore/1.2.3". It is "restore" if
// the version is not known.
func UserAgent() string { return userAgent(Module()) }

func userAgent(version string) string {
	if version == none {
		return "restore"
	}
	return "restore/" + strings.TrimPrefix(version, "v")
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
