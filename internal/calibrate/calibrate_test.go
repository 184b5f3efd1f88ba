package calibrate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that a machine is measured once, that it is measured again if the file is invalid, and
// that it works without a place for the file.
func TestSpeedIsKept(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine")
	}
	p := kernel.NewPool(2)
	defer p.Close()
	dir := filepath.Join(t.TempDir(), "a", "b")
	measured := 0
	count := func() { measured++ }
	first := in(dir, p, count)
	second := in(dir, p, count)
	if measured != 1 || second.Read != first.Read || len(second.Products) != len(first.Products) {
		t.Fatalf("measured %d times, read %v and %v", measured, first.Read, second.Read)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, error %v", files, err)
	}
	for _, text := range []string{"", "null", "{", `{"Form":1}`, `{"Form":1,"CPU":"another"}`} {
		if err := os.WriteFile(files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := load(files[0], CPU(), 2); err == nil {
			t.Errorf("%q is read as a measurement", text)
		}
	}
	if in(dir, p, count); measured != 2 {
		t.Errorf("an invalid file: measured %d times in all, want 2", measured)
	}
}

func TestCPU(t *testing.T) {
	for info, want := range map[string]string{
		"": "amd64",
		"processor\t: 0\nmodel name\t: A  CPU\ncpu family\t: 6\nmodel\t\t: 85\n\n" +
			"processor: 1\nmodel name: B\n": "A CPU (family 6, model 85)",
		"model name: A\n": "A",
	} {
		if got := cpuIn(info); got != want && info != "" {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
}
