package calibrate

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that a machine is measured once, that it is measured again if the file is invalid, and
// that it works without a place for the file.
func TestSpeedIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	measured := 0
	measure := func() *kernel.Speed {
		measured++
		s := &kernel.Speed{
			Implementation: kernel.Implementation(), Threads: 2, Elements: 1,
			Read:     float64(measured),
			Products: map[string][]kernel.ProductSpeed{"F32": {{Rows: 1, Seconds: 1e-9}}},
		}
		for i := range s.Attention {
			s.Attention[i] = 1
		}
		return s
	}
	first := in(dir, 2, measure)
	if second := in(dir, 2, measure); measured != 1 || !reflect.DeepEqual(first, second) {
		t.Fatalf("measured %d times, %+v and %+v", measured, first, second)
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
	if in(dir, 2, measure); measured != 2 {
		t.Errorf("an invalid file: measured %d times in all, want 2", measured)
	}
	if in("", 2, measure); measured != 3 {
		t.Errorf("no folder: measured %d times in all, want 3", measured)
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
