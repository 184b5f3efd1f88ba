package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that the method answers, with its parameter in the report, and is drawn.
func TestRun(t *testing.T) {
	drawing := filepath.Join(t.TempDir(), "longest.png")
	var out bytes.Buffer
	if err := run(t.Context(), &out, "../../docs/scene.png", drawing); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "RESTORE over longest, n-vis 64") ||
		!strings.Contains(out.String(), "longest-power 1.5") {
		t.Errorf("got %s, want the method and its parameter", out.String())
	}
	if data, err := os.ReadFile(drawing); err != nil || !bytes.HasPrefix(data, []byte("\x89PNG")) {
		t.Errorf("the drawing is no PNG: %v", err)
	}
}
