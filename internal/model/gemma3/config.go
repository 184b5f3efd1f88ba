package gemma3

import (
	"math"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/clip"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
)

// Config is a Gemma 3 config.json.
type Config struct {
	Vision     clip.Config
	Text       llama.Config
	Pool       int // patches along a cell's side, which become one token
	ImageToken int32
}

// ParseConfig reads config.json. The error lists every problem.
var ParseConfig = model.Parser(func(v *model.Values) *Config {
	c := &Config{Vision: clip.ParseSigLIP(v.Object("vision_config", true)), Text: parseText(v)}
	c.Vision.LastNorm = true
	c.Pool = c.pool(v)
	c.ImageToken = v.ImageToken(262144, checkpoint.NoToken, c.Text.Vocab)
	return c
})

// pool reads how many patches along a side become one token.
func (c *Config) pool(v *model.Values) int {
	const key = "mm_tokens_per_image"
	n, grid := v.Int(key, 256, 1, 1<<20), c.Vision.Grid()
	side := int(math.Sqrt(float64(n)))
	if side*side != n || grid%side != 0 {
		v.Fail(key, "got %d, want the square of a divisor of the %d patches along a side "+
			"(image_size / patch_size)", n, grid)
		return 1
	}
	return grid / side
}

// side returns the number of tokens along a picture's side.
func (c *Config) side() int { return c.Vision.Grid() / c.Pool }

// parseText reads the decoder's part. Absent keys take the defaults of transformers'
// Gemma3TextConfig.
func parseText(v *model.Values) llama.Config {
	t := v.Object("text_config", true)
	t.String("model_type", "gemma3_text", "gemma3_text")
	c := llama.Sizes(t, llama.Config{
		Hidden: 2304, Layers: 26, MLP: 9216, Vocab: 262208, MaxPositions: 131072, Heads: 8,
		KVHeads: 4, HeadDim: 256, Eps: 1e-6,
		HeadNorm: true, Offset: true, Sandwich: true, GELU: true, Blocks: true,
	})
	c.Window = t.Int("sliding_window", 4096, 1, 1<<24)
	c.Scale = 1 / math.Sqrt(t.Float("query_pre_attn_scalar", 256))
	c.EmbedScale = math.Sqrt(float64(c.Hidden))
	if t.Null("sliding_window") {
		t.Fail("sliding_window", "got null, want a number of keys")
	}
	c.Sliding = layers(t, c.Layers)
	rotations(t, &c)
	t.String("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
	t.Unsupported(map[string]string{
		"attention_bias": "false", "use_bidirectional_attention": "false",
		"attn_logit_softcapping": "null", "final_logit_softcapping": "null",
	})
	c.Tied = v.Bool("tie_word_embeddings", t.Bool("tie_word_embeddings", true))
	c.ReadDenied(v)
	if c.EOS = t.IDs("eos_token_id"); c.EOS == nil {
		c.EOS = []int32{1}
	}
	c.Ends(v)
	return c
}

// layers reads which of n layers have a window.
func layers(t *model.Values, n int) []bool {
	sliding := make([]bool, n)
	every := t.Int("sliding_window_pattern", 6, 1, 1<<10)
	for i := range sliding {
		sliding[i] = (i+1)%every != 0
	}
	kinds := t.Strings("layer_types")
	if !t.Has("layer_types") {
		return sliding
	}
	if len(kinds) != n {
		t.Fail("layer_types", "got %d kinds, want one for each of %d layers", len(kinds), n)
		return sliding
	}
	for i, kind := range kinds {
		if sliding[i] = kind == slidingKind; kind != slidingKind && kind != fullKind {
			t.Fail("layer_types", "got %q for layer %d, want %q or %q", kind, i, slidingKind,
				fullKind)
		}
	}
	return sliding
}

// Kinds of layers in config.json.
const (
	slidingKind = "sliding_attention"
	fullKind    = "full_attention"
)

// rotations reads the rotation of each kind of layers: from rope_parameters by kind, as
// transformers 5 writes them, or from rope_theta, rope_scaling and rope_local_base_freq. Each key
// of rope_scaling replaces the one of layers without a window, as in transformers.
func rotations(t *model.Values, c *llama.Config) {
	nested, scaling := t.Has("rope_parameters"), t.Object("rope_scaling", false)
	p := t.Object("rope_parameters", false)
	full, local := p.Object(fullKind, nested), p.Object(slidingKind, nested)
	c.LocalTheta = local.Float("rope_theta", t.Float("rope_local_base_freq", 1e4))
	local.String("rope_type", local.String("type", "default", "default"), "default")
	of := func(key string) *model.Values {
		if nested && !scaling.Has(key) {
			return full
		}
		return scaling
	}
	c.Theta = of("rope_theta").Float("rope_theta", t.Float("rope_theta", 1e6))
	kinds := []string{"default", "linear"}
	kind := full.String("type", "default", kinds...)
	if of("rope_type").String("rope_type", kind, kinds...) == "linear" {
		factor := of("factor")
		if !factor.Has("factor") {
			factor.Fail("factor", "missing, want a number above 0")
		}
		c.Stretch = nn.Uniform(factor.Float("factor", 1))
	}
	if scaling.Has("type") && !scaling.Has("rope_type") {
		scaling.Fail("rope_type", "missing, want the type here: transformers 5 reads no \"type\"")
	}
}
