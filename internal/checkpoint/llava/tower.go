package llava

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
)

// tower is the content of a CLIP repository without its weights.
type tower struct {
	vision    json.RawMessage // vision_config
	processor []byte          // preprocessor_config.json
	from      string          // what the processor was read from
	files     []string
}

// clipVision are the defaults of transformers' CLIPVisionConfig, which CLIP's repositories leave
// out.
var clipVision = map[string]any{
	"model_type": "clip_vision_model", "hidden_size": 768, "intermediate_size": 3072,
	"num_hidden_layers": 12, "num_attention_heads": 12,
	"num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu",
	"layer_norm_eps": 1e-5,
}

// published are the towers that LLaVA's checkpoints name. Their configuration is built in, so a
// checkpoint with the tower's weights needs no other folder.
var published = map[string]int{
	"openai/clip-vit-large-patch14-336": 336,
	"openai/clip-vit-large-patch14":     224,
}

// knownTower returns the configuration of a published tower.
func knownTower(name string) (*tower, bool) {
	side, ok := published[name]
	if !ok {
		return nil, false
	}
	vision := maps.Clone(clipVision)
	maps.Copy(vision, map[string]any{
		"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
		"num_attention_heads": 16, "image_size": side, "patch_size": 14,
	})
	v, _ := json.Marshal(vision)
	p, _ := json.Marshal(map[string]any{
		"size": side, "crop_size": side, "do_resize": true, "do_center_crop": true,
		"do_normalize": true, "resample": 3,
		"image_mean": []float64{0.48145466, 0.4578275, 0.40821073},
		"image_std":  []float64{0.26862954, 0.26130258, 0.27577711},
	})
	return &tower{vision: v, processor: p, from: "what is known of " + name}, true
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
		if dir = name; !isDir(dir) {
			if t, ok := knownTower(name); ok && inside {
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
	t, err := readTower(f)
	if err == nil && !inside {
		err = addWeights(s, f)
	}
	if err != nil {
		return nil, fmt.Errorf("vision tower %s: %w", dir, err)
	}
	t.files = f.Read()
	return t, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// readTower reads the configuration of a CLIP repository, or of its vision half.
func readTower(f *folder.Folder) (*tower, error) {
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
	vision := maps.Clone(clipVision)
	switch c.Type {
	case "clip":
		maps.Copy(vision, c.Vision)
		maps.Copy(vision, c.Older)
	case "clip_vision_model":
		if err := json.Unmarshal(part.Data, &vision); err != nil {
			return nil, fmt.Errorf("%s: %w", part.From, err)
		}
	default:
		return nil, fmt.Errorf("%s: model_type: got %.40q, want clip or clip_vision_model",
			part.From, c.Type)
	}
	vision["model_type"] = "clip_vision_model"
	t := new(tower)
	if t.vision, err = json.Marshal(vision); err != nil {
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

// towers are the forms of a CLIP repository's names. Only the weights of the vision half are used.
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

// addWeights adds the vision tower of f to s.
func addWeights(s *checkpoint.Store, f *folder.Folder) error {
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
		if strings.HasPrefix(name, towerName) {
			s.Weights[name] = t.Weights[name]
		}
	}
	return nil
}
