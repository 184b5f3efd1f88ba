//go:build unix

package main

import (
	"bytes"
	"errors"
	"image/jpeg"
	"image/png"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// names lists a folder, including hidden files.
func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		out = append(out, f.Name())
	}
	return out
}

// Ensure that a file appears complete or not at all, and that the file's own error takes precedence
// over the writer's.
func TestOutputCompleteOrNot(t *testing.T) {
	dir := t.TempDir()
	a := &app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}
	outs := a.outputs()
	f, err := outs.open("out", filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 1 || !strings.Contains(got[0], unfinished) {
		t.Errorf("while it is written: %q", got)
	}
	broken := errors.New("broken")
	if err := f.write(func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got error %v", err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
	full, err := outs.open("out", "/dev/full")
	if err != nil {
		t.Skip("no /dev/full here")
	}
	err = full.write(func(w io.Writer) error {
		_, err := w.Write(make([]byte, 8192))
		return errors.Join(errors.New("weights do not fit"), err)
	})
	if err == nil || err.Error() != "/dev/full: the disk is full" {
		t.Errorf("full disk: %v", err)
	}
}

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
		r := cli("scene", "-o", file)
		info, err := os.Stat(file)
		if r.code != exitOK || err != nil || info.Mode().Perm() != want {
			t.Errorf("exit %d %q, mode %v, %v, want %v", r.code, r.err, info.Mode(), err, want)
		}
	}
	for _, l := range [][2]string{
		{"link.png", "a.png"}, {"dangling.png", "new.png"}, {"twice.png", "link.png"},
	} {
		name, link := l[0], filepath.Join(dir, l[0])
		if err := os.Symlink(l[1], link); err != nil {
			t.Fatal(err)
		}
		r := cli("scene", "-o", link, "--seed", "3")
		info, err := os.Lstat(link)
		if r.code != exitOK || err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s: exit %d %q: the link is gone: %v, %v", name, r.code, r.err, info, err)
		}
	}
	if got := strings.Join(names(t, dir), " "); got != "a.png dangling.png link.png new.png "+
		"twice.png" {
		t.Errorf("left: %s", got)
	}
}

// Ensure that devices and pipes are written to and not replaced.
func TestOutputThrough(t *testing.T) {
	for _, path := range []string{"/dev/null", "/dev/stdout", "-"} {
		before, _ := os.Stat(path)
		r := cli("scene", "-o", path)
		if after, err := os.Stat(path); err == nil && after.Mode() != before.Mode() {
			t.Fatalf("%s was %v and is %v", path, before.Mode(), after.Mode())
		}
		_, err := png.Decode(strings.NewReader(r.out))
		if toStdout := path != "/dev/null"; r.code != exitOK || toStdout != (err == nil) ||
			toStdout != strings.Contains(r.err, "\t") {
			t.Errorf("%s: exit %d, %d bytes on stdout, stderr %.60q", path, r.code, len(r.out),
				r.err)
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
	r := cli("scene", "-o", fifo)
	_, err := png.Decode(bytes.NewReader(<-read))
	info, _ := os.Lstat(fifo)
	if r.code != exitOK || err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("pipe: exit %d %q, %v, now %v", r.code, r.err, err, info.Mode())
	}
}

// Ensure that "-" is stdout for every output file, and that the command's other text then goes to
// stderr.
func TestOutputDash(t *testing.T) {
	picture := drawn(t, numberSeed)
	ask := []string{"run", "--image", picture, "-p", number}
	r := cli(append(ask, "--overlay", "-")...)
	if _, err := png.Decode(strings.NewReader(r.out)); r.code != exitOK || err != nil ||
		!strings.HasPrefix(r.err, numberAnswer+"\n") {
		t.Errorf("overlay: exit %d, %v, stderr %.80q", r.code, err, r.err)
	}
	r = cli(append(ask, "--base", "pdrop", "--n-vis", "192", "--overlay-stages", "-", "--json")...)
	if _, err := png.Decode(strings.NewReader(r.out)); r.code != exitOK || err != nil ||
		!strings.HasPrefix(r.err, "{") {
		t.Errorf("stages: exit %d, %v, stderr %.80q", r.code, err, r.err)
	}
	r = cli(append(ask, "--base", "pdrop", "--n-vis", "192", "--overlay-stages", "-", "--overlay",
		"-")...)
	if r.code != exitUsage || !strings.Contains(r.err, "is stdout and --overlay's already") {
		t.Errorf("two: exit %d, stderr %q", r.code, r.err)
	}
	r = cli("run", "--image", picture, "--image", picture, "-p", number, "--overlay", "-")
	if r.code != exitUsage || r.out != "" {
		t.Errorf("two pictures: exit %d, stderr %q", r.code, r.err)
	}
	if r = cli("attention", "--image", picture, "-p", number, "--out", "-"); r.code != exitOK ||
		!strings.Contains(r.out, "<svg") {
		t.Errorf("plot: exit %d, stdout %.60q", r.code, r.out)
	}
	if r = cli("pack", "-o", "-"); r.code != exitOK || len(r.out) < 1<<20 ||
		!strings.HasPrefix(r.err, "stdout  ") {
		t.Errorf("pack: exit %d, %d bytes, stderr %q", r.code, len(r.out), r.err)
	}
}

// Ensure that no output is an input of its command or another of its outputs, under any name, and
// that nothing was computed or changed.
func TestOutputIsNoInput(t *testing.T) {
	dir := t.TempDir()
	picture := filepath.Join(dir, "a.png")
	filled(
		t,
		picture,
		func(w io.Writer) error {
			_, err := io.WriteString(w, cli("scene", "-o", "-").out)
			return err
		},
	)
	link, hard := filepath.Join(dir, "link.png"), filepath.Join(dir, "hard.png")
	chart := filepath.Join(dir, "hard.svg")
	if err := errors.Join(os.Symlink("a.png", link), os.Link(picture, hard),
		os.Link(picture, chart),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	listed := len(names(t, dir))
	processor := embedded(t, "preprocessor_config.json")
	for name, args := range map[string][]string{
		"overlay":         {"run", "--image", picture, "-p", "?", "--overlay", picture},
		"another name":    {"run", "--image", picture, "-p", "?", "--overlay", dir + "/./a.png"},
		"link":            {"run", "--image", picture, "-p", "?", "--overlay", link},
		"hard link":       {"run", "--image", picture, "-p", "?", "--overlay", hard},
		"input is a link": {"run", "--image", link, "-p", "?", "--overlay", picture},
		"frame":           {"trace", "--video-frames", picture, "-p", "?", "--out", picture},
		"image":           {"inspect", "image", "--processor", processor, "--image", picture, "--out", picture},
		"processor":       {"inspect", "image", "--processor", processor, "--image", picture, "--out", processor},
		"model's file":    {"pack", "-m", dir, "-o", filepath.Join(dir, "config.json")},
		"tokens":          {"inspect", "tokens", "--tokenizer", processor, "--in", picture, "--out", picture},
		"features":        {"reduce", "--base", "grid", "--n-vis", "4", "--in", picture, "--out", picture},
		"trace":           {"trace", "--in", picture, "--out", picture},
		"attention":       {"attention", "--image", picture, "-p", "?", "--out", chart},
		"two outputs": {"run", "--image", picture, "-p", "?", "--base", "pdrop", "--n-vis", "192", "--overlay", dir + "/new.png",
			"--overlay-stages", dir + "/./new.png"},
	} {
		r := cli(args...)
		if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, ", want another") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.code, r.out, r.err)
		}
	}
	after, err := os.ReadFile(picture)
	if err != nil || !bytes.Equal(before, after) || len(names(t, dir)) != listed {
		t.Errorf("the input changed, or files are left: %q, %v", names(t, dir), err)
	}
	out, err := os.Create(filepath.Join(dir, "out.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := process("scene", "-o", out.Name())
	cmd.Stdout = out
	if r := finish(t, cmd); r.code != exitUsage ||
		!strings.Contains(r.err, "which stdout goes to") {
		t.Errorf("stdout's file: exit %d, stderr %q", r.code, r.err)
	}
}

// Ensure that unwritable files are refused before the work begins.
func TestOutputNotCreatable(t *testing.T) {
	dir := t.TempDir()
	picture := drawn(t, numberSeed)
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
			{"run", "--image", picture, "-p", "?", "--overlay", c.path}, {"scene", "-o", c.path}, {"fitprune-recipe", "-o", c.path},
			{"bench", "--cpu-profile", c.path}, {"pack", "-o", c.path}, {"trace", "-p", "?", "--out", c.path},
		} {
			if name == "a folder" && (args[0] == "eval" || args[0] == "attention") ||
				strings.HasSuffix(c.path, "/") && args[0] == "eval" {
				args[len(args)-1] = strings.TrimSuffix(c.path,
					"/") + ".svg/" // the extension selects the format of plots
			}
			if args[0] != "scene" { // a model that is missing is found later
				args = append(args, "-m", filepath.Join(dir, "missing"))
			}
			r := cli(args...)
			if r.code == exitOK || r.out != "" || strings.Count(r.err, "\n") > 2 ||
				!strings.Contains(r.err, c.want) &&
					!strings.Contains(r.err, "a name that ends in") {
				t.Errorf("%s: %v: exit %d, stdout %.60q, stderr %q, want %q", name, args, r.code,
					r.out, r.err, c.want)
			}
		}
	}
	if os.Geteuid() != 0 {
		sealed := filepath.Join(dir, "sealed.png")
		if err := os.WriteFile(sealed, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		if r := cli("scene", "-o", sealed); r.code != exitFailure ||
			!strings.Contains(r.err, "permission denied") {
			t.Errorf("sealed: exit %d, stderr %q", r.code, r.err)
		}
	}
}

// Ensure that the name selects the drawing's format, or is refused.
func TestOutputFormat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.JPG")
	r := cli("scene", "-o", file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := jpeg.Decode(f); r.code != exitOK || err != nil {
		t.Errorf("jpeg: exit %d, %v", r.code, err)
	}
	if r = cli("scene", "-o", "x.webp"); r.code != exitUsage ||
		!strings.Contains(r.err, `got "x.webp", want a name that ends in .png or .jpg`) {
		t.Errorf("webp: exit %d, stderr %q", r.code, r.err)
	}
}

// Ensure that results that cannot be written cause exit code 1 and one line, for every command.
func TestResultsLost(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	picture := drawn(t, numberSeed)
	for _, args := range [][]string{
		{"run", "--image", picture, "-p", number}, {"version"}, {"show"}, {"methods"}, {"run", "--help"},
		{"scene", "-o", "/dev/null"}, {"scene", "-o", "-"},
		{"flops", "--shape", "embedded", "--n-vis", "64"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := process(args...)
		cmd.Stdout = full
		r := finish(t, cmd)
		full.Close()
		if r.code != exitFailure ||
			!strings.HasSuffix(r.err, "restore: stdout: the disk is full\n") {
			t.Errorf("%v: exit %d, stderr %q", args, r.code, r.err)
		}
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		cmd = process(args...)
		cmd.Stdout = write
		r = finish(t, cmd)
		write.Close()
		if r.code != exitFailure ||
			!strings.HasSuffix(r.err, "restore: stdout: nobody reads it any more (broken pipe)\n") {
			t.Errorf("%v into a closed pipe: exit %d, stderr %q", args, r.code, r.err)
		}
	}
}

// Ensure that signals end a command within a second, with one line, and leave no file.
func TestInterrupted(t *testing.T) {
	picture := drawn(t, numberSeed)
	waiting := filepath.Join(t.TempDir(), "p.png")
	if err := syscall.Mkfifo(waiting, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string // with OUT for the output
		sig  []os.Signal
	}{
		"eval":            {[]string{"eval", "scenes", "--all", "--plot", "OUT.svg"}, []os.Signal{os.Interrupt}},
		"terminated":      {[]string{"eval", "scenes", "--all", "--plot", "OUT.svg"}, []os.Signal{syscall.SIGTERM}},
		"hung up":         {[]string{"fitprune-recipe", "-o", "OUT"}, []os.Signal{syscall.SIGHUP}},
		"twice":           {[]string{"trace", "--image", picture, "-p", "?", "--tokens", "2000", "--out", "OUT"}, []os.Signal{os.Interrupt, os.Interrupt}},
		"pack":            {[]string{"pack", "--quant", "q4", "-o", "OUT"}, []os.Signal{os.Interrupt}},
		"bench":           {[]string{"bench", "--repeat", "500", "--cpu-profile", "OUT"}, []os.Signal{os.Interrupt}},
		"bench kernels":   {[]string{"bench", "kernels"}, []os.Signal{os.Interrupt}},
		"waiting picture": {[]string{"run", "--image", waiting, "-p", "?", "--overlay", "OUT"}, []os.Signal{os.Interrupt}},
		"waiting input":   {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", waiting, "--out", "OUT"}, []os.Signal{os.Interrupt}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{}, c.args...)
			for i := range args {
				args[i] = strings.Replace(args[i], "OUT", dir+"/out", 1)
			}
			cmd := process(args...)
			var errOut bytes.Buffer
			cmd.Stderr = &errOut
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			begun := func() bool {
				return len(names(t, dir)) > 0 || !strings.Contains(strings.Join(c.args, " "), "OUT")
			}
			for !begun() && cmd.ProcessState == nil {
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(150 * time.Millisecond)
			for _, s := range c.sig {
				if err := cmd.Process.Signal(s); err != nil {
					t.Skipf("ended before the signal: %v", err)
				}
			}
			hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			err := cmd.Wait()
			hung.Stop()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				if err == nil && name == "pack" {
					t.Skip("ended before the signal")
				}
				t.Fatalf("%v, stderr %q", err, errOut.String())
			}
			lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
			last := lines[len(lines)-1]
			if exit.ExitCode() != exitFailure || !strings.HasPrefix(last, "restore: ") ||
				!strings.Contains(last, "interrupted") {
				t.Errorf("exit %d, stderr %q", exit.ExitCode(), errOut.String())
			}
			if left := names(t, dir); len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// Ensure that a process removes the files that a killed one left, and not a running process's.
func TestStaleRemoved(t *testing.T) {
	dir := t.TempDir()
	cmd := process("fitprune-recipe", "-o", dir+"/r.json")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for len(names(t, dir)) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if r := cli("scene", "-o", dir+"/a.png"); r.code != exitOK || len(names(t, dir)) != 2 {
		t.Errorf("next to a living one: exit %d, %q", r.code, names(t, dir))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if r := cli("scene", "-o", dir+"/a.png"); r.code != exitOK || len(names(t, dir)) != 1 {
		t.Errorf("after a dead one: exit %d, %q", r.code, names(t, dir))
	}
}

// Ensure that a command that ends because its stdout is closed says so, and not that it was
// interrupted.
func TestBrokenStdoutStopsTheWork(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := process("run", "--image", drawn(t, numberSeed), "-p", "Describe the image.", "-n",
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
	if got := cmd.ProcessState.ExitCode(); got != exitFailure ||
		!strings.Contains(errOut.String(), "broken pipe") {
		t.Errorf("exit %d, stderr %q", got, errOut.String())
	}
}
