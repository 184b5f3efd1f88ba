package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
)

// budgetOptions are the flags of `restore-lab budget`.
type budgetOptions struct {
	model  cli.ModelFlags
	images string
	n      int
	means  []int
	out    string
}

// Limits of the input of one budget file.
const (
	drawnForBudgets   = 200
	maxBudgetPictures = 1 << 16
)

func newBudget(a *cli.App) *cobra.Command {
	o := new(budgetOptions)
	cmd := &cobra.Command{
		Use:   "budget",
		Short: "Find thresholds for --n-vis auto:N and --guard",
		Long: `Look at pictures and find a threshold on how much each token adds to those
before it, so that on average N tokens of a picture are above it. No questions
and answers are needed. Pass the file as --budget-file FILE, or name it
budget.json in the model's folder. Without --images the pictures are drawn
scenes, none of them in the benchmark of 'restore-lab eval scenes'.`,
		Example: `  restore-lab budget -m DIR --images FOLDER --mean 64 -o DIR/budget.json
  restore-lab budget -m DIR --images FOLDER --mean 32,64,128 -o budget.json
  restore run -m DIR --image cat.jpg -p "What is there?" --base holov --n-vis auto:64`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	o.model.AddResize(fs)
	fs.StringVar(&o.images, "images", "", "`folder` of pictures, instead of drawn scenes")
	fs.IntVar(&o.n, "n", 0, "use the first `N` pictures by name; "+
		"0 is all of the folder, or 200 drawn scenes")
	cli.Within(fs, 0, maxBudgetPictures, "n")
	fs.IntSliceVar(&o.means, "mean", []int{64},
		"mean numbers of `tokens` of a picture, one or more")
	fs.StringVarP(&o.out, "output", "o", "", "`file` to write; none is stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

func (o *budgetOptions) run(ctx context.Context, a *cli.App) error {
	if err := methods.CheckMeans(o.means); err != nil {
		return &cli.UsageError{Err: err}
	}
	outs := a.Outputs(append(o.model.Paths(), o.images)...)
	defer outs.Discard()
	file, err := outs.Open("output", cmp.Or(o.out, "-"))
	if err != nil {
		return err
	}
	pictures, source, err := o.pictures(a)
	if err != nil {
		return err
	}
	m, err := openEngine(ctx, a, &o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	p := a.Meter("pictures read")
	defer p.End()
	var all []methods.PictureGains
	for _, picture := range pictures {
		some, err := gains(ctx, m, picture, 2*slices.Max(o.means))
		if ctx.Err() != nil {
			p.End()
			return cli.CutShort("budget: interrupted, there are no budgets")
		}
		if err != nil {
			return err
		}
		all = append(all, some...)
		p.Set(int64(len(all)), int64(len(pictures)))
	}
	p.End()
	budgets, err := methods.FindBudgets(all, o.means)
	if err != nil {
		return err
	}
	budgets.Model, budgets.Source = m.Info().Name, source
	if err := file.Write(budgets.Write); err != nil || file.Path == "-" {
		return err
	}
	return showBudgets(a.Out, o.out, budgets)
}

// gains returns the gains of one picture's tokens, in order.
func gains(
	ctx context.Context, e *engine.Engine, picture eval.Image, most int,
) ([]methods.PictureGains, error) {
	encoded, err := lab.Encode(ctx, e, []eval.Image{picture})
	if err != nil {
		return nil, err
	}
	out, err := lab.Gains(ctx, e, encoded, most)
	if err != nil {
		return nil, picture.Error(err)
	}
	return out, nil
}

// pictures returns the pictures and a description.
func (o *budgetOptions) pictures(a *cli.App) (all []eval.Image, source string, err error) {
	if o.images == "" {
		b := benchmarks.DrawnScenes(benchmarks.SceneWorlds[0], calibrationSeed,
			cmp.Or(o.n, drawnForBudgets))
		groups, err := eval.ByPictures(b)
		for _, about := range groups {
			all = append(all, about[0].Images...)
		}
		return all, fmt.Sprintf("drawn scenes from seed %d on", calibrationSeed), err
	}
	names, err := picturesIn(a, o.images)
	if err != nil {
		return nil, "", err
	}
	if o.n > len(names) {
		return nil, "", cli.Flagf("n", "got %d, want at most the %d pictures in %s", o.n,
			len(names), o.images)
	}
	if o.n > 0 {
		names = names[:o.n]
	}
	for _, name := range names {
		all = append(all, eval.Image{Name: name, Open: func() (io.ReadCloser, error) {
			return cli.OpenInput(name, cli.MaxPictureBytes)
		}})
	}
	return all, o.images, nil
}

// picturesIn returns the paths of a folder's pictures by name. It skips files that do not begin
// like a picture, and says so.
func picturesIn(a *cli.App, dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, cli.PathError(dir, err)
	}
	others := 0
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return nil, cli.PathError(path, err)
		case !info.Mode().IsRegular():
			continue
		}
		head, err := headOf(path)
		if err != nil {
			return nil, err
		}
		if imageproc.Recognise(head) != nil {
			others++
			continue
		}
		if paths = append(paths, path); len(paths) > maxBudgetPictures {
			return nil, fmt.Errorf("%s: more than %d pictures", dir, maxBudgetPictures)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: no pictures, want PNG, JPEG, GIF, WebP, BMP or TIFF files", dir)
	}
	if others > 0 {
		a.Note("%s: skipped %s without a picture", dir, cli.Count(others, "file"))
	}
	return paths, nil
}

// headOf returns the first bytes of a file.
func headOf(path string) ([]byte, error) {
	f, err := cli.OpenInput(path, cli.MaxPictureBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, cli.HeadBytes))
	if err != nil {
		return nil, cli.PathError(path, err)
	}
	return head, nil
}

// showBudgets prints one line for each mean.
func showBudgets(w io.Writer, path string, b *methods.Budgets) error {
	if _, err := fmt.Fprintf(w, "%s: %s, %s, %s\n", path, b.Model,
		cli.Count(b.Pictures, "picture"), b.Source); err != nil {
		return err
	}
	rows := [][]string{{"N-VIS", "MEAN", "LEAST", "MOST", "THRESHOLD", "GUARD"}}
	for _, m := range b.Means {
		rows = append(rows, []string{
			fmt.Sprintf("auto:%d", m.Mean), fmt.Sprintf("%.2f", m.Found), fmt.Sprint(m.Least),
			fmt.Sprint(m.Most),
			fmt.Sprintf("%.4g", m.Threshold), fmt.Sprintf("%.4g", m.Guard),
		})
	}
	return cli.Table(w, rows)
}
