package llama

import "github.com/restore-vlm/restore/internal/model"

// Model is what every model with this decoder tells of itself.
type Model struct {
	Text         *Decoder
	Image, Video int32 // the tokens that stand for a picture and a video; -1: none does
	About        model.Info
}

// Finish ends the binding of a model of the given class, and describes what it has bound.
func (m *Model) Finish(b *model.Binder, class string) error {
	if err := b.Finish(); err != nil {
		return err
	}
	m.About.Architecture, m.About.EOS, m.About.Text = class, m.Text.EOS, m.Text.Fields()
	m.About.Params, m.About.Bytes, m.About.Types = b.Params()
	return nil
}

// Decoder implements model.Multimodal.
func (m *Model) Decoder() model.Decoder { return m.Text }

// ImageToken implements model.Multimodal.
func (m *Model) ImageToken() int32 { return m.Image }

// VideoToken implements model.Multimodal.
func (m *Model) VideoToken() int32 { return m.Video }

// Info implements model.Multimodal.
func (m *Model) Info() model.Info { return m.About }
