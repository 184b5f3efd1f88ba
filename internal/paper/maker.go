package paper

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

// Maker makes tables and figures from a model's answers, and keeps these in a folder.
type Maker struct {
	Model    *restore.Model
	System   string // system prompt of each question
	Records  string // folder of folders, as `restore-lab eval` names them
	Parallel int
	// Progress receives the progress of each run; may be nil.
	Progress func(run string, p eval.Progress)
	// Paper opens the paper's model LLaVA-1.5-7B without weights, for its sizes.
	Paper func() (*engine.Engine, error)

	done  map[string]*outcome
	work  *Work // if set, runs are counted, not run
	ran   int
	first string // the first reason why a run is not possible
	rates *rates
}

// outcome is a run, or the reason why there is none.
type outcome struct {
	result *eval.Result
	why    string
}

// Name is the model's name.
func (mk *Maker) Name() string { return mk.Model.Info().Name }

// engine is the model's engine.
func (mk *Maker) engine() *engine.Engine { return seam.Engine(mk.Model) }

// reduced is the model with a reduction.
func (mk *Maker) reduced(r *restore.Reduction) *eval.Service {
	return &eval.Service{Model: mk.Model, Reduction: r, System: mk.System}
}

// resolve turns a setting into a reduction and the engine's options, or returns why that is
// impossible.
func (mk *Maker) resolve(s Setting) (r *restore.Reduction, o methods.Options, why string) {
	tokens := mk.Model.Info().VisualTokens
	r, err := s.reduction(tokens)
	if err == nil {
		o, err = seam.Reduction(r)
	}
	if err == nil && s.Base != "" && tokens > 0 {
		_, err = mk.engine().Resolve(o)
	}
	if err != nil {
		why = err.Error()
	}
	return r, o, why
}

// folder is the folder of a run's records.
func (mk *Maker) folder(b *eval.Benchmark, m eval.Answerer) (string, error) {
	name, err := eval.RunName(b, m)
	return filepath.Join(mk.Records, name), err
}

// run asks the questions of a benchmark under a setting that have no recorded answer.
func (mk *Maker) run(ctx context.Context, src *Source, s Setting, name string) (*outcome, error) {
	key := name + "\x00" + s.key()
	if x := mk.done[key]; x != nil {
		return x, nil
	}
	if mk.done == nil {
		mk.done = map[string]*outcome{}
	}
	x := &outcome{}
	mk.done[key] = x
	no := func(why string) (*outcome, error) {
		x.why = mk.miss(why)
		return x, nil
	}
	b, why := src.Benchmark(name)
	if why != "" && !src.published {
		return no(why)
	}
	if b != nil && b.Submission != nil && b.Submission.Only {
		return no(name + ": its answers are not public, so that its server alone can score")
	}
	r, how, why := mk.resolve(s)
	if why != "" {
		return no(why)
	}
	m := mk.reduced(r)
	if mk.work != nil {
		x.why = planned
		return x, mk.countRun(src, name, m, how)
	}
	dir, err := mk.folder(b, m)
	if err != nil {
		return nil, err
	}
	o := eval.RunOptions{
		Records: dir, Selection: eval.Selection{Limit: src.Limit}, Parallel: mk.Parallel,
	}
	if mk.Progress != nil {
		label := fmt.Sprintf("%s, %s", name, s)
		o.Progress = func(p eval.Progress) { mk.Progress(label, p) }
	}
	x.result, _, err = eval.Run(ctx, b, m, o)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return no(err.Error())
	}
	mk.ran++
	return x, nil
}

// miss records and returns the reason why a run is not possible.
func (mk *Maker) miss(why string) string {
	if mk.work != nil {
		mk.work.miss(why)
	}
	if mk.first == "" {
		mk.first = why
	}
	return "not run: " + why
}

// value is a benchmark's figure in the paper's units, or the reason why there is none. part names
// the part of SEED-Bench or the task of scenes whose figure is wanted instead of the main one.
func (x *outcome) value(name, protocol, part string) (v float64, why string) {
	if x.why != "" {
		return 0, x.why
	}
	_, v, ok := bench.Quoted(name, protocol, x.result.Metrics)
	if part != "" {
		if protocol == bench.LMMS {
			part = "seed_" + part
		}
		v, ok = x.result.Metrics.Get(part)
	}
	if !ok {
		return 0, strings.TrimSpace(name + " has no figure " + part)
	}
	return v * units(name, protocol), ""
}

// units is how many of the paper's units one of a benchmark's figure is: lmms-eval has shares where
// the paper has percent or, of OCRBench, answers of a thousand.
func units(name, protocol string) float64 {
	switch {
	case protocol != bench.LMMS || name == "mme" || strings.HasPrefix(name, "mmbench"):
		return 1
	case name == "ocrbench":
		return 1000
	}
	return 100
}
