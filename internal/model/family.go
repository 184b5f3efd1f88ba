package model

import (
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Family is a family of models. Each package of a model has one; package families lists them.
type Family struct {
	checkpoint.Family
	// New binds a model, and Text the decoder of one whose files hold no encoder.
	New, Text func(*Source) (Multimodal, error)
	// Processors are the picture processors of the published models, and of no family before.
	Processors []imageproc.Kind
}
