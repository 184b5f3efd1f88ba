// Package open loads a model from files of any format.
package open

import (
	"errors"
	"io"

	"github.com/restore-vlm/restore/internal/checkpoint/all"
	"github.com/restore-vlm/restore/internal/engine"
)

// Engine loads the model in files. Every weight is bound by name and shape; the error lists all
// that do not fit.
func Engine(files all.Files, o engine.Options) (*engine.Engine, error) {
	return With(files, o, engine.Hooks{})
}

// With is Engine with hooks.
func With(files all.Files, o engine.Options, h engine.Hooks) (*engine.Engine, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	e, err := engine.New(b, o, h)
	if err != nil {
		b.Close()
		return nil, err
	}
	return e, nil
}

// Pack writes the model in files to w as one packed file, with the weight types in o.
func Pack(files all.Files, o engine.Options, w io.Writer) error {
	b, err := files.Open()
	if err != nil {
		return err
	}
	return errors.Join(engine.Pack(b, o, w), b.Close())
}
