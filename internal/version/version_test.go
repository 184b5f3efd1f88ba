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

// Ensure that servers read the semantic version without its v.
func TestUserAgent(t *testing.T) {
	for version, want := range map[string]string{
		"(devel)": "restore", "v1.2.3": "restore/1.2.3", "v1.2.3-rc.1": "restore/1.2.3-rc.1",
	} {
		if got := userAgent(version); got != want {
			t.Errorf("%s: got %q, want %q", version, got, want)
		}
	}
}
