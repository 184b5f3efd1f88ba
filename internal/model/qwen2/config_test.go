package qwen2

import (
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
