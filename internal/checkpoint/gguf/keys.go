package gguf

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// kind is the required type of a known key's value. Writers use different widths of numbers, so any
// width is accepted.
type kind uint8

const (
	aNumber kind = iota + 1 // a whole number of at least 0
	aFloat                  // a finite number
	aBool                   //
	aString                 //
	numbers                 // an array of whole numbers
	floats                  // an array of finite numbers
	strs                    // an array of strings
	wholes                  // a whole number, or an array of them
)

// kinds are the kinds of the keys that this program reads. Keys of the decoder's architecture are
// listed without its name.
var kinds = map[string]kind{
	"general.architecture": aString, "general.alignment": aNumber, "general.name": aString,
	"general.type":      aString,
	"general.file_type": aNumber, "general.quantization_version": aNumber,
	"split.no": aNumber, "split.count": aNumber, "split.tensors.count": aNumber,

	".block_count": aNumber, ".context_length": aNumber, ".embedding_length": aNumber,
	".feed_forward_length": wholes,
	".vocab_size":          aNumber, ".expert_count": aNumber, ".attention.head_count": wholes,
	".attention.head_count_kv": wholes,
	".attention.key_length":    aNumber, ".attention.value_length": aNumber,
	".attention.layer_norm_rms_epsilon": aFloat,
	".attention.sliding_window":         aNumber, ".rope.dimension_count": aNumber,
	".rope.freq_base":          aFloat,
	".rope.dimension_sections": numbers, ".rope.scaling.type": aString,
	".rope.scaling.factor":                  aFloat,
	".rope.scaling.original_context_length": aNumber, ".rope.scale_linear": aFloat,

	"tokenizer.ggml.model": aString, "tokenizer.ggml.pre": aString, "tokenizer.ggml.tokens": strs,
	"tokenizer.ggml.scores":     floats,
	"tokenizer.ggml.token_type": wholes, "tokenizer.ggml.merges": strs,
	"tokenizer.ggml.bos_token_id": aNumber,
	"tokenizer.ggml.eos_token_id": aNumber, "tokenizer.ggml.eot_token_id": aNumber,
	"tokenizer.ggml.unknown_token_id": aNumber,
	"tokenizer.ggml.padding_token_id": aNumber, "tokenizer.ggml.add_bos_token": aBool,
	"tokenizer.ggml.add_eos_token":    aBool,
	"tokenizer.ggml.add_space_prefix": aBool, "tokenizer.ggml.remove_extra_whitespaces": aBool,
	"tokenizer.chat_template": aString,

	"clip.has_vision_encoder": aBool, "clip.has_text_encoder": aBool,
	"clip.has_llava_projector": aBool, "clip.has_audio_encoder": aBool,
	"clip.projector_type": aString, "clip.vision.projector_type": aString, "clip.use_gelu": aBool,
	"clip.use_silu":          aBool,
	"clip.vision.image_size": aNumber, "clip.vision.patch_size": aNumber,
	"clip.vision.embedding_length":    aNumber,
	"clip.vision.feed_forward_length": aNumber, "clip.vision.projection_dim": aNumber,
	"clip.vision.block_count":          aNumber,
	"clip.vision.attention.head_count": aNumber, "clip.vision.attention.layer_norm_epsilon": aFloat,
	"clip.vision.image_mean": floats, "clip.vision.image_std": floats,
	"clip.vision.feature_layer":        wholes,
	"clip.vision.image_grid_pinpoints": numbers, "clip.vision.image_aspect_ratio": aString,
	"clip.vision.image_crop_resolution": aNumber, "clip.vision.image_split_resolution": aNumber,
	"clip.vision.mm_patch_merge_type": aString, "clip.vision.mm_projector_type": aString,
	"clip.vision.n_wa_pattern": aNumber,
	"clip.vision.window_size":  aNumber, "clip.vision.fullatt_block_indexes": numbers,
	"clip.vision.spatial_merge_size": aNumber,
	"clip.vision.image_min_pixels":   aNumber, "clip.vision.image_max_pixels": aNumber,
}

// check compares the values of all known keys with their kinds.
func (f *file) check() error {
	arch := f.architecture()
	var problems []string
	for name, v := range f.keys {
		known := name
		if rest, ok := strings.CutPrefix(name, arch); ok && arch != "clip" {
			known = rest
		}
		if want := kinds[known]; want != 0 {
			if err := v.is(want); err != nil {
				problems = append(problems, fmt.Sprintf("key %q: %v", name, err))
			}
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return errors.New(problems[0])
	}
	return nil
}

// kindNames are the names of the kinds in errors.
var kindNames = map[kind]string{
	aNumber: "a whole number", aFloat: "a floating-point number", aBool: "a bool",
	aString: "a string",
	numbers: "an array of whole numbers", floats: "an array of floating-point numbers",
	strs:   "an array of strings",
	wholes: "a whole number or an array of them",
}

// is checks that v is of the given kind.
func (v value) is(want kind) error {
	e, list := v.element(), v.typ == typeArray
	ok := false
	switch want {
	case aNumber, numbers, wholes:
		ok = e.isInt() && (want == wholes || list == (want == numbers))
		for i := 0; ok && i < v.count; i++ {
			if n := int64(v.int(i)); n > math.MaxInt32 || n < 0 && want != wholes {
				return fmt.Errorf("got %d, want 0 to %d", n, math.MaxInt32)
			}
		}
	case aFloat, floats:
		ok = (e == typeFloat32 || e == typeFloat64) && list == (want == floats)
		for i := 0; ok && i < v.count; i++ {
			if x := v.float(i); math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("got %v, want a finite number", x)
			}
		}
	case aBool:
		ok = e == typeBool && !list
	case aString, strs:
		ok = e == typeString && list == (want == strs)
	}
	if ok {
		return nil
	}
	got := e.String()
	if list {
		got = "an array, each element " + got
	}
	return fmt.Errorf("got %s, want %s", got, kindNames[want])
}

// key returns the value of a key, false if there is none. A value of another kind, in a key that is
// not in kinds, is kept in f.wrong.
func (f *file) key(name string, want kind) (value, bool) {
	v, ok := f.keys[name]
	if !ok {
		return v, false
	}
	err := v.is(want)
	if err != nil && f.wrong == nil {
		f.wrong = fmt.Errorf("key %q: %w", name, err)
	}
	return v, err == nil
}

func (f *file) has(name string) bool { _, ok := f.keys[name]; return ok }

// Text implements checkpoint.Metadata.
func (f *file) Text(name, def string) string {
	if v, ok := f.key(name, aString); ok {
		return v.text()
	}
	return def
}

// Number implements checkpoint.Metadata.
func (f *file) Number(name string, def int) int {
	if v, ok := f.key(name, aNumber); ok {
		return int(v.int(0))
	}
	return def
}

func (f *file) float(name string, def float64) float64 {
	if v, ok := f.key(name, aFloat); ok {
		return v.float(0)
	}
	return def
}

// Flag implements checkpoint.Metadata.
func (f *file) Flag(name string, def bool) bool {
	if v, ok := f.key(name, aBool); ok {
		return v.data[0] != 0
	}
	return def
}

// Numbers implements checkpoint.Metadata.
func (f *file) Numbers(name string) []int {
	v, ok := f.key(name, wholes)
	if !ok {
		return nil
	}
	list := make([]int, v.count)
	for i := range list {
		list[i] = int(int64(v.int(i)))
	}
	return list
}

func (f *file) floats(name string) []float64 {
	v, ok := f.key(name, floats)
	if !ok {
		return nil
	}
	list := make([]float64, v.count)
	for i := range list {
		list[i] = v.float(i)
	}
	return list
}

func (f *file) strings(name string) []string {
	v, ok := f.key(name, strs)
	if !ok {
		return nil
	}
	list := make([]string, v.count)
	v.strings(func(i int, s []byte) { list[i] = string(s) })
	return list
}
