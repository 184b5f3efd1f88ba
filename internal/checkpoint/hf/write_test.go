package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
)

func going() error { return nil }

// Ensure that a written model is read back unchanged, whole and in shards, and that one without a
// picture token gets one.
func TestWrite(t *testing.T) {
	defer func(n int64) { maxShard = n }(maxShard)
	s, err := open(filepath.Join("..", "..", "engine", "testdata", "llava15-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Docs.Tokenizer = checkpoint.Part{Data: []byte(`{"added_tokens":[]}`), From: "tokenizer.json"}
	s.Docs.Template = checkpoint.Part{Data: []byte("{{ messages }}"), From: "x"}
	s.Docs.Specials = checkpoint.Part{Data: []byte(`{"eos_token":"</s>"}`), From: "x"}
	if Main(s) != tensor.F32 {
		t.Errorf("main type %v", Main(s))
	}
	llava := family("LlavaForConditionalGeneration")
	for _, grown := range []bool{false, true} {
		if maxShard = 5e9; grown {
			maxShard = 100_000
			s.Docs.Config.Data = bytes.Replace(s.Docs.Config.Data,
				[]byte(`"image_token_index": 318`), []byte(`"image_token_index": -200`), 1)
		}
		dir := t.TempDir()
		if err := Write(dir, s, llava, tensor.F32, going); err != nil {
			t.Fatal(err)
		}
		got, err := open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Names(), s.Names()) || len(got.Maps) > 1 != grown ||
			string(got.Docs.Template.Data) != "{{ messages }}" {
			t.Errorf("grown %v: %d weights in %d files, template %q", grown, len(got.Names()),
				len(got.Maps), got.Docs.Template.Data)
		}
		for _, name := range s.Names() {
			a, _ := s.Tensor(name)
			b, _ := got.Tensor(name)
			v, _ := a.Float32s()
			w, _ := b.Float32s()
			if table := slices.Contains(llava.Export.Vocabulary, name); grown && table {
				rows, width := a.Shape[0], a.Shape[1]
				if b.Shape[0] != rows+1 || len(w) != len(v)+width {
					t.Fatalf("%q is %v, want a row more than %v", name, b, a)
				}
				for i := range width {
					sum := 0.0
					for r := range rows {
						sum += float64(v[r*width+i])
					}
					if w[rows*width+i] != float32(sum/float64(rows)) {
						t.Fatalf("%q: column %d of the new row is %v", name, i, w[rows*width+i])
					}
				}
				w = w[:len(v)]
			}
			if !slices.Equal(v, w) {
				t.Errorf("%q differs", name)
			}
		}
		var config struct {
			Image int `json:"image_token_index"`
			Text  struct {
				Vocab int `json:"vocab_size"`
			} `json:"text_config"`
			Type string `json:"torch_dtype"`
		}
		if err := json.Unmarshal(got.Docs.Config.Data, &config); err != nil {
			t.Fatal(err)
		}
		want := [2]int{318, 320}
		if grown {
			want = [2]int{320, 321}
		}
		if [2]int{config.Image, config.Text.Vocab} != want || config.Type != "float32" {
			t.Errorf("grown %v: %+v, want %v", grown, config, want)
		}
		if has := bytes.Contains(got.Docs.Tokenizer.Data, []byte(`"<image>"`)); has != grown {
			t.Errorf("grown %v: tokenizer %s", grown, got.Docs.Tokenizer.Data)
		}
		if err := got.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"weight", "bias"} {
		delete(s.Weights, "vision_tower.vision_model.post_layernorm."+name)
		delete(s.Weights, "vision_tower.vision_model.pre_layrnorm."+name) // as SigLIP's
	}
	s.Seal()
	dir, norm := t.TempDir(), "vision_tower.vision_model.post_layernorm."
	if err := Write(dir, s, llava, tensor.BF16, going); err != nil {
		t.Fatal(err)
	}
	got, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for name, want := range map[string]float32{norm + "weight": 1, norm + "bias": 0} {
		w, ok := got.Tensor(name)
		if !ok {
			t.Fatalf("%s: missing", name)
		}
		if v, err := w.Float32s(); err != nil || len(v) != 48 ||
			slices.Max(v) != want || slices.Min(v) != want {
			t.Errorf("%s: %v %v, want 48 times %v", name, v, err, want)
		}
	}
	stop := errors.New("stop")
	if err := Write(t.TempDir(), s, llava, tensor.F16, func() error { return stop }); !errors.Is(
		err, stop) {
		t.Errorf("stopped: %v", err)
	}
	if err := Write(t.TempDir(), s, llava, tensor.Q8, going); err == nil {
		t.Error("a type that transformers does not have is written")
	}
	if _, err := os.Stat("config.json"); err == nil {
		t.Error("written outside the folder")
	}
}

// Ensure that tokens that a processor finds by name are written, unless the settings have some.
func TestWriteNamed(t *testing.T) {
	s, err := open(filepath.Join("..", "..", "engine", "testdata", "internvl-llama-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f := family("InternVLForConditionalGeneration")
	for settings, want := range map[string]string{
		`{}`: f.Export.Named["start_image_token"],
		`{"extra_special_tokens": {"start_image_token": "<i>"}}`: "<i>",
	} {
		s.Docs.Settings = checkpoint.Part{Data: []byte(settings), From: "x"}
		dir := t.TempDir()
		if err := Write(dir, s, f, tensor.F32, going); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Named map[string]string `json:"extra_special_tokens"`
		}
		data, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
		if err == nil {
			err = json.Unmarshal(data, &got)
		}
		if err != nil || want == "" || got.Named["start_image_token"] != want {
			t.Errorf("%s: got %v, %v, want %q", settings, got, err, want)
		}
	}
}

// Ensure that weights are written under the names that transformers writes, whatever their names
// here, and with them the number of tokens that its processor writes for a tile.
func TestWriteNames(t *testing.T) {
	for _, name := range []string{
		"idefics3-tiny", "smolvlm-tiny", "qwen3vl-tiny", "qwen2vl-tied-tiny", "internvl-tiny",
	} {
		src, dir := filepath.Join("..", "..", "engine", "testdata", name), t.TempDir()
		s, err := open(src)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := Write(dir, s, families.Files.Of(s.Docs.Config.Data), tensor.F32,
			going); err != nil {
			t.Fatal(err)
		}
		var names [2][]string
		for i, d := range []string{src, dir} {
			f, err := checkpoint.OpenSafetensors(filepath.Join(d, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			names[i] = slices.Sorted(maps.Keys(f.Tensors))
		}
		if !slices.Equal(names[0], names[1]) {
			t.Errorf("%s: got %q, want %q", name, names[1], names[0])
		}
		if data, err := os.ReadFile(filepath.Join(dir, "processor_config.json")); name ==
			"smolvlm-tiny" && (err != nil || !bytes.Contains(data, []byte(`"image_seq_len": 9`))) {
			t.Errorf("%s: processor_config.json: %s, %v", name, data, err)
		}
	}
}

// Ensure that the token that a vocabulary without one for pictures gets has the name by which the
// processor finds it.
func TestWritePictureToken(t *testing.T) {
	s, err := open(filepath.Join("..", "..", "engine", "testdata", "gemma3-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var config map[string]any
	if err := json.Unmarshal(s.Docs.Config.Data, &config); err != nil {
		t.Fatal(err)
	}
	config["image_token_index"] = checkpoint.NoToken
	if s.Docs.Config.Data, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	s.Docs.Tokenizer = checkpoint.Part{Data: []byte(`{"added_tokens":[]}`), From: "x"}
	s.Docs.Settings.Data = []byte(`{"added_tokens_decoder": null}`) // as without it
	dir := t.TempDir()
	f := family("Gemma3ForConditionalGeneration")
	if err := Write(dir, s, f, tensor.F32, going); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if want := f.Export.Named["image_token"]; err != nil || want == "" ||
		!bytes.Contains(data, []byte(want)) {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}

// Ensure that documents of null, into which keys are written, are errors that name them.
func TestNullDocuments(t *testing.T) {
	s, err := open(filepath.Join("..", "..", "engine", "testdata", "llava15-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Docs.Tokenizer.Data = []byte(`{"added_tokens":[]}`)
	s.Docs.Settings = checkpoint.Part{Data: []byte("null"), From: "tokenizer_config.json"}
	err = Write(t.TempDir(), s, family("LlavaForConditionalGeneration"), tensor.F32, going)
	if err == nil || !strings.Contains(err.Error(), "tokenizer_config.json: got null") {
		t.Errorf("got %v, want an error", err)
	}
	for _, o := range older {
		_, err := open(lay(t, map[string][]byte{
			"config.json": []byte(`{}`), "model.safetensors": weights(t, "a"),
			o.file: []byte("null"),
		}))
		if err == nil || !strings.Contains(err.Error(), o.file+": got null") {
			t.Errorf("%s: got %v, want an error", o.file, err)
		}
	}
}
