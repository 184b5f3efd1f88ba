package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

// attentionOptions are the flags of `restore-lab attention`.
type attentionOptions struct {
	model    cli.ModelFlags
	question cli.QuestionFlags
	shape    string
	base     string
	nVis     int
	gamma    float64
	seed     int64
	out      string
	json     bool
}

func newAttention(a *cli.App) *cobra.Command {
	o := new(attentionOptions)
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "Plot how much attention visual tokens receive in each layer",
		Long: `Read a question about pictures with all tokens, reduced, and reduced with RESTORE, and show the share of attention that visual rows receive in
each layer of the decoder (the paper's Figures 2 and 5). The share is a mean over heads: once with the visual rows as queries, once with the text rows
after the picture. The reduced pictures are read with renumbered positions and with original positions, each with and without RESTORE.
--shape makes random weights in memory: their attention follows the number of rows and sizes, and says nothing about what a trained model looks at.`,
		Example: `  restore-lab attention --image cat.jpg -p "What is there?" --out attention.svg
  restore-lab attention -m DIR --image cat.jpg -p "What is there?" --base divprune --n-vis 128 --json
  restore-lab attention --shape config.json --image cat.jpg -p "What is there?"`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	addLLaVAShape(fs, &o.shape)
	o.question.AddImages(fs, "")
	o.question.AddPrompt(fs, "")
	fs.StringVar(&o.base, "base", "holov",
		"method that selects the kept tokens, see 'restore methods'")
	cli.ShowChoices(fs, "base", cli.MethodNames()[1:]...)
	fs.IntVar(&o.nVis, "n-vis", 64, "keep `N` visual tokens of each picture")
	fs.Float64Var(&o.gamma, "gamma", 0.5,
		"`share` of the budget that the base keeps, the rest is merged; 1 is calibrated pruning")
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of --base random")
	o.question.AddReading(fs)
	o.model.AddResize(fs)
	fs.StringVar(&o.out, "out", "", "draw the plot into this SVG `file`")
	fs.BoolVar(&o.json, "json", false, "print one JSON object instead of a table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(o.question.Images) == 0 {
			return cli.Usagef("attention: no --image, want at least one picture")
		}
		if strings.TrimSpace(o.question.Prompt) == "" {
			return cli.Usagef("attention: no --prompt, want a question about the picture")
		}
		if err := cli.CheckShape(fs); err != nil {
			return err
		}
		if o.base == "none" {
			return cli.Flagf("base", "got none, want a method to compare with all tokens, %s",
				strings.Join(cli.MethodNames()[1:], "|"))
		}
		if o.out != "" {
			if err := checkPlot("out", o.out); err != nil {
				return err
			}
		}
		return o.run(cmd.Context(), a, cmd.Flags().Changed("gamma"))
	}
	return cmd
}

// attentionRun is one way to read the picture, and its attention shares.
type attentionRun struct {
	Name      string              `json:"name"`
	Reduction *methods.Options    `json:"-"`
	Share     *lab.AttentionShare `json:"share"`
	Tokens    int                 `json:"n_vis"`
}

// attentionJSON is the output of --json.
type attentionJSON struct {
	Model string         `json:"model"`
	Base  string         `json:"base"`
	Runs  []attentionRun `json:"runs"`
}

// runs are the ways to read the prompt.
func (o *attentionOptions) runs(gamma bool) []attentionRun {
	var seed *int64
	if m, err := methods.Lookup(o.base); err == nil && m.Draws {
		seed = &o.seed
	}
	base := methods.Options{Base: o.base, NVis: o.nVis, Seed: seed}
	with := base
	with.Restore = true
	if gamma {
		with.Gamma = &o.gamma
	}
	renumbered, both := base, with
	renumbered.Positions, both.Positions = "sequential", "sequential"
	return []attentionRun{
		{Name: "all tokens", Reduction: &methods.Options{}},
		{Name: o.base + ", renumbered", Reduction: &renumbered},
		{Name: o.base + ", original places", Reduction: &base},
		{Name: o.base + " + RESTORE", Reduction: &with},
		{Name: o.base + " + RESTORE, renumbered", Reduction: &both},
	}
}

func (o *attentionOptions) run(ctx context.Context, a *cli.App, gamma bool) error {
	runs := o.runs(gamma)
	if err := a.CheckStdin(false, o.question.Inputs()); err != nil {
		return err
	}
	if err := o.question.Check(); err != nil {
		return err
	}
	outs := a.Outputs(slices.Concat(cli.InputPaths(o.question.Inputs()), o.model.Paths(),
		[]string{o.shape})...)
	defer outs.Discard()
	file, err := outs.Open("out", o.out)
	if err != nil {
		return err
	}
	asked, err := o.question.Load(a)
	if err != nil {
		return err
	}
	m, err := o.open(ctx, a)
	if err != nil {
		return err
	}
	defer m.Close()
	pics, err := pixels(asked)
	if err != nil {
		return err
	}
	var how []methods.Options
	for i := range runs {
		how = append(how, *runs[i].Reduction)
	}
	encoded, err := m.Encode(ctx, engine.Pictures(pics...), how...)
	if err != nil {
		return err
	}
	shown := a.Meter("ways to read the prompt")
	defer shown.End()
	for i := range runs {
		shown.Set(int64(i), int64(len(runs)))
		if runs[i].Share, err = lab.Attention(ctx, m, asked.Prompt, asked.Places, encoded,
			*runs[i].Reduction); err != nil {
			if ctx.Err() != nil {
				return cli.CutShort("attention: interrupted, there is no result")
			}
			return err
		}
		runs[i].Tokens = runs[i].Reduction.NVis
	}
	shown.End()
	if o.json {
		err = cli.WriteJSON(outs.Results(), attentionJSON{m.Info().Name, o.base, runs})
	} else {
		err = writeAttention(outs.Results(), runs)
	}
	if err != nil {
		return err
	}
	var names []string
	var shares []lab.AttentionShare
	for _, r := range runs {
		names, shares = append(names, r.Name), append(shares, *r.Share)
	}
	return writePlot(file, "", lab.AttentionPanels("rows", names, shares, 100))
}

// open opens the model, or makes random weights in a shape.
func (o *attentionOptions) open(ctx context.Context, a *cli.App) (*engine.Engine, error) {
	mo, end, err := o.model.Options(a)
	if err != nil {
		return nil, err
	}
	defer end()
	m, err := openOrMake(ctx, &o.model, o.shape, mo)
	if err != nil {
		return nil, err
	}
	return seam.Engine(m), nil
}

// writeAttention prints a table for each kind of query, in percent: one line per layer, one column
// per run.
func writeAttention(w io.Writer, runs []attentionRun) error {
	rows := [][]string{{"QUERIES", "LAYER"}}
	for _, r := range runs {
		rows[0] = append(rows[0], r.Name)
	}
	for _, kind := range []string{"visual", "text"} {
		for layer := range runs[0].Share.Text {
			row := []string{kind, strconv.Itoa(layer)}
			for _, r := range runs {
				row = append(row, fmt.Sprintf("%.1f %%", 100*r.of(kind)[layer]))
			}
			rows = append(rows, row)
		}
	}
	return cli.Table(w, rows)
}

// of returns the shares by layer, with queries of one kind.
func (r *attentionRun) of(kind string) []float64 {
	if kind == "visual" {
		return r.Share.Visual
	}
	return r.Share.Text
}
