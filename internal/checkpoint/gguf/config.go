package gguf

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
)

// object is a JSON object for output.
type object = map[string]any

// single is a float32 from a file, written in the shortest form with that value: 1e-05 instead of
// 9.999999747378752e-06.
type single float64

func (x single) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 32), nil
}

// Required implements checkpoint.Metadata.
func (f *file) Required(name string) (int, error) {
	v, ok := f.key(name, wholes)
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

// Shape implements checkpoint.Metadata.
func (f *file) Shape(tensor string) []int {
	for i := range f.tensors {
		if f.tensors[i].name == tensor {
			return f.tensors[i].shape
		}
	}
	return nil
}

// sizes reads numbers that are required, by pairs of a Hugging Face name and a key below prefix.
func (f *file) sizes(prefix string, keys [][2]string) (object, error) {
	out := object{}
	for _, k := range keys {
		n, err := f.Required(prefix + k[1])
		if err != nil {
			return nil, err
		}
		out[k[0]] = n
	}
	return out, nil
}

// epsilon reads a norm's.
func (f *file) epsilon(key string) (single, error) {
	if !f.has(key) {
		return 0, fmt.Errorf("key %q is missing", key)
	}
	return single(f.Float(key, 0)), nil
}

// decoderSizes reads a decoder's metadata. theta is the rotation's base if they have none.
func (f *file) decoderSizes(theta float64) (object, error) {
	arch := f.architecture() + "."
	kvHeads := "attention.head_count_kv"
	if !f.has(arch + kvHeads) {
		kvHeads = "attention.head_count"
	}
	c, err := f.sizes(arch, [][2]string{
		{"num_hidden_layers", "block_count"}, {"max_position_embeddings", "context_length"},
		{"hidden_size", "embedding_length"}, {"num_attention_heads", "attention.head_count"},
		{"intermediate_size", "feed_forward_length"}, {"num_key_value_heads", kvHeads},
	})
	if err != nil {
		return nil, err
	}
	if c["rms_norm_eps"], err = f.epsilon(arch + "attention.layer_norm_rms_epsilon"); err != nil {
		return nil, err
	}
	table := f.Shape("token_embd.weight")
	if len(table) != 2 {
		return nil, fmt.Errorf("tensor %q is missing", "token_embd.weight")
	}
	headDim := f.Number(arch+"attention.key_length",
		c["hidden_size"].(int)/c["num_attention_heads"].(int))
	for _, k := range []struct {
		name string
		want int
	}{{"attention.value_length", headDim}, {"rope.dimension_count", headDim}, {"expert_count", 0}} {
		if got := f.Number(arch+k.name, k.want); got != k.want {
			return nil, fmt.Errorf("key %q: got %d, want %d: %w", arch+k.name, got, k.want,
				errs.ErrUnsupported)
		}
	}
	c["head_dim"], c["vocab_size"], c["hidden_act"] = headDim, table[0], "silu"
	c["tie_word_embeddings"] = f.Shape("output.weight") == nil
	c["rope_theta"] = single(f.Float(arch+"rope.freq_base", theta))
	return c, f.stretch(c)
}

// pairFactors is the tensor by which the frequencies of the rotation's pairs are divided, as the
// converter writes it for Llama 3.1.
const pairFactors = "rope_freqs.weight"

// stretch adds to a decoder's sizes how its rotation is scaled. Factors of the pairs are Hugging
// Face's longrope, the same for prompts of all lengths.
func (f *file) stretch(c object) error {
	arch := f.architecture() + ".rope."
	kind, factor := f.Text(arch+"scaling.type", "linear"), 1.0
	for _, key := range []string{"scale_linear", "scaling.factor"} {
		if x := f.Float(arch+key, 0); x < 0 {
			return fmt.Errorf("key %q: got %v, want a number above 0", arch+key, x)
		} else if x > 0 && kind != "none" { // 0 as 1
			factor = x
		}
	}
	if !slices.Contains([]string{"linear", "none", "yarn"}, kind) {
		return fmt.Errorf("rotary positions scaled by %q: %w, want linear, yarn or none", kind,
			errs.ErrUnsupported)
	}
	if x := f.Float(arch+"scaling.attn_factor", 1); x != 1 {
		return fmt.Errorf("key %q: got %v, want 1: %w", arch+"scaling.attn_factor", x,
			errs.ErrUnsupported)
	}
	pairs, err := f.pairFactors(c["head_dim"].(int) / 2)
	switch {
	case err != nil:
		return err
	case pairs == nil && factor == 1 && kind != "yarn":
		return nil
	case f.has(arch + "dimension_sections"):
		return fmt.Errorf("scaled rotary positions on several axes: %w", errs.ErrUnsupported)
	case pairs != nil && kind == "yarn":
		return fmt.Errorf("tensor %q with rotary positions scaled by %q: %w", pairFactors, kind,
			errs.ErrUnsupported)
	case kind == "yarn":
		c["rope_scaling"], err = f.yarn(arch+"scaling.", factor)
		return err
	case pairs == nil:
		c["rope_scaling"] = object{"rope_type": "linear", "factor": single(factor)}
		return nil
	}
	for i := range pairs {
		pairs[i] *= single(factor)
	}
	c["rope_scaling"] = object{
		"rope_type": "longrope", "short_factor": pairs, "long_factor": pairs, "factor": 1,
		"attention_factor": 1, "original_max_position_embeddings": c["max_position_embeddings"],
	}
	return nil
}

// yarn returns Hugging Face's settings of a rotation whose keys have that prefix.
func (f *file) yarn(prefix string, factor float64) (object, error) {
	for _, key := range []string{"yarn_ext_factor", "yarn_attn_factor"} {
		if f.has(prefix + key) { // llama.cpp ignores them in most decoders
			return nil, fmt.Errorf("key %q: %w, want none", prefix+key, errs.ErrUnsupported)
		}
	}
	scaling := object{
		"rope_type": "yarn", "factor": single(factor),
		"beta_fast": single(f.Float(prefix+"yarn_beta_fast", 32)),
		"beta_slow": single(f.Float(prefix+"yarn_beta_slow", 1)),
	}
	if all := f.Float(prefix+"yarn_log_multiplier", 0); all != 0 {
		scaling["mscale"], scaling["mscale_all_dim"] = 1, single(all)
	}
	const original = "original_context_length"
	if f.has(prefix + original) {
		n, err := f.Required(prefix + original)
		if err != nil {
			return nil, err
		}
		scaling["original_max_position_embeddings"] = n
	}
	return scaling, nil
}

// pairFactors returns the values of the tensor of that name, nil if there is none.
func (f *file) pairFactors(pairs int) ([]single, error) {
	i := slices.IndexFunc(f.tensors, func(t tensorInfo) bool { return t.name == pairFactors })
	if i < 0 {
		return nil, nil
	}
	if t := f.tensors[i]; !slices.Equal(t.shape, []int{pairs}) {
		return nil, fmt.Errorf("tensor %q: shape %v, want [%d] (head dim/2)", t.name, t.shape,
			pairs)
	}
	values, err := f.tensors[i].weight().Float32s()
	out := make([]single, len(values))
	for j, x := range values {
		if out[j] = single(x); !(x > 0) || math.IsInf(float64(x), 1) {
			return nil, fmt.Errorf("tensor %q: got %v, want numbers above 0", pairFactors, x)
		}
	}
	return out, err
}

// encoderSizes reads the metadata that all encoders have.
func (f *file) encoderSizes() (object, error) {
	const prefix = "clip.vision."
	vision, err := f.sizes(prefix, [][2]string{
		{"hidden_size", "embedding_length"}, {"num_hidden_layers", "block_count"},
		{"num_attention_heads", "attention.head_count"}, {"patch_size", "patch_size"},
	})
	if err != nil {
		return nil, err
	}
	const width = prefix + "feed_forward_length" // 0 in older files of Qwen2-VL
	vision["intermediate_size"] = f.Number(width, -1)
	if vision["intermediate_size"] != 0 {
		if vision["intermediate_size"], err = f.Required(width); err != nil {
			return nil, err
		}
	}
	vision["projection_dim"] = f.Number(prefix+"projection_dim", vision["hidden_size"].(int))
	vision["layer_norm_eps"], err = f.epsilon(prefix + "attention.layer_norm_epsilon")
	return vision, err
}

// processor reads the metadata that all picture processors have.
func (f *file) processor() (object, error) {
	c := object{
		"do_resize": true, "do_rescale": true, "do_normalize": true, "do_convert_rgb": true,
		"resample":       3,
		"rescale_factor": 1.0 / 255,
	}
	for _, key := range []string{"image_mean", "image_std"} {
		values := f.floats("clip.vision." + key)
		if len(values) != 3 {
			return nil, fmt.Errorf("key %q: got %d numbers, want 3", "clip.vision."+key,
				len(values))
		}
		c[key] = []single{single(values[0]), single(values[1]), single(values[2])}
	}
	return c, nil
}

// defaultProjector is the type of the projectors of older converters, which do not name it.
const defaultProjector = "mlp"

// familyOf returns the family of a decoder's file and a projector's, which may be nil.
func familyOf(f, p *file, families checkpoint.Families) (*checkpoint.Family, error) {
	var types, mine []string
	got := ""
	if p != nil {
		if err := p.checkEncoder(); err != nil {
			return nil, err
		}
		got = p.Text("clip.projector_type", p.Text("clip.vision.projector_type", defaultProjector))
	}
	for _, family := range families {
		g := family.GGUF
		if g == nil {
			continue
		}
		types = append(types, g.Projector)
		if !slices.Contains(g.Decoders, f.architecture()) {
			continue
		}
		if p == nil || got == g.Projector && (g.Is == nil || g.Is(p)) {
			return family, nil
		}
		mine = append(mine, g.Projector)
	}
	if !slices.Contains(types, got) {
		return nil, fmt.Errorf("projector type %q: %w, want %s", got, errs.ErrUnsupported,
			checkpoint.Either(types))
	}
	return nil, fmt.Errorf(
		"projector type %q, want %s, which belongs to a decoder of architecture %s", got,
		checkpoint.Either(mine), f.architecture())
}

// checkEncoder returns an error unless the file is of an encoder for pictures.
func (f *file) checkEncoder() error {
	if got := f.architecture(); got != archClip {
		return fmt.Errorf(
			"general.architecture: %q, want clip: an encoder and a projector (mmproj)", got)
	}
	if !f.Flag("clip.has_vision_encoder", true) {
		return fmt.Errorf("an encoder for something other than pictures: %w", errs.ErrUnsupported)
	}
	return nil
}
