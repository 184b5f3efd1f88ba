package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
)

// shapeFiles are the configs of published models, which is all that a benchmark needs.
//
//go:embed shapes/*.json
var shapeFiles embed.FS

// benchShapeNames are the names for --shape, in the order of the help text.
var benchShapeNames = []string{
	"llava-1.5-7b", "llava-1.5-13b", "llava-next-7b", "qwen2.5-vl-3b", "qwen2.5-vl-7b",
}

// maxConfig limits the size of a config.json.
const maxConfig = 16 << 20

// shape describes a model to a benchmark: its configuration and the pictures that it takes.
type shape struct {
	Name          string          `json:"-"`
	Config        []byte          `json:"-"`
	Architectures []string        `json:"architectures"`
	Canvases      json.RawMessage `json:"image_grid_pinpoints"`
	Vision        struct {
		Width  int `json:"hidden_size"`
		Side   int `json:"image_size"`
		Patch  int `json:"patch_size"`
		Merge  int `json:"spatial_merge_size"`
		Frames int `json:"temporal_patch_size"`
	} `json:"vision_config"`
}

// loadShape returns the shape with that name, or the shape in a config.json.
func loadShape(name string) (*shape, error) {
	s := &shape{Name: name}
	var err error
	if slices.Contains(benchShapeNames, name) {
		s.Config, err = shapeFiles.ReadFile("shapes/" + name + ".json")
	} else {
		var info os.FileInfo
		if info, err = os.Stat(name); err != nil || info.IsDir() {
			return nil, usagef("--shape: got %q, want %s or a model's config.json", name,
				strings.Join(benchShapeNames, "|"))
		}
		if info.Size() > maxConfig {
			return nil, fmt.Errorf("bench: %s: %d bytes, want a config.json of at most %d", name,
				info.Size(), maxConfig)
		}
		s.Config, err = readText(name)
	}
	if err != nil {
		return nil, err
	}
	return s, s.parse(name)
}

// describe binds a model of that shape without real weights; it can only be described.
func (s *shape) describe(o engine.Options) (*engine.Engine, error) {
	ck, err := checkpoint.FromConfig(s.Name, s.Config)
	if err != nil {
		return nil, err
	}
	processor, err := s.processor()
	if err != nil {
		return nil, err
	}
	weights := func(_ *kernel.Memory, _ string, d tensor.DType, shape []int) *tensor.Tensor {
		if d != tensor.F32 {
			d = tensor.F16 // the published type, before a plan converts it
		}
		return &tensor.Tensor{DType: d, Shape: shape}
	}
	return engine.New(ck, o,
		engine.Hooks{Describe: true, Weights: weights, Processor: processor})
}

// parse parses s.Config; file is its name in errors.
func (s *shape) parse(file string) error {
	if err := json.Unmarshal(s.Config, s); err != nil {
		return fmt.Errorf("bench: %s: %w", file, err)
	}
	v := &s.Vision
	for _, f := range []struct {
		name          string
		value         *int
		absent, limit int
	}{
		{"hidden_size", &v.Width, 1024, 1 << 16}, {"image_size", &v.Side, 336, 1 << 12},
		{"patch_size", &v.Patch, 14, 1 << 9},
		{"spatial_merge_size", &v.Merge, 2, 16}, {"temporal_patch_size", &v.Frames, 2, 16},
	} {
		if *f.value == 0 {
			*f.value = f.absent
		}
		if *f.value < 1 || *f.value > f.limit {
			return fmt.Errorf("bench: %s: vision_config: %s: got %d, want 1 to %d", file, f.name,
				*f.value, f.limit)
		}
	}
	return nil
}

// pictureKind is how a model reads pictures.
type pictureKind int

const (
	onePicture pictureKind = iota // resized to one square
	tiled                         // a square and tiles
	anySize                       // in as many patches as the picture has
)

func (s *shape) kind() pictureKind {
	switch {
	case slices.Contains(s.Architectures, "LlavaNextForConditionalGeneration"):
		return tiled
	case slices.Contains(s.Architectures, "Qwen2_5_VLForConditionalGeneration"):
		return anySize
	}
	return onePicture
}

// processor is the published picture processor for the shape, for its sizes.
func (s *shape) processor() (imageproc.Processor, error) {
	c := map[string]any{
		"image_mean": []float64{0.48145466, 0.4578275, 0.40821073},
		"image_std":  []float64{0.26862954, 0.26130258, 0.27577711},
	}
	v := s.Vision
	switch s.kind() {
	case anySize:
		c["image_processor_type"] = "Qwen2VLImageProcessor"
		c["patch_size"], c["merge_size"], c["temporal_patch_size"] = v.Patch, v.Merge, v.Frames
		c["min_pixels"], c["max_pixels"] = v.Patch*v.Patch, benchMaxPatches*v.Patch*v.Patch
	default:
		c["image_processor_type"], c["resample"] = "CLIPImageProcessor", 3
		c["size"], c["crop_size"] = map[string]int{"shortest_edge": v.Side},
			map[string]int{"height": v.Side, "width": v.Side}
		if s.kind() == tiled {
			c["image_processor_type"], c["image_grid_pinpoints"] = "LlavaNextImageProcessor",
				s.Canvases
			if s.Canvases == nil {
				c["image_grid_pinpoints"] = [][2]int{
					{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008},
				}
			}
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return families.Processor(text)
}

// benchMaxPatches limits the size of a benchmark's picture.
const benchMaxPatches = 1 << 16

// picture draws a picture that the model reads without resizing: a square, a square of four tiles,
// or one with that many patches.
func (s *shape) picture(patches int) (*imageproc.Picture, error) {
	w, h := s.Vision.Side, s.Vision.Side
	switch s.kind() {
	case tiled:
		w, h = 2*w, 2*h
	case anySize:
		merge := s.Vision.Merge
		units := patches / (merge * merge)
		if patches < merge*merge || patches%(merge*merge) != 0 || patches > benchMaxPatches {
			return nil, usagef("--patches: got %d, want a multiple of %d up to %d", patches,
				merge*merge, benchMaxPatches)
		}
		rows := 1 // the largest divisor up to the root
		for d := 1; d*d <= units; d++ {
			if units%d == 0 {
				rows = d
			}
		}
		if units/rows > 100*rows {
			return nil, usagef("--patches: got %d, which makes a picture of %dx%d patches, "+
				"want a number with closer factors", patches, units/rows*merge, rows*merge)
		}
		w, h = units/rows*merge*s.Vision.Patch, rows*merge*s.Vision.Patch
	}
	p := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 3*w*h), Format: "PNG"}
	for i := range p.Pix { // colours that change across the picture, with noise
		x, y := i/3%w, i/3/w
		p.Pix[i] = byte(255*x*(1+i%3)/(4*w) + 100*y/h + (x*7919+y*104729+i%3*31)%53)
	}
	return p, nil
}
