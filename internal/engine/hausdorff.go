package engine

import (
	"context"
	"fmt"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// Hausdorff reduces pictures by o and returns how far each is from what the encoder saw: the
// weighted Hausdorff distance of [methods.Hausdorff], 0 where nothing is reduced. Methods inside
// the decoder are refused: their rows differ by layer.
func (e *Engine) Hausdorff(
	ctx context.Context, pics *Encoded, o methods.Options,
) ([]float64, error) {
	if o.Inside() {
		return nil, fmt.Errorf("engine: hausdorff: %s reduces inside the decoder, where "+
			"rows differ from layer to layer", o.Base)
	}
	places, err := e.pictures(ctx, &Request{Encoded: pics, Reduce: o, NoCache: true})
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(places))
	err = e.Do(ctx, func(r *model.Run) error {
		for i, p := range places {
			f, err := e.features(r, p)
			if err != nil {
				return err
			}
			if f.reduction == nil {
				continue
			}
			if out[i], err = methods.Hausdorff(f.reduction, p.read(p.visual), r.Pool); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}
