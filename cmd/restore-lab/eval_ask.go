package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/cli"
)

// recordsFolder is the default folder for records; it has one folder per run.
const recordsFolder = "restore-records"

// ask asks the questions, records the answers and scores them.
func (o *benchmarkOptions) ask(ctx context.Context, a *cli.App, s eval.Selection) error {
	if err := o.nats.Check(o.fs); err != nil {
		return err
	}
	if err := o.reduction.CheckSeed(); err != nil {
		return err
	}
	if _, err := o.reduction.Reduction(); err != nil {
		return err
	}
	b, err := o.open(a, false)
	if err != nil {
		return err
	}
	defer closeBench(b)
	outs := a.Outputs(append(o.model.Paths(), o.data)...)
	defer outs.Discard()
	m, done, err := o.answerer(ctx, a)
	if err != nil {
		return err
	}
	defer done()
	name, err := eval.RunName(b, m)
	if err != nil {
		return err
	}
	upload, err := o.upload(outs, b, name)
	if err != nil {
		return err
	}
	dir := cmp.Or(o.records, filepath.Join(recordsFolder, name))
	show, end := runProgress(a, o.name)
	defer end()
	r, all, err := eval.Run(ctx, b, m, eval.RunOptions{
		Records: dir, Selection: s, Parallel: o.parallel, Progress: show,
	})
	end()
	if picture := new(*errs.PictureError); errors.As(err, picture) {
		a.Note("the other answers are in %s; the same command continues there", dir)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return cli.CutShort(
			"eval: interrupted; the same command continues with the answers in %s", dir)
	case err != nil:
		return err
	}
	a.Note("answers are in %s", dir)
	return o.report(a, &benchmarkReport{Result: r, Records: dir}, b, all, upload)
}

// answerer opens the model, server or workers to ask.
func (o *benchmarkOptions) answerer(
	ctx context.Context, a *cli.App,
) (_ eval.Answerer, done func(), err error) {
	system, err := o.system.Text(a, "system-prompt", o.system.System)
	if err != nil {
		return nil, nil, err
	}
	if o.nats.URL != "" {
		return o.overNATS(ctx, a, system)
	}
	if o.server != "" {
		s, err := o.remote(a, system)
		return s, func() {}, err
	}
	how, err := o.reduction.Reduction()
	if err != nil {
		return nil, nil, err
	}
	m, err := openForEval(
		ctx, &o.model, "", a, o.parallel, o.protocol == benchmarks.Paper,
	)
	if err != nil {
		return nil, nil, err
	}
	if o.protocol != benchmarks.Paper || o.fs.Changed("system-prompt") {
		m.System = system
	}
	return m.with(how), func() { m.model.Close() }, nil
}

// remote returns the server of --openai.
func (o *benchmarkOptions) remote(a *cli.App, system string) (eval.Answerer, error) {
	if err := cli.NoUse(o.fs, true, "has no use with --openai, got %v", "threads", "quant",
		"encoder-quant", "cache-type", "mmproj", "pull", "pad", "min-pixels",
		"max-pixels"); err != nil {
		return nil, err
	}
	if o.model.Path == "" {
		return nil, cli.Flagf("model",
			"missing, want the name that the server of --openai has for it")
	}
	s := &eval.Server{URL: o.server, Model: o.model.Path, System: system,
		Key: a.Getenv("OPENAI_API_KEY")}
	extension, err := o.reduction.Extension()
	if err != nil {
		return nil, err
	}
	s.Reduction = extension
	return s, nil
}

// noteEvery is the interval between progress lines without a terminal.
const noteEvery = time.Minute

// runProgress shows the progress of a run until end is called: as a bar on a terminal, else as one
// line per minute.
func runProgress(a *cli.App, name string) (show func(eval.Progress), end func()) {
	m := a.Meter(name)
	last := time.Now()
	return func(p eval.Progress) {
		m.Set(int64(p.Done), int64(p.Total))
		if m == nil && time.Since(last) >= noteEvery {
			last = time.Now()
			a.Note("%s: %d of %d questions, %s left", name, p.Done, p.Total,
				p.Left.Round(time.Second))
		}
	}, m.End
}
