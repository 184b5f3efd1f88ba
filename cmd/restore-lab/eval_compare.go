package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/table"
)

// compareOptions are the flags of `restore-lab eval compare`.
type compareOptions struct {
	fs                  *pflag.FlagSet
	format, plot, split string
	seed                int64
	json                bool
}

func newEvalCompare(a *cli.App) *cobra.Command {
	o := new(compareOptions)
	cmd := &cobra.Command{
		Use:   "compare DIR DIR…",
		Short: "Compare runs of benchmarks",
		Long: `Compare runs by the folders of their answers. Each run is compared with the first unreduced
one of the same benchmark, protocol and split, or with the first where all are reduced: the difference
over the questions that both answered, with a 95 % interval (bootstrap over pictures) and McNemar's
test, in total and by category. If the folders include unreduced runs, it also prints what each setting
retains over all benchmarks, as the paper's Average does.

--split downsample tells what reduction costs where it hurts: instead of that, it prints each run's accuracy
on the questions that plain downsampling at the same budget answers, and on those that it does not. The folders
include a run of '--base downsample --restore=false' for each budget.`,
		Example: `  restore-lab eval compare restore-records/gqa-*
  restore-lab eval compare full/gqa holov/gqa full/mme holov/mme --format markdown --plot runs.svg
  restore-lab eval compare restore-records/gqa-* --split downsample`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return cli.Usagef("eval compare: got %d folder(s), want at least two", len(args))
			}
			return nil
		},
	}
	o.fs = cmd.Flags()
	o.fs.StringVar(&o.format, "format", "text", "format of the result")
	cli.OneOf(o.fs, "format", table.Formats...)
	o.fs.StringVar(&o.split, "split", "",
		"split the questions by the answers of this `method` alone, at each run's budget")
	cli.OneOf(o.fs, "split", cli.MethodNames()[1:]...)
	cli.SetVariable(o.fs, "split", "RESTORE_COMPARE_SPLIT")
	o.fs.StringVar(&o.plot, "plot", "",
		"plot the retained accuracy, by tokens and by first-token time, into this SVG `file`")
	o.fs.Int64Var(&o.seed, "seed", 0, "`seed` of the intervals")
	o.fs.BoolVar(&o.json, "json", false, "print one JSON object, like --format json")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return o.run(a, args) }
	return cmd
}

// check refuses wrong flags.
func (o *compareOptions) check() (err error) {
	if o.format, err = cli.Format(o.fs, o.format, o.json); err != nil {
		return err
	}
	if o.plot != "" && o.split == "" {
		return checkPlot("plot", o.plot)
	}
	return cli.NoUse(o.fs, o.split != "", "has no use with --split, got %v", "plot")
}

func (o *compareOptions) run(a *cli.App, folders []string) error {
	if err := o.check(); err != nil {
		return err
	}
	var runs []*eval.Records
	for _, dir := range folders {
		r, err := eval.ReadRecords(dir)
		if err != nil {
			return cli.PathError(dir, err)
		}
		if len(r.List) == 0 { // of a run that stopped before its first answer
			a.Note("%s: holds no answer, left out", dir)
			continue
		}
		runs = append(runs, r)
	}
	if o.split != "" {
		return o.splits(a, runs)
	}
	c, err := compare.Runs(runs, o.seed)
	if err != nil {
		return err
	}
	for _, why := range c.Skipped {
		a.Note("%s", cli.OneLine(why))
	}
	if o.plot != "" && len(c.Retained) == 0 {
		return cli.Flagf("plot", "want an unreduced run among the folders, got none")
	}
	panels := retainedPanels(c)
	if o.plot != "" && len(panels) == 0 {
		return cli.Flagf("plot", "want runs whose server reports visual tokens or times, got none")
	}
	outs := a.Outputs(folders...)
	defer outs.Discard()
	file, err := outs.Open("plot", o.plot)
	if err != nil {
		return err
	}
	if err := writeComparison(outs.Results(), c, o.format); err != nil {
		return err
	}
	return writePlot(file, "", panels)
}

// splits prints accuracies on the questions that a method answers, and on the others.
func (o *compareOptions) splits(a *cli.App, runs []*eval.Records) error {
	splits, err := compare.Splits(runs, o.split, o.seed)
	if err != nil {
		return err
	}
	if o.format == "json" {
		return cli.WriteJSON(a.Out, map[string]any{"splits": splits})
	}
	var all []*table.Table
	for _, s := range splits {
		all = append(all, s.Table())
	}
	return writeTables(a.Out, all, o.format)
}

// comparison is a result that has tables, and a form in JSON.
type comparison interface{ Tables() []*table.Table }

// writeComparison writes a comparison in one of package table's formats.
func writeComparison(w io.Writer, c comparison, format string) error {
	if format == "json" {
		return cli.WriteJSON(w, c)
	}
	return writeTables(w, c.Tables(), format)
}

// writeTables writes tables with empty lines between them.
func writeTables(w io.Writer, all []*table.Table, format string) error {
	for i, t := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := t.Write(w, format); err != nil {
			return err
		}
	}
	return nil
}

// retainedPanels plots what settings retain: by visual tokens, and by first-token time.
func retainedPanels(c *compare.Comparison) []chart.Panel {
	panels := []chart.Panel{
		{X: "visual tokens", Y: "Average, % of unreduced", LogX: true},
		{X: "first token, s", Y: "Average, % of unreduced"},
	}
	styles := map[string]int{}
	of := map[string]*[2]chart.Series{}
	var order []string
	byTokens := func(a, b compare.Retained) int { return cmp.Compare(a.After, b.After) }
	for _, r := range slices.SortedStableFunc(slices.Values(c.Retained), byTokens) {
		name := r.Line
		if of[name] == nil {
			styles[name] = len(styles)
			of[name] = new([2]chart.Series)
			order = append(order, name)
		}
		for i, x := range []float64{r.After, r.FirstToken} {
			s := &of[name][i]
			s.Name, s.Style, s.Dashed = name, styles[name], styles[name] >= chart.Colours
			if x == 0 { // not known
				continue
			}
			s.X, s.Y = append(s.X, x), append(s.Y, r.Percent)
			if i == 0 && !slices.Contains(panels[0].Ticks, x) {
				panels[0].Ticks = append(panels[0].Ticks, x)
			}
		}
	}
	for _, name := range order {
		for i := range panels {
			if s := of[name][i]; len(s.X) > 0 {
				panels[i].Series = append(panels[i].Series, s)
			}
		}
	}
	return slices.DeleteFunc(panels, func(p chart.Panel) bool { return len(p.Series) == 0 })
}
