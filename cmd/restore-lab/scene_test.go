package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/scene"
)

// Ensure that a scene's questions and answers are printed, one per line, and that its picture is
// the scene's.
func TestScene(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.png")
	r := commandLine("scene", "--seed", "7", "-o", file)
	want := ""
	for _, q := range scene.New(7).Questions() {
		want += q.Task + "\t" + q.Text + "\t" + q.Answer + "\n"
	}
	if r.Code != cli.ExitOK || r.Out != want || r.Err != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	a, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(clitest.Drawn(t, 7))
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("the picture is not the scene's (%v)", err)
	}
	if r := commandLine("scene", "-o", "a.txt"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, `--output: got "a.txt"`) {
		t.Errorf("a.txt: exit %d, %s", r.Code, r.Err)
	}
}
