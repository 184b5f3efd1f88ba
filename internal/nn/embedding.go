package nn

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Embedding is a table with one row per token id, in any format.
type Embedding struct {
	Vocab, Dim int
	Scale      float32        // of the rows; 0: 1
	rows       *kernel.Matrix // [Vocab, Dim]
	gate       *Gate
}

// NewEmbedding wraps a [vocab, dim] table behind a gate, which may be nil.
func NewEmbedding(w *kernel.Matrix, g *Gate) *Embedding {
	return &Embedding{Vocab: w.N, Dim: w.K, rows: w, gate: g}
}

// Lookup widens the rows of ids into dst [len(ids), Dim] and scales them. An id outside the table
// is an error that names it.
func (e *Embedding) Lookup(dst []float32, ids []int32) error {
	e.gate.Pass()
	for i, id := range ids {
		if id < 0 || int(id) >= e.Vocab {
			return fmt.Errorf("nn: token id %d at %d: outside of the embedding's %d rows", id, i,
				e.Vocab)
		}
		row := dst[i*e.Dim : (i+1)*e.Dim]
		e.rows.Row(row, int(id))
		if e.Scale != 0 {
			for j := range row {
				row[j] *= e.Scale
			}
		}
	}
	return nil
}
