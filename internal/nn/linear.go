package nn

import (
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Linear is y = W·x + b with W [Out, In] in any format.
type Linear struct {
	In, Out int
	W       *kernel.Matrix
	B       []float32 // [Out]; nil if the layer has no bias
	Work    *Work     // counts the products; nil: not counted
	Gate    *Gate     // of W; nil: open
}

// Apply computes y[t,o] = Σᵢ W[o,i]·x[t,i] + b[o] for rows rows. x: [rows, In],
// y: [rows, Out], no overlap. 2·rows·In·Out flops.
func (l *Linear) Apply(p *kernel.Pool, y, x []float32, rows int) {
	l.Gate.Pass()
	if l.Work != nil {
		defer l.Work.add(l, rows, time.Now())
	}
	kernel.MatMul(p, y[:rows*l.Out], x[:rows*l.In], rows, l.W, l.B)
}

// Work counts the products of the layers that share it, for benchmarks. The counts are meaningful
// only while a single request runs.
type Work struct{ time, ops, bytes atomic.Int64 }

func (w *Work) add(l *Linear, rows int, start time.Time) {
	w.time.Add(int64(time.Since(start)))
	w.ops.Add(2 * int64(rows) * int64(l.In) * int64(l.Out))
	w.bytes.Add(int64(l.W.Bytes()))
}

// Take returns the time spent in products since the last call, their operations (two per
// multiply-add) and the bytes of their weights.
func (w *Work) Take() (spent time.Duration, ops, bytes int64) {
	return time.Duration(w.time.Swap(0)), w.ops.Swap(0), w.bytes.Swap(0)
}
