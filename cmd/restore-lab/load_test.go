package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that flags that cannot be honoured are refused before a model is loaded.
func TestLoadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--clients: out of": {"load", "--clients", "0"},
		"--cancel: out of":  {"load", "--cancel", "2"},
		"--server: got":     {"load", "--server", "http://a", "--shape", "llava-1.5-7b"},
	} {
		if args[0] == "serve" { // a model that is missing is found later
			args = append(args, "-m", filepath.Join(t.TempDir(), "missing"))
		}
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) ||
			r.Out != "" {
			t.Errorf("%v: exit %d, %q, want %q", args, r.Code, r.Err, want)
		}
	}
}
