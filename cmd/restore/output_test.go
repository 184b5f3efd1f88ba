//go:build unix

package main

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that "-" is stdout for every output file, and that the command's other text then goes to
// stderr.
func TestOutputDash(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	ask := []string{"run", "--image", picture, "-p", clitest.Number}
	r := commandLine(append(ask, "--overlay", "-")...)
	if _, err := png.Decode(strings.NewReader(r.Out)); r.Code != cli.ExitOK || err != nil ||
		!strings.HasPrefix(r.Err, clitest.NumberAnswer+"\n") {
		t.Errorf("overlay: exit %d, %v, stderr %.80q", r.Code, err, r.Err)
	}
	r = commandLine(append(ask, "--base", "pdrop", "--n-vis", "192", "--overlay-stages", "-",
		"--json")...)
	if _, err := png.Decode(strings.NewReader(r.Out)); r.Code != cli.ExitOK || err != nil ||
		!strings.HasPrefix(r.Err, "{") {
		t.Errorf("stages: exit %d, %v, stderr %.80q", r.Code, err, r.Err)
	}
	r = commandLine(append(ask, "--base", "pdrop", "--n-vis", "192", "--overlay-stages", "-",
		"--overlay",
		"-")...)
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, "is stdout and --overlay's already") {
		t.Errorf("two: exit %d, stderr %q", r.Code, r.Err)
	}
	r = commandLine("run", "--image", picture, "--image", picture, "-p", clitest.Number,
		"--overlay", "-")
	if r.Code != cli.ExitUsage || r.Out != "" {
		t.Errorf("two pictures: exit %d, stderr %q", r.Code, r.Err)
	}
	if r = commandLine("pack", "-o", "-"); r.Code != cli.ExitOK || len(r.Out) < 1<<20 ||
		!strings.HasPrefix(r.Err, "stdout  ") {
		t.Errorf("pack: exit %d, %d bytes, stderr %q", r.Code, len(r.Out), r.Err)
	}
}

// Ensure that no output is an input of its command or another of its outputs, under any name, and
// that nothing was computed or changed.
func TestOutputIsNoInput(t *testing.T) {
	drawing := []string{"run", "--image", "DIR/scene.png", "-p", "?", "--overlay"}
	onto := func(file string) []string { return append(drawing[:len(drawing):len(drawing)], file) }
	tested.SparesInputs(t, map[string][]string{
		"overlay":         onto("DIR/scene.png"),
		"another name":    onto("DIR/./scene.png"),
		"link":            onto("DIR/link.png"),
		"hard link":       onto("DIR/hard.png"),
		"input is a link": {"run", "--image", "DIR/link.png", "-p", "?", "--overlay", "DIR/scene.png"},
		"model's file":    {"pack", "-m", "DIR", "-o", "DIR/config.json"},
		"two outputs": {"run", "--image", "DIR/scene.png", "-p", "?", "--base", "pdrop", "--n-vis", "192",
			"--overlay", "DIR/new.png", "--overlay-stages", "DIR/./new.png"},
	}, onto("DIR/out.png")...)
}

// Ensure that unwritable files are refused before the work begins.
func TestOutputNotCreatable(t *testing.T) {
	dir := t.TempDir()
	picture := clitest.Drawn(t, clitest.NumberSeed)
	for name, c := range map[string]struct {
		path, want string
	}{
		"no folder":      {dir + "/none/x.png", "no such file or folder"},
		"a folder":       {dir, "is a folder"},
		"a folder's end": {dir + "/x.png/", "folder"},
		"file as folder": {picture + "/x.png", "not a directory"},
	} {
		for _, args := range [][]string{
			{"run", "--image", picture, "-p", "?", "--overlay", c.path},
			{"pack", "-o", c.path},
		} {
			// A model that is missing is found later.
			args = append(args, "-m", filepath.Join(dir, "missing"))
			r := commandLine(args...)
			if r.Code == cli.ExitOK || r.Out != "" || strings.Count(r.Err, "\n") > 2 ||
				!strings.Contains(r.Err, c.want) {
				t.Errorf("%s: %v: exit %d, stdout %.60q, stderr %q, want %q", name, args, r.Code,
					r.Out, r.Err, c.want)
			}
		}
	}
	if os.Geteuid() != 0 {
		sealed := filepath.Join(dir, "sealed.png")
		if err := os.WriteFile(sealed, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		r := commandLine("run", "--image", picture, "-p", "?", "--overlay", sealed)
		if r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, "permission denied") {
			t.Errorf("sealed: exit %d, stderr %q", r.Code, r.Err)
		}
	}
}

// Ensure that results that cannot be written cause exit code 1 and one line, for every command.
func TestResultsLost(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	tested.ReportsLostResults(t, []string{"run", "--image", picture, "-p", clitest.Number},
		[]string{"version"}, []string{"show"}, []string{"methods"}, []string{"run", "--help"})
}

// Ensure that signals end a command within a second, with one line, and leave no file.
func TestInterrupted(t *testing.T) {
	waiting := filepath.Join(t.TempDir(), "p.png")
	if err := syscall.Mkfifo(waiting, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string // with OUT for the output
		sig  []os.Signal
	}{
		"pack":            {[]string{"pack", "--quant", "q4", "-o", "OUT"}, []os.Signal{os.Interrupt}},
		"waiting picture": {[]string{"run", "--image", waiting, "-p", "?", "--overlay", "OUT"}, []os.Signal{os.Interrupt}},
	} {
		t.Run(name, func(t *testing.T) {
			if !tested.Interrupt(t, c.args, c.sig...) {
				if name == "pack" {
					t.Skip("ended before the signal")
				}
				t.Error("ended before the signal")
			}
		})
	}
}

// Ensure that a command that ends because its stdout is closed says so, and not that it was
// interrupted.
func TestBrokenStdoutStopsTheWork(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := process("run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p",
		"Describe the image.", "-n",
		"4000")
	cmd.Stdout = write
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	read.Close() // before the first word: on one processor all may be written before a read ends
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != cli.ExitFailure ||
		!strings.Contains(errOut.String(), "broken pipe") {
		t.Errorf("exit %d, stderr %q", got, errOut.String())
	}
}
