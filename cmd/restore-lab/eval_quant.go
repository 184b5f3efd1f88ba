package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/engine"
)

func newEvalQuant(a *cli.App) *cobra.Command {
	o := new(evalOptions)
	var plans []string
	cmd := &cobra.Command{
		Use:   "quant",
		Short: "Measure accuracy on drawn scenes by weight type",
		Long: `Ask the questions of drawn scenes with the model as stored and with its weights in other types, and print the changes. A plan is the
type of the language model's weights, as for --quant, or stored, optionally followed by + and the type of vision tower and projector, as for
--encoder-quant.`,
		Example: `  restore-lab eval quant
  restore-lab eval quant --plans q8,q4+q8 --base none --n 20 --json`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.model.AddDir(fs)
	o.model.AddThreads(fs)
	fs.StringSliceVar(&plans, "plans", []string{"bf16+bf16", "stored+q12", "q8", "q8+q8", "q4",
		"q4+q8"},
		"compare these `plans`")
	o.reduction.Add(fs, "holov", 64)
	o.addAsked(fs)
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.quant(cmd.Context(), a, plans)
	}
	return cmd
}

// parsePlan parses DECODER or DECODER+ENCODER.
func parsePlan(s string) (compare.Weights, error) {
	quant, encoder, both := strings.Cut(s, "+")
	if quant != asStored && !slices.Contains(engine.QuantTypes, quant) ||
		both && !slices.Contains(engine.EncoderQuantTypes, encoder) {
		return compare.Weights{}, cli.Flagf("plans", "got %q, want %s|%s, and after + %s", s,
			strings.Join(engine.QuantTypes, "|"), asStored,
			strings.Join(engine.EncoderQuantTypes, "|"))
	}
	if quant == asStored {
		quant = ""
	}
	return compare.Weights{Quant: quant, EncoderQuant: encoder}, nil
}

func (o *evalOptions) quant(ctx context.Context, a *cli.App, names []string) error {
	var plans []compare.Weights
	for _, s := range names {
		p, err := parsePlan(s)
		if err != nil {
			return err
		}
		plans = append(plans, p)
	}
	if len(plans) == 0 {
		return cli.Flagf("plans", "none, want one at least")
	}
	how, err := o.reduction.Reduction()
	if err != nil {
		return err
	}
	b, _, err := o.benchmark()
	if err != nil {
		return err
	}
	if o.format = "text"; o.json {
		o.format = "json"
	}
	var t *compare.WeightsTable
	for _, p := range append([]compare.Weights{{}}, plans...) {
		if t, err = o.askPlan(ctx, a, b, how, p, t); err != nil {
			break
		}
	}
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case t == nil || len(t.Rows) == 0:
		return noResult()
	}
	return soFar(ctx, len(t.Rows), len(plans), "plans", o.write(a.Out, t))
}

// askPlan asks a model with the weights of a plan, and adds the answers to t, which begins with the
// weights as stored.
func (o *evalOptions) askPlan(
	ctx context.Context, a *cli.App, b *eval.Benchmark, how *restore.Reduction, p compare.Weights,
	t *compare.WeightsTable,
) (*compare.WeightsTable, error) {
	flags := o.model
	flags.Quant, flags.Encoder = p.Quant, cmp.Or(p.EncoderQuant, asStored)
	m, err := openForEval(ctx, &flags, "", a, o.workers, false)
	if err != nil {
		return t, err
	}
	defer m.model.Close()
	records, err := o.ask(ctx, a, b, []eval.Answerer{m.with(how)})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // some pictures have no answer
	}
	if err != nil {
		return t, err
	}
	resident := m.model.Info().Bytes
	if t != nil {
		t.Add(p, records[0], resident, o.reduction.Seed)
		return t, nil
	}
	t = compare.NewWeightsTable(records[0], resident)
	t.Setup = o.setup(m)
	delete(t.Setup, "weights")
	t.Setup["reduction"] = records[0][0].Reduction
	return t, nil
}
