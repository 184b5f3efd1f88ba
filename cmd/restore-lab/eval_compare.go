package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/table"
)

func newEvalCompare(a *cli.App) *cobra.Command {
	var format, plotFile, split string
	var asJSON bool
	var seed int64
	cmd := &cobra.Command{
		Use:   "compare DIR DIR…",
		Short: "Compare runs of benchmarks",
		Long: `Compare runs by the folders of their answers. Each run is compared with the first
one of the same benchmark, protocol and split: the difference over the questions that both
answered, with a 95 % interval (bootstrap over pictures) and McNemar's test, in total and by category. If the
folders include unreduced runs, it also prints what each setting retains over all benchmarks, as the
paper's Average does.

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
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&format, "format", "text", "format of the result")
	fs.Lookup("format").Annotations = map[string][]string{
		cli.Choices: {strings.Join(table.Formats, "|")},
	}
	fs.StringVar(&split, "split", "",
		"split the questions by the answers of this `method` alone, at each run's budget")
	fs.Lookup("split").Annotations = map[string][]string{cli.Variable: {"RESTORE_COMPARE_SPLIT"}}
	fs.StringVar(&plotFile, "plot", "",
		"plot the retained accuracy, by tokens and by first-token time, into this SVG `file`")
	fs.Int64Var(&seed, "seed", 0, "`seed` of the intervals")
	fs.BoolVar(&asJSON, "json", false, "print one JSON object, like --format json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if asJSON && cmd.Flags().Changed("format") && format != "json" {
			return cli.Usagef("--json and --format: both given, got %s, want one of them", format)
		}
		if asJSON {
			format = "json"
		}
		if !slices.Contains(table.Formats, format) {
			return cli.NotOneOf("format", format, table.Formats)
		}
		if split != "" && !slices.Contains(cli.MethodNames()[1:], split) {
			return cli.NotOneOf("split", split, cli.MethodNames()[1:])
		}
		if err := cli.NoUse(fs, split != "", "has no use with --split, got %v",
			"plot"); err != nil {
			return err
		}
		if plotFile != "" {
			if err := checkPlot("plot", plotFile); err != nil {
				return err
			}
		}
		var runs []*eval.Records
		for _, dir := range args {
			r, err := eval.ReadRecords(dir)
			if err != nil {
				return cli.PathError(dir, err)
			}
			runs = append(runs, r)
		}
		if split != "" {
			splits, err := compare.Splits(runs, split, seed)
			if err != nil {
				return err
			}
			if format == "json" {
				return cli.WriteJSON(a.Out, map[string]any{"splits": splits})
			}
			var all []*table.Table
			for _, s := range splits {
				all = append(all, s.Table())
			}
			return writeTables(a.Out, all, format)
		}
		c, err := compare.Runs(runs, seed)
		if err != nil {
			return err
		}
		if plotFile != "" && len(c.Retained) == 0 {
			return cli.Flagf("plot", "want an unreduced run among the folders, got none")
		}
		outs := a.Outputs(args...)
		defer outs.Discard()
		file, err := outs.Open("plot", plotFile)
		if err != nil {
			return err
		}
		out := outs.Results()
		if format == "json" {
			err = cli.WriteJSON(out, c)
		} else {
			err = writeTables(out, c.Tables(), format)
		}
		if err != nil {
			return err
		}
		return writePlot(file, retainedPanels(c))
	}
	return cmd
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
	for _, r := range c.Retained {
		name, rest, _ := strings.Cut(r.Run, " ")
		if strings.Contains(rest, "RESTORE") {
			name += " + RESTORE"
		}
		if of[name] == nil {
			styles[name] = len(styles)
			of[name] = new([2]chart.Series)
			order = append(order, name)
		}
		for i, x := range []float64{r.After, r.FirstToken} {
			s := &of[name][i]
			s.Name, s.Style, s.Dashed = name, styles[name], styles[name] >= chart.Colours
			if x > 0 {
				s.X, s.Y = append(s.X, x), append(s.Y, r.Percent)
			}
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
	return panels
}
