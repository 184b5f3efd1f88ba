package qwen2

import (
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/model"
)

// Ensure that head_dim is the width of a head, as in transformers, and hidden_size/heads without
// it.
func TestHeadDim(t *testing.T) {
	for config, want := range map[string]int{
		`"hidden_size":48,"num_attention_heads":4`:                    12,
		`"hidden_size":48,"num_attention_heads":4,"head_dim":null`:    12,
		`"hidden_size":48,"num_attention_heads":4,"head_dim":20`:      20,
		`"hidden_size":50,"num_attention_heads":4,"head_dim":16`:      16,
		`"hidden_size":50,"num_attention_heads":4`:                    -1, // not divided
		`"hidden_size":48,"num_attention_heads":4,"head_dim":15`:      -1, // odd
		`"hidden_size":48,"num_attention_heads":4,"head_dim":"large"`: -1,
	} {
		v, err := model.ParseConfig([]byte(`{"num_key_value_heads":2,` + config + `}`))
		if err != nil {
			t.Fatal(err)
		}
		c := ParseConfig(v, Text, false)
		switch err := v.Err(); {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), "head")):
			t.Errorf("%s: got %v, want an error about heads", config, err)
		case want > 0 && (err != nil || c.HeadDim != want):
			t.Errorf("%s: got %d, %v, want %d", config, c.HeadDim, err, want)
		}
	}
}

// Ensure that rope_scaling replaces rope_parameters as in transformers 4.57 and 5.24, whose theta
// and sections these are.
func TestRotation(t *testing.T) {
	const parameters = `"rope_parameters":{"rope_type":"default","rope_theta":5e5,` +
		`"mrope_section":[2,3,3]},`
	for _, c := range []struct {
		scaling  string
		theta    float64 // 0: refused
		sections []int
	}{
		{`null`, 5e5, []int{2, 3, 3}},
		{`{}`, 5e5, []int{2, 3, 3}}, // 5.24; 4.57 refuses it
		{`{"type":"linear","factor":3.0}`, 0, nil},
		{`{"type":"default"}`, 1e4, nil},
		{`{"rope_type":"default","mrope_section":[4,2,2]}`, 1e4, []int{4, 2, 2}},
		{`{"rope_type":"default"},"rope_theta":7e5`, 7e5, nil},
	} {
		v, err := model.ParseConfig([]byte(`{"hidden_size":64,"num_attention_heads":4,` +
			`"num_key_value_heads":2,` + parameters + `"rope_scaling":` + c.scaling + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ParseConfig(v, Text, false)
		switch err := v.Err(); {
		case c.theta == 0 && (err == nil || !strings.Contains(err.Error(), "rope_scaling")):
			t.Errorf("%s: got %v, want an error about rope_scaling", c.scaling, err)
		case c.theta != 0 && (err != nil || got.Theta != c.theta ||
			!slices.Equal(got.Sections, c.sections)):
			t.Errorf("%s: theta %g, sections %v, %v, want %g, %v", c.scaling, got.Theta,
				got.Sections, err, c.theta, c.sections)
		}
	}
}
