package nn

import (
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore/internal/kernel"
)

// Work counts the products and the attention of the layers that share it, for benchmarks. The
// counts are meaningful only while a single request is encoded or read, or while a step of the
// running ones is made.
type Work struct{ products, attention counter }

// counter adds up one kind of work.
type counter struct{ time, ops, bytes atomic.Int64 }

func (c *counter) add(start time.Time, ops, bytes int) {
	c.time.Add(int64(time.Since(start)))
	c.ops.Add(int64(ops))
	c.bytes.Add(int64(bytes))
}

func (c *counter) count() Count {
	return Count{time.Duration(c.time.Load()), c.ops.Load(), c.bytes.Load()}
}

// Counts are the totals of a Work.
type Counts struct{ Products, Attention Count }

// Count is the total of one kind of work.
type Count struct {
	Time       time.Duration
	Operations int64 // two per multiply-add
	Bytes      int64 // of weights, or of keys and values, in their type in memory
}

// Total returns the counts so far; zeros for nil.
func (w *Work) Total() (t Counts) {
	if w != nil {
		t.Products, t.Attention = w.products.count(), w.attention.count()
	}
	return t
}

// Since returns the counts since before.
func (t Counts) Since(before Counts) Counts {
	return Counts{t.Products.since(before.Products), t.Attention.since(before.Attention)}
}

func (c Count) since(before Count) Count {
	return Count{
		c.Time - before.Time, c.Operations - before.Operations, c.Bytes - before.Bytes,
	}
}

// product counts a product of rows rows with l's weight that began at start.
func (w *Work) product(l *Linear, rows int, start time.Time) {
	w.products.add(start, 2*rows*l.In*l.Out, l.W.Bytes())
}

// attend counts the attention of calls that began at start.
func (w *Work) attend(calls []kernel.Attention, start time.Time) {
	ops, bytes := 0, 0
	for i := range calls {
		k, size := &calls[i], 4
		if len(k.Pages) > 0 && k.Pages[0].Halves != nil {
			size = 2
		}
		ops += 4 * k.Pairs() * k.Heads * k.HeadDim
		bytes += 2 * k.Tk * k.KVHeads * k.HeadDim * size
	}
	w.attention.add(start, ops, bytes)
}
