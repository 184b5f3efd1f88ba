//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that the first questions of a large file take no more memory than those of a small one,
// with few or many rows per group. RESTORE_LARGE is the size in megabytes, as in 2000.
func TestEvalMemory(t *testing.T) {
	large, err := strconv.Atoi(os.Getenv("RESTORE_LARGE"))
	if err != nil || large < 32 {
		t.Skip("writes a file of RESTORE_LARGE megabytes")
	}
	scene, err := os.ReadFile(clitest.Drawn(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	peak := func(megabytes, group int, more ...string) int64 {
		dir := t.TempDir()
		writeMME(t, filepath.Join(dir, "test-00000-of-00001.parquet"), scene, megabytes, group)
		defer os.RemoveAll(dir)
		cmd := process(append([]string{"eval", "mme", "--data", dir, "--limit", "10"}, more...)...)
		return watched(t, cmd)
	}
	for _, more := range [][]string{
		{"--print-prompts", filepath.Join(t.TempDir(), "p.jsonl")},
		{"--base", "holov", "--n-vis", "64", "--records", filepath.Join(t.TempDir(), "r")},
	} {
		small := peak(16, 100, more...)
		for _, group := range []int{50, 250} {
			if len(more) > 2 {
				more[len(more)-1] = filepath.Join(t.TempDir(), "r")
			}
			got := peak(large, group, more...)
			t.Logf("%v: %d MB of 16 MB, %d MB of %d MB in groups of %d rows", more, small, got,
				large, group)
			if got > small+64 {
				t.Errorf("%v: peak of %d MB, want about the %d MB of a small file", more, got,
					small)
			}
		}
	}
}

// watched runs a process and returns its largest observed memory in megabytes. The system's figure
// at the end includes the parent process.
func watched(t *testing.T, cmd *exec.Cmd) (most int64) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return most
		case <-time.After(2 * time.Millisecond):
			data, _ := os.ReadFile(status) // it may have ended
			for line := range strings.Lines(string(data)) {
				if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
					kB, _ := strconv.ParseInt(f[1], 10, 64)
					most = max(most, kB/1024)
				}
			}
		}
	}
}

// writeMME writes a file with MME's columns whose pictures take a megabyte each.
func writeMME(t *testing.T, path string, scene []byte, megabytes, group int) {
	t.Helper()
	type picture struct {
		Bytes []byte  `parquet:"bytes"`
		Path  *string `parquet:"path,optional"`
	}
	type row struct {
		ID       string  `parquet:"question_id"`
		Image    picture `parquet:"image"`
		Question string  `parquet:"question"`
		Answer   string  `parquet:"answer"`
		Category string  `parquet:"category"`
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := parquet.NewGenericWriter[row](f, parquet.MaxRowsPerRowGroup(int64(group)),
		parquet.SkipPageBounds("image", "bytes"), parquet.DataPageStatistics(false))
	random := rand.NewChaCha8([32]byte{1})
	tail := make([]byte, 1<<20)
	for i := range megabytes {
		_, _ = random.Read(tail) // never fails
		r := row{
			ID: "count/" + strconv.Itoa(i/2) + ".png", Question: "Is it? Please answer yes or no.",
			Answer: []string{"Yes", "No"}[i%2], Category: "count",
		}
		r.Image.Bytes = append(scene[:len(scene):len(scene)], tail...)
		if _, err := w.Write([]row{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
