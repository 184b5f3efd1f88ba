// Package textonly is the language model of a multimodal model whose files have no picture encoder:
// a GGUF file without its projector.
package textonly

import (
	"errors"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/model/qwen2"
)

// errNoEncoder is returned for pictures.
var errNoEncoder = errors.New("textonly: the model's files hold no picture encoder")

// Model is a bound decoder.
type Model struct {
	text *llama.Decoder
	info model.Info
}

// NewLlava binds the decoder of LLaVA or LLaVA-NeXT.
func NewLlava(ck *model.Source) (model.Multimodal, error) {
	v, err := model.ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	text := v.Object("text_config", true)
	c := llama.ParseConfig(text)
	c.Tied = v.Bool("tie_word_embeddings", c.Tied)
	info := model.Info{Architecture: "LlamaForCausalLM", EOS: text.IDs("eos_token_id")}
	return bind(ck, v, "language_model.", c, info)
}

// NewQwen binds the decoder of Qwen2.5-VL.
func NewQwen(ck *model.Source) (model.Multimodal, error) {
	v, err := model.ParseConfig(ck.Config())
	if err != nil {
		return nil, err
	}
	c := qwen2.ParseConfig(v, false)
	return bind(ck, v, "", c.Config,
		model.Info{Architecture: "Qwen2_5_VLForConditionalGeneration, text only", EOS: c.EOS})
}

func bind(ck *model.Source, v *model.Values, prefix string, c llama.Config,
	info model.Info) (model.Multimodal, error) {
	if err := v.Err(); err != nil {
		return nil, err
	}
	b := model.NewBinder(ck)
	m := &Model{text: llama.New(b.In(prefix), c), info: info}
	if err := b.Finish(); err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	m.info.Params, m.info.Bytes, m.info.Types = b.Params()
	m.info.Text = []model.Field{
		{Name: "hidden", Value: c.Hidden}, {Name: "heads", Value: c.Heads},
		{Name: "kv heads", Value: c.KVHeads},
		{Name: "head dim", Value: c.HeadDim}, {Name: "layers", Value: c.Layers},
		{Name: "mlp", Value: c.MLP},
		{Name: "vocabulary", Value: c.Vocab}, {Name: "context (positions)", Value: c.MaxPositions},
		{Name: "RoPE base", Value: c.Theta},
	}
	return m, nil
}

// Decoder implements model.Multimodal.
func (m *Model) Decoder() model.Decoder { return m.text }

// Pictures implements model.Multimodal: it returns an error, because there is no encoder.
func (m *Model) Pictures(*imageproc.Pixels) ([]model.Picture, error) { return nil, errNoEncoder }

// Encode implements model.Multimodal.
func (m *Model) Encode(*model.Run, []model.Picture, model.Needs) ([]*model.Visual, error) {
	return nil, errNoEncoder
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(*imageproc.Pixels) int64 { return 0 }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(*imageproc.Pixels) (rows int, attention float64) { return 0, 0 }

// Project implements model.Multimodal. There are no features to project.
func (m *Model) Project(*model.Run, []float32, int) []float32 { return nil }

// ImageToken implements model.Multimodal: no id stands for a picture.
func (m *Model) ImageToken() int32 { return -1 }

// VideoToken implements model.Multimodal.
func (m *Model) VideoToken() int32 { return -1 }

// Info implements model.Multimodal.
func (m *Model) Info() model.Info { return m.info }
