package gguf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
)

// object is a JSON object for output.
type object = map[string]any

// single is a float32 from a file, written in the shortest form with that value: 1e-05 instead of
// 9.999999747378752e-06.
type single float64

func (x single) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 32), nil
}

// decoderConfig is the shape of a decoder from its file's metadata.
type decoderConfig struct {
	arch                   string
	heads, kvHeads, hidden int
	vocab                  int
	fields                 object // for Hugging Face's text_config
}

// required returns a whole number of at least 1.
func (f *file) required(name string) (int, error) {
	v, ok := f.keys[name]
	if !ok {
		return 0, fmt.Errorf("key %q is missing", name)
	}
	if v.count != 1 {
		return 0, fmt.Errorf("key %q: %d numbers, one for each block, want one for all", name,
			v.count)
	}
	n, most := int(int64(v.int(0))), maxSize
	if strings.HasSuffix(name, ".block_count") {
		most = maxBlocks
	}
	if n < 1 || n > most {
		return 0, fmt.Errorf("key %q: got %d, want 1 to %d", name, n, most)
	}
	return n, nil
}

// Limits on a model's shape in metadata.
const (
	maxSize   = 1 << 24
	maxBlocks = 1 << 10
)

// tensor finds a tensor by name.
func (f *file) tensor(name string) *tensorInfo {
	for i := range f.tensors {
		if f.tensors[i].name == name {
			return &f.tensors[i]
		}
	}
	return nil
}

// decoderConfig reads a decoder's metadata.
func (f *file) decoderConfig() (*decoderConfig, error) {
	c := &decoderConfig{arch: f.text("general.architecture", "")}
	key := func(name string) string { return c.arch + "." + name }
	var err error
	number := func(name string) int {
		if err != nil {
			return 0
		}
		var n int
		n, err = f.required(key(name))
		return n
	}
	blocks, context := number("block_count"), number("context_length")
	c.hidden, c.heads = number("embedding_length"), number("attention.head_count")
	mlp := number("feed_forward_length")
	if c.kvHeads = c.heads; f.has(key("attention.head_count_kv")) {
		c.kvHeads = number("attention.head_count_kv")
	}
	if err != nil {
		return nil, err
	}
	if !f.has(key("attention.layer_norm_rms_epsilon")) {
		return nil, fmt.Errorf("key %q is missing", key("attention.layer_norm_rms_epsilon"))
	}
	table := f.tensor("token_embd.weight")
	if table == nil || len(table.shape) != 2 {
		return nil, fmt.Errorf("tensor %q is missing", "token_embd.weight")
	}
	c.vocab = table.shape[0]
	headDim := f.number(key("attention.key_length"), c.hidden/c.heads)
	for name, want := range map[string]int{"attention.value_length": headDim,
		"rope.dimension_count": headDim, "expert_count": 0} {
		if got := f.number(key(name), want); got != want {
			return nil, fmt.Errorf("key %q: got %d, want %d: %w", key(name), got, want,
				errs.ErrUnsupported)
		}
	}
	c.fields = object{
		"hidden_size": c.hidden, "intermediate_size": mlp, "num_hidden_layers": blocks,
		"num_attention_heads": c.heads,
		"num_key_value_heads": c.kvHeads, "head_dim": headDim, "max_position_embeddings": context,
		"vocab_size":          c.vocab,
		"rms_norm_eps":        single(f.float(key("attention.layer_norm_rms_epsilon"), 0)),
		"hidden_act":          "silu",
		"tie_word_embeddings": f.tensor("output.weight") == nil,
	}
	base := 10000.0
	if c.arch == archQwen {
		base = 1e6
	}
	c.fields["rope_theta"] = single(f.float(key("rope.freq_base"), base))
	return c, f.rope(c)
}

// rope reads the scaling of the rotation and the axes that it follows.
func (f *file) rope(c *decoderConfig) error {
	kind := f.text(c.arch+".rope.scaling.type", "none")
	if f.has(c.arch+".rope.scale_linear") && kind == "none" {
		kind = "linear"
	}
	if kind != "none" {
		return fmt.Errorf("rotary positions scaled by %q: %w, want none", kind, errs.ErrUnsupported)
	}
	if c.arch != archQwen {
		return nil
	}
	sections := f.numbers(c.arch + ".rope.dimension_sections")
	if len(sections) == 4 && sections[3] == 0 {
		sections = sections[:3]
	}
	if len(sections) != 3 {
		return fmt.Errorf("key %q: got %v, want three numbers and a zero",
			c.arch+".rope.dimension_sections", sections)
	}
	c.fields["rope_scaling"] = object{"type": "mrope", "mrope_section": sections}
	return nil
}

// llava writes the config.json of LLaVA or LLaVA-NeXT. p is nil if there is no projector file.
func (c *decoderConfig) llava(p *file, v *vocabulary) (object, error) {
	c.fields["model_type"], c.fields["architectures"] = "llama", []string{"LlamaForCausalLM"}
	v.addTo(c.fields)
	config := object{
		"architectures": []string{"LlavaForConditionalGeneration"}, "model_type": "llava",
		"text_config":   c.fields,
		"vision_config": nil, "tie_word_embeddings": c.fields["tie_word_embeddings"],
		"image_token_index": v.image("<image>"), "projector_hidden_act": "gelu",
		"vision_feature_select_strategy": "default",
	}
	if p == nil {
		return config, nil
	}
	vision, err := p.encoder()
	if err != nil {
		return nil, err
	}
	if vision["image_size"], err = p.required("clip.vision.image_size"); err != nil {
		return nil, err
	}
	blocks := vision["num_hidden_layers"].(int)
	layers := p.numbers("clip.vision.feature_layer")
	for _, l := range layers {
		if l < 0 || l > blocks {
			return nil, fmt.Errorf("key %q: got %d, want 0 to the %d blocks of the file",
				"clip.vision.feature_layer", l, blocks)
		}
	}
	if layers == nil {
		layers = []int{blocks} // the converter leaves out blocks that no feature needs
	}
	if config["vision_feature_layer"] = any(layers); len(layers) == 1 {
		config["vision_feature_layer"] = layers[0]
	}
	act := "quick_gelu"
	switch {
	case p.flag("clip.use_gelu", false):
		act = "gelu"
	case p.flag("clip.use_silu", false):
		act = "silu"
	}
	vision["hidden_act"], vision["model_type"] = act, "clip_vision_model"
	config["vision_config"] = vision
	config["multimodal_projector_bias"] = p.tensor("mm.0.bias") != nil
	if p.tensor("model.image_newline") == nil {
		if merge := p.text("clip.vision.mm_patch_merge_type", "flat"); merge != "flat" {
			return nil, fmt.Errorf("key %q: %q, but there is no tensor %q",
				"clip.vision.mm_patch_merge_type", merge, "model.image_newline")
		}
		return config, nil
	}
	if merge := p.text("clip.vision.mm_patch_merge_type", "spatial_unpad"); merge !=
		"spatial_unpad" {
		return nil, fmt.Errorf("key %q: %q: %w, want spatial_unpad",
			"clip.vision.mm_patch_merge_type",
			merge, errs.ErrUnsupported)
	}
	config["architectures"], config["model_type"] = []string{"LlavaNextForConditionalGeneration"},
		"llava_next"
	config["use_image_newline_parameter"] = true
	if config["image_grid_pinpoints"], err = p.canvases(); err != nil {
		return nil, err
	}
	return config, nil
}

// encoder reads the metadata that all encoders have.
func (f *file) encoder() (object, error) {
	vision := object{}
	for name, key := range map[string]string{
		"hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
		"num_hidden_layers":   "block_count",
		"num_attention_heads": "attention.head_count",
		"patch_size":          "patch_size",
	} {
		n, err := f.required("clip.vision." + key)
		if err != nil {
			return nil, err
		}
		vision[name] = n
	}
	if !f.has("clip.vision.attention.layer_norm_epsilon") {
		return nil, fmt.Errorf("key %q is missing", "clip.vision.attention.layer_norm_epsilon")
	}
	vision["layer_norm_eps"] = single(f.float("clip.vision.attention.layer_norm_epsilon", 0))
	vision["projection_dim"] = f.number("clip.vision.projection_dim", vision["hidden_size"].(int))
	return vision, nil
}

// canvases returns the sizes to which a picture is resized before it is cut into tiles.
func (f *file) canvases() ([][]int, error) {
	const key = "clip.vision.image_grid_pinpoints"
	flat := f.numbers(key)
	if len(flat) == 0 || len(flat)%2 != 0 {
		return nil, fmt.Errorf("key %q: got %d numbers, want pairs", key, len(flat))
	}
	var pairs [][]int
	for i := 0; i < len(flat); i += 2 {
		pairs = append(pairs, flat[i:i+2])
	}
	return pairs, nil
}

// Sizes of Qwen2.5-VL's encoder that are in no metadata: all published models have them.
const (
	qwenMerge     = 2
	qwenMoments   = 2
	qwenWindow    = 112
	qwenPerSecond = 2
)

// qwen writes the config.json of Qwen2.5-VL.
func (c *decoderConfig) qwen(p *file, v *vocabulary) (object, error) {
	config := c.fields
	config["architectures"], config["model_type"] = []string{"Qwen2_5_VLForConditionalGeneration"},
		"qwen2_5_vl"
	v.addTo(config)
	if config["image_token_id"] = v.image("<|image_pad|>"); v.file != nil &&
		v.image("<|image_pad|>") < 0 {
		return nil, fmt.Errorf("tokenizer: no token %q, which stands for pictures", "<|image_pad|>")
	}
	for key, token := range map[string]string{"video_token_id": "<|video_pad|>",
		"vision_start_token_id": "<|vision_start|>",
		"vision_end_token_id":   "<|vision_end|>"} {
		if id, ok := v.ids[token]; ok {
			config[key] = id
		}
	}
	delete(config, "head_dim") // always hidden_size / num_attention_heads
	config["vision_config"] = nil
	if p == nil {
		return config, nil
	}
	vision, err := p.encoder()
	if err != nil {
		return nil, err
	}
	blocks := vision["num_hidden_layers"].(int)
	full := p.numbers("clip.vision.fullatt_block_indexes")
	if every := p.number("clip.vision.n_wa_pattern", 0); full == nil && every > 0 {
		for i := every - 1; i < blocks; i += every {
			full = append(full, i)
		}
	}
	if full == nil {
		return nil, fmt.Errorf("key %q: missing or 0, want at least 1", "clip.vision.n_wa_pattern")
	}
	last := p.tensor("mm.2.weight")
	if last == nil || len(last.shape) != 2 {
		return nil, fmt.Errorf("tensor %q is missing", "mm.2.weight")
	}
	if !p.flag("clip.use_silu", true) {
		return nil, fmt.Errorf("key %q: false: %w, want true", "clip.use_silu", errs.ErrUnsupported)
	}
	config["vision_config"] = object{
		"model_type": "qwen2_5_vl", "depth": blocks, "hidden_size": vision["hidden_size"],
		"intermediate_size": vision["intermediate_size"],
		"num_heads":         vision["num_attention_heads"], "patch_size": vision["patch_size"],
		"spatial_patch_size": vision["patch_size"],
		"in_chans":           3, "hidden_act": "silu",
		"spatial_merge_size":    p.number("clip.vision.spatial_merge_size", qwenMerge),
		"temporal_patch_size":   qwenMoments,
		"window_size":           p.number("clip.vision.window_size", qwenWindow),
		"fullatt_block_indexes": full, "out_hidden_size": last.shape[0],
		"tokens_per_second": qwenPerSecond,
	}
	return config, nil
}

// projectors are the supported projector types by the decoder's architecture.
var projectors = map[string]string{archLlama: "mlp", archQwen: "qwen2.5vl_merger"}

// checkProjector returns an error for projector files that do not belong to a decoder of arch.
func (f *file) checkProjector(arch string) error {
	if got := f.text("general.architecture", ""); got != archClip {
		return fmt.Errorf(
			"general.architecture: %q, want clip: an encoder and a projector (mmproj)",
			got)
	}
	if !f.flag("clip.has_vision_encoder", true) {
		return fmt.Errorf("an encoder for something other than pictures: %w", errs.ErrUnsupported)
	}
	got := f.text("clip.projector_type",
		f.text("clip.vision.projector_type", projectors[archLlama]))
	if want := projectors[arch]; got != want {
		if !slices.Contains([]string{projectors[archLlama], projectors[archQwen]}, got) {
			return fmt.Errorf("projector type %q: %w, want mlp or qwen2.5vl_merger", got,
				errs.ErrUnsupported)
		}
		return fmt.Errorf(
			"projector type %q, want %s, which belongs to a decoder of architecture %s",
			got, want, arch)
	}
	if old := f.text("clip.vision.mm_projector_type", ""); arch == archLlama && old != "" &&
		!strings.HasPrefix(old, "mlp2x") {
		return fmt.Errorf("mm_projector_type %q: %w, want mlp2x_gelu", old, errs.ErrUnsupported)
	}
	return nil
}

// processor writes the preprocessor_config.json for the metadata.
func (f *file) processor(arch string) ([]byte, error) {
	c := object{
		"do_resize": true, "do_rescale": true, "do_normalize": true, "do_convert_rgb": true,
		"resample":       3,
		"rescale_factor": 1.0 / 255,
	}
	for key, name := range map[string]string{"image_mean": "clip.vision.image_mean",
		"image_std": "clip.vision.image_std"} {
		values := f.floats(name)
		if len(values) != 3 {
			return nil, fmt.Errorf("key %q: got %d numbers, want 3", name, len(values))
		}
		c[key] = []single{single(values[0]), single(values[1]), single(values[2])}
	}
	if arch == archQwen {
		patch, err := f.required("clip.vision.patch_size")
		if err != nil {
			return nil, err
		}
		c["image_processor_type"] = "Qwen2VLImageProcessor"
		c["patch_size"], c["temporal_patch_size"] = patch, qwenMoments
		merge := f.number("clip.vision.spatial_merge_size", qwenMerge)
		c["merge_size"] = merge
		token := patch * merge * patch * merge // pixels of a visual token
		c["min_pixels"] = f.number("clip.vision.image_min_pixels", qwenMinTokens*token)
		c["max_pixels"] = f.number("clip.vision.image_max_pixels", qwenMaxTokens*token)
		return json.Marshal(c)
	}
	side, err := f.required("clip.vision.image_size")
	if err != nil {
		return nil, err
	}
	c["size"], c["crop_size"] = object{"shortest_edge": side}, object{"height": side, "width": side}
	c["do_center_crop"], c["image_processor_type"] = true, "CLIPImageProcessor"
	aspect := f.text("clip.vision.image_aspect_ratio", "")
	switch {
	case f.tensor("model.image_newline") != nil:
		c["image_processor_type"], c["do_pad"] = "LlavaNextImageProcessor", true
		if c["image_grid_pinpoints"], err = f.canvases(); err != nil {
			return nil, err
		}
	case aspect == "pad":
		c["image_processor_type"], c["do_pad"] = "LlavaImageProcessor", true
	}
	return json.Marshal(c)
}

// Limits on a picture's visual tokens in Qwen2.5-VL's repositories.
const (
	qwenMinTokens = 4
	qwenMaxTokens = 16384
)
