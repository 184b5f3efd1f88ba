package scenebench

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// marks are the outcomes of one picture's questions, of the unreduced run first, then of every
// reduction.
type marks struct {
	tasks    []string
	right    [][]bool
	stages   [][]reduce.Stage
	rows     []float64 // visual rows that enter a layer, on average
	distance []float64
}

// markAll asks m the questions of total items from all visual tokens and under every reduction,
// greedily. A picture is encoded once for all of them, unless a method acts in or before the
// encoder. When ctx ends, the pictures so far come with the error; other errors come alone.
func markAll(
	ctx context.Context, m *engine.Engine, items iter.Seq2[Item, error], total int,
	reductions []methods.Options, name func(i int) string, run RunOptions,
) ([]*marks, error) {
	pictures, err := each(ctx, items, total, run,
		func(ctx context.Context, item Item) (*marks, error) {
			encoded, err := m.Encode(ctx, []*imageproc.Picture{item.Picture})
			if err != nil {
				return nil, err
			}
			out := &marks{}
			for _, q := range item.Questions {
				out.tasks = append(out.tasks, q.Task)
			}
			if err := out.add(ctx, m, encoded, item, methods.Options{}, false); err != nil {
				return nil, err
			}
			for i, o := range reductions {
				if err := out.add(ctx, m, encoded, item, o, run.Distance &&
					!o.Inside()); err != nil {
					return nil, fmt.Errorf("%s: %w", name(i), err)
				}
			}
			return out, nil
		})
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	return pictures, err
}

// add asks about a picture under one reduction.
func (k *marks) add(
	ctx context.Context, m *engine.Engine, encoded *engine.Encoded, item Item, o methods.Options,
	distance bool,
) error {
	replies, how, err := askAll(ctx, m.NewConversation(o), encoded, item.Questions)
	if err != nil {
		return err
	}
	right := make([]bool, len(replies))
	for j, r := range replies {
		right[j] = r.Stopped && r.Text == item.Questions[j].Answer
	}
	far := math.NaN()
	if distance {
		d, err := lab.Hausdorff(ctx, m, encoded, o)
		if err != nil {
			return err
		}
		far = d[0]
	}
	rows := how.Mean
	if len(how.Stages) == 0 {
		rows = float64(how.NVis)
	}
	k.right, k.stages = append(k.right, right), append(k.stages, how.Stages)
	k.rows, k.distance = append(k.rows, rows), append(k.distance, far)
	return nil
}

// versus scores run b against run a.
func versus(pictures []*marks, a, b int, seed int64) *Result {
	records := make([][]Record, len(pictures))
	for i, p := range pictures {
		for q, task := range p.tasks {
			records[i] = append(records[i], Record{
				Task: task, FullRight: p.right[a][q], ReducedRight: p.right[b][q],
			})
		}
	}
	return score(records, seed)
}
