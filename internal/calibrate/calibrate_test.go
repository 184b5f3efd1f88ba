package calibrate

import (
	"errors"
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

// Ensure that a trial is stored for its kernels and format alone, and that another machine's file
// is not used.
func TestPlansAreKept(t *testing.T) {
	dir := t.TempDir()
	var tries []kernel.PlanTrial
	kept := func(kernels, format string) (kernel.PlanTrial, bool) {
		load, _ := planFile(dir)
		return load(kernels, format)
	}
	_, save := planFile(dir)
	for kernels, plan := range map[string]string{"avx2": "rows", "avx512+vnni": "turns"} {
		trial := kernel.PlanTrial{
			Kernels: kernels, Format: "Q8", Plan: plan, Ratios: map[string]float64{"rows": 1},
		}
		tries = append(tries, trial)
		save(trial)
	}
	for _, want := range tries {
		got, ok := kept(want.Kernels, want.Format)
		if !ok || got.Plan != want.Plan || got.Ratios["rows"] != 1 {
			t.Errorf("%+v, %v, want %+v", got, ok, want)
		}
	}
	if _, ok := kept("avx2", "IQ4"); ok {
		t.Error("loaded a format without a trial")
	}
	files, err := filepath.Glob(filepath.Join(dir, "plans-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, error %v", files, err)
	}
	other := `{"Form":1,"CPU":"another",` + `"Plans":{"avx2 Q8":{"Kernels":"avx2","Format":"Q8"}}}`
	for _, text := range []string{"", "{", other} {
		if err := os.WriteFile(files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := kept("avx2", "Q8"); ok {
			t.Errorf("%q is used: %+v", text, got)
		}
	}
	// A file that cannot be opened now is not replaced.
	if err := errors.Join(os.Remove(files[0]), os.Symlink(files[0], files[0])); err != nil {
		t.Skip("no symbolic links here")
	}
	save(tries[0])
	if info, err := os.Lstat(files[0]); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("got %v, %v, want the file as it was", info, err)
	}
}
