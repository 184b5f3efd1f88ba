package main

import (
	"context"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/seam"
)

// familyOf returns the family of a model, from its files.
func familyOf(files formats.Files) (*model.Family, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return families.Of(b.About().Name, b.Parts().Config.Data)
}

// evaluated is a loaded model that answers a benchmark's questions.
type evaluated struct {
	eval.Service // with every token
	model        *restore.Model
}

// with is the model with a reduction.
func (m *evaluated) with(r *restore.Reduction) *eval.Service {
	s := m.Service
	s.Reduction = r
	return &s
}

// refuse returns why the model cannot reduce its pictures so.
func (m *evaluated) refuse(r *restore.Reduction) error {
	o, err := seam.Reduction(r)
	if err == nil {
		_, err = seam.Engine(m.model).Resolve(o)
	}
	return err
}

// encodedBytes is how much of encoded pictures is kept for each picture that is asked about: enough
// for one of many tiles.
const encodedBytes = 256e6

// openForEval opens a model for benchmarks, or makes random weights in a shape if it has a name. It
// keeps about so many encoded pictures, which answers with several reductions share. For the
// paper's scripts it prepares pictures as they do, with their system message.
func openForEval(
	ctx context.Context, m *cli.ModelFlags, shape string, a *cli.App, pictures int, scripts bool,
) (*evaluated, error) {
	out := new(evaluated)
	if scripts && m.Path != "" {
		family, err := familyOf(m.Files())
		if err != nil {
			return nil, err
		}
		if out.System = family.System; !m.Flags.Changed("pad") && family.Pad {
			m.Pad = true
		}
	}
	o, end, err := m.Options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	o.EncodedBytes = int64(pictures) * encodedBytes
	out.model, err = openOrMake(ctx, m, shape, o)
	out.Model = out.model
	return out, err
}
