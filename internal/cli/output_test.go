//go:build unix

package cli

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/files"
)

// Ensure that a file appears complete or not at all, and that the file's own error takes precedence
// over the writer's.
func TestOutputCompleteOrNot(t *testing.T) {
	dir := t.TempDir()
	a := NewApp(thisProgram, strings.NewReader(""), io.Discard, io.Discard, nil)
	outs := a.Outputs()
	f, err := outs.Open("out", filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if got := clitest.Names(t, dir); len(got) != 1 || !strings.Contains(got[0], files.Unfinished) {
		t.Errorf("while it is written: %q", got)
	}
	broken := errors.New("broken")
	if err := f.Write(func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got error %v", err)
	}
	if got := clitest.Names(t, dir); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
	full, err := outs.Open("out", "/dev/full")
	if err != nil {
		t.Skip("no /dev/full here")
	}
	err = full.Write(func(w io.Writer) error {
		_, err := w.Write(make([]byte, 8192))
		return errors.Join(errors.New("weights do not fit"), err)
	})
	if err == nil || err.Error() != "/dev/full: the disk is full" {
		t.Errorf("full disk: %v", err)
	}
}
