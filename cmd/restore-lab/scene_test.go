package main

import (
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
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
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	picture := scene.New(7).Image()
	if got.Bounds() != picture.Bounds() {
		t.Fatalf("a picture of %v, want %v", got.Bounds(), picture.Bounds())
	}
	for y := range scene.Size {
		for x := range scene.Size {
			a, want := color.NRGBAModel.Convert(got.At(x, y)), picture.NRGBAAt(x, y)
			if a != want {
				t.Fatalf("pixel %d, %d is %v, want %v", x, y, a, want)
			}
		}
	}
	if r := commandLine("scene", "-o", "a.txt"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, `--output: got "a.txt"`) {
		t.Errorf("a.txt: exit %d, %s", r.Code, r.Err)
	}
}
