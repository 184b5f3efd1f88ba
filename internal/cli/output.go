package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/internal/files"
)

// Outputs are the files that a command writes. Each is opened before the work starts, so that
// problems show at once: a missing folder, a name that is a folder's, a missing permission, a file
// that is an input of the command or another of its outputs.
//
// A regular file gets its name when it is complete. Until then it has a temporary name next to it,
// and is removed when the command fails or is interrupted. Links are followed. Devices and pipes
// are written to, never replaced. "-" is stdout.
type Outputs struct {
	a      *App
	Inputs []os.FileInfo
	list   []*OutputFile
}

// OutputFile is one file of outputs.
type OutputFile struct {
	a      *App
	flag   string // name of the flag, for errors
	Path   string // as given
	target string // the path without links; "" for a pipe or a device
	file   *files.New
	direct func() (io.WriteCloser, error) // opens a pipe or a device

	written bool
}

// Outputs returns an empty list of files to write. None of them may be one of the inputs. A folder
// among the inputs stands for the files in it, a model's folder for the model's files.
func (a *App) Outputs(inputs ...string) *Outputs {
	o := &Outputs{a: a}
	for _, path := range inputs {
		o.Reads(path)
	}
	return o
}

// maxInputFiles limits how many files of a folder are compared with an output.
const maxInputFiles = 1 << 14

// Reads adds an input. Missing files are left to the code that opens them.
func (o *Outputs) Reads(path string) {
	switch path {
	case "":
		return
	case "-":
		if f, ok := o.a.In.(*os.File); ok {
			if info, err := f.Stat(); err == nil {
				o.Inputs = append(o.Inputs, info)
			}
		}
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		return
	}
	if !info.IsDir() {
		o.Inputs = append(o.Inputs, info)
		return
	}
	_, err = os.Stat(filepath.Join(path, "config.json"))
	model := err == nil
	seen := 0
	_ = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if seen++; seen > maxInputFiles {
			return filepath.SkipAll
		}
		if err == nil && !d.IsDir() && (!model || ofModel(d.Name())) {
			if info, err := os.Stat(name); err == nil && !info.IsDir() {
				o.Inputs = append(o.Inputs, info)
			}
		}
		return nil
	})
}

// ofModel reports whether a file in a model's folder belongs to the model, and was not written
// there by a command of this program.
func ofModel(name string) bool {
	switch filepath.Ext(name) {
	case ".safetensors":
		return strings.HasPrefix(name, "model") || strings.Contains(name, "-of-") ||
			strings.HasPrefix(name, "adapter") ||
			strings.HasPrefix(name, "consolidated")
	case ".json", ".jinja", ".txt", ".model", ".gguf", ".bin", ".pt", ".pth":
		return name != "fitprune.json" && name != "budget.json"
	}
	return false
}

// Open opens the file of a flag; for "" it returns nil, which writes nothing.
func (o *Outputs) Open(flag, path string) (*OutputFile, error) {
	if path == "" {
		return nil, nil
	}
	f := &OutputFile{a: o.a, flag: flag, Path: path}
	if err := f.prepare(); err != nil {
		return nil, err
	}
	if err := o.check(f); err != nil {
		f.discard()
		return nil, err
	}
	o.list = append(o.list, f)
	return f, nil
}

// check refuses a file that is an input or another output.
func (o *Outputs) check(f *OutputFile) error {
	if f.Path == "-" {
		for _, other := range o.list {
			if other.Path == f.Path {
				return Flagf(f.flag, "got -, which is stdout and --%s's already, want another "+
					"file", other.flag)
			}
		}
		return nil
	}
	if f.target == "" {
		return nil // writing to a device twice loses nothing
	}
	for _, other := range o.list {
		if other.target != "" && samePath(other.target, f.target) {
			return Flagf(f.flag, "got %s, which is --%s's file already, want another",
				f.Path, other.flag)
		}
	}
	info, err := os.Stat(f.target)
	if err != nil {
		return nil // it does not exist yet
	}
	same := func(other os.FileInfo) bool { return os.SameFile(info, other) }
	if slices.ContainsFunc(o.Inputs, same) {
		return Flagf(f.flag, "got %s, which is an input of this command, want another file", f.Path)
	}
	if name := o.a.StreamTo(info); name != "" {
		return Flagf(f.flag, "got %s, which %s goes to, want another file or -", f.Path, name)
	}
	return nil
}

// StreamTo names the standard stream that goes to a file, "" if none does.
func (a *App) StreamTo(file os.FileInfo) string {
	for name, w := range map[string]io.Writer{"stdout": a.Out, "stderr": a.Err} {
		if std, ok := unwrap(w).(*os.File); ok {
			is, err := std.Stat()
			if err == nil && is.Mode().IsRegular() && os.SameFile(is, file) {
				return name
			}
		}
	}
	return ""
}

// samePath reports whether two names, neither a link, mean the same file, which need not exist.
func samePath(a, b string) bool {
	if x, err := os.Stat(a); err == nil {
		y, err := os.Stat(b)
		return err == nil && os.SameFile(x, y)
	}
	x, errX := os.Stat(filepath.Dir(a))
	y, errY := os.Stat(filepath.Dir(b))
	return errX == nil && errY == nil && os.SameFile(x, y) && filepath.Base(a) == filepath.Base(b)
}

// close discards a file that was not written.
func (o *Outputs) close(f *OutputFile) {
	f.discard()
	o.list = slices.DeleteFunc(o.list,
		func(other *OutputFile) bool { return other == f && !f.written })
}

// Results is the stream for the command's text: stdout, or stderr if a file is written to stdout.
func (o *Outputs) Results() io.Writer {
	for _, f := range o.list {
		if f.Path == "-" {
			return o.a.Err
		}
	}
	return o.a.Out
}

// Discard removes unfinished files.
func (o *Outputs) Discard() {
	for _, f := range o.list {
		f.discard()
	}
}

// Bytes refuses to write what people cannot read to a terminal.
func (a *App) Bytes(flag, path string) error {
	if name, _ := Standard(path); name == "-" && IsTerminal(a.Out) {
		return Flagf(flag, "got %s, but stdout is a terminal, want a file or a pipe", path)
	}
	return nil
}

// Standard returns the name of the standard stream that path means.
func Standard(path string) (name string, ok bool) {
	switch path {
	case "-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1":
		return "-", true
	case "/dev/stderr", "/dev/fd/2", "/proc/self/fd/2":
		return "stderr", true
	}
	return "", false
}

// maxLinks limits a chain of symbolic links.
const maxLinks = 40

// prepare finds the kind of the path and opens it.
func (f *OutputFile) prepare() error {
	path := f.Path
	for range maxLinks {
		if name, ok := Standard(path); ok {
			w := f.a.Err
			if name == "-" {
				f.Path, w = "-", f.a.Out
			}
			f.direct = func() (io.WriteCloser, error) { return keepOpen{w}, nil }
			return nil
		}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return f.create(path, 0)
		case err != nil:
			return PathError(f.Path, err)
		case info.Mode()&fs.ModeSymlink != 0:
			if at, err := os.Stat(path); err == nil && !at.Mode().IsRegular() {
				return f.through(path, at) // a link to a pipe in /proc has no path
			}
			to, err := os.Readlink(path)
			if err != nil {
				return PathError(f.Path, err)
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(path), to)
			}
			path = to
		case info.Mode().IsRegular():
			return f.create(path, info.Mode().Perm())
		default:
			return f.through(path, info)
		}
	}
	return fmt.Errorf("%s: too many links, want at most %d", f.Path, maxLinks)
}

// through prepares to write to a device or a pipe. A pipe is opened only for the write, because
// opening waits for its reader.
func (f *OutputFile) through(path string, info os.FileInfo) error {
	if info.IsDir() {
		return fmt.Errorf("%s: is a folder, want a file", f.Path)
	}
	open := func() (io.WriteCloser, error) { return os.OpenFile(path, os.O_WRONLY, 0) }
	if info.Mode()&fs.ModeNamedPipe != 0 {
		f.direct = open
		return nil
	}
	w, err := open()
	if err != nil {
		return PathError(f.Path, err)
	}
	f.direct = func() (io.WriteCloser, error) { return w, nil }
	return nil
}

// create makes the unfinished file next to target, with the mode of the file that it replaces, or
// the umask's default.
func (f *OutputFile) create(target string, mode fs.FileMode) error {
	dir, base := filepath.Dir(target), filepath.Base(target)
	if strings.HasSuffix(f.Path, string(filepath.Separator)) || base == "." || base == ".." {
		return fmt.Errorf("%s: is a folder's name, want a file's", f.Path)
	}
	if mode != 0 { // a read-only file must not be replaced
		old, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return PathError(f.Path, err)
		}
		old.Close()
	}
	files.RemoveAbandoned(dir)
	file, err := files.Create(dir, 0o666)
	if err != nil {
		return PathError(f.Path, createError(dir, err))
	}
	f.a.Partial.Add(file.Name())
	f.file, f.target = file, target
	if mode != 0 {
		if err := file.Chmod(mode); err != nil {
			f.discard()
			return PathError(f.Path, err)
		}
	}
	return nil
}

// createError names the folder if the folder is missing.
func createError(dir string, err error) error {
	if info, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
		return fmt.Errorf("no such file or folder: %s", dir)
	} else if statErr == nil && !info.IsDir() {
		return fmt.Errorf("%s is no folder", dir)
	}
	return err
}

// Write writes the file with fill and renames it. A nil output writes nothing. An error of the file
// itself takes precedence over fill's error.
func (f *OutputFile) Write(fill func(io.Writer) error) error {
	if f == nil {
		return nil
	}
	var out io.WriteCloser = f.file
	if f.direct != nil {
		var err error
		if out, err = f.direct(); err != nil {
			return PathError(f.Path, err)
		}
	}
	w := &failWriter{w: out}
	err := fill(w)
	if w.err != nil {
		err = PathError(f.Name(), w.err)
	}
	f.written = err == nil
	if f.direct != nil {
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = PathError(f.Name(), closeErr)
		}
		return err
	}
	defer f.discard()
	if err != nil {
		return err
	}
	if err := f.file.Commit(f.target); err != nil {
		return PathError(f.Path, err)
	}
	return nil
}

// Name is the file's name in errors and reports.
func (f *OutputFile) Name() string {
	if f.Path == "-" {
		return "stdout"
	}
	return f.Path
}

// discard removes the file if it is unfinished.
func (f *OutputFile) discard() {
	if f == nil || f.file == nil {
		return
	}
	_ = f.file.Discard()
	f.a.Partial.Forget(f.file.Name())
	f.file = nil
}

// Partial are the unfinished files and folders of the process; a signal removes them.
type Partial struct {
	lock  sync.Mutex
	names []string
}

// Add adds an unfinished file.
func (p *Partial) Add(name string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.names = append(p.names, name)
}

// Forget forgets a file that is complete or removed.
func (p *Partial) Forget(name string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.names = slices.DeleteFunc(p.names, func(s string) bool { return s == name })
}

// remove removes all of them. The process must exit after it.
func (p *Partial) remove() {
	p.lock.Lock()
	defer p.lock.Unlock()
	for _, name := range p.names {
		os.RemoveAll(name) // it may be a folder
	}
}

// failWriter keeps the first error of w.
type failWriter struct {
	w   io.Writer
	err error
}

func (f *failWriter) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n, err
}

// stdout is the command's stdout. Its first error cancels the command, because nobody would see the
// result.
type stdout struct {
	failWriter
	cancel context.CancelCauseFunc
}

func (s *stdout) Write(p []byte) (int, error) {
	n, err := s.failWriter.Write(p)
	if err != nil {
		s.cancel(err)
	}
	return n, err
}

// unwrap returns the writer inside w.
func unwrap(w any) any {
	for {
		switch x := w.(type) {
		case *stdout:
			w = x.w
		case *screenWriter:
			w = x.w
		default:
			return w
		}
	}
}

// keepOpen is a standard stream as an output.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
