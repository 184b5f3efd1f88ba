package main

import (
	"context"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
	"github.com/restore-vlm/restore/internal/shape"
)

// openEngine opens a model and returns its engine, which the caller closes.
func openEngine(ctx context.Context, a *cli.App, m *cli.ModelFlags) (*engine.Engine, error) {
	model, err := m.Open(ctx, a)
	if err != nil {
		return nil, err
	}
	return seam.Engine(model), nil
}

// loadShape returns the shape of a published model or of a config.json.
func loadShape(name string) (*shape.Shape, error) {
	config, err := cli.ShapeFlag(name)
	if err != nil {
		return nil, err
	}
	return shape.New(name, config)
}

// options returns the requested reduction as the engine's options.
func options(r *cli.ReductionFlags) (methods.Options, error) {
	how, err := r.Reduction()
	if err != nil {
		return methods.Options{}, err
	}
	return seam.Reduction(how)
}

// pixels returns the question's pictures as pixels.
func pixels(q *cli.Question) ([]*imageproc.Picture, error) {
	var out []*imageproc.Picture
	for _, p := range q.Pictures {
		pic, err := seam.Image(p.Pic).Pixels()
		if err != nil {
			return nil, err
		}
		out = append(out, pic)
	}
	return out, nil
}
