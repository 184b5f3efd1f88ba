package families

import (
	"slices"
	"strings"
	"testing"
)

// Ensure that every family says all that it must, that no two share an architecture with one tower,
// and that its published models are found to be its own.
func TestTable(t *testing.T) {
	var classes []string
	for _, f := range Table {
		if f.Name == "" || f.New == nil || f.Text == nil || len(f.Forms) == 0 ||
			len(f.Processors) == 0 || len(f.Published) == 0 || len(f.Budgets) == 0 {
			t.Errorf("%q lacks a part: %+v", f.Name, f)
		}
		for _, a := range f.Architectures {
			classes = append(classes, a+" "+f.Tower)
		}
		for _, name := range f.Published {
			if got, err := Of(name, f.Shape(name)); err != nil || got != f {
				t.Errorf("%s: got %v, %v, want %s", name, got, err, f.Name)
			}
		}
	}
	slices.Sort(classes)
	if n := len(classes); len(slices.Compact(classes)) != n {
		t.Errorf("a class is in two families: %v", classes)
	}
}

// Ensure that a config.json without architectures, as transformers 4.57 saves a model that was made
// from a configuration, belongs to the family of its model_type, but not an original LLaVA's.
func TestWithoutArchitectures(t *testing.T) {
	for _, f := range Table {
		for _, archs := range []string{"", `"architectures":null,`, `"architectures":[],`} {
			config := `{` + archs + `"model_type":"` + f.Name + `","vision_config":{"model_type":"` +
				f.Tower + `"}}`
			if got, err := Of("x", []byte(config)); err != nil || got != f {
				t.Errorf("%s: got %v, %v, want %s", config, got, err, f.Name)
			}
		}
	}
	for _, config := range []string{
		`{"model_type":"llava","mm_vision_tower":"some/tower"}`,
		`{"architectures":["GPT"],"model_type":"llava","vision_config":{}}`,
		`{"model_type":"qwen3_vl_moe","vision_config":{}}`,
		`{"architectures":"GPT","model_type":"llava","vision_config":{}}`,
	} {
		if got, err := Of("x", []byte(config)); err == nil {
			t.Errorf("%s: got %s, want an error", config, got.Name)
		}
	}
}

// Ensure that a model of no family is refused with the names of all.
func TestUnknown(t *testing.T) {
	for config, want := range map[string]string{
		`{"architectures":["GPT"]}`: `x: config.json: architectures: got ["GPT"], want one of ` +
			"Gemma3ForConditionalGeneration, Idefics3ForConditionalGeneration, InternVLForCond",
		`{"architectures":5}`: "x: config.json: json:", `{}`: "got []",
	} {
		if _, err := Of("x", []byte(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}
	if _, err := Processor([]byte(`{"image_processor_type":"Other"}`)); err == nil ||
		!strings.Contains(err.Error(), "want one of CLIPImageProcessor, LlavaImageProcessor, ") {
		t.Errorf("got %v, want the known processors", err)
	}
}
