// Package all opens models of every format.
package all

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/builtin"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/gguf"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/checkpoint/llava"
	"github.com/restore-vlm/restore/internal/checkpoint/pack"
	"github.com/restore-vlm/restore/internal/checkpoint/torch"
	"github.com/restore-vlm/restore/internal/hub"
)

// Files are the files of a model.
type Files struct {
	Model string // a folder or file; "" is the embedded model
	// folder of the vision tower, for models that do not include it; "": the one that the model
	// names
	Tower string
	// Projector is the encoder and projector (mmproj) of a GGUF model; "": the one in its folder.
	Projector string

	// Getenv is used to find the hub's cache, for vision towers named as repositories; nil is
	// os.Getenv.
	Getenv func(string) string
}

// Paths returns the files and folders that were named.
func (f Files) Paths() []string { return []string{f.Model, f.Tower, f.Projector} }

// Open opens the model at path, which needs no other files.
func Open(path string) (checkpoint.Bundle, error) { return Files{Model: path}.Open() }

// Open opens the model's files without binding anything.
func (f Files) Open() (checkpoint.Bundle, error) {
	b, err := f.open()
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (f Files) open() (checkpoint.Bundle, error) {
	read, takes, err := f.format()
	if err != nil {
		return nil, err
	}
	for _, other := range []struct{ name, got, why string }{
		{"vision-tower", f.Tower, "on a model that has its own"},
		{"mmproj", f.Projector, "on a model that is no GGUF file"},
	} {
		if other.got != "" && takes != other.name {
			return nil, &errs.OptionError{
				Name:  other.name,
				Got:   other.got,
				Why:   other.why,
				Fault: errs.Useless,
			}
		}
	}
	return read()
}

// format returns a function that reads the model, and the option for the other file that it takes.
func (f Files) format() (read func() (checkpoint.Bundle, error), takes string, err error) {
	if f.Model == "" {
		return embedded, "", nil
	}
	const want = "want a model's folder (config.json and weights), a GGUF file or a packed file"
	info, err := os.Stat(f.Model)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("checkpoint: %s: no such file or folder, %s", f.Model, want)
	case err != nil:
		return nil, "", fmt.Errorf("checkpoint: %w", err)
	case info.IsDir():
		return f.folder()
	case !info.Mode().IsRegular():
		return nil, "", fmt.Errorf(
			"checkpoint: %s: got a %s, %s",
			f.Model,
			checkpoint.Kind(info.Mode()),
			want,
		)
	}
	start, err := head(f.Model)
	switch {
	case err != nil:
		return nil, "", err
	case bytes.HasPrefix(start, []byte(gguf.Magic)), filepath.Ext(f.Model) == ".gguf":
		return func() (checkpoint.Bundle, error) {
			return gguf.Open(f.Model, f.Projector)
		}, "mmproj", nil
	case bytes.HasPrefix(start, []byte(pack.Magic)):
		return func() (checkpoint.Bundle, error) { return pack.Open(f.Model) }, "", nil
	}
	return nil, "", fmt.Errorf("checkpoint: %s: got a file that is not a model, %s", f.Model, want)
}

// folder is format for a folder, depending on its config.json. A folder without one may hold a GGUF
// model.
func (f Files) folder() (read func() (checkpoint.Bundle, error), takes string, err error) {
	if _, err := os.Stat(filepath.Join(f.Model, folder.ConfigFile)); errors.Is(
		err,
		fs.ErrNotExist,
	) {
		if model, err := gguf.Only(f.Model); err != nil || model != "" {
			return func() (checkpoint.Bundle, error) {
				return gguf.Open(model, f.Projector)
			}, "mmproj", err
		}
	}
	dir, err := folder.Open(f.Model)
	if err != nil {
		return nil, "", err
	}
	config, err := dir.Config()
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("checkpoint: %s: %w", dir.Name, err)
	case llava.Is(config.Data):
		return func() (checkpoint.Bundle, error) {
			return llava.Open(dir, f.Tower, f.find)
		}, "vision-tower", nil
	}
	return func() (checkpoint.Bundle, error) { return hf.Open(dir) }, "", nil
}

// find returns the folder of a repository in the hub's cache.
func (f Files) find(name string) (string, error) {
	getenv := f.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	n, err := hub.ParseName(name)
	if err != nil {
		return "", err
	}
	c, err := hub.New(getenv)
	if err != nil {
		return "", err
	}
	s, err := c.Find(n)
	if err != nil {
		return "", err
	}
	return s.Dir, nil
}

// head returns the first bytes of a file.
func head(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer f.Close()
	b := make([]byte, 16)
	n, err := io.ReadFull(f, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	return b[:n], nil
}

// Tensors opens one file of tensors, in safetensors, GGUF or a PyTorch format, under the file's
// names.
func Tensors(path string) (_ *checkpoint.Store, err error) {
	start, err := head(path)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".gguf" || bytes.HasPrefix(start, []byte(gguf.Magic)) {
		return gguf.Read(path)
	}
	mem, err := checkpoint.MapFile(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	s := &checkpoint.Store{Maps: []*checkpoint.Mapping{mem}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("checkpoint: %s: %w", path, err), s.Close())
		}
	}()
	// A safetensors file begins with the length of a header, which begins with a brace. If the
	// extension names a format, it is not read as another.
	ext := filepath.Ext(path)
	if ext == ".safetensors" || ext != ".bin" && len(start) > 8 && start[8] == '{' {
		s.Weights, err = folder.Safetensors(mem.Data)
	} else {
		s.Weights, err = torch.Read(mem.Data)
	}
	if err != nil {
		return nil, err
	}
	s.Seal()
	return s, nil
}

// embedded opens the model that is part of the program.
func embedded() (checkpoint.Bundle, error) {
	dir, err := folder.OpenFS(builtin.FS(), ".")
	if err != nil {
		return nil, err
	}
	dir.Name = builtin.Name
	return hf.Open(dir)
}
