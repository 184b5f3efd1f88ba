package model

import "github.com/restore-vlm/restore/internal/checkpoint"

// Family is a family of models. Each package of a model has one; package families lists them.
type Family struct {
	checkpoint.Family
	// New binds a model, and Text the decoder of one whose files hold no encoder.
	New, Text func(*Source) (Multimodal, error)
}
