package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

const bothHelp = "ask every question twice, by the rule of anchors that auto chooses and by the " +
	"other one, and compare the results; false asks once"

// otherAnchors is a run by the rule of anchors that auto did not choose, and the difference.
type otherAnchors struct {
	Chosen  string         `json:"chosen"`  // the rule that auto chose
	Anchors string         `json:"anchors"` // the rule of this run
	Metrics eval.Metrics   `json:"metrics"`
	Change  compare.Change `json:"change"` // this run against auto's
	Records string         `json:"records"`
}

// anchorsOpen reports whether auto chooses the rule of anchors, so that both rules can be asked.
func (o *benchmarkOptions) anchorsOpen() (bool, error) {
	r, err := o.reduction.Reduction()
	if err != nil {
		return false, err
	}
	how, err := seam.Reduction(r)
	if err != nil {
		return false, err
	}
	open := o.server == "" && o.nats.URL == "" && how.Restore && how.Base != "none" &&
		how.Compat == "" && how.Anchors == "" && how.Join == "" &&
		how.AnchorPool == ""
	for _, rule := range []string{"released", "covered"} { // not every method has both
		open = open && withAnchors(r, rule).Check() == nil
	}
	if !open && o.both && cli.OnCommandLine(o.fs.Lookup("both")) {
		return false, cli.Flagf("both", "has no use here, want RESTORE over a --base, "+
			"anchors left to auto, and a model that is loaded here")
	}
	return open && o.both, nil
}

// withAnchors is a reduction by a rule of anchors, with the rule's default for --join.
func withAnchors(r *restore.Reduction, rule string) *restore.Reduction {
	out := *r
	out.Options = map[string]any{}
	maps.Copy(out.Options, r.Options)
	out.Options["anchors"], out.Options["join"] = rule, "rest"
	if rule == "covered" {
		out.Options["join"] = "all"
	}
	return &out
}

// askOther asks the questions of a complete run again, by the other rule.
func (o *benchmarkOptions) askOther(
	ctx context.Context, a *cli.App, b *eval.Benchmark, m *eval.Service, run eval.RunOptions,
) (*otherAnchors, error) {
	chosen, err := eval.ReadRecords(run.Records)
	if err != nil {
		return nil, err
	}
	var before, after int
	for _, r := range chosen.List {
		before, after = before+r.Before, after+r.After
	}
	x := &otherAnchors{Chosen: "released", Anchors: "covered"}
	if methods.FewTokens(after, before) {
		x.Chosen, x.Anchors = x.Anchors, x.Chosen
	}
	other := *m
	other.Reduction = withAnchors(m.Reduction, x.Anchors)
	if o.records != "" {
		run.Records = o.records + "-" + x.Anchors
	} else {
		name, err := eval.RunName(b, &other)
		if err != nil {
			return nil, err
		}
		run.Records = filepath.Join(recordsFolder, name)
	}
	x.Records = run.Records
	r, _, err := o.runTo(ctx, a, b, &other, run)
	if err != nil {
		return nil, err
	}
	x.Metrics = r.Metrics
	second, err := eval.ReadRecords(run.Records)
	if err != nil {
		return nil, err
	}
	c, err := compare.Runs([]*eval.Records{chosen, second}, 0)
	if err != nil {
		return nil, err
	}
	x.Change = c.Pairs[0].Change
	return x, nil
}

// write prints the run by the other rule below the run that auto chose.
func (x *otherAnchors) write(w io.Writer) {
	fmt.Fprintf(w, "with anchors %s (auto took %s):\n", x.Anchors, x.Chosen)
	writeMetrics(w, x.Metrics)
	c := &x.Change
	fmt.Fprintf(w, "  %-22s %+.2f (95 %%: %+.2f to %+.2f; %d lost, %d gained)\n",
		"points against auto", c.Points, c.Interval[0], c.Interval[1], c.Lost, c.Gained)
}
