package main

import (
	"context"
	"errors"
	"iter"

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
	json      bool
}

func newEvalScenes(a *app) *cobra.Command {
	o := new(evalOptions)
	cmd := &cobra.Command{
		Use:   "scenes",
		Short: "Accuracy on drawn scenes, with the reduction and without",
		Long: `Ask the questions of drawn scenes twice, with the reduction and without, and print both accuracies per task with 95 % intervals.
An answer is right when all of it is. --data takes a folder with questions.json and pictures/ instead of drawn scenes.`,
		Example: `  restore eval scenes --base holov --n-vis 64
  restore eval scenes --base divprune --n-vis 128 --restore=false --n 20 --json`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	o.reduction.add(fs, "holov", 64)
	fs.IntVar(&o.n, "n", eval.DrawnPictures, "ask about `N` pictures")
	fs.StringVar(&o.data, "data", "", "`folder` with questions.json and pictures/, instead of drawn scenes")
	o.model.addResize(fs)
	fs.IntVar(&o.workers, "workers", 1, "ask about `N` pictures at a time")
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of --base random and of the intervals")
	fs.BoolVar(&o.distance, "distance", false, "measure the weighted Hausdorff distance between tokens before and after too")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
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
	run := eval.RunOptions{Workers: o.workers, Seed: o.seed, Distance: o.distance}
	if isTerminal(a.err) {
		bar := progressbar.NewOptions(n, progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription("pictures"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
		run.Progress = func(done, _ int) { _ = bar.Set(done) } // a bar that cannot be drawn is no reason to stop
	}
	result, err := eval.Scenes(ctx, m, items, n, r, run)
	if ctx.Err() != nil {
		return errors.New("eval: interrupted, there is no result")
	}
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(a.out, result)
	}
	return result.WriteTable(a.out)
}
