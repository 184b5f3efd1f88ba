package gguf

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/model/families"
)

// unpackHeaders writes the headers of files from llama.cpp's converters, with zeros for their data,
// to a new folder. It returns the tensors' Hugging Face names by file.
func unpackHeaders(t *testing.T) (dir string, names map[string][]string) {
	t.Helper()
	files := golden.Unzip(t, "testdata/headers.zip")
	var sizes map[string]int64
	if err := errors.Join(json.Unmarshal(files["sizes.json"], &sizes),
		json.Unmarshal(files["names.json"], &names)); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, size := range sizes {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777),
			os.WriteFile(path, files[name], 0o666), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, names
}

// models are the decoders of unpackHeaders, with their projectors if those are in another folder.
var models = map[string]string{
	"llava15-tiny/llava15-tiny-f32.gguf":                          "",
	"llava15-tiny-classic-bf16/llava15-tiny-bf16.gguf":            "",
	"llava15-wide-tiny/llava15-wide-tiny-Q4_K_M.gguf":             "",
	"llavanext-mistral-tiny/llavanext-mistral-tiny-f32.gguf":      "",
	"llavanext-vicuna-tiny/llavanext-vicuna-tiny-f32.gguf":        "",
	"qwen25vl-tied-tiny/qwen25vl-tied-tiny-f32.gguf":              "",
	"qwen25vl-tiny/qwen25vl-tiny-f32.gguf":                        "qwen25vl-tiny-mmf16/mmproj-qwen25vl-tiny-f16.gguf",
	"scenes/scenes-Q4_0.gguf":                                     "",
	"llava15-tiny-split-f16/llava15-tiny-f16-00001-of-00003.gguf": "",
}

// Ensure that all tensors of every family's files get Hugging Face's names.
func TestNames(t *testing.T) {
	dir, names := unpackHeaders(t)
	for path, projector := range models {
		if projector != "" {
			projector = filepath.Join(dir, projector)
		}
		s, err := Open(filepath.Join(dir, path), projector, families.Files)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var want []string
		for file, list := range names {
			mine := filepath.Dir(file) == filepath.Dir(path) &&
				(strings.Contains(file, "mmproj") && projector == "" || file == path ||
					strings.Contains(path, "-split-"))
			if mine || projector != "" && filepath.Join(dir, file) == projector {
				for _, name := range list {
					name, _, _ = strings.Cut(name, " (") // rows permuted, a third of the rows
					name, _, _ = strings.Cut(name, "[")  // one of two moments
					want = append(want, name)
				}
			}
		}
		slices.Sort(want)
		want = slices.Compact(want)
		if !slices.Equal(s.Names(), want) {
			t.Errorf("%s: got %d names, want %d; %v", path, len(s.Names()), len(want),
				difference(s.Names(), want))
		}
		if s.Docs.Config.Data == nil || s.Docs.Tokenizer.Data == nil ||
			s.Docs.Template.Data == nil {
			t.Errorf("%s: a part is missing", path)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// difference returns the entries that only one of the lists has.
func difference(a, b []string) (list []string) {
	for _, x := range a {
		if !slices.Contains(b, x) {
			list = append(list, "+"+x)
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			list = append(list, "-"+x)
		}
	}
	return list
}

// Ensure that metadata are converted to the configuration of the original model.
func TestConfig(t *testing.T) {
	dir, _ := unpackHeaders(t)
	for path, want := range map[string]string{
		"llavanext-mistral-tiny/llavanext-mistral-tiny-f32.gguf": `{"architectures":["LlavaNextForConditionalGeneration"],"image_token_index":330,
			"image_grid_pinpoints":[[56,112],[112,56],[112,112],[168,56],[56,168]],"vision_feature_layer":2,"multimodal_projector_bias":true,
			"text_config":{"hidden_size":72,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":12,"intermediate_size":104,"rms_norm_eps":1e-05,
			"rope_theta":1000000,"max_position_embeddings":1024,"vocab_size":336,"tie_word_embeddings":false,"num_hidden_layers":3},
			"vision_config":{"hidden_size":40,"num_attention_heads":5,"num_hidden_layers":2,"image_size":56,"patch_size":14,"hidden_act":"quick_gelu",
			"layer_norm_eps":1e-05,"intermediate_size":76}}`,
		"qwen25vl-tied-tiny/qwen25vl-tied-tiny-f32.gguf": `{"architectures":["Qwen2_5_VLForConditionalGeneration"],"tie_word_embeddings":true,
			"hidden_size":72,"num_attention_heads":6,"num_key_value_heads":3,"rms_norm_eps":1e-06,"rope_scaling":{"type":"mrope","mrope_section":[1,2,3]},
			"vision_config":{"depth":3,"fullatt_block_indexes":[2],"hidden_size":48,"num_heads":4,"out_hidden_size":72,"window_size":112,
			"spatial_merge_size":2,"temporal_patch_size":2,"patch_size":14,"intermediate_size":68}}`,
		"llava15-tiny-split-f16/llava15-tiny-f16-00001-of-00003.gguf": `{"vision_config":null,"text_config":{"vocab_size":320}}`,
	} {
		s, err := Open(filepath.Join(dir, path), "", families.Files)
		if err != nil {
			t.Error(err)
			continue
		}
		var got, wanted map[string]any
		if err := errors.Join(json.Unmarshal(s.Docs.Config.Data, &got),
			json.Unmarshal([]byte(want), &wanted)); err != nil {
			t.Fatal(err)
		}
		compareFields(t, path, got, wanted)
		s.Close()
	}
}

// text is a key's value.
func text(s string) value {
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(s)))
	return value{typ: typeString, count: 1, data: append(length, s...)}
}

// Ensure that an adapter is refused as one.
func TestAdapter(t *testing.T) {
	f := &file{keys: map[string]value{
		"general.architecture": text("llama"), "general.type": text("adapter"),
	}}
	if err := f.checkArchitecture(families.Files); err == nil ||
		!strings.Contains(err.Error(), "an adapter (LoRA)") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// Ensure that a rotation scaled by YaRN has only the settings that the file has, and defaults.
func TestYaRN(t *testing.T) {
	float := func(x float32) value {
		return value{typ: typeFloat32, count: 1,
			data: binary.LittleEndian.AppendUint32(nil, math.Float32bits(x))}
	}
	const scaling = "llama.rope.scaling."
	for want, more := range map[string]map[string]value{
		`{"beta_fast":32,"beta_slow":1,"factor":4,"rope_type":"yarn"}`: nil,
		`{"beta_fast":16,"beta_slow":2,"factor":4,"mscale":1,"mscale_all_dim":0.7,"rope_type":"yarn"}`: {
			scaling + "yarn_beta_fast": float(16), scaling + "yarn_beta_slow": float(2),
			scaling + "yarn_log_multiplier": float(0.7),
		},
	} {
		f := &file{keys: map[string]value{"general.architecture": text("llama"),
			scaling + "type": text("yarn"), scaling + "factor": float(4)}}
		maps.Copy(f.keys, more)
		c := object{"head_dim": 16}
		if err := f.stretch(c); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(c["rope_scaling"]); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

// Ensure that a family which the readers have never seen needs nothing but its value: other names
// for the architecture, the projector and a key, and its own configuration.
func TestOtherFamily(t *testing.T) {
	dir, _ := unpackHeaders(t)
	path := filepath.Join(dir, "qwen25vl-tiny", "qwen25vl-tiny-f32.gguf")
	mmproj := filepath.Join(dir, "qwen25vl-tiny", "mmproj-qwen25vl-tiny-f32.gguf")
	for file, change := range map[string]*strings.Replacer{
		path: strings.NewReplacer("qwen2vl", "other42"),
		mmproj: strings.NewReplacer("qwen2.5vl_merger", "another_projectr", "n_wa_pattern",
			"ab_c_pattern"),
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(change.Replace(string(b))), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(path, "", families.Files); err == nil ||
		!strings.Contains(err.Error(), `"other42"`) {
		t.Errorf("got %v, want an error that names the architecture", err)
	}
	other := &checkpoint.Family{
		Name: "other", Architectures: []string{"OtherModel"},
		GGUF: &checkpoint.GGUF{
			Decoders: []string{"other42"}, Projector: "another_projectr", Prefix: "lm.",
			Names:   [][2]string{{"mm.0", "joined.first"}, {"v.blk.N.attn_qkv", "eye.N.qkv"}},
			Picture: "<p>",
			Convert: func(m *checkpoint.Converted) error {
				m.Config["text_config"] = m.Text
				m.Config["pattern"] = m.Projector.Number("clip.vision.ab_c_pattern", 0)
				m.Processor["image_processor_type"] = "Other"
				return nil
			},
		},
	}
	s, err := Open(path, "", append(slices.Clone(families.Files), other))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{
		"lm.model.embed_tokens.weight", "joined.first.weight", "eye.1.qkv.bias",
	} {
		if _, ok := s.Tensor(name); !ok {
			t.Errorf("no weight %q", name)
		}
	}
	var config map[string]any
	if err := json.Unmarshal(s.Docs.Config.Data, &config); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"architectures": []string{"OtherModel"}, "model_type": "other", "pattern": 2,
		"text_config": map[string]any{"num_hidden_layers": 3},
	}
	compareFields(t, "config", config, want)
	if !strings.Contains(string(s.Docs.Processor.Data), `"Other"`) {
		t.Errorf("processor: got %s", s.Docs.Processor.Data)
	}
}

// compareFields compares the fields of want.
func compareFields(t *testing.T, where string, got, want map[string]any) {
	t.Helper()
	for key, w := range want {
		inner, ok := w.(map[string]any)
		if g, isObject := got[key].(map[string]any); ok && isObject {
			compareFields(t, where+": "+key, g, inner)
		} else if fmt.Sprint(got[key]) != fmt.Sprint(w) {
			t.Errorf("%s: %s: got %v, want %v", where, key, got[key], w)
		}
	}
}

// edit changes the header of a file that unpackHeaders wrote; both texts must have the same length.
func edit(t *testing.T, path, old, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(old) != len(text) || !strings.Contains(string(b), old) {
		t.Fatalf("%s: no %q to replace by %q", path, old, text)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), old, text, 1)),
		0o666); err != nil {
		t.Fatal(err)
	}
}

// field is a key with the beginning of its value, a string of five bytes.
func field(key, text string) string {
	return key + "\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00" + text
}

// Ensure that unsupported and incomplete models are refused with an error that names the cause.
func TestRefusals(t *testing.T) {
	const llava, split = "llava15-tiny/llava15-tiny-f32.gguf",
		"llava15-tiny-split-f16/llava15-tiny-f16-0000%d-of-00003.gguf"
	const mmproj = "llava15-tiny/mmproj-llava15-tiny-f32.gguf"
	const next = "llavanext-vicuna-tiny/llavanext-vicuna-tiny-f32.gguf"
	for what, c := range map[string]struct {
		change          func(t *testing.T, dir string)
		path, projector string
		want            string
	}{
		"a projector alone": {path: mmproj, want: "want the file of the decoder"},
		"a decoder as the projector": {path: llava, projector: "scenes/scenes-f16.gguf",
			want: "want clip"},
		"another family's projector": {path: llava,
			projector: "qwen25vl-tiny/mmproj-qwen25vl-tiny-f32.gguf",
			want:      `projector type "qwen2.5vl_merger", want mlp`},
		"a later part": {path: fmt.Sprintf(split, 2),
			want: "part 2 of 3, want the first part, llava15-tiny-f16-00001-of-00003.gguf"},
		"a part is missing": {path: fmt.Sprintf(split, 1), want: "part 3 of 3",
			change: func(t *testing.T, dir string) {
				if err := os.Remove(filepath.Join(dir, fmt.Sprintf(split, 3))); err != nil {
					t.Fatal(err)
				}
			}},
		"parts in another order": {path: fmt.Sprintf(split, 1), want: "part 3 of 3, want part 2 of 3",
			change: func(t *testing.T, dir string) {
				if err := os.Rename(filepath.Join(dir, fmt.Sprintf(split, 3)),
					filepath.Join(dir, fmt.Sprintf(split, 2))); err != nil {
					t.Fatal(err)
				}
			}},
		"two projectors": {path: llava, want: "one of mmproj-2.gguf, mmproj-llava15-tiny-f32.gguf",
			change: func(t *testing.T, dir string) {
				if err := os.WriteFile(filepath.Join(dir, "llava15-tiny", "mmproj-2.gguf"), nil,
					0o666); err != nil {
					t.Fatal(err)
				}
			}},
		"unknown projector": {path: "qwen25vl-tiny/qwen25vl-tiny-f32.gguf", want: `"qwen2.5vl_xerger"`,
			change: func(t *testing.T, dir string) {
				edit(t, filepath.Join(dir, "qwen25vl-tiny/mmproj-qwen25vl-tiny-f32.gguf"),
					"vl_merger",
					"vl_xerger")
			}},
		"unknown tokenizer": {path: llava, want: `"xlama"`, change: func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, llava), field("tokenizer.ggml.model", "llama"),
				field("tokenizer.ggml.model", "xlama"))
		}},
		"unknown pre-tokenizer": {path: "qwen25vl-tiny/qwen25vl-tiny-f32.gguf", want: `"qwen9"`,
			change: func(t *testing.T, dir string) {
				edit(t, filepath.Join(dir, "qwen25vl-tiny/qwen25vl-tiny-f32.gguf"),
					field("tokenizer.ggml.pre", "qwen2"), field("tokenizer.ggml.pre", "qwen9"))
			}},
		"an encoder in the decoder's file": {path: llava, want: `"v.blk.0.attn_q.bias": an encoder`,
			change: func(t *testing.T, dir string) {
				edit(t, filepath.Join(dir, llava), "blk.0.attn_q.weight", "v.blk.0.attn_q.bias")
			}},
		"an odd token before every text": {path: llava, want: "",
			change: func(t *testing.T, dir string) {
				edit(t, filepath.Join(dir, llava), "general.name",
					"general.mane") // an unknown key is no fault
			}},
		"tiles of another number": {path: next, want: `"clip.vision.image_aspect_ratio": "anyrez"`,
			change: func(t *testing.T, dir string) {
				file := strings.Replace(next, "/", "/mmproj-", 1)
				edit(t, filepath.Join(dir, file), "anyres", "anyrez")
			}},
		"no file": {path: "none.gguf", want: "no such file"},
	} {
		t.Run(what, func(t *testing.T) {
			dir, _ := unpackHeaders(t)
			if c.change != nil {
				c.change(t, dir)
			}
			projector := c.projector
			if projector != "" {
				projector = filepath.Join(dir, projector)
			}
			s, err := Open(filepath.Join(dir, c.path), projector, families.Files)
			if err == nil {
				s.Close()
			}
			if c.want == "" && err != nil || c.want != "" &&
				(err == nil || !strings.Contains(err.Error(), c.want) ||
					strings.Contains(err.Error(), "\n")) {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
	dir, _ := unpackHeaders(t)
	var option *errs.OptionError
	if err := os.WriteFile(filepath.Join(dir, "llava15-tiny", "mmproj-2.gguf"), nil,
		0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, llava), "", families.Files); !errors.As(err, &option) ||
		option.Name != "mmproj" {
		t.Errorf("two projectors: got %v, want an OptionError", err)
	}
}

// Ensure that a folder's only decoder is found, and that several are an error.
func TestOnly(t *testing.T) {
	dir, _ := unpackHeaders(t)
	for folder, want := range map[string]string{
		"llava15-tiny":           "llava15-tiny-f32.gguf",
		"llava15-tiny-split-f16": "llava15-tiny-f16-00001-of-00003.gguf",
		"qwen25vl-tiny-mmf16":    "",
	} {
		got, err := Only(filepath.Join(dir, folder))
		if want != "" {
			want = filepath.Join(dir, folder, want)
		}
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", folder, got, err, want)
		}
	}
	if _, err := Only(filepath.Join(dir, "scenes")); err == nil ||
		!strings.Contains(err.Error(), "scenes-Q4_0.gguf") {
		t.Errorf("several: got %v, want an error that lists them", err)
	}
	if _, err := Only(filepath.Join(dir, "none")); err == nil {
		t.Error("no folder: got no error")
	}
}

// numbered is a tensor of type F32 whose element i is first + i.
func numbered(name string, first int, shape ...int) *tensorInfo {
	n := 1
	for _, d := range shape {
		n *= d
	}
	t := &tensorInfo{name: name, shape: shape, typ: blockTypes[0]}
	for i := range n {
		b := math.Float32bits(float32(first + i))
		t.data = append(t.data, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
	}
	return t
}

// read reads a weight in steps of rows.
func read(t *testing.T, w *checkpoint.Weight, row int) []float32 {
	t.Helper()
	v := make([]float32, w.Len())
	for at := 0; at < len(v); at += row {
		if err := w.Floats(v[at:at+row], at); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := w.Float32s()
	if err != nil || !slices.Equal(v, whole) {
		t.Errorf("by rows %v, at once %v, %v", v, whole, err)
	}
	return v
}

// Ensure that queries, keys and values in one tensor are as three, that other tensors stay, and
// that other numbers of rows are refused.
func TestApart(t *testing.T) {
	sizes := object{"head_dim": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
	got, err := apart([]tensorInfo{
		*numbered("blk.3.attn_qkv.weight", 0, 8, 2), *numbered("blk.3.attn_qkv.bias", 50, 8),
		*numbered("output.weight", 90, 1, 2),
	}, sizes)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, x := range got {
		v, err := x.weight().Float32s()
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintln(x.name, x.shape, v)
	}
	const want = `blk.3.attn_q.weight [4 2] [0 1 2 3 4 5 6 7]
blk.3.attn_k.weight [2 2] [8 9 10 11]
blk.3.attn_v.weight [2 2] [12 13 14 15]
blk.3.attn_q.bias [4] [50 51 52 53]
blk.3.attn_k.bias [2] [54 55]
blk.3.attn_v.bias [2] [56 57]
output.weight [1 2] [90 91]
`
	if text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	for _, x := range []*tensorInfo{
		numbered("blk.0.attn_qkv.weight", 0, 9, 2), {name: "blk.0.attn_qkv.weight"},
		{name: "blk.0.attn_qkv.weight", shape: []int{8}, typ: blockTypes[2]},
	} {
		if _, err := apart([]tensorInfo{*x}, sizes); err == nil ||
			!strings.Contains(err.Error(), "blk.0.attn_qkv.weight") {
			t.Errorf("%v: got %v, want an error with its name", x.shape, err)
		}
	}
}

func TestRearranged(t *testing.T) {
	// Two heads of four rows: (0, 1), (2, 3) of a head are rows i and i+2.
	w, err := numbered("blk.0.attn_q.weight", 0, 8, 1).unpermuted(2)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, w, 1), []float32{0, 2, 1, 3, 4, 6, 5, 7}; !slices.Equal(got, want) {
		t.Errorf("unpermuted: got %v, want %v", got, want)
	}
	w, err = stacked([]*tensorInfo{numbered("q", 0, 1, 2), numbered("k", 10, 1, 2),
		numbered("v", 20, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, w, 2), []float32{0, 1, 10, 11, 20, 21}; !slices.Equal(got, want) ||
		fmt.Sprint(w.Shape) != "[3 2]" {
		t.Errorf("stacked: got %v %v, want %v", w.Shape, got, want)
	}
	w, err = interleaved(numbered("0", 0, 1, 2, 1, 2), numbered("1", 10, 1, 2, 1, 2))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, w, 2), []float32{
		0, 1, 10, 11, 2, 3, 12, 13,
	}; !slices.Equal(got, want) ||
		fmt.Sprint(w.Shape) != "[1 2 2 1 2]" {
		t.Errorf("interleaved: got %v %v, want %v", w.Shape, got, want)
	}
	for what, err := range map[string]error{
		"odd rows": func() error { _, err := numbered("q", 0, 6, 1).unpermuted(2); return err }(),
		"no such part": func() error {
			_, err := stacked([]*tensorInfo{numbered("q", 0, 1),
				nil})
			return err
		}(),
		"other shape": func() error {
			_, err := stacked([]*tensorInfo{numbered("q", 0, 1),
				numbered("k", 0, 2)})
			return err
		}(),
		"too few axes": func() error {
			_, err := interleaved(numbered("0", 0, 1), numbered("1", 0, 1))
			return err
		}(),
		"only a moment": func() error {
			_, err := interleaved(numbered("0", 0, 1, 1, 1, 1), nil)
			return err
		}(),
	} {
		if err == nil {
			t.Errorf("%s: got no error", what)
		}
	}
}
