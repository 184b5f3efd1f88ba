// Package textonly is the language model of a multimodal model whose files have no picture encoder:
// a GGUF file without its projector.
package textonly

import (
	"errors"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
)

// errNoEncoder is returned for pictures.
var errNoEncoder = errors.New("textonly: the model's files hold no picture encoder")

// Model is a bound decoder.
type Model struct{ llama.Model }

// New returns the constructor of a decoder whose weights' names begin with prefix. read returns its
// configuration.
func New(
	architecture, prefix string, read func(v *model.Values) llama.Config,
) func(ck *model.Source) (model.Multimodal, error) {
	return func(ck *model.Source) (model.Multimodal, error) {
		v, err := model.ParseConfig(ck.Config())
		if err != nil {
			return nil, err
		}
		c := read(v)
		if err := v.Err(); err != nil {
			return nil, err
		}
		b := model.NewBinder(ck)
		m := &Model{llama.Model{Text: llama.New(b.In(prefix), c), Image: -1, Video: -1}}
		if err := m.Finish(b, architecture); err != nil {
			return nil, err
		}
		return m, nil
	}
}

// Pictures implements model.Multimodal: it returns an error, because there is no encoder.
func (m *Model) Pictures(*imageproc.Pixels) ([]model.Picture, error) { return nil, errNoEncoder }

// Encode implements model.Multimodal.
func (m *Model) Encode(*model.Run, []model.Picture, model.Needs) ([]*model.Visual, error) {
	return nil, errNoEncoder
}

// EncodeBytes implements model.Multimodal.
func (m *Model) EncodeBytes(*imageproc.Pixels, float64) int64 { return 0 }

// EncodeWork implements model.Multimodal.
func (m *Model) EncodeWork(*imageproc.Pixels, float64) (rows int, attention float64) { return 0, 0 }

// Project implements model.Multimodal. There are no features to project.
func (m *Model) Project(*model.Run, []float32, int) []float32 { return nil }
