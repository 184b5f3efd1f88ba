package llama

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// kind is what transformers' configuration of one model_type has of its own: the values of absent
// keys (see Sizes), and keys that have no other value here. A Window is read where it is not 0,
// axes of the rotation where Sections are not nil.
type kind struct {
	Config
	only map[string]string
}

var kinds = map[string]kind{
	"llama": {Config{
		Hidden: 4096, Layers: 32, MLP: 11008, Vocab: 32000, MaxPositions: 2048, Heads: 32,
		Eps: 1e-6, Theta: 1e4,
	}, map[string]string{
		"attention_bias": "false", "mlp_bias": "false", "sliding_window": "null",
	}},
	"mistral": {Config{
		Hidden: 4096, Layers: 32, MLP: 14336, Vocab: 32000, MaxPositions: 131072, Heads: 32,
		KVHeads: 8, Window: 4096, Eps: 1e-6, Theta: 1e4,
	}, map[string]string{"attention_bias": "false", "mlp_bias": "false", "pretraining_tp": "1"}},
	"ministral3": {Config{ // what it has for an absent rotation is not read
		Hidden: 4096, Layers: 34, MLP: 14336, Vocab: 131072, MaxPositions: 262144, Heads: 32,
		KVHeads: 8, HeadDim: 128, Eps: 1e-5, Graded: true,
	}, map[string]string{
		"attention_bias": "false", "mlp_bias": "false", "sliding_window": "null",
	}},
	"qwen2": {Config{
		Hidden: 4096, Layers: 32, MLP: 22016, Vocab: 151936, MaxPositions: 32768, Heads: 32,
		KVHeads: 32, Eps: 1e-6, Theta: 1e4, Bias: true,
	}, map[string]string{"use_sliding_window": "false"}},
	"qwen3": {Config{
		Hidden: 4096, Layers: 32, MLP: 22016, Vocab: 151936, MaxPositions: 32768, Heads: 32,
		KVHeads: 32, HeadDim: 128, Eps: 1e-6, Theta: 1e4, HeadNorm: true,
	}, map[string]string{"attention_bias": "false", "use_sliding_window": "false"}},
	"granite": {Config{
		Hidden: 4096, Layers: 32, MLP: 11008, Vocab: 32000, MaxPositions: 2048, Heads: 32,
		Eps: 1e-6, Theta: 1e4, Scale: 1,
	}, map[string]string{"attention_bias": "false", "mlp_bias": "false"}},
	"qwen2_vl_text": {Config{ // and Qwen2.5-VL's
		Hidden: 8192, Layers: 80, MLP: 29568, Vocab: 152064, MaxPositions: 32768, Heads: 64,
		KVHeads: 8, Eps: 1e-5, Theta: 1e6, Bias: true, Sections: []int{},
	}, map[string]string{"use_sliding_window": "false"}},
	"qwen3_vl_text": {Config{ // releases disagree about the theta
		Hidden: 4096, Layers: 32, MLP: 22016, Vocab: 151936, MaxPositions: 128000, Heads: 32,
		KVHeads: 32, HeadDim: 128, Eps: 1e-6, HeadNorm: true, Sections: []int{24, 20, 20},
		Interleaved: true,
	}, map[string]string{"attention_bias": "false", "use_sliding_window": "false"}},
}

// Biased reports whether a module of a decoder with Bias has one: queries, keys and values have.
func Biased(module string) bool {
	return strings.HasSuffix(module, ".q_proj") || strings.HasSuffix(module, ".k_proj") ||
		strings.HasSuffix(module, ".v_proj")
}

// ParseText reads the text_config object of v, the top level of config.json. Its model_type, def if
// absent, may be any with one axis of positions.
func ParseText(v *model.Values, def string) Config {
	text := v.Object("text_config", true)
	c := Parse(text, text.String("model_type", def, "llama", "mistral", "ministral3", "qwen2",
		"qwen3", "granite"))
	c.Ends(v)
	return c
}

// Parse reads v, a text_config object of a model_type: one of ParseText's, qwen2_vl_text or
// qwen3_vl_text. The rotation has the older form (rope_theta, rope_scaling) or transformers 5's
// (rope_parameters).
func Parse(v *model.Values, kind string) Config {
	c := Sizes(v, kinds[kind].Config)
	c.Tied = v.Bool("tie_word_embeddings", false)
	c.EOS = v.IDs("eos_token_id")
	v.String("hidden_act", "silu", SiLU...)
	v.Unsupported(kinds[kind].only)
	for i, kind := range v.Strings("layer_types") {
		if kind != "full_attention" {
			v.Fail("layer_types",
				"got %q for layer %d, which is not supported, want \"full_attention\"", kind, i)
			break
		}
	}
	if v.Null("sliding_window") {
		c.Window = 0
	}
	if c.Window > 0 {
		c.Window = v.Int("sliding_window", c.Window, 1, 1<<24)
	}
	if c.Window >= c.MaxPositions {
		c.Window = 0
	}
	if c.Scale != 0 {
		c.factors(v)
	}
	c.rotation(v)
	return c
}

// SiLU are transformers' names of it.
var SiLU = []string{"silu", "swish"}

// ReadDenied reads whether v, the top level of config.json, denies that the head is the embedding,
// for a class that ties them by default (see Tie).
func (c *Config) ReadDenied(v *model.Values) {
	c.Denied = v.Has("tie_word_embeddings") && !v.Bool("tie_word_embeddings", true)
}

// Tie decides whether the head is the embedding, for a class that ties them by default. As in
// transformers 5.24, a head in the files is one of its own, whatever config.json says. Without one,
// the head is tied unless the top level denies it, and text_config, which earlier releases read,
// does, too.
func (c *Config) Tie(head bool) { c.Tied = !head && (c.Tied || !c.Denied) }

// Ends reads the ids that end an answer from v, the top level of config.json, which has the last
// word in transformers, too, for files without generation_config.json.
func (c *Config) Ends(v *model.Values) {
	if ids := v.IDs("eos_token_id"); ids != nil {
		c.EOS = ids
	}
}

// factors reads Granite's. logits_scaling has no effect, as in classes with pictures of
// transformers since 4.52.
func (c *Config) factors(v *model.Values) {
	c.Rows = v.Float("embedding_multiplier", 1)
	c.Scale = v.Float("attention_multiplier", c.Scale)
	c.Residual = v.Float("residual_multiplier", 1)
}

// Sizes reads the sizes that every kind of decoder has over c, the values of absent keys: KVHeads 0
// is as many as heads, HeadDim 0 hidden_size/num_attention_heads.
func Sizes(v *model.Values, c Config) Config {
	c.Hidden = v.Int("hidden_size", c.Hidden, 1, 1<<16)
	c.Layers = v.Int("num_hidden_layers", c.Layers, 1, 1<<10)
	c.MLP = v.Int("intermediate_size", c.MLP, 1, 1<<18)
	c.Vocab = v.Int("vocab_size", c.Vocab, 1, 1<<22)
	c.MaxPositions = v.Int("max_position_embeddings", c.MaxPositions, 1, 1<<24)
	c.Heads = v.Int("num_attention_heads", c.Heads, 1, 1<<10)
	if c.KVHeads == 0 || v.Null("num_key_value_heads") {
		c.KVHeads = c.Heads
	}
	c.KVHeads = v.Int("num_key_value_heads", c.KVHeads, 1, 1<<10)
	if c.Heads%c.KVHeads != 0 {
		v.Fail("num_key_value_heads", "got %d, which does not divide num_attention_heads %d",
			c.KVHeads, c.Heads)
	}
	if !v.Has("head_dim") && c.HeadDim == 0 && c.Hidden%c.Heads != 0 {
		v.Fail("num_attention_heads", "got %d, which does not divide hidden_size %d", c.Heads,
			c.Hidden)
	}
	c.HeadDim = v.Int("head_dim", cmp.Or(c.HeadDim, c.Hidden/c.Heads), 1, 1<<12)
	// New refuses others, after weights of other shapes, which say more; axes divide it here
	if (v.Has("head_dim") || c.Sections != nil) && c.HeadDim%2 != 0 {
		v.Fail("head_dim", "got %d (hidden_size/num_attention_heads when absent), want an even "+
			"number (rotary pairs)", c.HeadDim)
	}
	c.Eps = v.Float("rms_norm_eps", c.Eps)
	return c
}

// Dynamic is the type of a rotation that is stretched for prompts longer than
// max_position_embeddings. Contexts end there, so it is the default rotation.
const Dynamic = "dynamic"

// rotation reads the base of the rotation, its axes and how it is stretched.
func (c *Config) rotation(v *model.Values) {
	p, key := v.Rotation()
	c.Theta = p.Float("rope_theta", v.Float("rope_theta", c.Theta))
	if c.Theta == 0 {
		v.Fail("rope_theta", "missing here and in %s, want a number", key)
	}
	const share = "partial_rotary_factor" // of a head's pairs
	if got := p.Float(share, v.Float(share, 1)); got != 1 {
		p.Fail(share, "got %v, which is not supported, want 1", got)
	}
	kinds := []string{"default", Dynamic, "linear", "llama3", "longrope", "yarn"}
	if c.Sections != nil {
		kinds = []string{"default", Dynamic, "mrope"}
		c.axes(p)
	}
	trained := p
	if v.Has(original) { // has the last word, as in transformers
		trained = v
	}
	context := trained.Float(original, float64(c.MaxPositions))
	number := func(key string) float64 {
		if !p.Has(key) {
			p.Fail(key, "missing, want a number above 0")
		}
		return p.Float(key, 1)
	}
	switch p.String("rope_type", p.String("type", "default", kinds...), kinds...) {
	case "linear":
		c.Stretch = nn.Uniform(number("factor"))
	case "llama3":
		c.Stretch = nn.Stretch{
			Factor: number("factor"), Low: number("low_freq_factor"),
			High: number("high_freq_factor"), Original: context,
		}
		if p.Has("high_freq_factor") && c.Stretch.High <= c.Stretch.Low {
			p.Fail("high_freq_factor", "got %v, want more than low_freq_factor %v",
				c.Stretch.High, c.Stretch.Low)
		}
	case "yarn":
		c.yarn(p, number("factor"), context)
	case "longrope":
		short, long := p.Floats("short_factor", c.HeadDim/2), p.Floats("long_factor", c.HeadDim/2)
		if !slices.Equal(short, long) {
			p.Fail("long_factor", "differs from short_factor, which is not supported: "+
				"a rotation that changes with the prompt's length; want equal lists")
		}
		if len(short) > 0 {
			c.Stretch = nn.Each(short)
		}
		attention := 1.
		if factor := p.Float("factor", float64(c.MaxPositions)/context); factor > 1 && context > 1 {
			attention = math.Sqrt(1 + math.Log(factor)/math.Log(context))
		}
		c.turned(p.Float("attention_factor", attention))
	}
	if c.Graded {
		number("llama_4_scaling_beta")
		c.MaxPositions = min(c.MaxPositions, trained.Int(original, -1, 1, 1<<24))
	}
}

// original is the key of the context in training, which is the whole context if it is absent.
const original = "original_max_position_embeddings"

// yarn reads a rotation that is stretched by factor, of a model that was trained with context. Its
// cosines and sines are multiplied, too, which multiplies the scores twice.
func (c *Config) yarn(p *model.Values, factor, context float64) {
	fast, slow := p.Float("beta_fast", 32), p.Float("beta_slow", 1)
	switch {
	case fast <= slow:
		p.Fail("beta_fast", "got %v, want more than beta_slow %v", fast, slow)
		return
	case c.Theta <= 1:
		p.Fail("rope_theta", "got %v of a yarn rotation, want more than 1", c.Theta)
		return
	case c.HeadDim < 2: // which is refused
		return
	}
	c.Stretch = nn.YaRN(factor, fast, slow, context, c.Theta, c.HeadDim,
		p.Bool("truncate", !p.Null("truncate")))
	by := func(share float64) float64 { return 1 + 0.1*share*math.Log(max(factor, 1)) }
	attention := by(1)
	if p.Has("mscale") && p.Has("mscale_all_dim") {
		attention = by(p.Float("mscale", 1)) / by(p.Float("mscale_all_dim", 1))
	}
	c.turned(p.Float("attention_factor", attention))
}

// turned multiplies the scores by the square of a factor of both cosines and sines.
func (c *Config) turned(factor float64) {
	c.Scale = cmp.Or(c.Scale, 1/math.Sqrt(float64(c.HeadDim))) * factor * factor
}

// axes reads how many rotary pairs follow each axis. Interleaved axes need not sum to all: the rest
// follows time.
func (c *Config) axes(p *model.Values) {
	if c.Interleaved {
		p.Unsupported(map[string]string{"mrope_interleaved": "true"})
	}
	c.Sections = p.Ints("mrope_section", c.Sections)
	sum := 0
	for _, n := range c.Sections {
		if n < 0 || n > c.HeadDim {
			p.Fail("mrope_section", "got %d, want 0 to %d", n, c.HeadDim/2)
			return
		}
		sum += n
	}
	if len(c.Sections) != 3 || !c.Interleaved && sum != c.HeadDim/2 {
		p.Fail("mrope_section", "got %v, want 3 numbers of rotary pairs that follow time, height "+
			"and width and sum to %d (half of the head dim)", c.Sections, c.HeadDim/2)
	}
}
