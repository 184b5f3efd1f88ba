// Package families lists the families of models.
package families

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/gemma3"
	"github.com/restore-vlm/restore/internal/model/idefics3"
	"github.com/restore-vlm/restore/internal/model/internvl"
	"github.com/restore-vlm/restore/internal/model/llava"
	"github.com/restore-vlm/restore/internal/model/llavanext"
	"github.com/restore-vlm/restore/internal/model/onevision"
	"github.com/restore-vlm/restore/internal/model/pixtral"
	"github.com/restore-vlm/restore/internal/model/qwen25vl"
	"github.com/restore-vlm/restore/internal/model/qwen2vl"
	"github.com/restore-vlm/restore/internal/model/qwen3vl"
)

// Table lists the families.
var Table = []*model.Family{
	&llava.Family, &llavanext.Family, &qwen2vl.Family, &qwen25vl.Family, &onevision.Family,
	&qwen3vl.Family, &idefics3.Family, &idefics3.SmolVLM2, &internvl.Family, &gemma3.Family,
	&pixtral.Family, &pixtral.Mistral3,
}

// Files is what readers and writers of files need to know of Table.
var Files = func() (list checkpoint.Families) {
	for _, f := range Table {
		list = append(list, &f.Family)
	}
	return list
}()

// Processor builds the picture processor that a preprocessor_config.json describes.
func Processor(config []byte) (imageproc.Processor, error) {
	var kinds []imageproc.Kind
	for _, f := range Table {
		for _, k := range f.Processors {
			if !slices.ContainsFunc(kinds, func(have imageproc.Kind) bool {
				return have.Classes[0] == k.Classes[0]
			}) {
				kinds = append(kinds, k)
			}
		}
	}
	return imageproc.ParseProcessor(config, kinds)
}

// WithCells returns p with the patches and visual tokens of a model of family f with that
// config.json, whose Cell is not nil.
func WithCells(p imageproc.Processor, f *model.Family, config []byte) (imageproc.Processor, error) {
	q, ok := p.(*imageproc.Patches)
	if !ok || q.Longest == 0 {
		return nil, fmt.Errorf("processor: got %s, want %s", p.Name(), f.Processors[0].Classes[0])
	}
	patch, merge, err := f.Cell(config)
	if err != nil {
		return nil, err
	}
	return q.Cells(patch, merge), nil
}

// Prepares builds the processor of pictures and videos of a model called name. Without a video
// processor of its own, the picture processor's settings are those of videos, too. If only the
// videos' settings are not supported, noVideos says why, and the processor is that of pictures.
func Prepares(name string, p *checkpoint.Parts) (_ imageproc.Processor, noVideos, err error) {
	f, err := Of(name, p.Config.Data)
	if err != nil {
		return nil, nil, err
	}
	if err := checkTexts(f, &p.Specials); err != nil {
		return nil, nil, fmt.Errorf("%s: %s: %w", name, p.Specials.From, err)
	}
	proc, err := Processor(p.Processor.Data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %s: %w", name, p.Processor.From, err)
	}
	if f.Cell != nil && !noEncoder(p.Config.Data) {
		if proc, err = WithCells(proc, f, p.Config.Data); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if f.Videos == nil {
		return proc, nil, nil
	}
	kind, part := VideoKind(f, p)
	both, err := imageproc.WithVideo(proc, part.Data, kind)
	if err != nil {
		return proc, fmt.Errorf("%s: %s: %w", name, part.From, err), nil
	}
	return both, nil, nil
}

// VideoKind returns the kind of video processor of a model of a family with videos, and its
// settings.
func VideoKind(f *model.Family, p *checkpoint.Parts) (imageproc.VideoKind, checkpoint.Part) {
	part := p.Video
	if part.Data == nil {
		part = p.Processor
	}
	return imageproc.VideoKindOf(part.Data, f.Videos), part
}

// checkTexts returns an error if the files name other texts than those that are written for
// pictures.
func checkTexts(f *model.Family, specials *checkpoint.Part) error {
	var found map[string]string
	_ = json.Unmarshal(specials.Data, &found) // there may be none
	for _, name := range slices.Sorted(maps.Keys(f.Texts)) {
		if got, ok := found[name]; ok && got != f.Texts[name] {
			return fmt.Errorf("model: %s: got %q, want %q", name, got, f.Texts[name])
		}
	}
	return nil
}

// Of returns the family of the model called name with that config.json, see
// [checkpoint.Families.Of]. The error lists the known architectures.
func Of(name string, config []byte) (*model.Family, error) {
	if i := slices.Index(Files, Files.Of(config)); i >= 0 {
		return Table[i], nil
	}
	var c struct{ Architectures []string }
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("model: %s: config.json: %w", name, err)
	}
	var known []string
	for _, f := range Table {
		known = append(known, f.Architectures...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	return nil, checkpoint.As(errs.ErrUnsupported, fmt.Errorf(
		"model: %s: config.json: architectures: got %q, want one of %s", name, c.Architectures,
		strings.Join(known, ", ")))
}

// Open binds ck with the constructor of its family. A vision_config of null means that there is no
// encoder.
func Open(ck *model.Source) (model.Multimodal, error) {
	f, err := Of(ck.Name, ck.Config())
	if err != nil {
		return nil, err
	}
	if noEncoder(ck.Config()) {
		m, err := f.Text(ck)
		if err != nil {
			return nil, fmt.Errorf("%w (vision_config is null: no encoder)", err)
		}
		return m, nil
	}
	return f.New(ck)
}

// noEncoder reports whether a config.json says that there is no encoder.
func noEncoder(config []byte) bool {
	var c struct {
		Vision json.RawMessage `json:"vision_config"`
	}
	return json.Unmarshal(config, &c) == nil && string(c.Vision) == "null"
}
