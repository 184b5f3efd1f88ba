package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/scenebench"
)

func newEvalQuant(a *app) *cobra.Command {
	o := new(evalOptions)
	var plans []string
	cmd := &cobra.Command{
		Use:   "quant",
		Short: "Measure accuracy on drawn scenes by weight type",
		Long: `Ask the questions of drawn scenes with the model as stored and with its weights in other types, and print the changes. A plan is the
type of the language model's weights, as for --quant, or stored, optionally followed by + and the type of vision tower and projector, as for
--encoder-quant.`,
		Example: `  restore eval quant
  restore eval quant --plans q8,q4+q8 --base none --n 20 --json`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.addDir(fs)
	o.model.addThreads(fs)
	fs.StringSliceVar(&plans, "plans", []string{"bf16+bf16", "stored+q12", "q8", "q8+q8", "q4",
		"q4+q8"},
		"compare these `plans`")
	o.reduction.add(fs, "holov", 64)
	o.addDrawn(fs)
	fs.StringVar(&o.data, "data", "",
		"`folder` with questions.json and pictures/, instead of drawn scenes")
	fs.IntVar(&o.workers, "workers", 1, "ask about `N` pictures at a time")
	fs.Int64Var(&o.reduction.seed, "seed", 0, "`seed` of --base random and of the intervals")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.quant(cmd.Context(), a, plans)
	}
	return cmd
}

// parsePlan parses DECODER or DECODER+ENCODER.
func parsePlan(s string) (scenebench.Plan, error) {
	quant, encoder, both := strings.Cut(s, "+")
	if quant != asStored && !slices.Contains(engine.QuantTypes, quant) ||
		both && !slices.Contains(engine.EncoderQuantTypes, encoder) {
		return scenebench.Plan{}, usagef("--plans: got %q, want %s|%s, and after + %s", s,
			strings.Join(engine.QuantTypes, "|"), asStored,
			strings.Join(engine.EncoderQuantTypes, "|"))
	}
	if quant == asStored {
		quant = ""
	}
	return scenebench.Plan{Quant: quant, EncoderQuant: encoder}, nil
}

func (o *evalOptions) quant(ctx context.Context, a *app, names []string) error {
	var plans []scenebench.Plan
	for _, s := range names {
		p, err := parsePlan(s)
		if err != nil {
			return err
		}
		plans = append(plans, p)
	}
	if len(plans) == 0 {
		return usagef("--plans: none, want one at least")
	}
	if o.n < 1 {
		return usagef("--n: out of range, got %d, want at least 1", o.n)
	}
	if o.workers < 1 || o.workers > maxThreads {
		return usagef("--workers: out of range, got %d, want 1 to %d", o.workers, maxThreads)
	}
	r, err := o.reduction.options()
	if err != nil {
		return err
	}
	items, n, err := o.pictures()
	if err != nil {
		return err
	}
	open := func(p scenebench.Plan) (*engine.Engine, error) {
		m := o.model
		m.quant, m.encoder = p.Quant, cmp.Or(p.EncoderQuant, asStored)
		return m.open(a)
	}
	run := scenebench.RunOptions{Workers: o.workers, Seed: o.reduction.seed}
	p := a.meter("pictures")
	defer p.end()
	run.Progress = func(done, total int) { p.set(int64(done), int64(total)) }
	t, err := scenebench.Plans(ctx, open, plans, items, n, r, run)
	p.end()
	if t == nil {
		return noResult(ctx, err)
	}
	if o.json {
		return soFar(ctx, len(t.Rows), len(plans), "plans", writeJSON(a.out, t))
	}
	return soFar(ctx, len(t.Rows), len(plans), "plans", t.WriteTable(a.out))
}
