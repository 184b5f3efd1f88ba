package llava

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// config is an original config.json.
type config struct {
	fields  map[string]json.RawMessage
	decoder string // model type

	Path      string          `json:"_name_or_path"`
	Archs     []string        `json:"architectures"`
	Tower     *string         `json:"mm_vision_tower"`
	OldTower  *string         `json:"vision_tower"`
	Layer     *int            `json:"mm_vision_select_layer"`
	Feature   *string         `json:"mm_vision_select_feature"`
	Projector *string         `json:"mm_projector_type"`
	Resampler *string         `json:"mm_resampler_type"`
	Merge     *string         `json:"mm_patch_merge_type"`
	Aspect    *string         `json:"image_aspect_ratio"`
	Pinpoints json.RawMessage `json:"image_grid_pinpoints"`
	StartEnd  bool            `json:"mm_use_im_start_end"`
	Pool      *string         `json:"mm_spatial_pool_mode"`
	Newline   *string         `json:"mm_newline_position"`
	Faster    bool            `json:"add_faster_video"`
}

// parseConfig reads a config.json. A setting that changes the result and is not part of LLaVA 1.5,
// 1.6 or OneVision is an error that names it.
func parseConfig(data []byte) (*config, error) {
	c := new(config)
	if err := json.Unmarshal(data, c); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &c.fields); err != nil {
		return nil, err
	}
	for _, a := range c.Archs {
		if c.decoder == "" {
			c.decoder = decoders[a]
		}
	}
	aspects := []string{"pad", "anyres", "square", "null"}
	if c.oneVision() {
		aspects = nil
		for n := range maxViews {
			aspects = append(aspects, fmt.Sprintf("%s%d", viewsPrefix, n+1))
		}
	}
	for _, x := range []struct {
		key  string
		got  *string
		want []string
	}{
		{"mm_projector_type", c.Projector, []string{"mlp2x_gelu"}},
		{"mm_resampler_type", c.Resampler, []string{"null"}},
		{"mm_vision_select_feature", c.Feature, []string{"patch", "cls_patch", "null"}},
		{"image_aspect_ratio", c.Aspect, aspects},
		{"mm_patch_merge_type", c.Merge, []string{"flat", "spatial_unpad", "null"}},
		{"mm_spatial_pool_mode", c.Pool, []string{"bilinear", "null"}},
		{"mm_newline_position", c.Newline, []string{"one_token", "null"}},
	} {
		got := "null"
		if x.got != nil {
			got = *x.got
		}
		if !slices.Contains(x.want, got) {
			return nil, fmt.Errorf("%s: got %.40q, want %s", x.key, got,
				checkpoint.Either(x.want))
		}
	}
	if c.Faster {
		return nil, errors.New("add_faster_video: got true, want false")
	}
	if c.tiles() != (c.Merge != nil && *c.Merge == "spatial_unpad") {
		return nil, errors.New(
			"image_aspect_ratio and mm_patch_merge_type: want anyres with spatial_unpad " +
				"(1.6, OneVision), or neither (1.5)")
	}
	if c.Layer == nil {
		return nil, errors.New("mm_vision_select_layer: missing, want a whole number")
	}
	return c, nil
}

// oneVision reports whether the model is a LLaVA-OneVision.
func (c *config) oneVision() bool { return c.decoder == "qwen2" }

// Names of LLaVA-OneVision's limit of a map of tiles, for 1 to maxViews views.
const (
	viewsPrefix = "anyres_max_"
	maxViews    = 36
)

// tiles reports whether pictures are cut into tiles.
func (c *config) tiles() bool {
	return c.Aspect != nil && (*c.Aspect == "anyres" || strings.HasPrefix(*c.Aspect, viewsPrefix))
}

// towerPath returns the tower's repository or folder, "" if the configuration names none.
func (c *config) towerPath() string {
	for _, p := range []*string{c.Tower, c.OldTower} {
		if p != nil {
			return *p
		}
	}
	return ""
}

// textKeys are the keys of the decoder's configuration, which are mixed with LLaVA's own.
var textKeys = []string{
	"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
	"num_key_value_heads", "head_dim", "vocab_size",
	"max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
	"sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "hidden_act",
	"attention_bias", "mlp_bias", "pretraining_tp", "tie_word_embeddings", "bos_token_id",
	"eos_token_id", "pad_token_id", "torch_dtype", "dtype",
}

// canonical returns the config.json of the same model in transformers' form, with a tower for
// pictures of side pixels.
func (c *config) canonical(vision json.RawMessage, side int) ([]byte, error) {
	text := map[string]any{"model_type": c.decoder}
	for _, k := range textKeys {
		if v, ok := c.fields[k]; ok {
			text[k] = v
		}
	}
	strategy := "default"
	if c.Feature != nil && *c.Feature == "cls_patch" {
		strategy = "full"
	}
	out := map[string]any{
		"architectures": []string{"LlavaForConditionalGeneration"}, "model_type": "llava",
		"text_config": text, "vision_config": vision, "image_token_index": checkpoint.NoToken,
		"projector_hidden_act": "gelu",
		"vision_feature_layer": *c.Layer, "vision_feature_select_strategy": strategy,
	}
	if c.tiles() {
		pairs, err := c.pinpoints(side)
		if err != nil {
			return nil, err
		}
		out["architectures"], out["model_type"] = []string{
			"LlavaNextForConditionalGeneration",
		}, "llava_next"
		out["image_grid_pinpoints"], out["use_image_newline_parameter"] = pairs, true
	}
	if c.oneVision() { // its code takes the last layer that it keeps, whatever the settings are
		out["architectures"], out["model_type"] = []string{
			"LlavaOnevisionForConditionalGeneration",
		}, "llava_onevision"
		out["vision_aspect_ratio"], out["vision_feature_layer"] = *c.Aspect, -1
		out["vision_feature_select_strategy"] = "full"
		out["video_token_index"] = -1
	}
	return json.Marshal(out)
}

// ranges is a text of pinpoints such as "(1x1),...,(6x6)": the first and the last numbers of tiles,
// across and down.
var ranges = regexp.MustCompile(`^\((\d{1,2})x(\d{1,2})\).*\((\d{1,2})x(\d{1,2})\)$`)

// pinpoints returns the canvases as [height, width], for tiles of side pixels. The original has
// [width, height], as a list or as a string, or ranges of numbers of tiles.
func (c *config) pinpoints(side int) ([][2]int, error) {
	raw := c.Pinpoints
	var text string
	if json.Unmarshal(raw, &text) == nil {
		if m := ranges.FindStringSubmatch(text); m != nil {
			var n [4]int
			for i := range n {
				n[i], _ = strconv.Atoi(m[1+i]) // two digits
			}
			var out [][2]int
			for across := n[0]; across <= n[2]; across++ {
				for down := n[1]; down <= n[3]; down++ {
					out = append(out, [2]int{down * side, across * side})
				}
			}
			return out, nil
		}
		raw = json.RawMessage(text)
	}
	var pairs [][]int
	if err := json.Unmarshal(raw, &pairs); err != nil || len(pairs) == 0 {
		return nil, fmt.Errorf(
			"image_grid_pinpoints: got %.60s, want a list of pairs of whole numbers", c.Pinpoints)
	}
	out := make([][2]int, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf(
				"image_grid_pinpoints: got %v, want a list of pairs of whole numbers", p)
		}
		out[i] = [2]int{p[1], p[0]}
	}
	return out, nil
}

// processor returns the preprocessor_config.json that prepares pictures of side pixels as the
// original code does with the tower's.
func (c *config) processor(tower []byte, side int) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(tower, &fields); err != nil {
		return nil, err
	}
	delete(fields, "feature_extractor_type")
	switch {
	case c.tiles():
		pairs, err := c.pinpoints(side)
		if err != nil {
			return nil, err
		}
		fields["image_processor_type"], fields["image_grid_pinpoints"] = "LlavaNextImageProcessor",
			pairs
		if c.oneVision() {
			fields["image_processor_type"] = "LlavaOnevisionImageProcessor"
		}
	case c.Aspect != nil && *c.Aspect == "pad":
		fields["image_processor_type"], fields["do_pad"] = "LlavaImageProcessor", true
	default:
		fields["image_processor_type"] = "CLIPImageProcessor"
	}
	return json.Marshal(fields)
}
