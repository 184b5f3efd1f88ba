// Package shape describes models without their weights: the published ones, or any config.json.
package shape

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
)

// Names returns the names of the published models.
func Names() (names []string) {
	for _, f := range families.Table {
		names = append(names, f.Published...)
	}
	return names
}

// Shape is a model's configuration and the pictures that it takes.
type Shape struct {
	Name     string `json:"-"`
	Config   []byte `json:"-"`
	Family   *model.Family
	Canvases json.RawMessage `json:"image_grid_pinpoints"`
	Vision   struct {
		Width  int  `json:"hidden_size"`
		Side   side `json:"image_size"`
		Patch  side `json:"patch_size"`
		Merge  int  `json:"spatial_merge_size"`
		Frames int  `json:"temporal_patch_size"`
	} `json:"vision_config"`
}

// side is the side of a square, which a file gives once, or twice as height and width.
type side int

// UnmarshalJSON implements json.Unmarshaler.
func (s *side) UnmarshalJSON(data []byte) error {
	var both []int
	if json.Unmarshal(data, &both) == nil && len(both) == 2 && both[0] == both[1] {
		*s = side(both[0])
		return nil
	}
	return json.Unmarshal(data, (*int)(s))
}

// New returns the shape in a config.json, and errors call that file name. Without a config.json,
// name is a published model.
func New(name string, config []byte) (*Shape, error) {
	s := &Shape{Name: name, Config: config}
	for _, f := range families.Table {
		if config == nil && slices.Contains(f.Published, name) {
			s.Config = f.Shape(name)
		}
	}
	if s.Config == nil {
		return nil, &errs.OptionError{Name: "shape", Got: strconv.Quote(name),
			Want: "one of " + strings.Join(Names(), ", ")}
	}
	if o := families.Files.Original(s.Config); o != nil {
		var err error
		if s.Config, err = o.Config(s.Config); err != nil {
			return nil, fmt.Errorf("shape: %s: %w", name, err)
		}
	}
	return s, s.parse()
}

// Describe binds a model of that shape without real weights; it can only be described.
func (s *Shape) Describe(o engine.Options) (*engine.Engine, error) {
	ck, err := checkpoint.FromConfig(s.Name, s.Config)
	if err != nil {
		return nil, err
	}
	processor, err := s.Processor()
	if err != nil {
		return nil, err
	}
	return engine.New(ck, o,
		engine.Hooks{Describe: true, Weights: engine.NoData, Processor: processor})
}

// parse reads s.Config.
func (s *Shape) parse() error {
	if err := json.Unmarshal(s.Config, s); err != nil {
		return fmt.Errorf("shape: %s: %w", s.Name, err)
	}
	v := &s.Vision
	for _, f := range []struct {
		name          string
		value         *int
		absent, limit int
	}{
		// of squares: CLIPVisionConfig's and SiglipVisionConfig's
		{"hidden_size", &v.Width, 768, 1 << 16}, {"image_size", (*int)(&v.Side), 224, 1 << 12},
		{"patch_size", (*int)(&v.Patch), 14, 1 << 9},
		{"spatial_merge_size", &v.Merge, 2, 16}, {"temporal_patch_size", &v.Frames, 2, 16},
	} {
		if *f.value == 0 {
			*f.value = f.absent
		}
		if *f.value < 1 || *f.value > f.limit {
			return fmt.Errorf("shape: %s: vision_config: %s: got %d, want 1 to %d", s.Name, f.name,
				*f.value, f.limit)
		}
	}
	var err error
	if s.Family, err = families.Of(s.Name, s.Config); err != nil || s.Family.Cell == nil {
		return err
	}
	patch, merge, err := s.Family.Cell(s.Config)
	v.Patch, v.Merge = side(patch), merge
	return err
}

// Processor is a picture processor for the shape, for its sizes.
func (s *Shape) Processor() (imageproc.Processor, error) {
	v := s.Vision
	c := map[string]any{
		"image_processor_type": s.Family.Processors[0].Classes[0],
		"image_grid_pinpoints": s.Canvases,
		"patch_size":           v.Patch, "merge_size": v.Merge, "temporal_patch_size": v.Frames,
	}
	switch {
	case s.Family.Across == 0 && s.Family.Longest:
		c["size"] = map[string]int{"longest_edge": longest}
	case s.Family.Across == 0:
		c["min_pixels"], c["max_pixels"] = v.Patch*v.Patch, MaxPatches*v.Patch*v.Patch
	case s.Family.Longest:
		c["size"] = map[string]int{"longest_edge": s.Family.Across * int(v.Side)}
		c["max_image_size"] = map[string]side{"longest_edge": v.Side}
	default:
		square := map[string]side{"height": v.Side, "width": v.Side}
		c["size"], c["crop_size"] = square, square
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p, err := families.Processor(text)
	if err == nil && s.Family.Cell != nil {
		p, err = families.WithCells(p, s.Family, s.Config)
	}
	return p, err
}

// longest is the most pixels along a side of a picture whose longest edge is limited.
const longest = 8192

// MaxPatches limits the size of a picture.
const MaxPatches = 1 << 16

// Picture draws a picture that the model reads without resizing: a square, a square of four tiles,
// or one with that many patches.
func (s *Shape) Picture(patches int) (*imageproc.Picture, error) {
	patch := int(s.Vision.Patch)
	w := s.Family.Across * int(s.Vision.Side)
	h := w
	if s.Family.Across == 0 {
		merge := s.Vision.Merge
		units := patches / (merge * merge)
		if patches < merge*merge || patches%(merge*merge) != 0 || patches > MaxPatches {
			return nil, &errs.OptionError{Name: "patches", Got: strconv.Itoa(patches),
				Want: fmt.Sprintf("a multiple of %d up to %d", merge*merge, MaxPatches)}
		}
		rows := 1 // the largest divisor up to the root
		for d := 1; d*d <= units; d++ {
			if units%d == 0 {
				rows = d
			}
		}
		if units/rows > 100*rows {
			return nil, &errs.OptionError{Name: "patches", Got: strconv.Itoa(patches),
				Want: "a number with closer factors",
				Why: fmt.Sprintf("it makes a picture of %d x %d patches", units/rows*merge,
					rows*merge)}
		}
		w, h = units/rows*merge*patch, rows*merge*patch
		if s.Family.Longest && w > longest {
			return nil, &errs.OptionError{Name: "patches", Got: strconv.Itoa(patches),
				Want: "a number with closer factors",
				Why:  fmt.Sprintf("it makes a picture of %d x %d pixels", w, h)}
		}
	}
	p := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 3*w*h), Format: "PNG"}
	for i := range p.Pix { // colours that change across the picture, with noise
		x, y := i/3%w, i/3/w
		p.Pix[i] = byte(255*x*(1+i%3)/(4*w) + 100*y/h + (x*7919+y*104729+i%3*31)%53)
	}
	return p, nil
}
