package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
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

// Ensure that the builds of a release set the version: that the name they set is the variable's.
func TestLinked(t *testing.T) {
	const set = "-X github.com/restore-vlm/restore/internal/version.linked="
	const inner = "RESTORE_TEST_LINKED"
	if want := os.Getenv(inner); want != "" {
		if got := Module(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		return
	}
	for _, file := range []string{".goreleaser.yaml", "tools/release/prepare"} {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), set) {
			t.Errorf("%s does not set the version by %q", file, set)
		}
	}
	cmd := exec.Command("go", "test", "-run", "^TestLinked$", "-ldflags", set+"v9.8.7", ".")
	cmd.Env = append(os.Environ(), inner+"=v9.8.7")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
