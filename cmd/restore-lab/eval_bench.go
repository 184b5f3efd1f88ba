package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/cli"
)

// benchmarkOptions are the flags of `restore-lab eval NAME`.
type benchmarkOptions struct {
	name string
	fs   *pflag.FlagSet

	data, protocol, split, images string
	limit                         int
	shard                         string

	prompts, answers, submission string
	judge, judgeModel            string
	json                         bool

	model     cli.ModelFlags
	reduction cli.ReductionFlags
	system    cli.QuestionFlags
	server    string
	nats      cli.NatsFlags
	mixed     bool
	records   string
	parallel  int
	lmmsOut   string
}

const benchmarkHelp = `Ask a model the questions of %s, and score its answers.

--data is the data set of the hub (%s: its folder, a folder of the hub's cache, or one
file), or LLaVA's folder of the benchmark. --protocol chooses prompts, parser and metrics:
the paper's, or lmms-eval's. Without --base every visual token is read, or as many as the server
of --openai reads by itself.

Answers are written to the folder --records at once. An interrupted run, also one killed with kill -9,
continues there when you run the same command again. --openai asks a server instead;
--model is then the server's name for the model, and the flags of the reduction are sent in the form
that 'restore serve' takes.

--nats asks 'restore worker's on any number of machines; --model is then the name of their
model. Answers differ between kinds of machines, so workers that differ are refused without --mixed.

--print-prompts writes the prompts, and --answers scores a file with one {"id": …, "answer": …} per
line; neither needs a model or opens a picture.`

const benchmarkExamples = `  restore-lab eval %[1]s --data DIR -m MODEL --base holov --n-vis 64
  restore-lab eval %[1]s --data DIR -m MODEL --quant q4 --limit 100 --json
  restore-lab eval %[1]s --data DIR --openai http://127.0.0.1:8080/v1 --model NAME --parallel 8
  restore-lab eval %[1]s --data DIR --nats nats://10.0.0.1:4222 --base holov --n-vis 64
  restore-lab eval %[1]s --data DIR --print-prompts prompts.jsonl
  restore-lab eval %[1]s --data DIR --protocol lmms --answers answers.jsonl --json`

// newEvalBenches returns one command for each benchmark.
func newEvalBenches(a *cli.App) (all []*cobra.Command) {
	for _, name := range benchmarks.Names() {
		all = append(all, newEvalBench(a, name))
	}
	return all
}

func newEvalBench(a *cli.App, name string) *cobra.Command {
	o := &benchmarkOptions{name: name}
	cmd := &cobra.Command{
		Use:   name,
		Short: benchmarks.Title(name) + ", by the paper's rules or lmms-eval's",
		Long: fmt.Sprintf(benchmarkHelp, benchmarks.Title(name),
			strings.Join(benchmarks.Repositories(name), ", ")),
		Example: fmt.Sprintf(benchmarkExamples, name),
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	o.fs = fs
	splits := benchmarks.Splits(name)
	fs.StringVar(&o.data, "data", "", "`folder` or file of the questions")
	fs.StringVar(&o.protocol, "protocol", benchmarks.Protocols[0], "prompts, parser and metrics")
	cli.OneOf(fs, "protocol", benchmarks.Protocols...)
	fs.StringVar(&o.split, "split", splits[0], "split of the data set")
	cli.ShowChoices(fs, "split", splits...)
	fs.StringVar(&o.images, "images", "", "`folder` of the pictures, in LLaVA's layout")
	cli.ShowDefault(fs, "images", "where LLaVA has them")
	fs.IntVar(&o.limit, "limit", 0, "ask the first `N` questions")
	cli.ShowDefault(fs, "limit", "all")
	cli.Within(fs, 1, math.Inf(1), "limit")
	fs.StringVar(&o.shard, "shard", "", "ask part `I/N` of the questions, I from 1")
	cli.ShowDefault(fs, "shard", "all")
	fs.StringVar(&o.prompts, "print-prompts", "",
		"write the prompts to this `file`, and stop; - is stdout")
	fs.StringVar(&o.answers, "answers", "", "score the answers of this `file`; - is stdin")
	fs.StringVar(&o.submission, "submission", "",
		"write the submission for the benchmark's server to this `file`")
	cli.ShowDefault(fs, "submission",
		"NAME-SPLIT-PROTOCOL-HASH-submission.EXT, or NAME-SPLIT-submission.EXT with --answers, "+
			"where a split has no public answers")
	if strings.HasPrefix(name, "mmbench") {
		fs.StringVar(&o.judge, "judge", "",
			"`URL` of an OpenAI-compatible server whose model reads the answers that no "+
				"rule can read (lmms);"+" its key is OPENAI_API_KEY")
		cli.ShowDefault(fs, "judge", "the harness's own rules")
		fs.StringVar(&o.judgeModel, "judge-model", benchmarks.JudgeModel,
			"`name` of the judge's model")
	}
	fs.StringVar(&o.lmmsOut, "lmms-out", "",
		"also write lmms-eval's results and samples files into this `folder` (lmms)")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	o.model.Add(fs)
	o.model.AddResize(fs)
	cli.ShowDefault(fs, "pad", "true for LLaVA-1.5 under the paper's protocol")
	o.system.AddSystem(fs)
	cli.ShowDefault(fs, "system-prompt",
		"vicuna's sentence for LLaVA under the paper's protocol, else none")
	o.reduction.Add(fs, "none", 0)
	fs.Int64Var(&o.reduction.Seed, "seed", 0, "`seed` of --base random")
	fs.StringVar(&o.records, "records", "",
		"write answers to this `folder`, and continue from there")
	cli.ShowDefault(fs, "records", "restore-records/NAME-SPLIT-PROTOCOL-HASH")
	fs.IntVar(&o.parallel, "parallel", 1, "ask about `N` pictures at a time")
	cli.Within(fs, 1, cli.MaxThreads, "parallel")
	fs.StringVar(&o.server, "openai", "",
		"`URL` of an OpenAI-compatible server to ask; its key is OPENAI_API_KEY")
	o.nats.Add(fs, "ask the workers at this address", false)
	fs.BoolVar(&o.mixed, "mixed", false, "accept workers whose answers may differ in the last bits")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// Flags of each way to use the command, except the flags that choose the questions.
var (
	questionSet = []string{"data", "protocol", "split", "images", "limit", "shard"}
	scoreSet    = []string{"answers", "submission", "judge", "judge-model", "lmms-out", "json"}
)

// only refuses flags on the command line that are not in the sets.
func (o *benchmarkOptions) only(with string, sets ...[]string) (err error) {
	o.fs.Visit(func(f *pflag.Flag) {
		if err == nil && cli.OnCommandLine(f) && !slices.Contains(slices.Concat(sets...), f.Name) {
			err = cli.Flagf(f.Name, "has no use with --%s, got %s", with, f.Value)
		}
	})
	return err
}

// selection parses --limit and --shard.
func (o *benchmarkOptions) selection() (eval.Selection, error) {
	s := eval.Selection{Limit: o.limit}
	if o.shard == "" {
		return s, nil
	}
	i, n, ok := strings.Cut(o.shard, "/")
	part, err1 := strconv.Atoi(i)
	of, err2 := strconv.Atoi(n)
	if !ok || err1 != nil || err2 != nil || part < 1 || part > of {
		return s, cli.Flagf("shard", "cannot be used, got %q, want I/N with I from 1 to N", o.shard)
	}
	s.Shard, s.Parts = part, of
	return s, nil
}

// open opens the benchmark.
func (o *benchmarkOptions) open(a *cli.App, prompts bool) (*eval.Benchmark, error) {
	options := benchmarks.Options{
		Protocol: o.protocol,
		Split:    o.split,
		Images:   o.images,
		Prompts:  prompts,
	}
	if err := cli.NoUse(o.fs, o.protocol != benchmarks.LMMS,
		"has no use with --protocol "+o.protocol+", got %v", "judge"); err != nil {
		return nil, err
	}
	if o.judge != "" {
		var err error
		key := a.Getenv("OPENAI_API_KEY")
		if options.Judge, err = benchmarks.NewJudge(o.judge, o.judgeModel, key); err != nil {
			return nil, cli.Flagf("judge", "%w", err)
		}
	}
	b, err := benchmarks.Open(o.name, o.data, options)
	var bad *errs.OptionError
	if errors.As(err, &bad) {
		return nil, &cli.UsageError{Err: err}
	}
	return b, err
}

func (o *benchmarkOptions) run(ctx context.Context, a *cli.App) error {
	s, err := o.selection()
	err = cmp.Or(err, cli.NoUse(o.fs, o.protocol != benchmarks.LMMS,
		"has no use with --protocol "+o.protocol+", got %v", "lmms-out"))
	switch {
	case err != nil:
		return err
	case o.data == "":
		return cli.Flagf("data", "missing, want the folder of %s", benchmarks.Title(o.name))
	case o.prompts != "":
		if err := o.only("print-prompts", questionSet, []string{"print-prompts"}); err != nil {
			return err
		}
		return o.printPrompts(a, s)
	case o.answers != "":
		if err := o.only("answers", questionSet, scoreSet); err != nil {
			return err
		}
		return o.score(ctx, a, s)
	}
	return o.ask(ctx, a, s)
}

func (o *benchmarkOptions) printPrompts(a *cli.App, s eval.Selection) error {
	outs := a.Outputs(o.data)
	defer outs.Discard()
	file, err := outs.Open("print-prompts", o.prompts)
	if err != nil {
		return err
	}
	b, err := o.open(a, true)
	if err != nil {
		return err
	}
	defer closeBench(b)
	return file.Write(func(w io.Writer) error {
		_, err := eval.WritePrompts(w, b, s)
		return err
	})
}

func closeBench(b *eval.Benchmark) {
	if b.Close != nil {
		_ = b.Close() // only read from
	}
}

// score scores answers from a file.
func (o *benchmarkOptions) score(ctx context.Context, a *cli.App, s eval.Selection) error {
	in, err := a.Open(o.answers, cli.MaxTextBytes)
	if err != nil {
		return err
	}
	defer in.Close()
	answers, err := eval.ReadAnswers(in, cli.StdinName(o.answers))
	if err != nil {
		return err
	}
	b, err := o.open(a, false)
	if err != nil {
		return err
	}
	defer closeBench(b)
	outs := a.Outputs(o.data, o.answers)
	defer outs.Discard()
	upload, err := o.upload(outs, b, "")
	if err != nil {
		return err
	}
	r, all, err := eval.ScoreAll(ctx, b, s, answers)
	if err != nil {
		return err
	}
	return o.report(a, &benchmarkReport{Result: r}, b, all, upload)
}

// upload opens the file for the benchmark's server, if the benchmark has one. run names the run, so
// that its default file replaces none of another; "" for answers of a file, whose default file
// replaces none at all.
func (o *benchmarkOptions) upload(
	outs *cli.Outputs, b *eval.Benchmark, run string,
) (*cli.OutputFile, error) {
	path := o.submission
	switch {
	case b.Submission == nil && path != "":
		return nil, cli.Flagf("submission", "%s has no such file, got %s", o.name, path)
	case b.Submission != nil && b.Submission.Only && path == "":
		path = cmp.Or(run, o.name+"-"+b.Split) + "-submission" + b.Submission.Ext
		if _, err := os.Lstat(path); err == nil && run == "" {
			return nil, cli.Flagf("submission", "missing, and %s exists, want another file", path)
		}
	}
	return outs.Open("submission", path)
}

// benchmarkReport is a result with additional fields.
type benchmarkReport struct {
	*eval.Result
	Judge      string `json:"judge,omitempty"` // the judge of answers that no rule could read
	Submission string `json:"submission,omitempty"`
	Records    string `json:"records,omitempty"` // folder of the answers
}

// report writes the submission file and prints a result.
func (o *benchmarkOptions) report(
	a *cli.App,
	report *benchmarkReport,
	b *eval.Benchmark,
	all []*eval.Scored,
	upload *cli.OutputFile,
) error {
	r := report.Result
	if strings.HasPrefix(o.name, "mmbench") && o.protocol == benchmarks.LMMS && len(r.Metrics) > 0 {
		report.Judge = "none: the rules of mmbench_en_dev_static"
		if o.judge != "" {
			report.Judge = o.judgeModel + " at " + o.judge
		}
		a.Note("judge: %s", report.Judge)
	}
	out := a.Out
	if upload != nil {
		report.Submission = upload.Name()
		if err := upload.Write(func(w io.Writer) error {
			return b.Submission.Write(w, all)
		}); err != nil {
			return err
		}
		if upload.Path == "-" {
			out = a.Err
		}
		a.Note("wrote %s, for the benchmark's server", cli.OneLine(report.Submission))
	}
	if o.lmmsOut != "" {
		if err := benchmarks.WriteLMMS(o.lmmsOut, b, r, all, o.judge != ""); err != nil {
			return err
		}
	}
	if o.json {
		return cli.WriteJSON(out, report)
	}
	fmt.Fprintf(out, "%s, protocol %s, split %s: %s",
		benchmarks.Title(o.name), r.Protocol, r.Split, cli.Count(r.Questions, "question"))
	missing := 0
	for _, x := range all {
		if !x.Answered {
			missing++
		}
	}
	if missing > 0 {
		fmt.Fprintf(out, ", %d have no answer", missing)
	}
	if r.Failed > 0 {
		fmt.Fprintf(out, ", %s could not be read", cli.Count(r.Failed, "answer"))
	}
	fmt.Fprintln(out)
	for _, m := range r.Metrics {
		if !strings.HasSuffix(m.Name, "_stderr_clt") { // only for JSON
			fmt.Fprintf(out, "  %-22s %.4g\n", m.Name, m.Value)
		}
	}
	return nil
}
