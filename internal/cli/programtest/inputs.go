package programtest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// SparesInputs checks that no output of a command line is one of its inputs or another of its
// outputs, under any name, and that nothing was computed or changed. DIR is a folder with a
// picture, scene.png, links to it, link.png, hard.png and hard.svg, and config.json. drawing is a
// command line that writes DIR/out.png, to which its stdout goes.
func (p *Tested) SparesInputs(t *testing.T, lines map[string][]string, drawing ...string) {
	picture := clitest.Drawn(t, 0)
	dir := filepath.Dir(picture)
	if err := errors.Join(os.Symlink("scene.png", filepath.Join(dir, "link.png")),
		os.Link(picture, filepath.Join(dir, "hard.png")),
		os.Link(picture, filepath.Join(dir, "hard.svg")),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	listed := len(clitest.Names(t, dir))
	within := func(args []string) (out []string) {
		for _, arg := range args {
			out = append(out, strings.Replace(arg, "DIR", dir, 1))
		}
		return out
	}
	for name, args := range lines {
		r := p.Command(within(args)...)
		if r.Code != cli.ExitUsage || r.Out != "" || !strings.Contains(r.Err, ", want another") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.Code, r.Out, r.Err)
		}
	}
	after, err := os.ReadFile(picture)
	if err != nil || !bytes.Equal(before, after) || len(clitest.Names(t, dir)) != listed {
		t.Errorf("the input changed, or files are left: %q, %v", clitest.Names(t, dir), err)
	}
	out, err := os.Create(filepath.Join(dir, "out.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := p.Process(within(drawing)...)
	cmd.Stdout = out
	if r := clitest.Finish(t, cmd); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, "which stdout goes to") {
		t.Errorf("stdout's file: exit %d, stderr %q", r.Code, r.Err)
	}
}
