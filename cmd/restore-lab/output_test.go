//go:build unix

package main

import (
	"bytes"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that new files get the umask's mode, replaced files keep theirs, and that links are
// followed, also dangling ones.
func TestOutputModesAndLinks(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	dir := t.TempDir()
	file := filepath.Join(dir, "a.png")
	for _, want := range []os.FileMode{0o640, 0o604} {
		if want == 0o604 {
			if err := os.Chmod(file, want); err != nil {
				t.Fatal(err)
			}
		}
		r := commandLine("scene", "-o", file)
		info, err := os.Stat(file)
		if r.Code != cli.ExitOK || err != nil || info.Mode().Perm() != want {
			t.Errorf("exit %d %q, mode %v, %v, want %v", r.Code, r.Err, info.Mode(), err, want)
		}
	}
	for _, l := range [][2]string{
		{"link.png", "a.png"}, {"dangling.png", "new.png"}, {"twice.png", "link.png"},
	} {
		name, link := l[0], filepath.Join(dir, l[0])
		if err := os.Symlink(l[1], link); err != nil {
			t.Fatal(err)
		}
		r := commandLine("scene", "-o", link, "--seed", "3")
		info, err := os.Lstat(link)
		if r.Code != cli.ExitOK || err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: exit %d %q: the link is gone: %v, %v", name, r.Code, r.Err, info, err)
		}
	}
	if got := strings.Join(clitest.Names(t, dir),
		" "); got != "a.png dangling.png link.png new.png "+
		"twice.png" {
		t.Errorf("left: %s", got)
	}
}

// Ensure that devices and pipes are written to and not replaced.
func TestOutputThrough(t *testing.T) {
	for _, path := range []string{"/dev/null", "/dev/stdout", "-"} {
		before, _ := os.Stat(path)
		r := commandLine("scene", "-o", path)
		if after, err := os.Stat(path); err == nil && after.Mode() != before.Mode() {
			t.Fatalf("%s was %v and is %v", path, before.Mode(), after.Mode())
		}
		_, err := png.Decode(strings.NewReader(r.Out))
		if toStdout := path != "/dev/null"; r.Code != cli.ExitOK || toStdout != (err == nil) ||
			toStdout != strings.Contains(r.Err, "\t") {
			t.Errorf("%s: exit %d, %d bytes on stdout, stderr %.60q", path, r.Code, len(r.Out),
				r.Err)
		}
	}
	fifo := filepath.Join(t.TempDir(), "p.png")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan []byte)
	go func() {
		b, _ := os.ReadFile(fifo)
		read <- b
	}()
	r := commandLine("scene", "-o", fifo)
	_, err := png.Decode(bytes.NewReader(<-read))
	info, _ := os.Lstat(fifo)
	if r.Code != cli.ExitOK || err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("pipe: exit %d %q, %v, now %v", r.Code, r.Err, err, info.Mode())
	}
}

// Ensure that a plot may be stdout.
func TestOutputDashOfPlot(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	r := commandLine("attention", "--image", picture, "-p", clitest.Number, "--out", "-")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "<svg") {
		t.Errorf("exit %d, stdout %.60q", r.Code, r.Out)
	}
}

// Ensure that the name selects the drawing's format, or is refused.
func TestOutputFormat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.JPG")
	r := commandLine("scene", "-o", file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := jpeg.Decode(f); r.Code != cli.ExitOK || err != nil {
		t.Errorf("jpeg: exit %d, %v", r.Code, err)
	}
	if r = commandLine("scene", "-o", "x.webp"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, `got "x.webp", want a name that ends in .png or .jpg`) {
		t.Errorf("webp: exit %d, stderr %q", r.Code, r.Err)
	}
}

// Ensure that a process removes the files that a killed one left, and not a running process's.
func TestStaleRemoved(t *testing.T) {
	dir := t.TempDir()
	cmd := process("fitprune-recipe", "-o", dir+"/r.json")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(clitest.Names(t, dir)) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if r := commandLine("scene", "-o", dir+"/a.png"); r.Code != cli.ExitOK ||
		len(clitest.Names(t, dir)) != 2 {
		t.Errorf("next to a living one: exit %d, %q", r.Code, clitest.Names(t, dir))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if r := commandLine("scene", "-o", dir+"/a.png"); r.Code != cli.ExitOK ||
		len(clitest.Names(t, dir)) != 1 {
		t.Errorf("after a dead one: exit %d, %q", r.Code, clitest.Names(t, dir))
	}
}

// Ensure that signals end a command within a second, with one line, and leave no file.
func TestInterrupted(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	waiting := filepath.Join(t.TempDir(), "p.png")
	if err := syscall.Mkfifo(waiting, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string // with OUT for the output
		sig  []os.Signal
	}{
		"eval":          {[]string{"eval", "scenes", "--all", "--plot", "OUT.svg"}, []os.Signal{os.Interrupt}},
		"terminated":    {[]string{"eval", "scenes", "--all", "--plot", "OUT.svg"}, []os.Signal{syscall.SIGTERM}},
		"hung up":       {[]string{"fitprune-recipe", "-o", "OUT"}, []os.Signal{syscall.SIGHUP}},
		"twice":         {[]string{"trace", "--image", picture, "-p", "?", "--tokens", "2000", "--out", "OUT"}, []os.Signal{os.Interrupt, os.Interrupt}},
		"bench":         {[]string{"bench", "--repeat", "500", "--cpu-profile", "OUT"}, []os.Signal{os.Interrupt}},
		"bench kernels": {[]string{"bench", "kernels"}, []os.Signal{os.Interrupt}},
		"waiting input": {[]string{"trace", "--image", waiting, "-p", "?", "--out", "OUT"}, []os.Signal{os.Interrupt}},
	} {
		t.Run(name, func(t *testing.T) {
			if !tested.Interrupt(t, c.args, c.sig...) {
				t.Error("ended before the signal")
			}
		})
	}
}

// Ensure that no output is an input of its command or another of its outputs, under any name, and
// that nothing was computed or changed.
func TestOutputIsNoInput(t *testing.T) {
	const picture = "DIR/scene.png"
	processor := clitest.Embedded(t, "preprocessor_config.json")
	tested.SparesInputs(t, map[string][]string{
		"frame":     {"trace", "--video-frames", picture, "-p", "?", "--out", picture},
		"image":     {"inspect", "image", "--processor", processor, "--image", picture, "--out", picture},
		"processor": {"inspect", "image", "--processor", processor, "--image", picture, "--out", processor},
		"tokens":    {"inspect", "tokens", "--tokenizer", processor, "--in", picture, "--out", picture},
		"features":  {"reduce", "--base", "grid", "--n-vis", "4", "--in", picture, "--out", picture},
		"trace":     {"trace", "--in", picture, "--out", picture},
		"attention": {"attention", "--image", picture, "-p", "?", "--out", "DIR/hard.svg"},
	}, "scene", "-o", "DIR/out.png")
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
			{"eval", "scenes", "--all", "--plot", c.path}, {"attention", "--image", picture, "-p", "?", "--out", c.path},
			{"scene", "-o", c.path}, {"fitprune-recipe", "-o", c.path},
			{"bench", "--cpu-profile", c.path}, {"trace", "-p", "?", "--out", c.path},
		} {
			if name == "a folder" && (args[0] == "eval" || args[0] == "attention") ||
				strings.HasSuffix(c.path, "/") && args[0] == "eval" {
				args[len(args)-1] = strings.TrimSuffix(c.path,
					"/") + ".svg/" // the extension selects the format of plots
			}
			if args[0] != "scene" { // a model that is missing is found later
				args = append(args, "-m", filepath.Join(dir, "missing"))
			}
			r := commandLine(args...)
			if r.Code == cli.ExitOK || r.Out != "" || strings.Count(r.Err, "\n") > 2 ||
				!strings.Contains(r.Err, c.want) &&
					!strings.Contains(r.Err, "a name that ends in") {
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
		if r := commandLine("scene", "-o", sealed); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, "permission denied") {
			t.Errorf("sealed: exit %d, stderr %q", r.Code, r.Err)
		}
	}
}

// Ensure that results that cannot be written cause exit code 1 and one line, for every command.
func TestResultsLost(t *testing.T) {
	tested.ReportsLostResults(t, []string{"scene", "-o", "/dev/null"}, []string{"scene", "-o", "-"},
		[]string{"flops", "--shape", "embedded", "--n-vis", "64"})
}
