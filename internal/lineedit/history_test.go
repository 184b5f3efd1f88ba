package lineedit

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Ensure that lines are kept between sessions, as they were, for their user alone; that repeated
// and empty lines are not; and that what another program wrote to the file does no harm.
func TestHistoryFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "history")
	h, err := OpenHistory(file)
	if err != nil || len(h.lines) != 0 {
		t.Fatalf("no file: %v, %v", h, err)
	}
	long := strings.Repeat("x", 300_000)
	for _, line := range []string{"one", "one", "", "two\nlines \"é\" <b>", "one", "\xff", long} {
		if err := h.Add(line); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(file); err != nil ||
		runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", info, err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("junk\n{}\n\"last\"\n\"torn"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	want := []string{"one", "two\nlines \"é\" <b>", "one", long, "last"}
	if h, err = OpenHistory(file); err != nil || !slices.Equal(h.lines, want) {
		t.Errorf("got %.50q, %v", h.lines, err)
	}
}

// Ensure that neither the file nor the memory grows without a limit, and that the newest lines
// stay.
func TestHistoryLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history")
	h := &History{file: file}
	line := strings.Repeat("x", 10_000)
	for i := range mostBytes / len(line) * 2 {
		if err := h.Add(line + string(rune('a'+i%26))); err != nil {
			t.Fatal(err)
		}
	}
	last := h.lines[len(h.lines)-1]
	h, err := OpenHistory(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || len(h.lines) < 100 || h.lines[len(h.lines)-1] != last ||
		info.Size() > mostBytes {
		t.Errorf("%v, %v, %d lines, %d bytes", err, statErr, len(h.lines), info.Size())
	}
	for i := range 2 * mostLines {
		h.remember(string(rune(i + 0x4e00)))
	}
	if len(h.lines) != mostLines {
		t.Errorf("%d lines in memory", len(h.lines))
	}
}

// Ensure that anything but a file is refused, and that an error names a file it cannot write.
func TestHistoryRefused(t *testing.T) {
	if h, err := OpenHistory(t.TempDir()); h != nil || err == nil {
		t.Errorf("a folder: %v, %v", h, err)
	}
	file := filepath.Join(t.TempDir(), "no", "folder")
	if err := os.WriteFile(filepath.Dir(file), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&History{file: file}).Add("line"); err == nil ||
		!strings.Contains(err.Error(), filepath.Dir(file)) {
		t.Errorf("got %v", err)
	}
}
