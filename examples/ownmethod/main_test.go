package main

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// Ensure that the example runs: an answer, a drawing, and the method in the table beside the controls.
func TestShow(t *testing.T) {
	if err := reduce.Register(reduce.Method{Name: "longest"}, longest); err != nil {
		t.Fatal(err)
	}
	drawing := filepath.Join(t.TempDir(), "longest.png")
	var b bytes.Buffer
	if err := show(&b, drawing, 1); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"576 tokens -> 32 kept + 32 merged", "longest", "gain of RESTORE", "1 pictures"} {
		if !strings.Contains(b.String(), w) {
			t.Errorf("lacks %q in %s", w, b.String())
		}
	}
	f, err := os.Open(drawing)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
}
