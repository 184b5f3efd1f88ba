// Package folder reads the folders of models: one with config.json and weights, a folder of the
// hub's cache, or one of its snapshots.
package folder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/files"
)

// ConfigFile is the file that every folder must have.
const ConfigFile = "config.json"

// MaxFile is the most bytes of a file that is read whole. The largest known tokenizer.json has
// about 35 MB.
const MaxFile = 256 << 20

// Folder is a model's folder.
type Folder struct {
	Name string // last element of the path, or org/name for a folder of the hub's cache

	fsys fs.FS
	root string // absolute path; "" if it is not in the system's file system
	load func(file string) (*checkpoint.Mapping, error)
	read []string // absolute paths of the files that were read
}

// Open opens the folder at path: one with config.json, a folder of the hub's cache
// (models--org--name; its snapshot is the one that refs/main names, or the only one), or one of its
// snapshots. Weight files are mapped; changing them before the bundle is closed is undefined.
func Open(path string) (*Folder, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("checkpoint: %s: got a %s, want a folder", path,
			checkpoint.Kind(info.Mode()))
	}
	dir := path
	snapshot, err := hubSnapshot(os.DirFS(path))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if snapshot != "" {
		dir = filepath.Join(path, filepath.FromSlash(snapshot))
	}
	f := &Folder{
		Name: path,
		fsys: os.DirFS(dir),
		load: func(file string) (*checkpoint.Mapping, error) {
			return checkpoint.MapFile(filepath.Join(dir, file))
		},
	}
	if abs, err := filepath.Abs(dir); err == nil {
		f.Name, f.root = displayName(filepath.ToSlash(abs)), abs
	}
	return f, nil
}

// OpenFS opens the folder dir ("." is the root) of fsys. Weights are read into memory. A file
// system with a ReadFile method may return its own bytes, which are then used without a copy and
// never written.
func OpenFS(fsys fs.FS, dir string) (*Folder, error) {
	sub, err := fs.Sub(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if info, err := fs.Stat(sub, "."); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", dir, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("checkpoint: %s: got a %s, want a folder", dir,
			checkpoint.Kind(info.Mode()))
	}
	return &Folder{
		Name: path.Base(dir),
		fsys: sub,
		load: func(file string) (*checkpoint.Mapping, error) {
			data, err := fs.ReadFile(sub, file)
			if err != nil {
				return nil, err
			}
			return &checkpoint.Mapping{Data: data}, nil
		},
	}, nil
}

// Config returns config.json, which must be a JSON object without repeated keys.
func (f *Folder) Config() (checkpoint.Part, error) {
	data, ok, err := f.File(ConfigFile)
	if err == nil && !ok {
		err = checkpoint.As(errs.ErrNotFound, fmt.Errorf(
			"%s missing: %s, want %s and %s of a Hugging Face model", ConfigFile, f.contents(),
			ConfigFile, singleFile))
	}
	if err == nil {
		if err = checkpoint.CheckObject(data); err != nil {
			err = checkpoint.As(errs.ErrDamaged, fmt.Errorf("%s: %w", ConfigFile, err))
		}
	}
	return checkpoint.Part{Data: data, From: ConfigFile}, err
}

// File returns the content of a file, such as tokenizer.json; of a text file the text, without a
// byte-order mark. ok is false if it does not exist. A file above MaxFile is an error.
func (f *Folder) File(name string) (data []byte, ok bool, err error) {
	data, ok, err = readBounded(f.fsys, name)
	if !ok || err != nil {
		return nil, false, err
	}
	f.note(name)
	if kind := path.Ext(name); kind == ".json" || kind == ".jinja" {
		if data, err = files.Text(data); err != nil {
			return nil, false, fmt.Errorf("%s: %w", name, err)
		}
	}
	return data, true, nil
}

// Part returns File as a part, without data if the file does not exist.
func (f *Folder) Part(name string) (checkpoint.Part, error) {
	data, _, err := f.File(name)
	return checkpoint.Part{Data: data, From: name}, err
}

// Read returns the absolute paths of all files that were read so far, nil if the folder is not in
// the system's file system.
func (f *Folder) Read() []string { return f.read }

func (f *Folder) note(name string) {
	if path := filepath.Join(f.root, filepath.FromSlash(name)); f.root != "" &&
		!slices.Contains(f.read, path) {
		f.read = append(f.read, path)
	}
}

// hubSnapshot returns the snapshot directory of a hub cache folder, "" if dir is not one.
func hubSnapshot(dir fs.FS) (string, error) {
	if ok, err := exists(dir, ConfigFile); ok || err != nil {
		return "", err
	}
	entries, err := fs.ReadDir(dir, "snapshots")
	if err != nil {
		return "", nil // not a cache folder; a later step reports the fault
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	ref, ok, err := readBounded(dir, "refs/main")
	if err != nil {
		return "", err
	}
	if !ok {
		if len(names) != 1 {
			return "", fmt.Errorf(
				"hub cache without refs/main: got %d snapshots, want one (give the path of "+
					"a snapshot)", len(names))
		}
		return "snapshots/" + names[0], nil
	}
	commit := strings.TrimSpace(string(ref))
	if !checkpoint.PlainName(commit) {
		return "", fmt.Errorf("refs/main: got %s, want the name of a snapshot",
			checkpoint.Excerpt(fmt.Appendf(nil, "%q", commit)))
	}
	if !slices.Contains(names, commit) {
		return "", checkpoint.As(errs.ErrNotFound, fmt.Errorf(
			"refs/main: snapshot %s missing (incomplete download?)", commit))
	}
	return "snapshots/" + commit, nil
}

// displayName is the last element of an absolute path, or org/name when the path
// is a snapshot in the hub's cache.
func displayName(dir string) string {
	parts := strings.Split(dir, "/")
	if n := len(parts); n >= 3 && parts[n-2] == "snapshots" {
		if repo, ok := strings.CutPrefix(parts[n-3], "models--"); ok {
			return strings.Replace(repo, "--", "/", 1)
		}
	}
	return path.Base(dir)
}

// readBounded reads a file of at most MaxFile bytes; ok is false if it does not exist.
func readBounded(dir fs.FS, name string) (data []byte, ok bool, err error) {
	if ok, err := exists(dir, name); !ok || err != nil {
		return nil, false, err
	}
	info, err := fs.Stat(dir, name)
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait
		return nil, false, fmt.Errorf("%s: got a %s, want a file", name,
			checkpoint.Kind(info.Mode()))
	}
	f, err := dir.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	// The size is only a hint; the number of bytes read decides.
	data = make([]byte, 0, min(max(info.Size(), 0)+1, MaxFile+1))
	for {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if len(data) > MaxFile {
			return nil, false, fmt.Errorf("%s: got more than %d bytes, want fewer", name, MaxFile)
		}
		if err == io.EOF {
			return data, true, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", name, err)
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data)+512)
		}
	}
}

// exists reports whether a name exists. A broken link is an error that names both ends.
func exists(dir fs.FS, name string) (bool, error) {
	info, err := fs.Lstat(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode()&fs.ModeSymlink == 0:
		return true, nil
	}
	if _, err := fs.Stat(dir, name); errors.Is(err, fs.ErrNotExist) {
		to, _ := fs.ReadLink(dir, name) // used only in the error
		return false, checkpoint.As(errs.ErrNotFound, fmt.Errorf(
			"%s: the link leads to %s, which is not there (incomplete download?)", name, to))
	} else if err != nil {
		return false, err
	}
	return true, nil
}

// contents describes what a folder holds, for an error about something that is missing.
func (f *Folder) contents() string {
	entries, err := fs.ReadDir(f.fsys, ".")
	if err != nil || len(entries) == 0 {
		return "got an empty directory"
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	return "got " + checkpoint.List(names, ", ")
}
