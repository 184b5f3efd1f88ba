package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	restore "github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/reduce"
	"github.com/spf13/cobra"
)

// attentionOptions are the flags of `restore attention`.
type attentionOptions struct {
	model   modelFlags
	picture pictureFlags
	images  []string
	prompt  string
	base    string
	nVis    int
	gamma   float64
	seed    int64
	out     string
	json    bool
}

func newAttention(a *app) *cobra.Command {
	o := new(attentionOptions)
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "Plot how much attention visual tokens receive in each layer",
		Long: `Read a question about pictures in full, reduced, and reduced with RESTORE, and show the share of attention that visual rows receive in each
layer of the decoder (the paper's Figures 2 and 5): as the mean over heads, with visual rows as queries, and with the rows of text behind
the picture. Reduced rows are counted with their places renumbered, at their original places, and with RESTORE at both.`,
		Example: `  restore attention --image cat.jpg -p "What is there?" --out attention.svg
  restore attention -m DIR --image cat.jpg -p "What is there?" --base divprune --n-vis 128 --json`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	fs.StringArrayVar(&o.images, "image", nil, "picture `file` to ask about; may be repeated")
	fs.StringVarP(&o.prompt, "prompt", "p", "", "the `question`")
	fs.StringVar(&o.base, "base", "holov", "how the kept tokens are selected, see 'restore methods'")
	fs.Lookup("base").Annotations = map[string][]string{choices: {strings.Join(methodNames()[1:], "|")}}
	fs.IntVar(&o.nVis, "n-vis", 64, "keep `N` visual tokens of each picture")
	fs.Float64Var(&o.gamma, "gamma", 0.5, "`share` of the budget that the base keeps, the rest is merged; 1 is calibrated pruning")
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of --base random")
	o.picture.add(fs)
	o.model.addResize(fs)
	fs.StringVar(&o.out, "out", "", "draw the plot into this `file`, .svg or .png")
	fs.BoolVar(&o.json, "json", false, "print one JSON object instead of a table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(o.images) == 0 {
			return usagef("attention: no --image, want at least one picture")
		}
		if strings.TrimSpace(o.prompt) == "" {
			return usagef("attention: no --prompt, want a question about the picture")
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

// attentionRun is one way of reading the picture and what came of it.
type attentionRun struct {
	Name      string                  `json:"name"`
	Reduction *reduce.Options         `json:"-"`
	Share     *restore.AttentionShare `json:"share"`
	Tokens    int                     `json:"n_vis"`
}

// attentionJSON is what --json prints.
type attentionJSON struct {
	Model string         `json:"model"`
	Base  string         `json:"base"`
	Runs  []attentionRun `json:"runs"`
}

func (o *attentionOptions) run(ctx context.Context, a *app, gamma bool) error {
	base := reduce.Options{Base: o.base, NVis: o.nVis, Seed: o.seed}
	with := base
	with.Restore = true
	if gamma {
		with.Gamma, with.GammaSet = o.gamma, true
	}
	renumbered, both := base, with
	renumbered.Positions, both.Positions = "sequential", "sequential"
	runs := []attentionRun{
		{Name: "all tokens", Reduction: &reduce.Options{}},
		{Name: o.base + ", renumbered", Reduction: &renumbered},
		{Name: o.base + ", original places", Reduction: &base},
		{Name: o.base + " + RESTORE", Reduction: &with},
		{Name: o.base + " + RESTORE, renumbered", Reduction: &both},
	}
	pics, err := o.picture.loadAll(o.images)
	if err != nil {
		return err
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	seen, err := m.See(ctx, pics)
	if err != nil {
		return err
	}
	for i := range runs {
		if runs[i].Share, err = m.Attention(ctx, o.prompt, seen, *runs[i].Reduction); err != nil {
			if ctx.Err() != nil {
				return errors.New("attention: interrupted, there is no result")
			}
			return err
		}
		runs[i].Tokens = runs[i].Reduction.NVis
	}
	if o.out != "" {
		if err := writePlot(o.out, attentionPanels(runs)); err != nil {
			return err
		}
	}
	if o.json {
		return writeJSON(a.out, attentionJSON{m.Info().Name, o.base, runs})
	}
	return writeAttention(a.out, runs)
}

// writeAttention prints, for both kinds of query, a line a layer and a column a run, in percent.
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
	return columns(w, rows)
}

// of returns the shares with the queries of a kind, by layer.
func (r *attentionRun) of(kind string) []float64 {
	if kind == "visual" {
		return r.Share.Visual
	}
	return r.Share.Text
}

func attentionPanels(runs []attentionRun) []panel {
	var panels []panel
	for _, kind := range []string{"visual", "text"} {
		p := panel{title: "queries: " + kind + " rows", x: "layer", y: "attention on visual rows (%)", high: 100}
		for i, r := range runs {
			s := series{name: r.Name, style: i, dashed: strings.HasSuffix(r.Name, "renumbered")}
			for layer, v := range r.of(kind) {
				s.x, s.y = append(s.x, float64(layer)), append(s.y, 100*v)
			}
			p.series = append(p.series, s)
		}
		for layer := 0; layer < len(runs[0].Share.Text); layer += max(1, len(runs[0].Share.Text)/8) {
			p.ticks = append(p.ticks, float64(layer))
		}
		panels = append(panels, p)
	}
	return panels
}
