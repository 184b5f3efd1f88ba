//go:build unix

package eval

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limitFiles limits the size of files that this process writes.
func limitFiles(t *testing.T, bytes uint64) {
	t.Helper()
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		t.Fatal(err)
	}
	now.Cur = bytes
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		t.Fatal(err)
	}
}

// pushing is an adder whose disk has room again after the first record that did not fit, and that
// tries to record the answer again then.
type pushing struct {
	adder
	t      *testing.T
	usual  uint64 // limit of files' sizes
	failed error
	after  int // answers that were recorded after the error
}

func (p *pushing) Answer(
	ctx context.Context, qs []*Question, done func(int, Answer) error,
) error {
	return p.adder.Answer(ctx, qs, func(i int, a Answer) error {
		err := done(i, a)
		if err != nil && p.failed == nil {
			p.failed = err
			limitFiles(p.t, p.usual)
			if done(i, a) == nil {
				p.after++
			}
		}
		return err
	})
}

// fullDisk is set in the process in which TestRunFullDisk limits the size of files: the log of
// opened files, which go test keeps in the other one, would not fit either.
const fullDisk = "RESTORE_TEST_FULL_DISK"

// Ensure that a run that could not write a record writes no more, and that the same run continues
// from what was written, with the result of an undisturbed one.
func TestRunFullDisk(t *testing.T) {
	if os.Getenv(fullDisk) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRunFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), fullDisk+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestRunFullDisk") {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	want, _, err := Run(t.Context(), sums(), &adder{}, RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var hard unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &hard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { limitFiles(t, hard.Cur) })
	for size := uint64(1000); size < 1500; size += 50 {
		o := RunOptions{Records: t.TempDir(), Parallel: 1}
		p := &pushing{t: t, usual: hard.Cur}
		limitFiles(t, size)
		_, _, err := Run(t.Context(), sums(), p, o)
		limitFiles(t, hard.Cur)
		if !errors.Is(err, unix.EFBIG) || p.after > 0 {
			t.Fatalf("%d bytes: got %v, %d records after it", size, err, p.after)
		}
		data, err := os.ReadFile(filepath.Join(o.Records, recordsFile))
		if err != nil || len(data) == 0 || !strings.HasSuffix(string(data), "\n") {
			t.Errorf("%d bytes: left %.60q…, %v", size, data, err)
		}
		if got, _, err := Run(t.Context(), sums(), &adder{}, o); err != nil || !same(got, want) {
			t.Errorf("%d bytes: the next run: %+v, %v", size, got, err)
		}
	}
}

// Ensure that a file is not cut that no run wrote.
func TestRecordsOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, recordsFile)
	const notes = "not a line break in it"
	if err := os.WriteFile(path, []byte(notes), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Run(t.Context(), sums(), &adder{}, RunOptions{Records: dir})
	if err == nil || !strings.Contains(err.Error(), "no run wrote it") {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != notes {
		t.Errorf("it has %q now, %v", data, err)
	}
}
