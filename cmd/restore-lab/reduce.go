package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// reduceOptions are the flags of `restore-lab reduce`.
type reduceOptions struct {
	reduction cli.ReductionFlags
	model     cli.ModelFlags // only threads
	in, out   string
	grid      string
}

func newReduce(a *cli.App) *cobra.Command {
	o := new(reduceOptions)
	cmd := &cobra.Command{
		Use:   "reduce",
		Short: "Reduce visual tokens from a file",
		Long: `Reduce visual tokens from a safetensors file, of any encoder, and write the reduction.

Reads X [N,C] and what the method needs (see 'restore methods NAME'): cls_attn and cls_attn_shallow [H,N+1], hidden [N+1,Cv], keys [H,N+1,Dh] (index 0
is the class token), pm_q_cls [W] and pm_k [N+1,W] (its query and all keys of the last layer), received_mid and received_deep [H,N] (the attention that tokens receive),
shrunk [a,b,C], text [M,C], and with it clip_image [N,D] and clip_text [M,D]. For an encoder without a class token: received, received_shallow and received_mid [H,N],
keys [H,N,Dh] and hidden_cells [N,W]. For a picture encoded in views: view [N] (-1: a newline) and view_class [V,Cv]. For methods before the encoder:
pixels [height,width,3], bytes of the picture. Other tensors are ignored. Writes kept (plain base) or retained, anchors, group [N] (row of every token, -1 dropped), size, merged,
position (counted from the first visual token), feat, and the scores. Rows are in the decoder's order.`,
		Example: `  restore-lab reduce --base holov --n-vis 64 --in features.safetensors --out reduced.safetensors`,
		Args:    cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&o.in, "in", "", "safetensors `file` with X and what the method needs")
	fs.StringVar(&o.out, "out", "", "safetensors `file` to write")
	fs.StringVar(&o.grid, "grid", "",
		"rows and columns of the patches as `HxW`; a square if possible")
	o.reduction.Add(fs, "", 0)
	fs.Int64Var(&o.reduction.Seed, "seed", 0, "`seed` of --base random")
	o.model.AddThreads(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Need(cmd, "in", o.in, "out", o.out); err != nil {
			return err
		}
		return o.run(a)
	}
	return cmd
}

// methodOptions returns the requested reduction. It refuses one that tokens of a file cannot pass.
func (o *reduceOptions) methodOptions() (opts methods.Options, err error) {
	if o.reduction.Base() == "" {
		return opts, cli.Usagef(
			"reduce: no --base, want the method that selects tokens (see 'restore methods')")
	}
	if err := o.reduction.CheckSeed(); err != nil {
		return opts, err
	}
	if opts, err = options(&o.reduction); err != nil {
		return opts, err
	}
	if opts.Inside() {
		return opts, cli.Flagf("base", "got %s, which acts inside the decoder: tokens from a file "+
			"pass none, want restore run or restore-lab trace", opts.Base)
	}
	return opts, nil
}

func (o *reduceOptions) run(a *cli.App) error {
	opts, err := o.methodOptions()
	if err != nil {
		return err
	}
	if err := a.Bytes("out", o.out); err != nil {
		return err
	}
	gridH, gridW, err := parseGrid(o.grid)
	if err != nil {
		return err
	}
	outs := a.Outputs(append(cli.InputPaths(o.reduction.Files()), o.in)...)
	defer outs.Discard()
	file, err := outs.Open("out", o.out)
	if err != nil {
		return err
	}
	f, err := checkpoint.OpenSafetensors(o.in)
	if err != nil {
		return cli.PathError(o.in, err)
	}
	defer f.Close()
	in, err := methods.FromTensors(f.Tensors, gridH, gridW)
	if err != nil {
		return fmt.Errorf("%s: %w", o.in, err)
	}
	pool := kernel.NewPool(o.model.Threads)
	defer pool.Close()
	r, encoded, err := o.reduce(in, opts, pool)
	if err != nil {
		return err
	}
	err = file.Write(func(w io.Writer) error {
		return checkpoint.WriteSafetensors(w, methods.Tensors(r), nil)
	})
	if err != nil {
		return err
	}
	far, err := methods.Hausdorff(r, in, pool)
	if err != nil {
		return err
	}
	kept, merged := r.Counts()
	fmt.Fprintf(a.Err, "%s; %s\nselect %s, merge %s\nweighted Hausdorff distance %.4f\n",
		cli.TokensLine(in.N, encoded, kept, merged), r.Options, cli.Milliseconds(r.SelectTime),
		cli.Milliseconds(r.MergeTime), far)
	return nil
}

// reduce reduces a file's tokens. It also returns how many of them a method before the encoder
// leaves.
func (o *reduceOptions) reduce(
	in *reduce.Input, opts methods.Options, pool *kernel.Pool,
) (r *reduce.Reduction, encoded int, err error) {
	before, err := methods.NewBefore(&opts)
	if err != nil {
		return nil, 0, err
	}
	if before != nil {
		if in, err = before.Apply(in); err != nil {
			return nil, 0, fmt.Errorf("%s: %w", o.in, err)
		}
	}
	plan, err := methods.Resolve(opts, methods.Facts{
		Tokens: in.N, Views: in.ViewSizes(), GridH: in.GridH, GridW: in.GridW, NoClass: in.NoClass,
		Pruned: in.Pruned,
		Gains: func(most int) ([]float64, error) {
			return methods.Gains(pool, in.X, in.N, in.C, most)
		},
	})
	if err != nil {
		return nil, 0, err
	}
	if r, err = methods.Reduce(in, plan, pool); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", o.in, err)
	}
	return r, in.N, nil
}

// parseGrid parses "24x16" as 24 rows and 16 columns, "" as an unknown grid.
func parseGrid(s string) (h, w int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	rows, cols, ok := strings.Cut(s, "x")
	if ok {
		h, err = strconv.Atoi(rows)
	}
	if ok && err == nil {
		w, err = strconv.Atoi(cols)
	}
	if !ok || err != nil || h < 1 || w < 1 {
		return 0, 0, cli.Flagf("grid", "got %q, want rows and columns as HxW, for example 24x24", s)
	}
	return h, w, nil
}
