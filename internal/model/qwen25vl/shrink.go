package qwen25vl

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/cells"
)

// Shrink implements model.Picture.
func (p *picture) Shrink(
	r *model.Run, rows, cols int,
) (x []float32, deep [][]float32, err error) {
	if p.shape.Fixed != "" {
		return nil, nil, fmt.Errorf("qwen25vl: %s", p.shape.Fixed)
	}
	e := p.m.vision
	to := [3]int{1, rows * e.Merge, cols * e.Merge}
	small := cells.Shrink(r, p.px, p.grid, to, 3*e.Frames, e.Patch, e.Merge)
	out, err := e.encode(r, small, arrange(cells.Moments(to), e.Merge, e.side()), model.Needs{})
	if err != nil {
		return nil, nil, err
	}
	return out.X, nil, nil
}
