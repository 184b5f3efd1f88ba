package engine

import (
	"errors"
	"io"

	"github.com/restore-vlm/restore/internal/formats"
)

// Open loads the model in files. Every weight is bound by name and shape; the error lists all that
// do not fit.
func Open(files formats.Files, o Options) (*Engine, error) { return OpenWith(files, o, Hooks{}) }

// Describe is Open for an engine that only describes itself.
func Describe(files formats.Files, o Options) (*Engine, error) {
	return OpenWith(files, o, Hooks{Describe: true})
}

// OpenWith is Open with hooks.
func OpenWith(files formats.Files, o Options, h Hooks) (*Engine, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	e, err := New(b, o, h)
	if err != nil {
		b.Close()
		return nil, err
	}
	return e, nil
}

// PackFiles is Pack for the model in files.
func PackFiles(files formats.Files, o Options, w io.Writer) error {
	b, err := files.Open()
	if err != nil {
		return err
	}
	return errors.Join(Pack(b, o, w), b.Close())
}
