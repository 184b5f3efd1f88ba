package main

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/scenebench"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// evalOptions are the flags of `restore eval scenes`.
type evalOptions struct {
	model     modelFlags
	reduction reductionFlags
	n         int
	data      string
	workers   int
	distance  bool
	all       bool
	budgets   *budgetsFlag
	bases     []string // of --methods; nil: all
	variants  []string // JSON objects
	world     worldFlag
	first     int64 // seed of the first drawn picture
	format    string
	plot      string
	json      bool
	nats      natsFlags
	mixed     bool
}

// tableFormats are the values of --format; without --all only table and json.
var tableFormats = []string{"table", "markdown", "csv", "json"}

func newEvalScenes(a *app) *cobra.Command {
	o := new(evalOptions)
	cmd := &cobra.Command{
		Use:   "scenes",
		Short: "Measure accuracy on drawn scenes, with and without the reduction",
		Long: `Ask the questions of drawn scenes twice, with and without the reduction, and print both accuracies per task with 95 % intervals.
An answer counts as right only if all of it is right. --data takes a folder with questions.json and pictures/ instead of drawn scenes.

--all compares every method, alone, with RESTORE, and with RESTORE's covered anchors (--anchors covered --join all), at every budget of
--n-vis, over the same pictures. The end of the output lists budgets that a method cannot reach. For methods inside the decoder a budget is the
mean number of visual rows that enter a layer.`,
		Example: `  restore eval scenes --base holov --n-vis 64
  restore eval scenes --base divprune --n-vis 128 --restore=false --n 20 --json
  restore eval scenes --all --n-vis 192,128,64,32 --n 40 --format markdown --plot methods.svg
  restore eval scenes --all --methods holov,dart,random --n-vis 32 --world crowd
  restore eval scenes --nats nats://10.0.0.1:4222 --n-vis 64`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	o.budgets = o.reduction.addBudgets(fs, "holov", 64)
	fs.BoolVar(&o.all, "all", false,
		"compare all methods, at one or more budgets of --n-vis, separated by commas")
	fs.StringVar(&o.format, "format", "table", "format of the result")
	fs.Lookup("format").Annotations = map[string][]string{
		choices: {strings.Join(tableFormats, "|")},
	}
	fs.StringVar(&o.plot, "plot", "",
		"plot the accuracy that each method keeps into this SVG `file`; with --all")
	fs.StringSliceVar(&o.bases, "methods", nil,
		"compare only these `methods`, separated by commas; with --all")
	fs.StringArrayVar(&o.variants, "variant", nil,
		"also measure the reduction with the parameters in this JSON `object`, and compare it "+
			"with the\n        reduction of the flags; may be repeated")
	o.addDrawn(fs)
	fs.StringVar(&o.data, "data", "",
		"`folder` with questions.json and pictures/, instead of drawn scenes")
	o.model.addResize(fs)
	fs.IntVar(&o.workers, "workers", 1, "ask about `N` pictures at a time")
	fs.Int64Var(&o.reduction.seed, "seed", 0, "`seed` of --base random and of the intervals")
	fs.BoolVar(&o.distance, "distance", false,
		"also measure the weighted Hausdorff distance between tokens before and after")
	o.nats.add(fs, "ask the workers at this address", false)
	fs.BoolVar(&o.mixed, "mixed", false, "accept workers whose answers may differ in the last bits")
	fs.BoolVar(&o.json, "json", false, "print one JSON object, like --format json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// addDrawn declares the flags that choose the drawn pictures.
func (o *evalOptions) addDrawn(fs *pflag.FlagSet) {
	fs.IntVar(&o.n, "n", scenebench.DrawnPictures, "ask about `N` pictures")
	o.world.add(fs)
	fs.Int64Var(&o.first, "first-seed", scene.EvalSeed,
		"`seed` of the first drawn picture; the others follow")
}

// pictures returns the pictures and their number.
func (o *evalOptions) pictures() (iter.Seq2[scenebench.Item, error], int, error) {
	if o.data == "" {
		return scenebench.DrawnIn(o.world.World, o.first, o.n), o.n, nil
	}
	for _, name := range []string{"world", "first-seed"} {
		if f := o.reduction.fs.Lookup(name); onCommandLine(f) {
			return nil, 0, usagef("--%s: has no use with --data, got %s", name, f.Value)
		}
	}
	f, err := scenebench.OpenFolder(o.data)
	if err != nil {
		return nil, 0, err
	}
	n := f.Len()
	switch {
	case o.reduction.fs.Changed("n") && o.n > n:
		return nil, 0, usagef("--n: more than there is, got %d, want at most the %d pictures of %s",
			o.n, n, o.data)
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
	if !slices.Contains(tableFormats, o.format) {
		return usagef("--format: got %q, want %s", o.format, strings.Join(tableFormats, "|"))
	}
	if err := o.nats.check(o.reduction.fs); err != nil {
		return err
	}
	if o.all && o.nats.url != "" {
		return usagef("--all: has no use with --nats, got true")
	}
	if o.all && o.variants != nil {
		return usagef("--variant: has no use with --all, got %s", o.variants[0])
	}
	if o.all {
		return o.compare(ctx, a)
	}
	switch {
	case o.bases != nil:
		return usagef("--methods: has no use without --all, got %s", strings.Join(o.bases, ","))
	case len(o.budgets.list) > 1:
		return usagef("--n-vis: several budgets, got %s, want one, or --all", o.budgets)
	case o.plot != "":
		return usagef("--plot: has no use for one method, got %s, want --all too", o.plot)
	case o.format == "markdown" || o.format == "csv":
		return usagef("--format: has no use for one method, got %s, want table or json, or --all",
			o.format)
	}
	r, err := o.reduction.options()
	if err != nil {
		return err
	}
	variants, err := o.varied(r)
	if err != nil {
		return err
	}
	items, n, err := o.pictures()
	if err != nil {
		return err
	}
	if o.nats.url != "" {
		return o.overNATS(ctx, a, items, n)
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	how, end := o.how(a)
	defer end()
	if variants != nil {
		table, err := scenebench.Variants(ctx, m, items, n, variants, how)
		end()
		if table == nil {
			return noResult(ctx, err)
		}
		if o.format == "json" {
			return soFar(ctx, table.Pictures, n, "pictures", writeJSON(a.out, table))
		}
		return soFar(ctx, table.Pictures, n, "pictures", table.WriteTable(a.out))
	}
	result, err := scenebench.Scenes(ctx, m, items, n, r, how)
	end()
	return o.print(ctx, a, result, n, err)
}

// print prints the result of a run over n pictures; err is how the run ended.
func (o *evalOptions) print(
	ctx context.Context, a *app, r *scenebench.Result, n int, err error,
) error {
	if r == nil {
		return noResult(ctx, err)
	}
	if o.format == "json" {
		return soFar(ctx, r.Pictures, n, "pictures", writeJSON(a.out, r))
	}
	return soFar(ctx, r.Pictures, n, "pictures", r.WriteTable(a.out))
}

// overNATS lets workers answer.
func (o *evalOptions) overNATS(
	ctx context.Context, a *app, items iter.Seq2[scenebench.Item, error], n int,
) error {
	fs := o.reduction.fs
	for _, name := range []string{"variant", "distance"} {
		if f := fs.Lookup(name); onCommandLine(f) {
			return usagef("--%s: has no use with --nats, got %s", name, f.Value)
		}
	}
	e, done, err := newEvalFleet(ctx, a, &o.nats, &o.reduction, o.model.files.Model, o.mixed)
	if err != nil {
		return err
	}
	defer done()
	if !fs.Changed("workers") {
		o.workers = fleetPictures
	}
	how, end := o.how(a)
	defer end()
	r, err := scenebench.Run(ctx, items, n, e.scenes, how)
	end()
	if r != nil {
		r.Setup = e.Settings()
		r.Setup["interval_seed"] = how.Seed
	}
	return o.print(ctx, a, r, n, err)
}

// varied returns r and its variants, or nothing if there are no variants.
func (o *evalOptions) varied(r methods.Options) (all []scenebench.Variant, err error) {
	if o.variants == nil {
		return nil, nil
	}
	if o.distance {
		return nil, usagef("--distance: has no use with --variant, got true")
	}
	all = append(all, scenebench.Variant{Name: "as flags say", Options: r})
	for _, object := range o.variants {
		v, err := o.reduction.variant(object)
		if err != nil {
			return nil, fmt.Errorf("--variant: %s: %w", object, err)
		}
		all = append(all, scenebench.Variant{Name: object, Options: v})
	}
	return all, nil
}

// how returns the options of a run; the run shows its progress until end is called.
func (o *evalOptions) how(a *app) (_ scenebench.RunOptions, end func()) {
	run := scenebench.RunOptions{Workers: o.workers, Seed: o.reduction.seed, Distance: o.distance}
	p := a.meter("pictures")
	run.Progress = func(done, total int) { p.set(int64(done), int64(total)) }
	return run, p.end
}

// noResult ends a command that has no result to print.
func noResult(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return cutShort("eval: interrupted, there is no result")
	}
	return err
}

// soFar ends a command whose run ended with err, after the result was written. If the run was
// interrupted, it says how much the result covers.
func soFar(ctx context.Context, done, total int, what string, err error) error {
	if err == nil && ctx.Err() != nil && done < total {
		return cutShort("eval: interrupted, the result covers %d of %d %s", done, total, what)
	}
	return err
}

// compare runs all methods at all budgets.
func (o *evalOptions) compare(ctx context.Context, a *app) error {
	for _, name := range []string{"base", "restore"} {
		if f := o.reduction.fs.Lookup(name); onCommandLine(f) {
			return usagef("--%s: has no use with --all, got %s", name, f.Value)
		}
	}
	if name := o.reduction.given("n-vis"); name != "" {
		return usagef("--%s: has no use with --all, got %s", name,
			o.reduction.fs.Lookup(name).Value)
	}
	for _, name := range o.bases {
		if !slices.Contains(methodNames()[1:], name) {
			return usagef("--methods: got %q, want %s", name, strings.Join(methodNames()[1:], "|"))
		}
	}
	if o.budgets.list == nil {
		return usagef("--n-vis: got %s, want numbers with --all", o.budgets)
	}
	if o.plot != "" {
		if err := checkPlot("plot", o.plot); err != nil {
			return err
		}
	}
	outs := a.outputs(append(o.model.files.Paths(), o.data)...)
	defer outs.discard()
	plot, err := outs.open("plot", o.plot)
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
	info := m.Info()
	if info.Sizes == nil || info.Sizes.Views != 1 {
		return fmt.Errorf("eval: --all: pictures of %s have no number of tokens of their "+
			"own, which budgets are for: it depends on the picture", info.Name)
	}
	for _, budget := range o.budgets.list {
		if budget > info.Sizes.Tokens {
			return usagef("--n-vis: out of range, got %d, want at most the %d visual tokens of %s",
				budget, info.Sizes.Tokens, info.Name)
		}
	}
	settings, refused := scenebench.Settings(m, o.bases, o.budgets.list)
	how, end := o.how(a)
	defer end()
	table, err := scenebench.Compare(ctx, m, items, n, settings, o.reduction.seed, how)
	end()
	if table == nil {
		return noResult(ctx, err)
	}
	table.Refused = refused
	out := outs.results()
	switch o.format {
	case "json":
		err = writeJSON(out, table)
	case "csv":
		err = table.WriteCSV(out)
	case "markdown":
		err = table.WriteMarkdown(out)
	default:
		err = table.WriteTable(out)
	}
	if err != nil {
		return err
	}
	return soFar(ctx, table.Pictures, n, "pictures", plot.writePlot(evalPanels(table)))
}

// form is the index of a setting's form: alone, with RESTORE, with covered anchors.
func form(s scenebench.Setting) int {
	switch {
	case s.Covered:
		return 2
	case s.Restore:
		return 1
	}
	return 0
}

// evalPanels plots the accuracy that methods keep, by budget, with one panel for each form.
func evalPanels(t *scenebench.Table) []chart.Panel {
	panels := []chart.Panel{
		{Title: "alone"}, {Title: "+ RESTORE"}, {Title: "+ RESTORE, covered anchors"},
	}
	for i := range panels {
		p := &panels[i]
		p.X, p.Y, p.LogX = "visual tokens", "kept of the unreduced accuracy (%)", true
		styles := map[string]int{}
		var lines []*chart.Series
		for _, r := range t.Rows {
			if !slices.Contains(p.Ticks, float64(r.NVis)) {
				p.Ticks = append(p.Ticks, float64(r.NVis))
			}
			if _, ok := styles[r.Base]; !ok {
				styles[r.Base] = len(styles)
				lines = append(lines, &chart.Series{
					Name: r.Base, Style: styles[r.Base], Dashed: len(styles) > chart.Colours,
				})
			}
			if s := lines[styles[r.Base]]; form(r.Setting) == i {
				s.X, s.Y = append(s.X, float64(r.NVis)), append(s.Y, r.Keeps)
			}
		}
		for _, s := range lines {
			if len(s.X) > 0 {
				p.Series = append(p.Series, *s)
			}
		}
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range t.Rows {
		low, high = min(low, r.Keeps), max(high, r.Keeps)
	}
	for i := range panels {
		panels[i].Low, panels[i].High = low, high
	}
	return panels
}
