package nn

import (
	"fmt"

	"github.com/restore-vlm/restore/tensor"
)

// Embedding is a table of one row per token id, kept in its stored type.
type Embedding struct {
	Vocab, Dim int
	rows       *tensor.Tensor // [Vocab, Dim]
}

// NewEmbedding wraps a [vocab, dim] tensor of a floating type.
func NewEmbedding(t *tensor.Tensor) *Embedding {
	return &Embedding{Vocab: t.Shape[0], Dim: t.Shape[1], rows: t}
}

// Lookup widens the rows of ids into dst [len(ids), Dim]. An id outside the
// table is an error that names it.
func (e *Embedding) Lookup(dst []float32, ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= e.Vocab {
			return fmt.Errorf("nn: token id %d at %d: outside of the embedding's %d rows", id, i, e.Vocab)
		}
		if err := e.rows.RowFloat32(dst[i*e.Dim:(i+1)*e.Dim], int(id)); err != nil {
			return err
		}
	}
	return nil
}
