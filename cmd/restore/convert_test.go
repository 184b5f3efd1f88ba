package main

import (
	"archive/zip"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
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
	if r := commandLine("convert", "-o", out, "--type", "f32"); r.Code != cli.ExitOK ||
		r.Err != "" ||
		!strings.Contains(r.Out, "MB") {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v %v", left, err)
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, args := range [][]string{
		{"inspect", "weights", "--out", a}, {"inspect", "weights", "-m", out, "--out", b},
	} {
		if r := commandLine(args...); r.Code != cli.ExitOK {
			t.Fatalf("%v: %q", args, r.Err)
		}
	}
	if !maps.EqualFunc(clitest.Floats(t, a), clitest.Floats(t, b), slices.Equal) {
		t.Error("other weights than the model's")
	}
	pic := clitest.Drawn(t, 3)
	args := []string{"run", "--image", pic, "-p", "What shape is the red object?"}
	if x, y := commandLine(args...), commandLine(append(args, "-m",
		out)...); x.Code != cli.ExitOK || x.Out != y.Out {
		t.Errorf("answers %q and %q (%q)", x.Out, y.Out, y.Err)
	}
	for _, args := range [][]string{
		{"convert", "-o", out}, {"convert"}, {"convert", "-o", a, "--type", "f16"}, {"convert", "-o", filepath.Join(dir, "c"), "--type", "q8"},
	} {
		if r := commandLine(args...); r.Code != cli.ExitUsage || strings.Count(r.Err, "\n") != 2 {
			t.Errorf("%v: exit %d, stderr %q", args, r.Code, r.Err)
		}
	}
	if r := commandLine("convert", "-o", filepath.Join(dir, "no", "c")); r.Code != cli.ExitFailure {
		t.Errorf("no folder around: exit %d, %q", r.Code, r.Err)
	}
	if r := commandLine("convert"); !strings.Contains(r.Err, "--output is missing, want a folder") {
		t.Errorf("no --output: %q", r.Err)
	}
}

// Ensure that an empty folder stays the folder that it is, since it may be a mount, the working
// folder or a link's target, and that a link to nothing is refused.
func TestConvertIntoFolder(t *testing.T) {
	dir := t.TempDir()
	empty, link := filepath.Join(dir, "empty"), filepath.Join(dir, "link")
	if err := os.MkdirAll(filepath.Join(empty, ".link.partial-999999999"), 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(empty)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("empty", link); err != nil {
		t.Skip(err)
	}
	if r := commandLine("convert", "-o", link); r.Code != cli.ExitOK {
		t.Fatalf("exit %d, stderr %q", r.Code, r.Err)
	}
	after, err := os.Stat(link)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("%v: the link leads elsewhere", err)
	}
	if r := commandLine("show", "-m", empty); r.Code != cli.ExitOK {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	if left, err := filepath.Glob(filepath.Join(empty, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q %v", left, err)
	}
	t.Chdir(t.TempDir())
	if r := commandLine("convert", "-o", "."); r.Code != cli.ExitOK {
		t.Errorf("the working folder: exit %d, stderr %q", r.Code, r.Err)
	}
	if err := os.Symlink("nothing", filepath.Join(dir, "broken")); err != nil {
		t.Fatal(err)
	}
	if r := commandLine("convert", "-o", filepath.Join(dir, "broken")); r.Code != cli.ExitUsage {
		t.Errorf("a link to nothing: exit %d, stderr %q", r.Code, r.Err)
	}
}

// Ensure that the decoder's GGUF file alone, converted to a folder, reads text like the file, also
// with the config.json that transformers 5 writes.
func TestConvertTextOnly(t *testing.T) {
	for _, name := range []string{"qwen2vl-tiny", "llama-linear-tiny", "gemma3-six-tiny"} {
		dir := t.TempDir()
		z, err := zip.OpenReader("../../internal/engine/testdata/gguf/" + name + ".zip")
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		if err := os.CopyFS(dir, z); err != nil {
			t.Fatal(err)
		}
		file, out := filepath.Join(dir, name+".gguf"), filepath.Join(t.TempDir(), "model")
		os.Remove(filepath.Join(dir, "mmproj-"+name+".gguf")) // not every archive has one
		if r := commandLine("convert", "-m", file, "-o", out); r.Code != cli.ExitOK {
			t.Fatalf("%s: exit %d, %q", name, r.Code, r.Err)
		}
		ask := func(model string, more ...string) clitest.Result {
			return commandLine(append([]string{"run", "-m", model, "-p", "What is it?",
				"--n-predict", "8", "--temp", "0"}, more...)...)
		}
		if a, b := ask(file), ask(out); a.Code != cli.ExitOK || a.Out == "" || a.Out != b.Out {
			t.Errorf("%s: got %q (%s), want %q (%s)", name, b.Out, b.Err, a.Out, a.Err)
		}
		if r := ask(out, "--image", clitest.Drawn(t, 3)); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, "which pictures need") {
			t.Errorf("%s: a picture: exit %d, %q", name, r.Code, r.Err)
		}
		config := filepath.Join(out, "config.json")
		flat, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(flat), `"text_config"`) {
			continue
		}
		nested := `{"architectures":["Qwen2VLForConditionalGeneration"],"vision_config":null,` +
			`"text_config":` + string(flat) + `}`
		if err := os.WriteFile(config, []byte(nested), 0o644); err != nil {
			t.Fatal(err)
		}
		if a, b := ask(file), ask(out); a.Out != b.Out {
			t.Errorf("%s: text_config: got %q (%s), want %q", name, b.Out, b.Err, a.Out)
		}
	}
}
