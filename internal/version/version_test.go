package version

import (
	"runtime/debug"
	"testing"
)

// Ensure that the version is this module's, in its own program and in another's.
func TestOf(t *testing.T) {
	own := debug.Module{Path: module, Version: "v1.2.3"}
	other := debug.Module{Path: "x", Version: "v9"}
	for name, c := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"own program":     {debug.BuildInfo{Main: own, Deps: []*debug.Module{&other}}, "v1.2.3"},
		"other program":   {debug.BuildInfo{Main: other, Deps: []*debug.Module{&own}}, "v1.2.3"},
		"nothing":         {debug.BuildInfo{Main: other}, "(devel)"},
		"without version": {debug.BuildInfo{Main: debug.Module{Path: module}}, "(devel)"},
	} {
		if got := of(&c.info); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
