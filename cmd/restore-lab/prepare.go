package main

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/tensor"
)

// prepare runs one picture through a processor, and drops the picture axis of pixel_values.
func prepare(proc imageproc.Processor, pic *imageproc.Picture) (map[string]*tensor.Tensor, error) {
	px, err := proc.Process([]*imageproc.Picture{pic})
	if err != nil {
		return nil, err
	}
	if len(px.ImageSizes) != 1 {
		return nil, fmt.Errorf("%s: got %d picture sizes, want 1", proc.Name(), len(px.ImageSizes))
	}
	shape := px.Shape
	tensors := map[string]*tensor.Tensor{}
	if px.GridTHW == nil {
		shape = shape[1:]
	} else {
		g := px.GridTHW[0]
		tensors["image_grid_thw"] = tensor.From([]int{1, 3}, []int64{
			int64(g[0]), int64(g[1]), int64(g[2]),
		})
	}
	size := px.ImageSizes[0]
	tensors["image_sizes"] = tensor.From([]int{1, 2}, []int64{int64(size[0]), int64(size[1])})
	tensors["pixel_values"] = tensor.From(shape, px.Data)
	return tensors, nil
}
