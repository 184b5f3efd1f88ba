package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/evalengine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// recordsFolder is the default folder for records; it has one folder per run.
const recordsFolder = "restore-records"

// ask asks the questions, records the answers and scores them.
func (o *benchmarkOptions) ask(ctx context.Context, a *app, s eval.Selection) error {
	if err := o.nats.check(o.fs); err != nil {
		return err
	}
	if o.parallel < 1 || o.parallel > maxThreads {
		return usagef("--parallel: out of range, got %d, want 1 to %d", o.parallel, maxThreads)
	}
	if err := o.reduction.checkSeed(); err != nil {
		return err
	}
	both, err := o.anchorsOpen()
	if err != nil {
		return err
	}
	b, err := o.open(a, false)
	if err != nil {
		return err
	}
	defer closeBench(b)
	outs := a.outputs(append(o.model.files.Paths(), o.data)...)
	defer outs.discard()
	upload, err := o.upload(outs, b)
	if err != nil {
		return err
	}
	m, done, err := o.answerer(ctx, a)
	if err != nil {
		return err
	}
	defer done()
	dir := o.records
	if dir == "" {
		name, err := eval.RunName(b, m)
		if err != nil {
			return err
		}
		dir = filepath.Join(recordsFolder, name)
	}
	run := eval.RunOptions{Records: dir, Selection: s, Parallel: o.parallel}
	r, all, err := o.runTo(ctx, a, b, m, run)
	if err != nil {
		return err
	}
	report := &benchmarkReport{Result: r, Records: dir}
	if both && len(r.Metrics) > 0 {
		report.Other, err = o.askOther(ctx, a, b, m.(*evalengine.Model), run)
		if err != nil {
			return err
		}
	}
	return o.report(a, report, b, all, upload)
}

// runTo runs a benchmark, shows its progress, and names the folder of its answers.
func (o *benchmarkOptions) runTo(ctx context.Context, a *app, b *eval.Benchmark, m eval.Answerer,
	run eval.RunOptions) (*eval.Result, []*eval.Scored, error) {
	show, end := runProgress(a, o.name)
	defer end()
	run.Progress = show
	r, all, err := eval.Run(ctx, b, m, run)
	end()
	if err != nil && ctx.Err() != nil {
		return nil, nil, cutShort(
			"eval: interrupted; the same command continues with the answers in %s", run.Records)
	}
	if err == nil {
		a.note("answers are in %s", run.Records)
	}
	return r, all, err
}

// answerer opens the model, server or workers to ask.
func (o *benchmarkOptions) answerer(
	ctx context.Context, a *app,
) (_ eval.Answerer, done func(), err error) {
	system, err := o.system.text(a, "system-prompt", o.system.system)
	if err != nil {
		return nil, nil, err
	}
	if o.nats.url != "" {
		return o.overNATS(ctx, a, system)
	}
	if o.server != "" {
		s, err := o.remote(a, system)
		return s, func() {}, err
	}
	how, err := o.reduction.options()
	if err != nil {
		return nil, nil, err
	}
	files, err := look(o.model.files)
	if err != nil {
		return nil, nil, err
	}
	if o.protocol == benchmarks.Paper {
		said := o.model.asScripts(files)
		if !o.fs.Changed("system-prompt") {
			system = said
		}
	}
	e, err := o.model.open(a)
	if err != nil {
		return nil, nil, err
	}
	m := &evalengine.Model{
		Engine: e, Reduction: how, System: system, Opened: o.model.opened(e, files),
	}
	return m, func() { e.Close() }, nil
}

// remote returns the server of --openai.
func (o *benchmarkOptions) remote(a *app, system string) (eval.Answerer, error) {
	for _, name := range []string{"threads", "quant", "encoder-quant", "cache-type", "vision-tower",
		"pull", "pad", "min-pixels", "max-pixels"} {
		if f := o.fs.Lookup(name); f != nil && onCommandLine(f) {
			return nil, usagef("--%s: has no use with --openai, got %s", name, f.Value)
		}
	}
	if o.model.files.Model == "" {
		return nil, usagef("--model: missing, want the name that the server of --openai has for it")
	}
	if _, err := o.reduction.options(); err != nil {
		return nil, err
	}
	s := &eval.Server{URL: o.server, Model: o.model.files.Model, System: system,
		Key: a.getenv("OPENAI_API_KEY")}
	extension, err := o.reduction.extension()
	if err != nil {
		return nil, err
	}
	s.Reduction = extension
	return s, nil
}

// extension is the object "restore" of a request: the parameters that were set, under their JSON
// names. It is nil without any.
func (r *reductionFlags) extension() (json.RawMessage, error) {
	object := map[string]any{}
	var err error
	r.each(func(_ *pflag.Flag, p *parameterFlag) {
		if p.Kind == reduce.File {
			err = errors.Join(err,
				usagef("--%s: cannot be sent to a server, got %s", p.Name, p.text))
			return
		}
		v, parseErr := p.Parse(p.text)
		err = errors.Join(err, parseErr)
		object[p.JSONName()] = v
	})
	if m, lookupErr := methods.Lookup(r.base()); lookupErr == nil && m.Draws {
		object["seed"] = r.seed
	}
	if err != nil || len(object) == 0 {
		return nil, err
	}
	return json.Marshal(object)
}

// noteEvery is the interval between progress lines without a terminal.
const noteEvery = time.Minute

// runProgress shows the progress of a run until end is called: as a bar on a terminal, else as one
// line per minute.
func runProgress(a *app, name string) (show func(eval.Progress), end func()) {
	m := a.meter(name)
	last := time.Now()
	return func(p eval.Progress) {
		m.set(int64(p.Done), int64(p.Total))
		if m == nil && time.Since(last) >= noteEvery {
			last = time.Now()
			a.note("%s: %d of %d questions, %s left", name, p.Done, p.Total,
				p.Left.Round(time.Second))
		}
	}, m.end
}
