package lab

import (
	"context"
	"errors"
	"fmt"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/seam"
)

// Encode encodes the pictures of a question.
func Encode(
	ctx context.Context, e *engine.Engine, pictures []eval.Image,
) (*engine.Encoded, error) {
	images := make([]*engine.Image, len(pictures))
	for i := range pictures {
		p, err := pictures[i].Picture()
		if err != nil {
			return nil, err
		}
		images[i] = seam.Image(p)
	}
	encoded, err := e.Encode(ctx, images)
	var bad *errs.PictureError
	if errors.As(err, &bad) && bad.Index >= 0 {
		err = pictures[bad.Index].Error(err)
	}
	return encoded, err
}

// alone prepares picture i of pics without any text.
func alone(
	ctx context.Context, e *engine.Engine, pics *engine.Encoded, i int, o methods.Options,
) (*engine.Prompt, error) {
	return e.NewPrompt(ctx, engine.Request{
		Tokens: []int32{e.Model().ImageToken()}, Encoded: pics.Picture(i), Reduce: o,
	})
}

// Hausdorff reduces pictures by o and returns how far each is from the encoder's output: the
// weighted Hausdorff distance of [methods.Hausdorff], 0 if nothing is reduced. It returns an error
// for methods inside the decoder, whose rows differ by layer.
func Hausdorff(
	ctx context.Context, e *engine.Engine, pics *engine.Encoded, o methods.Options,
) ([]float64, error) {
	if o.ReadsText() && !o.Inside() {
		return nil, fmt.Errorf("lab: hausdorff: %s chooses for each question, so a picture "+
			"has no distance of its own", o.Base)
	}
	if o.Inside() {
		return nil, fmt.Errorf("lab: hausdorff: %s reduces inside the decoder, where "+
			"rows differ from layer to layer", o.Base)
	}
	out := make([]float64, pics.Len())
	for i := range out {
		p, err := alone(ctx, e, pics, i, o)
		if err != nil {
			return nil, err
		}
		err = e.Do(ctx, func(r *model.Run) error {
			f, err := p.Reduce(r, 0)
			if err != nil || f.Reduction == nil {
				return err
			}
			out[i], err = methods.Hausdorff(f.Reduction, p.Input(0), r.Pool)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Distances is a loaded model that also measures the distance of its reduction for every picture.
type Distances struct{ *eval.Service }

// Settings implements [eval.Answerer].
func (d Distances) Settings() map[string]any {
	all := d.Service.Settings()
	all["distance"] = true
	return all
}

// Answer implements [eval.Answerer] for questions about one picture.
func (d Distances) Answer(
	ctx context.Context, asked []*eval.Question, done func(i int, a eval.Answer) error,
) error {
	e := seam.Engine(d.Model)
	encoded, err := Encode(ctx, e, asked[0].Images)
	if err != nil {
		return err
	}
	o, err := seam.Reduction(d.Reduction)
	if err != nil {
		return err
	}
	far, err := Hausdorff(ctx, e, encoded, o)
	if err != nil {
		return asked[0].Images[0].Error(err)
	}
	return d.Service.Answer(ctx, asked, func(i int, a eval.Answer) error {
		a.Distance = &far[0]
		return done(i, a)
	})
}

// Gains returns the first most gains of every picture, from which budgets by content are computed.
func Gains(
	ctx context.Context, e *engine.Engine, pics *engine.Encoded, most int,
) ([]methods.PictureGains, error) {
	out := make([]methods.PictureGains, pics.Len())
	for i := range out {
		p, err := alone(ctx, e, pics, i, methods.Options{})
		if err != nil {
			return nil, err
		}
		err = e.Do(ctx, func(r *model.Run) error {
			in := p.Input(0)
			g, err := methods.Gains(r.Pool, in.X, in.N, in.C, most)
			out[i] = methods.PictureGains{Gains: g, Tokens: in.N}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
