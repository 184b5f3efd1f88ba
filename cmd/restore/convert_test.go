package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Ensure that a converted model answers like the original, that a non-empty folder and an unknown
// type are refused, and that leftovers of a dead process are removed.
func TestConvert(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "model")
	stale := filepath.Join(dir, ".model.partial-999999999")
	if err := os.Mkdir(stale, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := cli("convert", "-o", out, "--type", "f32"); r.code != exitOK || r.err != "" ||
		!strings.Contains(r.out, "MB") {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, args := range [][]string{
		{"inspect", "weights", "--out", a}, {"inspect", "weights", "-m", out, "--out", b},
	} {
		if r := cli(args...); r.code != exitOK {
			t.Fatalf("%v: %q", args, r.err)
		}
	}
	if !maps.EqualFunc(floats(t, a), floats(t, b), slices.Equal) {
		t.Error("other weights than the model's")
	}
	pic := drawn(t, 3)
	args := []string{"run", "--image", pic, "-p", "What shape is the red object?"}
	if x, y := cli(args...), cli(append(args, "-m", out)...); x.code != exitOK || x.out != y.out {
		t.Errorf("answers %q and %q (%q)", x.out, y.out, y.err)
	}
	for _, args := range [][]string{
		{"convert", "-o", out}, {"convert"}, {"convert", "-o", a, "--type", "f16"}, {"convert", "-o", filepath.Join(dir, "c"), "--type", "q8"},
	} {
		if r := cli(args...); r.code != exitUsage || strings.Count(r.err, "\n") != 2 {
			t.Errorf("%v: exit %d, stderr %q", args, r.code, r.err)
		}
	}
	if r := cli("convert", "-o", filepath.Join(dir, "no", "c")); r.code != exitFailure {
		t.Errorf("no folder around: exit %d, %q", r.code, r.err)
	}
}
