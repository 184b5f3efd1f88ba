package engine

import (
	"context"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// Gains returns the first so many gains of every picture: what budgets by content are found
// from.
func (e *Engine) Gains(
	ctx context.Context, pics *Encoded, most int,
) (out []methods.PictureGains, err error) {
	places, err := e.pictures(ctx, &Request{Encoded: pics, NoCache: true})
	if err != nil {
		return nil, err
	}
	err = e.Do(ctx, func(r *model.Run) error {
		for _, p := range places {
			if p.shape.Views != nil { // the tokens that a method would get
				m, err := methods.Lookup("none")
				if err != nil {
					return err
				}
				p.list = listOf(p.shape, &methods.Options{}, &m)
			}
			in := p.read(p.visual)
			g, err := methods.Gains(e.pool, in.X, in.N, in.C, most)
			if err != nil {
				return err
			}
			out = append(out, methods.PictureGains{Gains: g, Tokens: in.N})
		}
		return nil
	})
	return out, err
}
