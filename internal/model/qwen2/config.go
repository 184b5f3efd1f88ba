// Package qwen2 reads the sizes of the Qwen2 decoder: LLaMA's block ([llama.Decoder]) with biases
// on q, k and v, and in Qwen2.5-VL a rotation on three axes (M-RoPE); and of the Qwen3 decoder,
// which has norms of heads instead of biases. Source: Qwen2 (arXiv 2407.10671), Qwen3 (arXiv
// 2505.09388), Qwen2.5-VL (arXiv 2502.13923), Qwen2-VL (arXiv 2409.12191, §2.1), Hugging Face
// transformers 4.49 Qwen2Model and Qwen2_5_VLModel, and 5.24 Qwen3Model.
//
// Rotary pair j turns by p_a(j)·θ^(−2j/headDim), where a(j) is the axis (time, height, width) of
// the section of j. Text has the same position on all three axes. The calibration bias (RESTORE,
// Eq. 4) uses the distance of Appendix A.
package qwen2

import (
	"cmp"
	"strings"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// Config holds the decoder's sizes and the end tokens.
type Config struct {
	llama.Config
	EOS []int32
}

// Biased reports whether a module of the decoder has a bias: queries, keys and values have.
func Biased(module string) bool {
	return strings.HasSuffix(module, ".q_proj") || strings.HasSuffix(module, ".k_proj") ||
		strings.HasSuffix(module, ".v_proj")
}

// Defaults of absent keys in transformers: of Qwen2_5_VLTextConfig, Qwen2Config and Qwen3Config. A
// HeadDim of 0 is hidden_size/num_attention_heads.
var (
	VL = llama.Config{
		Hidden: 8192, Layers: 80, MLP: 29568, Vocab: 152064, MaxPositions: 32768, Heads: 64,
		KVHeads: 8, Eps: 1e-5, Theta: 1e6, Bias: true,
	}
	Text = llama.Config{
		Hidden: 4096, Layers: 32, MLP: 22016, Vocab: 151936, MaxPositions: 32768, Heads: 32,
		KVHeads: 32, Eps: 1e-6, Theta: 1e4, Bias: true,
	}
	three = llama.Config{
		Hidden: 4096, Layers: 32, MLP: 22016, Vocab: 151936, MaxPositions: 32768, Heads: 32,
		KVHeads: 32, HeadDim: 128, Eps: 1e-6, Theta: 1e4, HeadNorm: true,
	}
)

// Parse reads a text_config object whose model_type is one of kinds, of llama, mistral, qwen2 and
// qwen3; the first of them if it is absent.
func Parse(v *model.Values, kinds ...string) Config {
	switch v.String("model_type", kinds[0], kinds...) {
	case "qwen2":
		return ParseConfig(v, Text, false)
	case "qwen3":
		v.Unsupported(map[string]string{"attention_bias": "false"})
		return ParseConfig(v, three, false)
	}
	return Config{Config: llama.ParseConfig(v), EOS: v.IDs("eos_token_id")}
}

// ParseConfig reads the text part of a config.json: in the older form rope_theta and rope_scaling,
// in the 5.x form rope_parameters. Absent keys take the defaults def; tied is the default of
// tie_word_embeddings.
func ParseConfig(v *model.Values, def llama.Config, tied bool) Config {
	c := Config{Config: llama.Config{
		Hidden:       v.Int("hidden_size", def.Hidden, 1, 1<<16),
		Layers:       v.Int("num_hidden_layers", def.Layers, 1, 1<<10),
		MLP:          v.Int("intermediate_size", def.MLP, 1, 1<<18),
		Vocab:        v.Int("vocab_size", def.Vocab, 1, 1<<22),
		MaxPositions: v.Int("max_position_embeddings", def.MaxPositions, 1, 1<<24),
		Heads:        v.Int("num_attention_heads", def.Heads, 1, 1<<10),
		KVHeads:      v.Int("num_key_value_heads", def.KVHeads, 1, 1<<10),
		Eps:          v.Float("rms_norm_eps", def.Eps),
		Theta:        v.Float("rope_theta", def.Theta),
		Tied:         v.Bool("tie_word_embeddings", tied),
		Bias:         def.Bias,
		HeadNorm:     def.HeadNorm,
	}}
	if !v.Has("head_dim") && def.HeadDim == 0 && c.Hidden%c.Heads != 0 {
		v.Fail("num_attention_heads", "got %d, which does not divide hidden_size %d", c.Heads,
			c.Hidden)
	}
	if c.Heads%c.KVHeads != 0 {
		v.Fail("num_key_value_heads", "got %d, which does not divide num_attention_heads %d",
			c.KVHeads, c.Heads)
	}
	c.HeadDim = v.Int("head_dim", cmp.Or(def.HeadDim, c.Hidden/c.Heads), 1, 1<<12)
	if c.HeadDim%2 != 0 {
		v.Fail("head_dim", "got %d (hidden_size/num_attention_heads when absent), want an even "+
			"number (rotary pairs)", c.HeadDim)
	}
	c.rope(v)
	if v.Bool("use_sliding_window", false) {
		v.Fail("use_sliding_window", "got true, which is not supported, want false")
	}
	for i, kind := range v.Strings("layer_types") {
		if kind != "full_attention" {
			v.Fail("layer_types",
				"got %q for layer %d, which is not supported, want \"full_attention\"", kind, i)
			break
		}
	}
	v.String("hidden_act", "silu", "silu")
	c.EOS = v.IDs("eos_token_id")
	return c
}

// rope reads the rotation in either form.
func (c *Config) rope(v *model.Values) {
	p, _ := v.Rotation()
	c.Theta = p.Float("rope_theta", c.Theta)
	p.String("rope_type", "default", "default", "mrope", llama.Dynamic)
	p.String("type", "default", "default", "mrope", llama.Dynamic)
	c.Sections = p.Ints("mrope_section", nil)
	if c.Sections == nil {
		return
	}
	sum := 0
	for _, n := range c.Sections {
		if n < 0 || n > c.HeadDim {
			p.Fail("mrope_section", "got %d, want 0 to %d", n, c.HeadDim/2)
			return
		}
		sum += n
	}
	if len(c.Sections) != 3 || sum != c.HeadDim/2 {
		p.Fail("mrope_section", "got %v, which sums to %d, want 3 numbers that sum to %d "+
			"(half of the head dim)", c.Sections, sum, c.HeadDim/2)
	}
}
