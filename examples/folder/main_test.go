package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that every file of a folder gets a line, also a file that is not a picture.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	scene, err := os.ReadFile("../../docs/scene.png")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		content := scene
		if i == 5 {
			content = []byte("no picture")
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.png", i)), content,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, dir, "What number is written?"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 12 {
		t.Fatalf("got %d lines, want 12:\n%s", len(lines), out.String())
	}
	for i, l := range lines {
		want := fmt.Sprintf("%02d.png: 22", i)
		if i == 5 {
			want = "05.png: imageproc: "
		}
		if !strings.HasPrefix(l, want) {
			t.Errorf("line %d: got %q, want %q", i, l, want)
		}
	}
}
