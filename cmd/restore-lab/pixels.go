package main

import (
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

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
