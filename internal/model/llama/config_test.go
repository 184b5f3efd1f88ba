package llama

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/model"
)

// parse reads a text_config of some keys.
func parse(t *testing.T, kind, config string) (Config, error) {
	t.Helper()
	v, err := model.ParseConfig([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return Parse(v, kind), v.Err()
}

// Ensure that a text_config may be of every type with one axis, and is of the default without one.
func TestParseText(t *testing.T) {
	for kind, biased := range map[string]bool{
		`"llama"`: false, `"mistral"`: false, `"qwen2"`: true, `"qwen3"`: false, "null": true,
		`"granite"`: false,
	} {
		v, err := model.ParseConfig([]byte(`{"text_config":{"model_type":` + kind + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		if c := ParseText(v, "qwen2"); v.Err() != nil || c.Bias != biased {
			t.Errorf("%s: got bias %v, %v, want %v", kind, c.Bias, v.Err(), biased)
		}
	}
}

// Ensure that LongRoPE multiplies scores by the square of its factor, which follows from the
// lengths or the stretch unless it is given (values of transformers 5.24).
func TestLongRoPE(t *testing.T) {
	const list = `[1,1,1,1,1,1,1,1]`
	for more, want := range map[string]float64{
		``:                        1,
		`,"factor":4`:             1.087114613009218,
		`,"attention_factor":1.3`: 1.3,
		`,"original_max_position_embeddings":512`:                         1.1055415967851334,
		`,"original_max_position_embeddings":512,"attention_factor":null`: 1.1055415967851334,
		`,"factor":0.5`: 1,
	} {
		c, err := parse(t, "llama", `{"head_dim":16,"max_position_embeddings":2048,`+
			`"rope_scaling":{"type":"longrope","short_factor":`+list+`,"long_factor":`+list+more+
			`}}`)
		if want *= want / 4; err != nil || !(math.Abs(c.Scale-want) <= 1e-12) {
			t.Errorf("%s: got %v, %v, want %v", more, c.Scale, err, want)
		}
	}
}

// Ensure that SiLU may have the other of transformers' names.
func TestSwish(t *testing.T) {
	if _, err := parse(t, "llama", `{"hidden_act":"swish"}`); err != nil {
		t.Error(err)
	}
}

// Ensure that YaRN multiplies scores by the square of its factor, which follows from the stretch
// unless it is given (values of transformers 5.24), and that one-dimensional heads are no panic.
func TestYaRN(t *testing.T) {
	for more, want := range map[string]float64{
		``:                                    1.138629 * 1.138629 / 4, // 1 + 0.1·ln 4
		`,"attention_factor":1.5`:             1.5 * 1.5 / 4,
		`,"mscale":1,"mscale_all_dim":1`:      1. / 4,
		`,"mscale":1`:                         1.138629 * 1.138629 / 4,
		`,"beta_fast":16,"truncate":false`:    1.138629 * 1.138629 / 4,
		`,"attention_factor":null,"factor":1`: 1. / 4,
	} {
		c, err := parse(t, "qwen2", `{"head_dim":16,"rope_scaling":{"type":"yarn","factor":4`+more+`}}`)
		if n := len(c.Stretch.Pairs); err != nil || !(math.Abs(c.Scale-want) <= 1e-6) || n != 8 {
			t.Errorf("%s: got %v of %d pairs, %v, want %v of 8", more, c.Scale, n, err, want)
		}
	}
	if _, err := parse(t, "llama", `{"hidden_size":4,"num_attention_heads":4,"head_dim":1,`+
		`"rope_scaling":{"type":"yarn","factor":4}}`); err == nil {
		t.Error("heads of one dimension: accepted")
	}
}

// Ensure that a context of training beside the rotation replaces one inside, that an absent one is
// the whole context, and that a null truncate is false, as in transformers 5.24.
func TestOriginalContext(t *testing.T) {
	const common = `{"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,` +
		`"max_position_embeddings":128,`
	const llama3 = `"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4`
	const yarn = `"rope_type":"yarn","factor":4`
	const inside, beside = `,"original_max_position_embeddings":`,
		`"original_max_position_embeddings":48,`
	for _, c := range [][2]string{
		{beside + `"rope_scaling":{` + llama3 + inside + `4096}`, llama3 + inside + `48`},
		{beside + `"rope_scaling":{` + yarn + inside + `4096}`, yarn + inside + `48`},
		{`"rope_scaling":{` + llama3 + `}`, llama3 + inside + `128`},
		{`"rope_scaling":{` + yarn + `}`, yarn + inside + `128`},
		{`"rope_scaling":{` + yarn + `,"truncate":null}`, yarn + `,"truncate":false`},
	} {
		got, err := parse(t, "llama", common+c[0]+`}`)
		want, _ := parse(t, "llama", common+`"rope_parameters":{`+c[1]+`}}`)
		plain, _ := parse(t, "llama", common+`"rope_parameters":{`+c[1]+inside+`4096}}`)
		if err != nil || !reflect.DeepEqual(got, want) || reflect.DeepEqual(got, plain) {
			t.Errorf("%s: got %+v, %v, want %+v", c[0], got, err, want)
		}
	}
}

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
		c, err := parse(t, "qwen2", `{"num_key_value_heads":2,`+config+`}`)
		switch {
		case want < 0 && (err == nil || !strings.Contains(err.Error(), "head")):
			t.Errorf("%s: got %v, want an error about heads", config, err)
		case want > 0 && (err != nil || c.HeadDim != want):
			t.Errorf("%s: got %d, %v, want %d", config, c.HeadDim, err, want)
		}
	}
}

// Ensure that null key-value heads are as many as heads, as in transformers 5.24, and absent ones
// what each configuration there has.
func TestKeyValueHeads(t *testing.T) {
	for kind, absent := range map[string]int{
		"llama": 16, "mistral": 8, "qwen2": 32, "qwen3": 32, "qwen2_vl_text": 8, "qwen3_vl_text": 32,
	} {
		const common = `{"rope_theta":1e4,"num_attention_heads":`
		c, err := parse(t, kind, common+`16,"num_key_value_heads":null}`)
		if c.KVHeads != 16 {
			t.Errorf("%s: null: got %d, %v, want 16", kind, c.KVHeads, err)
		}
		heads := `32}`
		if kind == "llama" {
			heads = `16}`
		}
		if c, err = parse(t, kind, common+heads); c.KVHeads != absent {
			t.Errorf("%s: absent: got %d, %v, want %d", kind, c.KVHeads, err, absent)
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
		{`{"type":"linear","factor":3.0,"mrope_section":[4,2,2]}`, 0, nil},
		{`{"type":"default"}`, 0, nil}, // without sections
		{`{"rope_type":"default","mrope_section":[4,2,2]}`, 1e6, []int{4, 2, 2}},
		{`{"type":"mrope","mrope_section":[4,2,2]},"rope_theta":7e5`, 7e5, []int{4, 2, 2}},
	} {
		got, err := parse(t, "qwen2_vl_text", `{"hidden_size":64,"num_attention_heads":4,`+
			`"num_key_value_heads":2,`+parameters+`"rope_scaling":`+c.scaling+`}`)
		switch {
		case c.theta == 0 && (err == nil || !strings.Contains(err.Error(), "rope_scaling")):
			t.Errorf("%s: got %v, want an error about rope_scaling", c.scaling, err)
		case c.theta != 0 && (err != nil || got.Theta != c.theta ||
			!slices.Equal(got.Sections, c.sections)):
			t.Errorf("%s: theta %g, sections %v, %v, want %g, %v", c.scaling, got.Theta,
				got.Sections, err, c.theta, c.sections)
		}
	}
}

// Ensure that Ministral 3's rotation has the frequencies of transformers 5.24, that its context is
// what it was trained with, and that settings without a rotation are refused by name.
func TestMinistral3(t *testing.T) {
	const rest = `,"rope_type":"yarn","llama_4_scaling_beta":0.1`
	const published = `"rope_theta":1e6,"factor":16.0,"original_max_position_embeddings":16384,` +
		`"beta_fast":32.0,"beta_slow":1.0,"mscale":1.0,"mscale_all_dim":1.0` + rest
	for _, c := range []struct {
		config  string
		context int
		want    map[int]float64 // how many times as slowly a pair turns
	}{
		{published, 16384, map[int]float64{
			0: 1, 18: 1, 20: 1, 25: 1.3807107, 30: 2.2295084, 35: 5.7872344, 36: 8.5000004,
			37: 16, 63: 16,
		}},
		{`"rope_theta":1e4,"factor":4.0,"original_max_position_embeddings":4096,"beta_fast":8.0,` +
			`"beta_slow":2.0,"truncate":false,"attention_factor":1.0` + rest, 4096,
			map[int]float64{
				0: 1, 30: 1, 31: 1.0340186, 33: 1.2324601, 35: 1.5251577, 39: 2.9049572,
				40: 3.7540148, 41: 4,
			}},
	} {
		got, err := parse(t, "ministral3", `{"rope_parameters":{`+c.config+`}}`)
		if err != nil || got.MaxPositions != c.context || len(got.Stretch.Pairs) != 64 {
			t.Fatalf("%s: got %+v, %v", c.config, got, err)
		}
		for j, want := range c.want {
			// the reference computes in float32
			if have := got.Stretch.Pairs[j]; !(math.Abs(have-want) <= 1e-6*want) {
				t.Errorf("%s: pair %d: got %v, want %v", c.config, j, have, want)
			}
		}
	}
	for change, want := range map[string]string{
		`"llama_4_scaling_beta" -> "other"`:                "llama_4_scaling_beta",
		`"original_max_position_embeddings" -> "other"`:    "original_max_position_embeddings",
		`"factor":16.0 -> "factor":0`:                      "factor",
		`"rope_theta":1e6 -> "rope_theta":1`:               "rope_theta",
		`"beta_slow":1.0 -> "beta_slow":900`:               "beta_fast",
		`"beta_fast":32.0 -> "beta_fast":1e-308`:           "beta_fast",
		`"rope_type":"yarn" -> "rope_type":"proportional"`: "rope_type",
	} {
		from, to, _ := strings.Cut(change, " -> ")
		config := `{"rope_parameters":{` + strings.Replace(published, from, to, 1) + `}}`
		if _, err := parse(t, "ministral3", config); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %s", change, err, want)
		}
	}
}

// Ensure that what a decoder does not compute is refused by name.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ kind, config, want string }{
		{"llama", `"attention_bias":true`, "attention_bias"},
		{"llama", `"sliding_window":4096`, "sliding_window"},
		{"mistral", `"mlp_bias":true`, "mlp_bias"},
		{"ministral3", `"sliding_window":4096`, "sliding_window"},
		{"qwen2", `"use_sliding_window":true`, "use_sliding_window"},
		{"qwen2", `"layer_types":["full_attention","sliding_attention"]`, "layer_types"},
		{"qwen3", `"attention_bias":true`, "attention_bias"},
		{"qwen3", `"hidden_act":"gelu"`, "hidden_act"},
		{"qwen3", `"rope_scaling":{"type":"su","factor":4.0}`, "su"},
		{"qwen3", `"partial_rotary_factor":0.5`, "partial_rotary_factor"},
		{"llama", `"rope_parameters":{"partial_rotary_factor":0.5}`, "partial_rotary_factor"},
		{"qwen3_vl_text", `"rope_scaling":{"mrope_interleaved":false}`, "mrope_interleaved"},
		{"qwen3_vl_text", `"rope_parameters":null`, "rope_theta"},
	} {
		_, err := parse(t, c.kind, `{`+c.config+`}`)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: got %v, want an error about %s", c.kind, c.config, err, c.want)
		}
	}
	if c, err := parse(t, "qwen2", `{"sliding_window":4096}`); err != nil || c.Window != 0 {
		t.Errorf("qwen2's disabled window: got %d, %v, want 0", c.Window, err)
	}
}
