package scenebench

import (
	"context"
	"fmt"
	"io"
	"iter"
	"text/tabwriter"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/reduce"
)

// Plan names the types in which weights are kept, as engine.Options does.
type Plan struct {
	Quant        string `json:"quant"`
	EncoderQuant string `json:"encoder_quant"`
}

// PlanRow is what one plan measured, compared with the weights as stored.
type PlanRow struct {
	Plan
	Accuracy float64        `json:"accuracy"` // percent of all questions
	Interval stats.Interval `json:"interval"` // Wilson
	Change   Change         `json:"change"`   // against the weights as stored, over the same questions
	Resident int64          `json:"resident"` // bytes that the weights take
}

// PlanTable compares plans over the same questions.
type PlanTable struct {
	Pictures  int            `json:"pictures"`
	Questions int            `json:"questions"`
	Stored    PlanRow        `json:"stored"`
	Rows      []PlanRow      `json:"rows"`
	Setup     map[string]any `json:"setup,omitempty"`
}

// Plans asks the questions of total items of a model with its weights as stored and as each of
// plans keeps them, greedily and both under o. open opens the model; items is gone through once a
// plan. When ctx ends, the plans so far, if there are any, come with the error.
func Plans(
	ctx context.Context, open func(Plan) (*engine.Engine, error), plans []Plan,
	items iter.Seq2[Item, error], total int, o methods.Options, run RunOptions,
) (*PlanTable, error) {
	stored, err := open(Plan{})
	if err != nil {
		return nil, err
	}
	defer stored.Close()
	info := stored.Info()
	t := &PlanTable{Stored: PlanRow{Resident: info.Resident}}
	progress := run.Progress
	for i, p := range plans {
		if progress != nil {
			run.Progress = func(done, total int) { progress(i*total+done, len(plans)*total) }
		}
		r, how, resident, err := againstStored(ctx, stored, p, open, items, total, o, run)
		if err != nil {
			if ctx.Err() == nil || len(t.Rows) == 0 {
				return nil, err
			}
			return t, err
		}
		t.Pictures, t.Questions = r.Pictures, 0
		for _, n := range r.Questions {
			t.Questions += n
		}
		t.Stored.Accuracy, t.Stored.Interval = r.Full[All], r.FullInterval[All]
		t.Rows = append(t.Rows, PlanRow{
			p, r.Reduced[All], r.ReducedInterval[All], r.Change[All], resident,
		})
		t.Setup = map[string]any{
			"model": info.Name, "kernel": info.Kernel, "reduction": how, "interval_seed": run.Seed,
		}
	}
	return t, nil
}

// againstStored runs one plan; the result's full run is the stored model's.
func againstStored(
	ctx context.Context, stored *engine.Engine, p Plan, open func(Plan) (*engine.Engine, error),
	items iter.Seq2[Item, error], total int, o methods.Options, run RunOptions,
) (*Result, reduce.Resolved, int64, error) {
	var how reduce.Resolved
	kept, err := open(p)
	if err != nil {
		return nil, how, 0, err
	}
	defer kept.Close()
	ask := func(ctx context.Context, m *engine.Engine, pic *imageproc.Picture,
		questions []scene.Question) ([]Reply, reduce.Resolved, error) {
		encoded, err := m.Encode(ctx, []*imageproc.Picture{pic})
		if err != nil {
			return nil, reduce.Resolved{}, err
		}
		return askAll(ctx, m.NewConversation(o), encoded, questions)
	}
	first := make(chan reduce.Resolved, 1)
	r, err := Run(ctx, items, total,
		func(ctx context.Context, pic *imageproc.Picture, questions []scene.Question) (a, b []Reply,
			err error) {
			a, resolved, err := ask(ctx, stored, pic, questions)
			if err != nil {
				return nil, nil, err
			}
			select {
			case first <- resolved:
			default:
			}
			b, _, err = ask(ctx, kept, pic, questions)
			return a, b, err
		}, run)
	if err != nil {
		return nil, how, 0, err
	}
	select {
	case how = <-first:
	default:
	}
	return r, how, kept.Info().Resident, nil
}

// WriteTable prints the comparison for people.
func (t *PlanTable) WriteTable(w io.Writer) error {
	b := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(b, "decoder\tencoder\tweights MB\tright\t95 %\tchange\t95 %\tlost\tgained\t")
	name := func(s string) string {
		if s == "" {
			return "as stored"
		}
		return s
	}
	fmt.Fprintf(b, "as stored\tas stored\t%.1f\t%.1f\t%s\t\t\t\t\t\n",
		float64(t.Stored.Resident)/1e6, t.Stored.Accuracy, t.Stored.Interval)
	for _, r := range t.Rows {
		fmt.Fprintf(b, "%s\t%s\t%.1f\t%.1f\t%s\t%+.1f\t%+.1f…%+.1f\t%d\t%d\t\n", name(r.Quant),
			name(r.EncoderQuant), float64(r.Resident)/1e6,
			r.Accuracy, r.Interval, r.Change.Points, r.Change.Interval[0], r.Change.Interval[1],
			r.Change.Lost, r.Change.Gained)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d questions about %d pictures; changes are paired with the "+
		"weights as stored, their intervals a bootstrap over pictures\n", t.Questions, t.Pictures)
	return err
}
