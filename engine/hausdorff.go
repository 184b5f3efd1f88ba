package engine

import (
	"context"
	"fmt"

	"github.com/restore-vlm/restore/reduce"
)

// Hausdorff reduces the pictures of seen by o and returns how far each is from what the encoder saw: the weighted Hausdorff distance of
// [reduce.Reduction.Hausdorff], 0 where nothing is reduced. Methods inside the decoder are refused: their rows differ by layer.
func (e *Engine) Hausdorff(ctx context.Context, seen *Seen, o reduce.Options) ([]float64, error) {
	if o.Inside() {
		return nil, fmt.Errorf("engine: hausdorff: %s reduces inside the decoder, where rows differ from layer to layer", o.Base)
	}
	r := e.run()
	defer e.runs.put(r)
	r.Context, r.Trace = ctx, nil
	out := make([]float64, len(seen.visuals))
	for i, v := range seen.visuals {
		p, err := e.reduce(r, v, i, o)
		if err != nil {
			return nil, err
		}
		if p.reduction == nil {
			continue
		}
		in := p.input()
		in.Pool = r.Pool
		if out[i], err = p.reduction.Hausdorff(in); err != nil {
			return nil, err
		}
	}
	return out, nil
}
