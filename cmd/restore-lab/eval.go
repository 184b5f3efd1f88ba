package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/seam"
	"github.com/restore-vlm/restore/internal/table"
)

// evalOptions are the flags of `restore-lab eval scenes`.
type evalOptions struct {
	model     cli.ModelFlags
	reduction cli.ReductionFlags
	n         int
	data      string
	workers   int
	distance  bool
	all       bool
	budgets   *cli.BudgetsFlag
	bases     []string // of --methods; nil: all
	variants  []string // JSON objects
	world     worldFlag
	first     int64 // seed of the first drawn picture
	format    string
	plot      string
	json      bool
	nats      cli.NatsFlags
	mixed     bool
	records   string
}

// drawnPictures is the usual number of drawn pictures: about 1,400 questions, ±2 points in total.
const drawnPictures = 120

func newEvalScenes(a *cli.App) *cobra.Command {
	o := new(evalOptions)
	cmd := &cobra.Command{
		Use:   "scenes",
		Short: "Measure accuracy on drawn scenes, with and without the reduction",
		Long: `Ask the questions of drawn scenes twice, with and without the reduction, and print both accuracies per task with 95 % intervals.
An answer counts as right only if all of it is right. --data takes a folder with questions.json and pictures/ instead of drawn scenes.

--all compares every method, alone, with RESTORE, and with RESTORE's covered anchors (--anchors covered --join all), at every budget of
--n-vis, over the same pictures. The end of the output (with csv, stderr) lists budgets that a method cannot reach. For methods inside the
decoder a budget is the mean number of visual rows that enter a layer.`,
		Example: `  restore-lab eval scenes --base holov --n-vis 64
  restore-lab eval scenes --base divprune --n-vis 128 --restore=false --n 20 --json
  restore-lab eval scenes --all --n-vis 192,128,64,32 --n 40 --format markdown --plot methods.svg
  restore-lab eval scenes --all --methods holov,dart,random --n-vis 32 --world crowd
  restore-lab eval scenes --nats nats://10.0.0.1:4222 --n-vis 64`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	o.budgets = o.reduction.AddBudgets(fs, "holov", 64)
	fs.BoolVar(&o.all, "all", false,
		"compare all methods, at one or more budgets of --n-vis, separated by commas")
	fs.StringVar(&o.format, "format", "text", "format of the result")
	cli.OneOf(fs, "format", table.Formats...)
	fs.StringVar(&o.plot, "plot", "",
		"plot the accuracy that each method keeps into this SVG `file`; with --all")
	fs.StringSliceVar(&o.bases, "methods", nil,
		"compare only these `methods`, separated by commas; with --all")
	cli.OneOf(fs, "methods", cli.MethodNames()[1:]...)
	fs.StringArrayVar(&o.variants, "variant", nil,
		"also measure the reduction with the parameters in this JSON `object`, and compare it "+
			"with the reduction of the flags; may be repeated")
	o.addAsked(fs)
	o.model.AddResize(fs)
	fs.BoolVar(&o.distance, "distance", false,
		"also measure the weighted Hausdorff distance between tokens before and after")
	fs.StringVar(&o.records, "records", "",
		"write answers to this `folder`, and continue from there")
	o.nats.Add(fs, "ask the workers at this address", false)
	fs.BoolVar(&o.mixed, "mixed", false, "accept workers whose answers may differ in the last bits")
	fs.BoolVar(&o.json, "json", false, "print one JSON object, like --format json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// addAsked declares the flags that choose the pictures, and how they are asked about.
func (o *evalOptions) addAsked(fs *pflag.FlagSet) {
	fs.IntVar(&o.n, "n", drawnPictures, "ask about `N` pictures")
	cli.Within(fs, 1, math.Inf(1), "n")
	o.world.add(fs)
	fs.Int64Var(&o.first, "first-seed", scene.EvalSeed,
		"`seed` of the first drawn picture; the others follow")
	fs.StringVar(&o.data, "data", "",
		"`folder` with questions.json and pictures/, instead of drawn scenes")
	fs.IntVar(&o.workers, "workers", 1, "ask about `N` pictures at a time")
	cli.Within(fs, 1, cli.MaxThreads, "workers")
	fs.Int64Var(&o.reduction.Seed, "seed", 0, "`seed` of --base random and of the intervals")
}

// benchmark returns the scenes' questions, and the number of pictures.
func (o *evalOptions) benchmark() (*eval.Benchmark, int, error) {
	if o.data == "" {
		return benchmarks.DrawnScenes(string(o.world.World), o.first, o.n), o.n, nil
	}
	if err := cli.NoUse(o.reduction.Flags, true, "has no use with --data, got %v",
		"world", "first-seed"); err != nil {
		return nil, 0, err
	}
	n := 0
	if o.reduction.Flags.Changed("n") {
		n = o.n
	}
	b, pictures, err := benchmarks.SceneFolder(o.data, n)
	if err == nil && n > pictures {
		err = cli.Flagf("n", "more than there is, got %d, want at most the %d pictures of %s", n,
			pictures, o.data)
	}
	return b, cmp.Or(n, pictures), err
}

func (o *evalOptions) run(ctx context.Context, a *cli.App) error {
	fs := o.reduction.Flags
	var err error
	if o.format, err = cli.Format(fs, o.format, o.json); err != nil {
		return err
	}
	if err := o.nats.Check(fs); err != nil {
		return err
	}
	if err := cli.NoUse(fs, o.nats.URL != "", "has no use with --nats, got %v", "all"); err != nil {
		return err
	}
	if err := cli.NoUse(fs, o.all, "has no use with --all, got %v", "variant"); err != nil {
		return err
	}
	if o.all {
		return o.compare(ctx, a)
	}
	if err := cmp.Or(
		cli.NoUse(fs, true, "has no use without --all, got %v", "methods"),
		cli.NoUse(fs, true, "has no use for one method, got %v, want --all too", "plot"),
	); err != nil {
		return err
	}
	if len(o.budgets.List) > 1 {
		return cli.Flagf("n-vis", "several budgets, got %s, want one, or --all", o.budgets)
	}
	how, err := o.reduction.Reduction()
	if err != nil {
		return err
	}
	names, variants, err := o.varied()
	if err != nil {
		return err
	}
	b, n, err := o.benchmark()
	if err != nil {
		return err
	}
	if o.nats.URL != "" {
		return o.overNATS(ctx, a, b, n)
	}
	m, err := o.open(ctx, a)
	if err != nil {
		return err
	}
	defer m.model.Close()
	records, err := o.ask(ctx, a, b, o.answerers(m, append([]*restore.Reduction{how}, variants...)))
	if err != nil {
		return err
	}
	if variants == nil {
		setup := o.setup(m)
		setup["reduction"] = records[1][0].Reduction
		return o.print(ctx, a, records, n, setup)
	}
	t := compare.Variants(records[0], names, records[1:], o.reduction.Seed)
	t.Setup = o.setup(m)
	return soFar(ctx, t.Pictures, n, "pictures", o.write(a.Out, t))
}

// open opens the model of local runs.
func (o *evalOptions) open(ctx context.Context, a *cli.App) (*evaluated, error) {
	return openForEval(ctx, &o.model, "", a, o.workers, false)
}

// answerers returns the model without and with each of the reductions.
func (o *evalOptions) answerers(m *evaluated, reductions []*restore.Reduction) []eval.Answerer {
	all := []eval.Answerer{m.with(nil)}
	for _, how := range reductions {
		options, err := seam.Reduction(how)
		inside := err == nil && (options.Inside() || options.ReadsText())
		if x := m.with(how); o.distance && !(o.all && inside) {
			all = append(all, lab.Distances{Service: x})
		} else {
			all = append(all, x)
		}
	}
	return all
}

// ask asks all answerers the questions, and shows the progress. After an interrupt it returns the
// records of the pictures so far, if there are any.
func (o *evalOptions) ask(
	ctx context.Context, a *cli.App, b *eval.Benchmark, answerers []eval.Answerer,
) ([][]*eval.Record, error) {
	show, end := runProgress(a, b.Name)
	defer end()
	records, err := eval.RunAll(ctx, b, answerers, eval.RunOptions{
		Records: o.records, Parallel: o.workers, Progress: show,
	})
	if ctx.Err() == nil {
		return records, err
	}
	if len(records) == 0 || len(records[0]) == 0 {
		return nil, noResult()
	}
	return records, nil
}

// noResult ends an interrupted command.
func noResult() error { return cli.CutShort("eval: interrupted, there is no result") }

// setup describes a run: the model and the seed of the intervals.
func (o *evalOptions) setup(m *evaluated) map[string]any {
	info := m.model.Info()
	return map[string]any{"model": info.Name, "kernel": info.Kernel, "weights": info.Weights,
		"interval_seed": o.reduction.Seed}
}

// print prints the comparison of two runs over n pictures.
func (o *evalOptions) print(
	ctx context.Context, a *cli.App, records [][]*eval.Record, n int, setup map[string]any,
) error {
	r := compare.NewPaired(records[0], records[1], o.reduction.Seed)
	r.Setup = setup
	return soFar(ctx, r.Pictures, n, "pictures", o.write(a.Out, r))
}

// write prints a result in the requested format.
func (o *evalOptions) write(w io.Writer, result comparison) error {
	return writeComparison(w, result, o.format)
}

// overNATS lets workers answer.
func (o *evalOptions) overNATS(ctx context.Context, a *cli.App, b *eval.Benchmark, n int) error {
	fs := o.reduction.Flags
	if err := cli.NoUse(fs, true, "has no use with --nats, got %v", "variant",
		"distance"); err != nil {
		return err
	}
	e, done, err := evalFleet(ctx, a, &o.nats, &o.reduction, o.model.Path, o.mixed)
	if err != nil {
		return err
	}
	defer done()
	if !fs.Changed("workers") {
		o.workers = fleetPictures
	}
	full := &eval.Service{Model: e.Model, System: e.System}
	records, err := o.ask(ctx, a, b, []eval.Answerer{full, e})
	if err != nil {
		return err
	}
	setup := e.Settings()
	setup["interval_seed"] = o.reduction.Seed
	return o.print(ctx, a, records, n, setup)
}

// varied returns the variants, and the names of the reduction of the flags and of them. There are
// no names without variants.
func (o *evalOptions) varied() (names []string, all []*restore.Reduction, err error) {
	if o.variants == nil {
		return nil, nil, nil
	}
	if err := cli.NoUse(o.reduction.Flags, true, "has no use with --variant, got %v",
		"distance"); err != nil {
		return nil, nil, err
	}
	for _, object := range o.variants {
		v, err := o.reduction.Variant(object)
		if err != nil {
			return nil, nil, fmt.Errorf("--variant: %s: %w", object, err)
		}
		all = append(all, v)
	}
	return append([]string{"as flags say"}, o.variants...), all, nil
}

// soFar ends a command whose result was written with err. If the run was interrupted, it says how
// much the result covers.
func soFar(ctx context.Context, done, total int, what string, err error) error {
	if err == nil && ctx.Err() != nil && done < total {
		return cli.CutShort("eval: interrupted, the result covers %d of %d %s", done, total, what)
	}
	return err
}

// compare runs all methods at all budgets.
func (o *evalOptions) compare(ctx context.Context, a *cli.App) error {
	for _, name := range []string{"base", "restore", o.reduction.Given("n-vis")} {
		if f := o.reduction.Flags.Lookup(name); f != nil && cli.OnCommandLine(f) {
			return cli.Flagf(name, "has no use with --all, got %s", f.Value)
		}
	}
	if o.budgets.List == nil {
		return cli.Flagf("n-vis", "got %s, want numbers with --all", o.budgets)
	}
	if o.plot != "" {
		if err := checkPlot("plot", o.plot); err != nil {
			return err
		}
	}
	outs := a.Outputs(append(o.model.Paths(), o.data)...)
	defer outs.Discard()
	plot, err := outs.Open("plot", o.plot)
	if err != nil {
		return err
	}
	b, n, err := o.benchmark()
	if err != nil {
		return err
	}
	m, err := o.open(ctx, a)
	if err != nil {
		return err
	}
	defer m.model.Close()
	settings, refused, err := o.settings(m)
	if err != nil {
		return err
	}
	var reductions []*restore.Reduction
	for _, s := range settings {
		reductions = append(reductions, s.Reduction(o.reduction.Seed))
	}
	records, err := o.ask(ctx, a, b, o.answerers(m, reductions))
	if err != nil {
		return err
	}
	t := compare.Tabulate(records[0], settings, records[1:], o.reduction.Seed)
	t.Refused, t.Setup = refused, o.setup(m)
	t.Setup["seed"] = o.reduction.Seed
	if o.format == "csv" { // has no place for reasons
		for _, line := range t.NotMeasured() {
			a.Note("%s", line)
		}
	}
	if err := o.write(outs.Results(), t); err != nil {
		return err
	}
	return soFar(ctx, t.Pictures, n, "pictures", writePlot(plot, evalCaption,
		evalPanels(t)))
}

// settings returns the settings to compare, and those that the model cannot honour.
func (o *evalOptions) settings(
	m *evaluated,
) (use []compare.Setting, refused []compare.Refusal, err error) {
	info := m.model.Info()
	if info.VisualTokens == 0 {
		return nil, nil, fmt.Errorf("eval: --all: pictures of %s have no number of tokens of "+
			"their own, which budgets are for: it depends on the picture", info.Name)
	}
	for _, budget := range o.budgets.List {
		if budget > info.VisualTokens {
			return nil, nil, cli.Flagf("n-vis", "out of range, got %d, want at most the %d visual "+
				"tokens of %s", budget, info.VisualTokens, info.Name)
		}
	}
	use, refused = compare.Settings(m.refuse, o.bases, o.budgets.List)
	return use, refused, nil
}

// evalForms are the lines of a method in a plot.
var evalForms = []chart.Series{
	{Name: "alone", Style: 11}, {Name: "+ RESTORE", Style: 0},
	{Name: "+ RESTORE, covered anchors", Style: 1, Dashed: true},
}

// form is the index of a setting's line.
func form(s compare.Setting) int {
	switch {
	case s.Covered:
		return 2
	case s.Restore:
		return 1
	}
	return 0
}

// evalCaption is above the plot of evalPanels.
const evalCaption = "Accuracy kept, in percent of the unreduced model's, against visual tokens. " +
	"The distance between the lines of a method is what RESTORE gains over it."

// evalPanels plots the accuracy that is kept, by budget, with one panel for each method.
func evalPanels(t *compare.Table) []chart.Panel {
	var panels []chart.Panel
	low, high := math.Inf(1), math.Inf(-1)
	var ticks []float64
	for _, r := range t.Rows {
		low, high = min(low, r.Keeps), max(high, r.Keeps)
		if !slices.Contains(ticks, float64(r.NVis)) {
			ticks = append(ticks, float64(r.NVis))
		}
		i := slices.IndexFunc(panels, func(p chart.Panel) bool { return p.Title == r.Base })
		if i < 0 {
			i = len(panels)
			panels = append(panels, chart.Panel{
				Title: r.Base, LogX: true, Series: slices.Clone(evalForms),
			})
		}
		s := &panels[i].Series[form(r.Setting)]
		s.X, s.Y = append(s.X, float64(r.NVis)), append(s.Y, r.Keeps)
	}
	for i := range panels {
		p := &panels[i]
		p.Ticks, p.Low, p.High = ticks, low, high
		p.Series = slices.DeleteFunc(p.Series, func(s chart.Series) bool { return len(s.X) == 0 })
	}
	return panels
}
