package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// flopsOptions are the flags of `restore-lab flops`.
type flopsOptions struct {
	shape, dir string
	bases      []string
	all        bool
	nVis       []int
	tokens     int
	prompt     int
	json       bool
}

// embeddedShape is the name of the embedded model for --shape.
const embeddedShape = "embedded"

func newFLOPs(a *cli.App) *cobra.Command {
	o := new(flopsOptions)
	cmd := &cobra.Command{
		Use:   "flops",
		Short: "Count the operations of reading a picture, by method and budget",
		Long: `Count the multiply-adds, each once, of reading one picture and one prompt. It prints the formulas of the paper's Tables 8 and 20 (encoder over
the visual tokens, decoder over the rows that enter each layer, choice of tokens and anchors), and the actual count of this program
(with the class token, if any, patches, projector and head, and without encoder blocks that the features do not need). It runs no model. For methods inside
the decoder --n-vis is the mean number of visual rows that enter a layer.`,
		Example: `  restore-lab flops --shape llava-1.5-7b --n-vis 192,128,64
  restore-lab flops --all --n-vis 64
  restore-lab flops -m DIR --base fastv,divprune --json`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&o.shape, "shape", "llava-1.5-7b",
		"sizes of a published model, of the embedded one, or of a config.json `FILE`")
	cli.ShowChoices(fs, "shape", append(restore.Shapes(), embeddedShape, "FILE")...)
	fs.StringVarP(&o.dir, "model", "m", "",
		"sizes of the model in this `folder`, file or ORG/NAME instead")
	fs.StringSliceVar(&o.bases, "base", []string{"holov"}, "`methods`, see 'restore methods'")
	cli.OneOf(fs, "base", cli.MethodNames()[1:]...)
	fs.BoolVar(&o.all, "all", false, "all methods")
	fs.IntSliceVar(&o.nVis, "n-vis", []int{192, 128, 64}, "`budgets` of visual tokens")
	fs.IntVar(&o.tokens, "tokens", 0,
		"`N` visual tokens of the picture, for a model that takes any number (0: 1024)")
	fs.IntVar(&o.prompt, "prompt", lab.PaperPrompt,
		"`N` rows of the prompt besides the picture's; the paper has 35 of the system prompt "+
			"and 25 of the question")
	cli.Within(fs, 1, 1<<20, "prompt")
	cli.Within(fs, 0, 1<<20, "tokens")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.CheckShape(fs); err != nil {
			return err
		}
		if fs.Changed("base") && o.all {
			return cli.Usagef("--base and --all: both given, got %s, want one of them",
				strings.Join(o.bases, ","))
		}
		return o.run(a)
	}
	return cmd
}

// resolver checks options for a model.
type resolver func(methods.Options) (*methods.Plan, error)

// sizes returns the requested sizes, the model's name and its resolver.
func (o *flopsOptions) sizes(a *cli.App) (string, *engine.Sizes, resolver, error) {
	m, err := o.open(a)
	if err != nil {
		return "", nil, nil, err
	}
	defer m.Close()
	info := m.Info()
	s := info.Sizes
	switch {
	case s != nil && o.tokens != 0:
		return "", nil, nil, cli.Flagf("tokens", "got %d, which has no effect: a picture of %s "+
			"has %d", o.tokens, info.Name, s.Tokens)
	case s == nil && info.SizesOf == nil:
		return "", nil, nil, fmt.Errorf("flops: %s: operations of %s are not counted",
			info.Name, info.Architecture)
	case s == nil:
		s = info.SizesOf(cmp.Or(o.tokens, 1024))
	case s.Views == 1:
		return info.Name, s, m.Resolve, nil
	}
	return info.Name, s, func(r methods.Options) (*methods.Plan, error) {
		if m, err := methods.Lookup(r.Base); err == nil && s.NoClass &&
			(m.Site == reduce.InsideEncoder ||
				slices.Contains(m.Require(r.Restore), reduce.LastKeys)) {
			return nil, fmt.Errorf("flops: %s: the encoder of %s has no class token", r.Base,
				info.Name)
		}
		return methods.Resolve(r, s.Facts())
	}, nil
}

// open binds the model without weights.
func (o *flopsOptions) open(a *cli.App) (*engine.Engine, error) {
	if o.dir != "" || o.shape == embeddedShape {
		m := cli.ModelFlags{Path: o.dir, Threads: 1, Describe: true}
		return openEngine(context.Background(), a, &m)
	}
	s, err := loadShape(o.shape)
	if err != nil {
		return nil, err
	}
	return s.Describe(engine.Options{Threads: 1})
}

// flopsJSON is the output of --json.
type flopsJSON struct {
	Model  string       `json:"model"`
	Tokens int          `json:"tokens"` // visual tokens before reduction
	Prompt int          `json:"prompt"`
	Full   *lab.FLOPs   `json:"full"`
	Rows   []*lab.FLOPs `json:"rows"`
}

func (o *flopsOptions) run(a *cli.App) error {
	bases := o.bases
	if o.all {
		bases = slices.DeleteFunc(cli.MethodNames(),
			func(name string) bool { return name == "none" })
	}
	name, s, resolve, err := o.sizes(a)
	if err != nil {
		return err
	}
	for _, n := range o.nVis {
		if n < 1 || n > s.Tokens {
			return cli.Flagf("n-vis",
				"out of range, got %d, want 1 to %d (the visual tokens of %s)",
				n, s.Tokens, name)
		}
	}
	j := flopsJSON{Model: name, Tokens: s.Tokens, Prompt: o.prompt}
	count := func(r methods.Options) (*lab.FLOPs, error) {
		how, err := resolve(r)
		if err != nil {
			return nil, err
		}
		return lab.CountFLOPs(s, how, r.NVis, o.prompt)
	}
	if j.Full, err = count(methods.Options{}); err != nil {
		return err
	}
	var notes []string
	for _, base := range bases {
		for _, n := range o.nVis {
			for _, on := range []bool{false, true} {
				f, err := count(methods.Options{Base: base, NVis: n, Restore: on})
				if err != nil { // this method cannot reach the budget; continue with the others
					if note := fmt.Sprintf("%s, %d tokens: %v", base, n,
						err); !slices.Contains(notes, note) {
						notes = append(notes, note)
					}
					continue
				}
				j.Rows = append(j.Rows, f)
			}
		}
	}
	for _, note := range notes {
		a.Note("%s", note)
	}
	if len(j.Rows) == 0 {
		return fmt.Errorf("flops: no method can keep so many tokens")
	}
	if o.json {
		return cli.WriteJSON(a.Out, j)
	}
	return j.writeTable(a.Out)
}

// methodLabel names a method with or without RESTORE.
func methodLabel(base string, restore bool) string {
	if restore {
		return base + " + RESTORE"
	}
	return base
}

func (j *flopsJSON) writeTable(w io.Writer) error {
	fmt.Fprintf(w, "%s, %d visual tokens, %d other rows; multiply-adds\n", j.Model, j.Tokens,
		j.Prompt)
	rows := [][]string{
		{
			"METHOD", "N-VIS", "A LAYER", "ENCODER", "CHOICE", "DECODER", "TOTAL", "OF FULL",
			"CHOICE/TOTAL", "ENGINE",
		},
	}
	add := func(label string, f *lab.FLOPs) {
		rows = append(
			rows, []string{
				label, strconv.Itoa(f.NVis), fmt.Sprintf("%.1f", f.Mean), operations(f.Encoder),
				operations(f.Choice), operations(f.Decoder),
				operations(f.Total), fmt.Sprintf("%.1f %%", 100*f.Total/j.Full.Total),
				fmt.Sprintf("%.3f %%", f.Overhead()), operations(f.Engine)})
	}
	add("unreduced", j.Full)
	for _, f := range j.Rows {
		add(methodLabel(f.Base, f.Restore), f)
	}
	return cli.Table(w, rows)
}

// operations formats a count, as in "1.839 T" or "1.359 G".
func operations(v float64) string {
	switch {
	case v >= 1e11:
		return fmt.Sprintf("%.3f T", v/1e12)
	case v >= 1e8:
		return fmt.Sprintf("%.3f G", v/1e9)
	}
	return fmt.Sprintf("%.3f M", v/1e6)
}
