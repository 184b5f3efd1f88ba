package llava

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Ensure that the built-in conversations render the dialogues of the original code, and that the
// prompts, split at the pictures, have its ids for every way in which runs of text begin.
func TestPrompts(t *testing.T) {
	model, err := os.ReadFile(filepath.Join("testdata", "tokenizer.model"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Template, Prompt string
		Turns            [][2]*string
		Legacy           []int32 `json:"ids_legacy"`
		NotLegacy        []int32 `json:"ids_not_legacy"`
	}
	golden.JSON(t, filepath.Join("testdata", "prompts.json"), &cases)
	for i, c := range cases {
		decoder := map[string]string{"v1": "llama", "mistral": "mistral"}[c.Template]
		part := (&config{decoder: decoder}).template("llava")
		template, err := chat.Parse(string(part.Data))
		if err != nil {
			t.Fatal(err)
		}
		var messages []chat.Message
		for _, turn := range c.Turns {
			user := chat.Message{Role: "user"}
			text := *turn[0]
			for strings.HasPrefix(text, "<image>\n") {
				text = text[len("<image>\n"):]
				user.Content = append(user.Content, chat.Part{Type: "image"})
			}
			user.Content = append(user.Content, chat.Part{Type: "text", Text: text})
			messages = append(messages, user)
			if turn[1] != nil {
				messages = append(
					messages,
					chat.Message{
						Role:    "assistant",
						Content: []chat.Part{{Type: "text", Text: *turn[1]}},
					},
				)
			}
		}
		segs, err := template.RenderSegments(messages, chat.Options{AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		var parts []tokenizer.Segment
		for _, s := range segs {
			text.WriteString(s.Text)
			parts = append(parts, tokenizer.Segment{Text: s.Text, User: s.User})
		}
		if text.String() != c.Prompt {
			t.Errorf("prompt %d: got %q, want %q", i, text.String(), c.Prompt)
		}
		for settings, want := range map[string][]int32{`{"legacy":true}`: c.Legacy, `{"legacy":false}`: c.NotLegacy} {
			tok, err := tokenizer.ParseModel(model, []byte(settings))
			if err != nil {
				t.Fatal(err)
			}
			tok.Place("<image>", checkpoint.NoToken)
			got, err := tok.EncodeSegments(parts, tokenizer.EncodeOptions{AddSpecial: true})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("prompt %d, %s: got %v %v, want %v", i, settings, got, err, want)
			}
		}
	}
}

// Ensure that a system message replaces the conversation's own, and that pictures stand where the
// configuration says.
func TestConversations(t *testing.T) {
	for _, c := range []struct {
		config     config
		name, want string
	}{
		{config{decoder: "llama"}, "llava-v1.5-7b", "Be brief. USER: <image>\nWhat? ASSISTANT:"},
		{config{decoder: "llama", StartEnd: true}, "x", "Be brief. USER: <im_start><image><im_end>\nWhat? ASSISTANT:"},
		{config{decoder: "mistral"}, "x", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n<image>\nWhat? [/INST]"},
		{config{decoder: "llama"}, "llava-Llama-2-13b", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n<image>\nWhat? [/INST]"},
		{config{decoder: "qwen2"}, "llava-onevision", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<image>\nWhat?<|im_end|>\n<|im_start|>assistant\n"},
		{config{decoder: "llama"}, "llava-v1.6-34b", "<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\n<image>\nWhat?<|im_end|><|im_start|>assistant\n"},
	} {
		template, err := chat.Parse(string(c.config.template(c.name).Data))
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Render([]chat.Message{
			{Role: "system", Content: []chat.Part{{Type: "text", Text: "Be brief."}}},
			{Role: "user", Content: []chat.Part{{Type: "image"}, {Type: "text", Text: "What?"}}},
		}, chat.Options{AddGenerationPrompt: true})
		if err != nil || got != c.want {
			t.Errorf("%s: got %q %v, want %q", c.name, got, err, c.want)
		}
	}
}

// Ensure that later turns follow as in the original code.
func TestTurns(t *testing.T) {
	say := func(role, text string) chat.Message {
		return chat.Message{Role: role, Content: []chat.Part{{Type: "text", Text: text}}}
	}
	for _, c := range []struct {
		config     config
		name, want string
	}{
		{config{decoder: "mistral"}, "x", "[INST] a [/INST] b </s>[INST] c [/INST]"},
		{config{decoder: "llama", Path: "my/llava_llama_2"}, "x", "[INST] <<SYS>>\n" +
			"You are a helpful language and vision assistant. You are able to understand the " +
			"visual content that the user provides, and assist the user with a variety of tasks " +
			"using natural language.\n<</SYS>>\n\na [/INST] b </s><s>[INST] c [/INST]"},
	} {
		template, err := chat.Parse(string(c.config.template(c.name).Data))
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Render([]chat.Message{
			say("user", "a"), say("assistant", "b"), say("user", "c"),
		}, chat.Options{AddGenerationPrompt: true})
		if err != nil || got != c.want {
			t.Errorf("%+v: got %q %v, want %q", c.config, got, err, c.want)
		}
	}
}

// lay writes tensors and documents as a model's folder.
func lay(t *testing.T, docs map[string]string, tensors map[string]*tensor.Tensor) string {
	t.Helper()
	dir := t.TempDir()
	var b bytes.Buffer
	if err := checkpoint.WriteSafetensors(&b, tensors, nil); err != nil {
		t.Fatal(err)
	}
	docs = maps.Clone(docs)
	if tensors != nil {
		docs["model.safetensors"] = b.String()
	}
	for name, text := range docs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const configText = `{"architectures":["LlavaLlamaForCausalLM"],"model_type":"llava","hidden_size":64,"intermediate_size":88,"num_attention_heads":4,
"num_hidden_layers":3,"rms_norm_eps":1e-05,"vocab_size":320,"max_position_embeddings":512,"mm_projector_type":"mlp2x_gelu","mm_vision_select_layer":-2,
"mm_vision_select_feature":"patch","image_aspect_ratio":"pad","mm_vision_tower":"some/tower","tie_word_embeddings":false}`

const towerText = `{"model_type":"clip","vision_config":{"hidden_size":48,"image_size":56,"intermediate_size":80,"num_attention_heads":3,"num_hidden_layers":4,"patch_size":14}}`

const processorText = `{"crop_size":56,"size":56,"do_center_crop":true,"do_normalize":true,"do_resize":true,"feature_extractor_type":"CLIPFeatureExtractor","resample":3}`

// oneVisionText is the published config.json of lmms-lab/llava-onevision-qwen2-7b-ov, with the
// canvases as ranges, as its authors' scripts have them.
const oneVisionText = `{"architectures":["LlavaQwenForCausalLM"],"model_type":"llava","hidden_size":3584,"intermediate_size":18944,
"num_attention_heads":28,"num_key_value_heads":4,"num_hidden_layers":28,"rms_norm_eps":1e-06,"vocab_size":152064,"max_position_embeddings":32768,"hidden_act":"silu",
"rope_scaling":null,"rope_theta":1000000.0,"sliding_window":131072,"use_sliding_window":false,"max_window_layers":28,"bos_token_id":151643,"eos_token_id":151645,
"image_token_index":151646,"image_aspect_ratio":"anyres_max_9","image_grid_pinpoints":"(1x1),...,(6x6)","mm_hidden_size":1152,"mm_newline_position":"one_token",
"mm_patch_merge_type":"spatial_unpad","mm_projector_type":"mlp2x_gelu","mm_resampler_type":null,"mm_spatial_pool_mode":"bilinear","mm_use_im_start_end":false,
"mm_vision_select_feature":"patch","mm_vision_select_layer":-2,"mm_vision_tower":"google/siglip-so400m-patch14-384","tie_word_embeddings":false,"torch_dtype":"bfloat16"}`

// Ensure that the published config of LLaVA-OneVision becomes the one that the same model has in
// transformers' form: its tower has a layer less, and all patches of its last layer are used.
func TestOneVision(t *testing.T) {
	c, err := parseConfig([]byte(oneVisionText))
	if err != nil {
		t.Fatal(err)
	}
	tower, ok := knownTower(c.towerPath(), c.towerKind())
	if !ok {
		t.Fatal("the published tower is not known")
	}
	text, err := c.canonical(tower.vision, tower.side)
	if err != nil {
		t.Fatal(err)
	}
	family, err := families.Of("x", text)
	if err != nil {
		t.Fatal(err)
	}
	got, want := values(t, text), values(t, family.Shape(family.Published[1]))
	for _, token := range []string{"image_token_index", "video_token_index"} {
		if id := got[token].(float64); id >= 0 {
			t.Errorf("%s: got %v, want none of the vocabulary", token, id)
		}
		delete(want, token)
	}
	delete(want, "projector_hidden_act") // the default
	for key, w := range want {
		g := got[key]
		if key == "image_grid_pinpoints" {
			g, w = sorted(g), sorted(w)
		}
		if !reflect.DeepEqual(g, w) {
			t.Errorf("%s: got %v, want transformers' %v", key, g, w)
		}
	}
	processor, err := c.processor(tower.processor, tower.side)
	if err != nil {
		t.Fatal(err)
	}
	parts := &checkpoint.Parts{}
	parts.Config.Data, parts.Processor.Data = text, processor
	if p, refused, err := families.Prepares("x", parts); err != nil || refused != nil ||
		p.Name() != "LlavaOnevisionImageProcessor" {
		t.Errorf("processor %s: %v", processor, err)
	}
	for _, c := range []struct{ old, new, want string }{
		{"anyres_max_9", "anyres", "image_aspect_ratio"}, {"anyres_max_9", "anyres_max_37", "image_aspect_ratio"},
		{"one_token", "grid", "mm_newline_position"}, {"bilinear", "average", "mm_spatial_pool_mode"},
		{"spatial_unpad", "flat", "mm_patch_merge_type"}, {`"mm_hidden`, `"add_faster_video":true,"mm_hidden`, "add_faster_video"},
	} {
		_, err := parseConfig([]byte(strings.Replace(oneVisionText, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that names %s", c.new, err, c.want)
		}
	}
	if _, ok := knownTower("openai/clip-vit-large-patch14-336", siglip); ok {
		t.Error("CLIP is taken for a SigLIP")
	}
}

// values returns the values of a config.json by their paths.
func values(t *testing.T, config []byte) map[string]any {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(config, &all); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"text_config", "vision_config"} {
		for key, v := range all[part].(map[string]any) {
			all[part+"."+key] = v
		}
		delete(all, part)
	}
	return all
}

// sorted returns the texts of a list's values in order.
func sorted(list any) (out []string) {
	for _, v := range list.([]any) {
		out = append(out, fmt.Sprint(v))
	}
	slices.Sort(out)
	return out
}

// original returns a Hugging Face checkpoint in the form of LLaVA's authors: the decoder and
// projector, and the tower with its text half and buffers.
func original(t *testing.T) (model, tower, canonical map[string]*tensor.Tensor) {
	t.Helper()
	f, err := folder.Open(filepath.Join("..", "..", "engine", "testdata", "llava15-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := hf.Open(f, families.Files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	one := tensor.From([]int{1}, []float32{1})
	model, canonical = map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{}
	tower = map[string]*tensor.Tensor{
		"text_model.final_layer_norm.weight":   one,
		"logit_scale":                          one,
		"vision_model.embeddings.position_ids": one,
	}
	for name, w := range s.Weights {
		canonical[name] = &w.Tensor
		if rest, ok := strings.CutPrefix(name, "vision_tower."); ok {
			tower[rest] = &w.Tensor
			continue
		}
		name = strings.NewReplacer("language_model.model.", "model.", "language_model.lm_head.",
			"lm_head.",
			"multi_modal_projector.linear_1.", "model.mm_projector.0.",
			"multi_modal_projector.linear_2.", "model.mm_projector.2.").
			Replace(name)
		model[name] = &w.Tensor
	}
	return model, tower, canonical
}

// Ensure that a model's tower comes from its own checkpoint, from the given folder, or from the one
// that the configuration names, and that all weights have their canonical names.
func TestOpen(t *testing.T) {
	model, tower, canonical := original(t)
	towerDir := lay(t, map[string]string{"config.json": towerText,
		"preprocessor_config.json": processorText}, tower)
	both := maps.Clone(model)
	for name, w := range tower {
		if strings.HasPrefix(name, "vision_model.") {
			both["model.vision_tower.vision_tower."+name] = w
		}
	}
	other := maps.Clone(tower) // a tower that is given only for its configuration
	other["vision_model.pre_layrnorm.weight"] = tensor.From([]int{1}, []float32{7})
	otherDir := lay(t, map[string]string{"config.json": towerText,
		"preprocessor_config.json": processorText}, other)
	docs := map[string]string{
		"config.json":            configText,
		"generation_config.json": `{"eos_token_id":2}`,
		"tokenizer.json":         `{}`,
		"added_tokens.json":      `{"<x>":7}`,
	}
	find := func(name string) (string, error) {
		if name != "some/tower" {
			return "", fmt.Errorf("asked for %q", name)
		}
		return towerDir, nil
	}
	for name, c := range map[string]struct {
		weights map[string]*tensor.Tensor
		tower   string
		find    func(string) (string, error)
		config  string
	}{
		"given": {model, towerDir, nil, configText}, "found": {model, "", find, configText}, "inside": {both, otherDir, nil, configText},
		"a path":                {model, "", nil, strings.Replace(configText, "some/tower", towerDir, 1)},
		"published, and inside": {both, "", nil, strings.Replace(configText, "some/tower", "openai/clip-vit-large-patch14", 1)},
	} {
		docs["config.json"] = c.config
		f, err := folder.Open(lay(t, docs, c.weights))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(f, c.tower, c.find)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(s.Names()) != len(canonical) {
			t.Errorf("%s: %d weights, want %d", name, len(s.Names()), len(canonical))
		}
		if got := string(s.Docs.Settings.Data); !strings.Contains(got, `"7":{"content":`) {
			t.Errorf("%s: the tokenizer's settings: got %s, want the added token", name, got)
		}
		for want, w := range canonical {
			got, ok := s.Tensor(want)
			if !ok || got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) ||
				!bytes.Equal(got.Data, w.Data) {
				t.Errorf("%s: %q is %v, want %v", name, want, got, w)
			}
		}
		var config struct {
			Text, Vision map[string]any
			Archs        []string `json:"architectures"`
			Image        int      `json:"image_token_index"`
		}
		if err := json.Unmarshal(bytes.ReplaceAll(bytes.ReplaceAll(s.Docs.Config.Data,
			[]byte(`"text_config"`), []byte(`"text"`)), []byte(`"vision_config"`),
			[]byte(`"vision"`)), &config); err != nil {
			t.Fatal(err)
		}
		if config.Archs[0] != "LlavaForConditionalGeneration" || config.Image != -200 ||
			config.Text["hidden_size"] != 64.0 ||
			config.Vision["model_type"] != "clip_vision_model" {
			t.Errorf("%s: config %+v", name, config)
		}
		if !bytes.Contains(s.Docs.Processor.Data, []byte(`"do_pad":true`)) ||
			len(s.What.Files) < 3 && name != "published, and inside" {
			t.Errorf("%s: processor %s, files %v", name, s.Docs.Processor.Data, s.What.Files)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Ensure that settings that LLaVA 1.5 and 1.6 do not have, and a missing tower, return an error of
// one line that names them.
func TestOpenErrors(t *testing.T) {
	model, tower, _ := original(t)
	none := func(name string) (string, error) { return "", errors.New("not here: " + name) }
	towerDir := func(config, processor string) string {
		docs := map[string]string{"config.json": config}
		if processor != "" {
			docs["preprocessor_config.json"] = processor
		}
		return lay(t, docs, tower)
	}
	good := towerDir(towerText, processorText)
	for _, c := range []struct{ old, new, tower, want string }{
		{"mlp2x_gelu", "mlp3x_gelu", good, "mm_projector_type"}, {`"pad"`, `"anyres"`, good, "mm_patch_merge_type"},
		{`"pad"`, `"anyres_max_9"`, good, "image_aspect_ratio"}, {`"patch"`, `"cls"`, good, "mm_vision_select_feature"},
		{`"mm_vision_select_layer":-2,`, "", good, "mm_vision_select_layer"}, {`"some/tower"`, "null", "", "mm_vision_tower"},
		{"", "", "", "some/tower"}, {"", "", filepath.Join(good, "nothing"), "vision tower"},
		{"", "", towerDir(`{"model_type":"siglip"}`, processorText), "siglip"}, {"", "", towerDir(towerText, ""), "preprocessor_config.json"},
		{`"pad"`, `"anyres","mm_patch_merge_type":"spatial_unpad"`, good, "image_grid_pinpoints"},
		{`"pad"`, `"anyres","mm_patch_merge_type":"spatial_unpad","image_grid_pinpoints":[[1]]`, good, "image_grid_pinpoints"},
	} {
		f, err := folder.Open(lay(t, map[string]string{"config.json": strings.Replace(configText,
			c.old, c.new, 1)}, model))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(f, c.tower, none)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s for %s: got %v, want %q", c.new, c.old, err, c.want)
		}
	}
}

// FuzzConfig: any configuration is either refused, or converted to one of transformers.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(configText), []byte(processorText))
	f.Add([]byte(strings.Replace(configText, `"pad"`,
		`"anyres","mm_patch_merge_type":"spatial_unpad","image_grid_pinpoints":"[[336, 672]]"`, 1)),
		[]byte(`{}`))
	f.Add([]byte(oneVisionText), []byte(`{}`))
	f.Fuzz(func(t *testing.T, data, processor []byte) {
		if !is(data) {
			return
		}
		c, err := parseConfig(data)
		if err != nil {
			return
		}
		if text, err := c.canonical(json.RawMessage(`{}`), 384); err == nil && !json.Valid(text) {
			t.Errorf("%s: got %s", data, text)
		}
		if text, err := c.processor(processor, 384); err == nil && !json.Valid(text) {
			t.Errorf("%s: got %s", processor, text)
		}
		c.template("name")
	})
}
