package llavanext

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llava"
)

// convert completes the documents of llama.cpp's files.
func convert(m *checkpoint.Converted) error {
	if m.Vision["model_type"] == clip.SigLIPType {
		return fmt.Errorf("tensor %q: missing: a SigLIP tower in tiles: %w, want CLIP's",
			"v.class_embd", errs.ErrUnsupported)
	}
	const key = "clip.vision.image_grid_pinpoints"
	flat := m.Projector.Numbers(key)
	if len(flat) == 0 || len(flat)%2 != 0 {
		return fmt.Errorf("key %q: got %d numbers, want pairs", key, len(flat))
	}
	pairs := slices.Collect(slices.Chunk(flat, 2))
	m.Config["image_grid_pinpoints"], m.Config["use_image_newline_parameter"] = pairs, true
	m.Processor["image_grid_pinpoints"], m.Processor["do_pad"] = pairs, true
	m.Processor["image_processor_type"] = "LlavaNextImageProcessor"
	if err := llava.Only(m.Projector, "image_aspect_ratio", "anyres"); err != nil {
		return err
	}
	return llava.Only(m.Projector, "mm_patch_merge_type", "spatial_unpad")
}
