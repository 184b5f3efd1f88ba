package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/paper"
	"github.com/restore-vlm/restore/internal/table"
)

// paperOptions are the flags of `restore-lab paper`.
type paperOptions struct {
	fs             *pflag.FlagSet
	model          cli.ModelFlags
	shape          string // of random weights, for times; "": the model
	data, protocol string
	n, limit       int
	records        string
	parallel       int
	format, out    string
	yes, json      bool
}

// scenesData is the value of --data for drawn scenes.
const scenesData = "scenes"

// paperFormats are the output formats of a page.
var paperFormats = append(slices.Clone(table.Formats), "svg")

// formatOf maps file extensions to formats.
var formatOf = map[string]string{
	".txt": "text", ".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json",
	".svg": "svg",
}

// newPaper returns the commands that make the paper's tables and figures.
func newPaper(a *cli.App) []*cobra.Command {
	return []*cobra.Command{newPaperItem(a, false), newPaperItem(a, true), newPaperList(a)}
}

const paperHelp = `Reproduce %s of the paper, with our values next to the paper's. Questions
without a recorded answer in --records are asked; an interrupted run continues there. A cell that cannot be
run is marked, with the reason.

Without --data everything is measured on drawn scenes, which takes minutes with the embedded model;
the command asks before it starts more than half an hour of work.
--data DIR has the benchmarks' data, in folders named %s,
or as the hub and LLaVA's repository have them: the command counts the questions first, and asks
whether to continue.`

func newPaperItem(a *cli.App, figure bool) *cobra.Command {
	o := new(paperOptions)
	word, what, example := "table", "one of the 20 tables",
		`  restore-lab paper table 1
  restore-lab paper table 1 -m MODEL --quant q4 --data DIR --yes
  restore-lab paper table 9 --format latex --out table9.tex`
	if figure {
		word, what, example = "figure", "one of the figures that measure something (2 to 5)",
			`  restore-lab paper figure 2 --out figure2.svg
  restore-lab paper figure 4 -m MODEL --data DIR --format csv`
	}
	cmd := &cobra.Command{
		Use:     word + " N",
		Short:   strings.ToUpper(what[:1]) + what[1:] + ", our values next to the paper's",
		Long:    fmt.Sprintf(paperHelp, what, strings.Join(benchmarks.Names(), ", ")),
		Example: example,
		Args:    cli.OneArg("paper " + word + ": got %d arguments, want the number of a " + word),
	}
	o.add(cmd.Flags())
	fs := cmd.Flags()
	fs.StringVar(&o.format, "format", "text", "format of the page")
	cli.OneOf(fs, "format", paperFormats...)
	cli.ShowDefault(fs, "format", "text, or the extension of --out")
	fs.StringVar(&o.out, "out", "", "write the page into this `file`")
	fs.BoolVar(&o.yes, "yes", false, "do not ask before hours of work")
	fs.BoolVar(&o.json, "json", false, "print one JSON object, like --format json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		number, err := strconv.Atoi(args[0])
		if err != nil {
			return cli.Usagef("paper %s: got %q, want the number of a %s", word, args[0], word)
		}
		item := paper.Item{Figure: figure, Number: number}
		if err := item.Check(); err != nil {
			return &cli.UsageError{Err: err}
		}
		return o.run(cmd.Context(), a, item)
	}
	return cmd
}

// add declares the flags that all commands share.
func (o *paperOptions) add(fs *pflag.FlagSet) {
	o.fs = fs
	fs.StringVar(&o.data, "data", scenesData, "`folder` of the benchmarks' data, or scenes")
	fs.StringVar(&o.protocol, "protocol", benchmarks.Paper, "prompts, parser and metrics")
	cli.OneOf(fs, "protocol", benchmarks.Protocols...)
	fs.IntVar(&o.n, "n", 40, "draw `N` scenes")
	fs.IntVar(&o.limit, "limit", 0, "ask the first `N` questions of each benchmark")
	cli.ShowDefault(fs, "limit", "all")
	fs.StringVar(&o.records, "records", recordsFolder, "keep measurements in this `folder`")
	fs.IntVar(&o.parallel, "parallel", 1, "ask about `N` pictures at a time")
	cli.Within(fs, 1, maxScenes, "n", "limit")
	cli.Within(fs, 1, cli.MaxThreads, "parallel")
	o.model.Add(fs)
	o.model.AddResize(fs)
	cli.ShowDefault(fs, "pad", "true for LLaVA-1.5 on benchmarks under the paper's protocol")
}

// check refuses wrong flags before any file is opened.
func (o *paperOptions) check() error {
	scenes := o.data == scenesData
	why := "has no use with --data " + o.data + ", got %v"
	if err := cmp.Or(cli.NoUse(o.fs, !scenes, why, "n"),
		cli.NoUse(o.fs, scenes, why, "limit", "protocol")); err != nil || o.shape == "" {
		return err
	}
	return cli.CheckShape(o.fs)
}

// maxScenes limits --n and --limit.
const maxScenes = 1 << 20

// form is the format of the page.
func (o *paperOptions) form() (string, error) {
	ending := formatOf[strings.ToLower(filepath.Ext(o.out))]
	if !o.json && !o.fs.Changed("format") && ending != "" {
		return ending, nil
	}
	return cli.Format(o.fs, o.format, o.json)
}

// run makes a page.
func (o *paperOptions) run(ctx context.Context, a *cli.App, item paper.Item) error {
	if err := o.check(); err != nil {
		return err
	}
	format, err := o.form()
	if err != nil {
		return err
	}
	outs := a.Outputs(o.model.Paths()...)
	defer outs.Discard()
	file, err := outs.Open("out", o.out)
	if err != nil {
		return err
	}
	mk, src, done, err := o.maker(a)
	if err != nil {
		return err
	}
	defer done()
	if err := o.mayRun(ctx, a, mk, item, src); err != nil {
		return err
	}
	page, err := mk.Make(ctx, item, src)
	done()
	if err != nil {
		if ctx.Err() != nil {
			return cli.CutShort(
				"paper: interrupted; the same command continues with the answers in %s",
				o.records)
		}
		return err
	}
	if file != nil {
		return file.Write(func(w io.Writer) error { return writePage(w, format, page) })
	}
	return writePage(outs.Results(), format, page)
}

// maker opens the model and the source of its questions.
func (o *paperOptions) maker(a *cli.App) (*paper.Maker, *paper.Source, func(), error) {
	src := paper.Drawn(o.n)
	if o.data != scenesData {
		if _, err := os.Stat(o.data); err != nil {
			return nil, nil, nil, cli.PathError(o.data, err)
		}
		src = paper.Folder(o.data, benchmarks.Options{Protocol: o.protocol}, o.limit)
	}
	scripts := !src.Scenes && o.protocol == benchmarks.Paper
	pictures := o.parallel
	if src.Scenes { // all of them, since one run follows another
		pictures = o.n
	}
	m, err := openForEval(context.Background(), &o.model, o.shape, a, pictures, scripts)
	if err != nil {
		return nil, nil, nil, err
	}
	show, end := eachProgress(a)
	mk := &paper.Maker{
		Model: m.model, System: m.System, Records: o.records, Parallel: o.parallel, Progress: show,
		Paper: func() (*engine.Engine, error) {
			return (&flopsOptions{shape: "llava-1.5-7b"}).open(a)
		},
	}
	done := sync.OnceFunc(func() {
		end()
		src.Close()
		m.model.Close()
	})
	return mk, src, done, nil
}

// eachProgress shows the progress of each run until end is called.
func eachProgress(a *cli.App) (show func(string, eval.Progress), end func()) {
	var current string
	var set func(eval.Progress)
	stop := func() {}
	show = func(run string, p eval.Progress) {
		if run != current {
			stop()
			current = run
			set, stop = runProgress(a, run)
		}
		set(p)
	}
	return show, func() { stop() }
}

// minutes is the time of drawn scenes up to which the command does not ask.
const minutes = 30 * time.Minute

// mayRun asks before hours of work.
func (o *paperOptions) mayRun(ctx context.Context, a *cli.App, mk *paper.Maker, item paper.Item,
	src *paper.Source) error {
	p, err := mk.Work(ctx, item, src)
	if err != nil {
		return err
	}
	if p.Runs == p.Done || src.Scenes && p.Left < minutes {
		return nil
	}
	a.Note("%s: %d of %d runs are open, about %s on this machine", item, p.Runs-p.Done, p.Runs,
		hours(p.Left))
	switch {
	case o.yes:
		return nil
	case !cli.IsTerminal(a.Err) || !cli.IsTerminal(a.In):
		return cli.Flagf("yes", "missing, want it where nobody can be asked, got about %s of work",
			hours(p.Left))
	}
	fmt.Fprint(a.Err, "go on? [y/N] ")
	line, _ := bufio.NewReader(a.In).ReadString('\n') // no answer means no
	a.Screen.Entered()
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return cli.CutShort("paper: not run")
	}
	return nil
}

// hours formats a duration.
func hours(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", max(1, d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// writePage writes a page in a format.
func writePage(w io.Writer, format string, p *paper.Page) error {
	switch format {
	case "json":
		return cli.WriteJSON(w, p)
	case "svg":
		if len(p.Panels) > 0 {
			caption := strings.Join(append([]string{p.Title}, p.Notes...), " ")
			return chart.Draw(w, caption, p.Panels)
		}
		var b strings.Builder
		if err := p.Write(&b, "text"); err != nil {
			return err
		}
		return chart.Text(w, b.String())
	}
	return p.Write(w, format)
}

func newPaperList(a *cli.App) *cobra.Command {
	o := new(paperOptions)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the paper's tables and figures, and the time that they take here",
		Long: `List the paper's tables and figures: how many runs each shows, how many of them
--records already has, and how long the others would take on this machine, predicted from a short measurement of
the model. Next to drawn scenes it shows the time of the paper's whole benchmarks, without VQAv2,
whose answers are not public. A run that several tables show counts in each of them, but is
made once. --shape makes random weights in memory, in the shape of one of the published LLaVA models or of a
config.json: so the times are known before the model is downloaded.`,
		Example: `  restore-lab paper list
  restore-lab paper list --shape llava-1.5-7b --quant q4
  restore-lab paper list -m MODEL --quant q4 --data DIR`,
		Args: cli.NoArgs,
	}
	o.add(cmd.Flags())
	addLLaVAShape(cmd.Flags(), &o.shape)
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.list(cmd.Context(), a) }
	return cmd
}

// paperLine is a line of the list.
type paperLine struct {
	Item    string   `json:"item"`
	Title   string   `json:"title"`
	Needs   []string `json:"needs"` // benchmarks
	Runs    int      `json:"runs"`
	Done    int      `json:"done"` // runs with all answers on record
	Seconds float64  `json:"seconds"`
	// Benchmarks is the time of the paper's whole benchmarks, if the list is for scenes.
	Benchmarks float64  `json:"benchmarks_seconds,omitempty"`
	Missing    []string `json:"missing,omitempty"` // why some runs are not possible
}

func (o *paperOptions) list(ctx context.Context, a *cli.App) error {
	if err := o.check(); err != nil {
		return err
	}
	mk, src, done, err := o.maker(a)
	if err != nil {
		return err
	}
	defer done()
	var lines []paperLine
	seconds := func(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
	for _, item := range paper.Items() {
		p, err := mk.Work(ctx, item, src)
		if err != nil {
			return err
		}
		x := paperLine{
			Item: item.String(), Title: item.Title(), Needs: item.Needs(), Runs: p.Runs,
			Done: p.Done, Seconds: seconds(p.Left), Missing: p.Missing,
		}
		if src.Scenes {
			whole, err := mk.Work(ctx, item, paper.Published())
			if err != nil {
				return err
			}
			x.Benchmarks = seconds(whole.Left)
		}
		lines = append(lines, x)
	}
	if o.json {
		return cli.WriteJSON(a.Out, map[string]any{
			"model": mk.Name(), "data": src.Name, "items": lines,
		})
	}
	head := []string{"ITEM", "TITLE", "NEEDS", "RUNS", "ON RECORD", "LEFT"}
	if src.Scenes {
		head = append(head, "ON THE BENCHMARKS")
	}
	rows := [][]string{head}
	var missing []string
	for _, x := range lines {
		row := []string{x.Item, x.Title, strings.Join(x.Needs, " "), strconv.Itoa(x.Runs),
			strconv.Itoa(x.Done), hours(time.Duration(x.Seconds * 1e9))}
		if src.Scenes {
			row = append(row, hours(time.Duration(x.Benchmarks*1e9)))
		}
		rows = append(rows, row)
		for _, m := range x.Missing {
			if !slices.Contains(missing, m) {
				missing = append(missing, m)
			}
		}
	}
	fmt.Fprintf(a.Out, "%s on %s\n", mk.Name(), src.Name)
	if err := cli.Table(a.Out, rows); err != nil {
		return err
	}
	for _, m := range missing {
		a.Note("cannot be run: %s", m)
	}
	return nil
}
