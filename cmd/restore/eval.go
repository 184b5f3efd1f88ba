package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
)

// evalOptions are the flags of `restore eval scenes`.
type evalOptions struct {
	model     modelFlags
	reduction reductionFlags
	n         int
	data      string
	workers   int
	seed      int64
	distance  bool
	all       bool
	nVis      []int
	format    string
	plot      string
	json      bool
}

// formats are what --format takes; without --all table and json alone.
var formats = []string{"table", "markdown", "csv", "json"}

func newEvalScenes(a *app) *cobra.Command {
	o := new(evalOptions)
	cmd := &cobra.Command{
		Use:   "scenes",
		Short: "Accuracy on drawn scenes, with the reduction and without",
		Long: `Ask the questions of drawn scenes twice, with the reduction and without, and print both accuracies per task with 95 % intervals.
An answer is right when all of it is. --data takes a folder with questions.json and pictures/ instead of drawn scenes.

--all compares every method, alone and with RESTORE, at every budget of --n-vis, over the same pictures; what a method cannot do with a
budget is said at the end. For methods inside the decoder a budget is the mean number of visual rows that enter a layer.`,
		Example: `  restore eval scenes --base holov --n-vis 64
  restore eval scenes --base divprune --n-vis 128 --restore=false --n 20 --json
  restore eval scenes --all --n-vis 192,128,64,32 --n 40 --format markdown --plot methods.svg`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	o.reduction.add(fs, "holov", 64)
	fs.Lookup("n-vis").Value = &budgetsFlag{o}
	fs.BoolVar(&o.all, "all", false, "compare all methods, at several budgets where --n-vis has several, separated by commas")
	fs.StringVar(&o.format, "format", "table", "how the result is printed")
	fs.Lookup("format").Annotations = map[string][]string{choices: {strings.Join(formats, "|")}}
	fs.StringVar(&o.plot, "plot", "", "draw what each method keeps, by budget, into this `file`, .svg or .png; with --all")
	fs.IntVar(&o.n, "n", eval.DrawnPictures, "ask about `N` pictures")
	fs.StringVar(&o.data, "data", "", "`folder` with questions.json and pictures/, instead of drawn scenes")
	o.model.addResize(fs)
	fs.IntVar(&o.workers, "workers", 1, "ask about `N` pictures at a time")
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of --base random and of the intervals")
	fs.BoolVar(&o.distance, "distance", false, "measure the weighted Hausdorff distance between tokens before and after too")
	fs.BoolVar(&o.json, "json", false, "print one JSON object, as --format json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// pictures returns what is asked about, and how many pictures that is.
func (o *evalOptions) pictures() (iter.Seq2[eval.Item, error], int, error) {
	if o.data == "" {
		return eval.Drawn(o.n), o.n, nil
	}
	f, err := eval.OpenFolder(o.data)
	if err != nil {
		return nil, 0, err
	}
	n := f.Len()
	switch {
	case o.reduction.fs.Changed("n") && o.n > n:
		return nil, 0, usagef("--n: more than there is, got %d, want at most the %d pictures of %s", o.n, n, o.data)
	case o.reduction.fs.Changed("n"):
		n = o.n
	}
	return f.Items(n), n, nil
}

func (o *evalOptions) run(ctx context.Context, a *app) error {
	if o.n < 1 {
		return usagef("--n: out of range, got %d, want at least 1", o.n)
	}
	if o.workers < 1 || o.workers > maxThreads {
		return usagef("--workers: out of range, got %d, want 1 to %d", o.workers, maxThreads)
	}
	if o.json && o.reduction.fs.Changed("format") && o.format != "json" {
		return usagef("--json and --format: both given, got %s, want one of them", o.format)
	}
	if o.json {
		o.format = "json"
	}
	if !slices.Contains(formats, o.format) {
		return usagef("--format: got %q, want %s", o.format, strings.Join(formats, "|"))
	}
	if o.all {
		return o.compare(ctx, a)
	}
	switch {
	case len(o.nVis) > 1:
		return usagef("--n-vis: several budgets, got %s, want one, or --all", (&budgetsFlag{o}).String())
	case o.plot != "":
		return usagef("--plot: has no use for one method, got %s, want --all beside it", o.plot)
	case o.format == "markdown" || o.format == "csv":
		return usagef("--format: has no such form for one method, got %s, want table or json, or --all", o.format)
	}
	r, err := o.reduction.options(o.seed)
	if err != nil {
		return err
	}
	items, n, err := o.pictures()
	if err != nil {
		return err
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	result, err := eval.Scenes(ctx, m, items, n, r, o.how(a, n))
	if ctx.Err() != nil {
		return errors.New("eval: interrupted, there is no result")
	}
	if err != nil {
		return err
	}
	if o.format == "json" {
		return writeJSON(a.out, result)
	}
	return result.WriteTable(a.out)
}

// how returns the options of a run over n pictures, with a progress bar on a terminal.
func (o *evalOptions) how(a *app, n int) eval.RunOptions {
	run := eval.RunOptions{Workers: o.workers, Seed: o.seed, Distance: o.distance}
	if isTerminal(a.err) {
		bar := progressbar.NewOptions(n, progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription("pictures"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
		run.Progress = func(done, _ int) { _ = bar.Set(done) } // a bar that cannot be drawn is no reason to stop
	}
	return run
}

// compare runs all methods at all budgets.
func (o *evalOptions) compare(ctx context.Context, a *app) error {
	for _, name := range []string{"base", "restore"} {
		if f := o.reduction.fs.Lookup(name); onCommandLine(f) {
			return usagef("--%s: has no use beside --all, got %s", name, f.Value)
		}
	}
	if name := o.reduction.given("n-vis"); name != "" {
		return usagef("--%s: has no use beside --all, got %s", name, o.reduction.fs.Lookup(name).Value)
	}
	if o.plot != "" {
		if err := checkPlot("plot", o.plot); err != nil {
			return err
		}
	}
	items, n, err := o.pictures()
	if err != nil {
		return err
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	info := m.Info()
	if info.Sizes == nil || info.Sizes.Views != 1 {
		return fmt.Errorf("eval: --all: pictures of %s have no number of tokens of their own, which budgets are for: it depends on the picture", info.Name)
	}
	for _, budget := range o.nVis {
		if budget > info.Sizes.Tokens {
			return usagef("--n-vis: out of range, got %d, want at most the %d visual tokens of %s", budget, info.Sizes.Tokens, info.Name)
		}
	}
	settings, refused := eval.Settings(m, o.nVis)
	table, err := eval.Compare(ctx, m, items, n, settings, o.seed, o.how(a, n))
	if ctx.Err() != nil {
		return errors.New("eval: interrupted, there is no result")
	}
	if err != nil {
		return err
	}
	table.Refused = refused
	if o.plot != "" {
		if err := writePlot(o.plot, evalPanels(table)); err != nil {
			return err
		}
	}
	switch o.format {
	case "json":
		return writeJSON(a.out, table)
	case "csv":
		return table.WriteCSV(a.out)
	case "markdown":
		return table.WriteMarkdown(a.out)
	}
	return table.WriteTable(a.out)
}

// evalPanels draws what methods keep by budget, alone in one panel and with RESTORE in the other.
func evalPanels(t *eval.Table) []panel {
	panels := []panel{{title: "alone"}, {title: "+ RESTORE"}}
	for i := range panels {
		p := &panels[i]
		p.x, p.y, p.logX = "visual tokens", "kept of the unreduced accuracy (%)", true
		styles := map[string]int{}
		var lines []*series
		for _, r := range t.Rows {
			if !slices.Contains(p.ticks, float64(r.NVis)) {
				p.ticks = append(p.ticks, float64(r.NVis))
			}
			if _, ok := styles[r.Base]; !ok {
				styles[r.Base] = len(styles)
				lines = append(lines, &series{name: r.Base, style: styles[r.Base], dashed: len(styles) > len(palette)})
			}
			if s := lines[styles[r.Base]]; r.Restore == (i == 1) {
				s.x, s.y = append(s.x, float64(r.NVis)), append(s.y, r.Keeps)
			}
		}
		for _, s := range lines {
			if len(s.x) > 0 {
				p.series = append(p.series, *s)
			}
		}
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range t.Rows {
		low, high = min(low, r.Keeps), max(high, r.Keeps)
	}
	for i := range panels {
		panels[i].low, panels[i].high = low, high
	}
	return panels
}

// budgetsFlag is --n-vis: budgets separated by commas.
type budgetsFlag struct{ o *evalOptions }

// maxBudgets bounds the budgets of one comparison.
const maxBudgets = 64

// Set implements pflag.Value.
func (b *budgetsFlag) Set(text string) error {
	parts := strings.Split(text, ",")
	if len(parts) > maxBudgets {
		return fmt.Errorf("%d budgets, want at most %d", len(parts), maxBudgets)
	}
	list := make([]int, len(parts))
	for i, p := range parts {
		v, err := strconv.Atoi(strings.TrimSpace(p))
		if err != nil {
			return err
		}
		if slices.Contains(list[:i], v) {
			return fmt.Errorf("%d is there twice", v)
		}
		list[i] = v
	}
	b.o.nVis, b.o.reduction.o.NVis = list, list[0]
	return nil
}

// String implements pflag.Value.
func (b *budgetsFlag) String() string {
	list := b.o.nVis
	if list == nil {
		list = []int{b.o.reduction.o.NVis}
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}

// Type implements pflag.Value.
func (b *budgetsFlag) Type() string { return "whole numbers" }
