// Package formats opens models of every format.
package formats

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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
	"github.com/restore-vlm/restore/internal/model/families"
)

// table lists the formats. The first that a model has opens it.
var table = []*checkpoint.Format{&embedded, &pack.Format, &gguf.Format, &llava.Format, &hf.Format}

// embedded is the model that is part of the program.
var embedded = checkpoint.Format{
	Name: hf.Format.Name,
	Is:   func(p *checkpoint.Place) (bool, error) { return p.Path == "", nil },
	Open: func(p *checkpoint.Place) (checkpoint.Bundle, error) {
		dir, err := folder.OpenFS(builtin.FS(), ".")
		if err != nil {
			return nil, err
		}
		dir.Name = builtin.Name
		return hf.Open(dir, p.Families)
	},
}

// Optional are the options for which some models have no use, so that defaults may name them: the
// companion file, and what imageproc.Adjust changes.
var Optional = []string{"mmproj", "pad", "min-pixels", "max-pixels"}

// Files are the files of a model.
type Files struct {
	Model string // a folder or file; "" is the embedded model
	// Projector is what the model's own files lack: the encoder and projector (mmproj) of a GGUF
	// model, the folder of an original LLaVA's vision tower; "": the one that lies next to the
	// model or that it names.
	Projector string

	// Defaults may have "mmproj", which is then ignored for a model that has no use for them.
	Defaults []string

	// Getenv is used to find the hub's cache, for vision towers named as repositories; nil is
	// os.Getenv.
	Getenv func(string) string
}

// Open opens the model at path, which needs no other files.
func Open(path string) (checkpoint.Bundle, error) { return Files{Model: path}.Open() }

// Open opens the model's files without binding anything.
func (f Files) Open() (checkpoint.Bundle, error) {
	p, err := place(f.Model)
	if err != nil {
		return nil, err
	}
	format, err := of(p)
	if err != nil {
		return nil, err
	}
	switch {
	case format.Companion:
		p.Companion = f.Projector
	case f.Projector != "" && !slices.Contains(f.Defaults, "mmproj"):
		return nil, &errs.OptionError{
			Name: "mmproj", Got: f.Projector, Why: "on a " + format.Name, Fault: errs.Useless,
		}
	}
	p.Find = f.find
	b, err := format.Open(p)
	if err != nil {
		return nil, err
	}
	b.About().Format = format.Name
	return b, nil
}

// place looks at what lies at path.
func place(path string) (*checkpoint.Place, error) {
	p := &checkpoint.Place{Path: path, Families: families.Files}
	if path == "" {
		return p, nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, checkpoint.As(errs.ErrNotFound, fmt.Errorf(
			"checkpoint: %s: no such file or folder, %s", path, wanted()))
	case err != nil:
		return nil, fmt.Errorf("checkpoint: %w", err)
	case info.IsDir():
	case !info.Mode().IsRegular():
		return nil, checkpoint.As(errs.ErrUnsupported, fmt.Errorf("checkpoint: %s: got a %s, %s",
			path, checkpoint.Kind(info.Mode()), wanted()))
	default:
		p.Start, err = start(path)
	}
	return p, err
}

// of returns the format of the model at p.
func of(p *checkpoint.Place) (*checkpoint.Format, error) {
	for _, f := range table {
		if is, err := f.Is(p); is || err != nil {
			return f, err
		}
	}
	return nil, checkpoint.As(errs.ErrUnsupported, fmt.Errorf(
		"checkpoint: %s: got a file that is not a model, %s", p.Path, wanted()))
}

// wanted lists what a model may be.
func wanted() string {
	var looks []string
	for _, f := range slices.Backward(table) {
		if f.Looks != "" {
			looks = append(looks, f.Looks)
		}
	}
	return "want " + checkpoint.Either(looks)
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
	return c.Folder(n)
}

// start returns the first bytes of a file.
func start(path string) ([]byte, error) {
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

// Tensors opens one file of tensors, of a format that has such files, in safetensors or in a
// PyTorch format, under the file's names.
func Tensors(path string) (_ *checkpoint.Store, err error) {
	p := &checkpoint.Place{Path: path, Families: families.Files}
	if p.Start, err = start(path); err != nil {
		return nil, err
	}
	if f, err := of(p); err == nil && f.Tensors != nil {
		return f.Tensors(p)
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
	if ext == ".safetensors" || ext != ".bin" && len(p.Start) > 8 && p.Start[8] == '{' {
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

// NewWriter writes the beginning of a packed file of b to w: everything except the weights.
var NewWriter = pack.NewWriter
