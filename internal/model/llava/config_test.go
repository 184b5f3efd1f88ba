package llava

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Ensure that what the computation does not support is refused by its key.
func TestParseConfigRefuses(t *testing.T) {
	const text = `"text_config": {}`
	const sigLIP = `"vision_config": {"model_type": "siglip_vision_model"}`
	rope := func(scaling string) string {
		return `"vision_config": {"image_size": 224, "patch_size": 14}, ` +
			`"text_config": {"rope_scaling": ` + scaling + `}`
	}
	for config, want := range map[string]string{
		text + `, ` + sigLIP: `"model_type": got "siglip_vision_model" with vision_feature_select_strategy default, `,
		text + `, "vision_config": {"model_type": "pixtral"}`: `"model_type": got "pixtral"`,
		rope(`{"rope_type": "su", "factor": 4}`):              `"rope_type": got "su"`,
		rope(`{"type": "su", "factor": 4}`):                   `"type": got "su"`,
		rope(`{"type": "yarn"}`):                              `"factor": missing, want`,
		rope(`{"type": "linear"}`):                            `"factor": missing, want`,
		rope(`{"rope_type": "linear", "factor": -2}`):         `"factor": got -2, want`,
		rope(`{"rope_type": "llama3", "factor": 8}`):          `"low_freq_factor": missing`,
		rope(llama3("4", "4")):                                `"high_freq_factor": got 4, want more`,
		rope(`{"rope_type": "longrope", "short_factor": [1], "long_factor": [1],
			"attention_factor": 1}`): `"short_factor": got [1], want a list of 64 numbers`,
		rope(longrope(1, 2, "1")):   `"long_factor": differs from short_factor`,
		rope(longrope(2, 2, "1.2")): "", rope(longrope(2, 2, "null")): "",
		rope(longrope(2, 2, "0")): `"attention_factor": got 0, want`,
		rope(longrope(2, 2, "1")): "",
		text + `, ` + sigLIP + `, "vision_feature_select_strategy":"full"`:                        "",
		text + `, "vision_config": {"image_size": 31, "patch_size": 7, "hidden_act": "gelu_new"}`: "",
		text + `, "vision_config": {"hidden_act": "relu"}`:                                        `"hidden_act": got "relu"`,
		text + `, "vision_config": {}, "projector_hidden_act": "gelu_pytorch_tanh"`:               "",
		text + `, "vision_config": {}, "projector_hidden_act": "relu"`:                            `"projector_hidden_act": got "relu"`,
		`"vision_config": {}, "text_config": {"pretraining_tp": 2}`:                               "",
		rope("null"):                            "",
		rope(llama3("1", "4")):                  "",
		rope(`{"type": "linear", "factor": 2}`): "",
	} {
		_, err := ParseConfig([]byte(`{"image_token_index": 5, ` + config + `}`))
		if want == "" && err != nil || want != "" && (err == nil ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}
}

func llama3(low, high string) string {
	return `{"rope_type": "llama3", "factor": 8, "low_freq_factor": ` + low +
		`, "high_freq_factor": ` + high + `, "original_max_position_embeddings": 8192}`
}

func longrope(short, long int, attention string) string {
	list := func(x int) string {
		return fmt.Sprintf("[1%s]", strings.Repeat(fmt.Sprintf(", %d", x), 63))
	}
	return `{"rope_type": "longrope", "short_factor": ` + list(short) + `, "long_factor": ` +
		list(long) + `, "attention_factor": ` + attention + `}`
}

// Ensure that a SigLIP tower's patches all are visual tokens, and that the rotation's settings are
// read in the older form too.
func TestParseConfigSigLIP(t *testing.T) {
	c, err := ParseConfig([]byte(`{"image_token_index": 5, "text_config": {"rope_theta": 500000,
		"rope_scaling": ` + llama3("1", "4") + `}, "vision_feature_select_strategy": "full",
		"vision_config": {"model_type": "siglip_vision_model", "image_size": 384,
		"patch_size": 14, "num_hidden_layers": 27}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Text.Stretch; !c.Vision.SigLIP || c.Full || c.Vision.Tokens() != 729 ||
		c.Features[0] != 26 || s.Factor != 8 || s.Original != 8192 || c.Text.Theta != 500000 {
		t.Errorf("%+v", c)
	}
	c, err = ParseConfig([]byte(`{"image_token_index": 5, "text_config": {"rope_scaling":
		{"type": "linear", "factor": 4}}, "vision_config": {}}`))
	if err != nil || c.Text.Stretch.Factor != 4 || !math.IsInf(c.Text.Stretch.Low, 1) {
		t.Errorf("%+v, %v", c, err)
	}
}

// Ensure that an exported model's processor counts a picture's tokens as its tower makes them.
func TestProcessorConfig(t *testing.T) {
	for vision, want := range map[string]string{
		`{"patch_size": 14}`:                  `"num_additional_image_tokens":1,"patch_size":14`,
		`{"model_type": "clip_vision_model"}`: `"num_additional_image_tokens":1,"patch_size":32`,
		`{"model_type": "siglip_vision_model", "patch_size": 14}`: `"num_additional_image_tokens":0,` +
			`"patch_size":14`,
		`{"model_type": "siglip_vision_model"}`: `"num_additional_image_tokens":0,"patch_size":16`,
	} {
		got, err := processorConfig("LlavaProcessor",
			map[string]json.RawMessage{"vision_config": json.RawMessage(vision)})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(got); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: got %s, %v, want %s", vision, text, err, want)
		}
	}
}
