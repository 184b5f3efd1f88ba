package llava

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/files"
)

// tower is the content of a CLIP or SigLIP repository without its weights.
type tower struct {
	vision    json.RawMessage // vision_config
	side      int             // of a picture in pixels
	cut       int             // a layer that is not used; 0: none
	processor []byte          // preprocessor_config.json
	from      string          // what the processor was read from
	files     []string
}

// towerDefaults are defaults of transformers' CLIPVisionConfig and SiglipVisionConfig that a
// checkpoint's processor and cut depend on. Readers of config.json know the others.
var towerDefaults = map[string]any{"num_hidden_layers": 12, "image_size": 224}

// Types of towers; the vision half alone has the suffix.
const (
	clip   = "clip"
	siglip = "siglip"
	vision = "_vision_model"
)

// published are the towers that checkpoints name. Their configuration is built in, so a checkpoint
// with the tower's weights needs no other folder.
var published = map[string]struct{ vision, processor map[string]any }{
	"openai/clip-vit-large-patch14-336": clipLarge(336),
	"openai/clip-vit-large-patch14":     clipLarge(224),
	"google/siglip-so400m-patch14-384": {
		map[string]any{
			"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
			"num_attention_heads": 16, "image_size": 384, "patch_size": 14,
		},
		map[string]any{
			"size": map[string]int{"height": 384, "width": 384}, "resample": 3,
			"image_mean": []float64{0.5, 0.5, 0.5}, "image_std": []float64{0.5, 0.5, 0.5},
		},
	},
}

func clipLarge(side int) struct{ vision, processor map[string]any } {
	return struct{ vision, processor map[string]any }{
		map[string]any{
			"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
			"num_attention_heads": 16, "image_size": side, "patch_size": 14,
		},
		map[string]any{
			"size": side, "crop_size": side, "do_resize": true, "do_center_crop": true,
			"do_normalize": true, "resample": 3,
			"image_mean": []float64{0.48145466, 0.4578275, 0.40821073},
			"image_std":  []float64{0.26862954, 0.26130258, 0.27577711},
		},
	}
}

// knownTower returns the configuration of a published tower, which must be of type kind.
func knownTower(name, kind string) (*tower, bool) {
	known, ok := published[name]
	if !ok || strings.Contains(name, siglip) != (kind == siglip) {
		return nil, false
	}
	t := &tower{from: "what is known of " + name}
	t.processor, _ = json.Marshal(known.processor)
	return t, t.config(known.vision, kind) == nil
}

// config sets the tower's configuration from the settings that differ from the defaults of its
// kind. The last layer of a SigLIP is cut off, as in the original code.
func (t *tower) config(settings map[string]any, kind string) error {
	all := maps.Clone(towerDefaults)
	maps.Copy(all, settings)
	all["model_type"] = kind + vision
	number := func(key string) int {
		n, _ := all[key].(int)
		if f, ok := all[key].(float64); ok {
			n = int(f)
		}
		return n
	}
	if kind == siglip {
		t.cut = number("num_hidden_layers") - 1
		all["num_hidden_layers"], all["vision_use_head"] = t.cut, false
	}
	t.side = number("image_size")
	var err error
	t.vision, err = json.Marshal(all)
	return err
}

// openTower reads the tower's configuration, and adds its weights to s if s has none. dir, if not
// "", is its folder; otherwise it is what the configuration names: a folder, or a repository that
// find finds.
func openTower(
	s *checkpoint.Store, c *config, dir string, find func(name string) (string, error),
) (*tower, error) {
	inside := false
	for name := range s.Weights {
		inside = inside || strings.HasPrefix(name, towerName)
	}
	if dir == "" {
		name := c.towerPath()
		if name == "" {
			return nil, errors.New(
				"mm_vision_tower: missing, want the vision tower's repository or folder")
		}
		if dir = name; !files.IsFolder(dir) {
			if t, ok := knownTower(name, c.towerKind()); ok && inside {
				return t, nil
			}
			if find == nil {
				return nil, fmt.Errorf(
					"mm_vision_tower: no folder %s (give a vision tower's folder)", name)
			}
			var err error
			if dir, err = find(name); err != nil {
				return nil, fmt.Errorf(
					"mm_vision_tower: %w (download %s, or give a vision tower's folder)", err, name)
			}
		}
	}
	f, err := folder.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("vision tower: %w", err)
	}
	t, err := readTower(f, c.towerKind())
	if err == nil && !inside {
		err = addWeights(s, f, t.cut)
	}
	if err != nil {
		return nil, fmt.Errorf("vision tower %s: %w", dir, err)
	}
	t.files = f.Read()
	return t, nil
}

// towerKind is the tower's type.
func (c *config) towerKind() string {
	if c.oneVision() {
		return siglip
	}
	return clip
}

// readTower reads the configuration of a repository of that kind, or of its vision half.
func readTower(f *folder.Folder, kind string) (*tower, error) {
	part, err := f.Config()
	if err != nil {
		return nil, err
	}
	var c struct {
		Type   string         `json:"model_type"`
		Vision map[string]any `json:"vision_config"`
		Older  map[string]any `json:"vision_config_dict"` // takes precedence in files of 2022
	}
	if err := json.Unmarshal(part.Data, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", part.From, err)
	}
	settings := map[string]any{}
	switch c.Type {
	case kind:
		maps.Copy(settings, c.Vision)
		maps.Copy(settings, c.Older)
	case kind + vision:
		if err := json.Unmarshal(part.Data, &settings); err != nil {
			return nil, fmt.Errorf("%s: %w", part.From, err)
		}
	default:
		return nil, fmt.Errorf("%s: model_type: got %.40q, want %s or %[3]s%s", part.From, c.Type,
			kind, vision)
	}
	t := new(tower)
	if err := t.config(settings, kind); err != nil {
		return nil, err
	}
	processor, err := hf.Processor(f)
	if err == nil && processor.Data == nil {
		err = errors.New("no preprocessor_config.json, which describes how pictures are prepared")
	}
	if err == nil {
		err = checkpoint.CheckObject(processor.Data)
	}
	t.processor, t.from = processor.Data, "the vision tower's "+processor.From
	return t, err
}

// towers are the forms of a repository's names. Only the weights of the vision half are used.
var towers = []checkpoint.Form{
	{
		Name: "clip", By: "transformers",
		Rules: checkpoint.Renamed("vision_model.", towerName, checkpoint.CLIPModules...),
	},
	{
		Name: "clip vision", By: "transformers 5",
		Rules: checkpoint.Renamed("", towerName, checkpoint.CLIPModules...),
	},
}

// addWeights adds the vision tower of f to s, without the layer cut and what follows the layers if
// cut is not 0.
func addWeights(s *checkpoint.Store, f *folder.Folder, cut int) error {
	t := new(checkpoint.Store)
	err := f.Weights(t)
	s.Maps = append(s.Maps, t.Maps...)
	if err != nil {
		return err
	}
	if err := t.Rename(towers); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(t.Weights)) {
		unused := cut > 0 &&
			(strings.HasPrefix(name, fmt.Sprintf("%sencoder.layers.%d.", towerName, cut)) ||
				strings.HasPrefix(name, towerName+"head."))
		if strings.HasPrefix(name, towerName) && !unused {
			s.Weights[name] = t.Weights[name]
		}
	}
	return nil
}
