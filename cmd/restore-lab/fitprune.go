package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
)

// fitOptions are the flags of `restore-lab fitprune-recipe`.
type fitOptions struct {
	model cli.ModelFlags
	data  string
	n     int
	cuts  []float64
	out   string
}

// calibrationSeed is the first seed of pictures that calibration may read: neither trained on nor
// evaluated.
const calibrationSeed int64 = scene.EvalSeed - 1_000_000

// fitQuestions is the default number of calibration questions: more questions change the embedded
// model's schedules by only a token or two.
const fitQuestions = 32

func newFitPruneRecipe(a *cli.App) *cobra.Command {
	o := new(fitOptions)
	cmd := &cobra.Command{
		Use:   "fitprune-recipe",
		Short: "Fit FitPrune's recipe to questions about pictures",
		Long: `Find how many visual tokens each layer of the decoder can drop, for several shares of its work to cut, and write the result as a recipe for
--base fitprune. Pass the file as --fitprune-recipe FILE, or name it fitprune.json in the model's folder. Without --data the
questions are about drawn scenes, none of them in the benchmark of 'restore-lab eval scenes'.`,
		Example: `  restore-lab fitprune-recipe -m DIR --data FOLDER -o DIR/fitprune.json
  restore-lab fitprune-recipe -m DIR --data questions.jsonl --n 64 --cut 0.5,0.6,0.7 -o recipe.json
  restore run -m DIR --image cat.jpg -p "What is there?" --base fitprune --n-vis 128`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	o.model.AddResize(fs)
	fs.StringVar(&o.data, "data", "", "`folder` with questions.json and pictures/, or a "+
		".jsonl file with an image and a question per line, instead of drawn scenes")
	fs.IntVar(&o.n, "n", fitQuestions, "ask `N` questions, one per picture")
	fs.Float64SliceVar(&o.cuts, "cut", []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9},
		"`shares` of the decoder's work on visual tokens to cut; an explicit one must be reached")
	cli.ShowDefault(fs, "cut", "0.1,0.2,…,0.9")
	cli.Within(fs, 1, maxFitQuestions, "n")
	fs.StringVarP(&o.out, "output", "o", "", "`file` to write; none is stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), a, fs.Changed("cut"))
	}
	return cmd
}

// benchmark returns the questions, and a description of their source.
func (o *fitOptions) benchmark() (b *eval.Benchmark, source string, err error) {
	switch {
	case o.data == "":
		return benchmarks.DrawnScenes(benchmarks.SceneWorlds[0], calibrationSeed, o.n),
			fmt.Sprintf("drawn scenes from seed %d on", calibrationSeed), nil
	case strings.HasSuffix(o.data, ".jsonl"):
		b, err = benchmarks.SceneLines(o.data, o.n)
	default:
		b, _, err = benchmarks.SceneFolder(o.data, o.n)
	}
	return b, o.data, err
}

func (o *fitOptions) run(ctx context.Context, a *cli.App, cutGiven bool) error {
	for _, c := range o.cuts {
		if !(c > 0 && c < 1) {
			return cli.Flagf("cut", "out of range, got %v, want more than 0 and less than 1", c)
		}
	}
	if len(o.cuts) == 0 || len(o.cuts) > maxCuts {
		return cli.Flagf("cut", "got %d shares, want 1 to %d", len(o.cuts), maxCuts)
	}
	outs := a.Outputs(append(o.model.Paths(), o.data)...)
	defer outs.Discard()
	file, err := outs.Open("output", cmp.Or(o.out, "-"))
	if err != nil {
		return err
	}
	b, source, err := o.benchmark()
	if err != nil {
		return err
	}
	m, err := openEngine(ctx, a, &o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	questions, err := ask(ctx, m, b)
	if err != nil {
		return err
	}
	fit := lab.FitOptions{Cuts: o.cuts, Skip: !cutGiven}
	p := a.Meter("questions read")
	defer p.End()
	fit.Progress = func(done, total int) { p.Set(int64(done), int64(total)) }
	recipe, err := lab.FitRecipe(ctx, m, questions, fit)
	p.End()
	if ctx.Err() != nil {
		return cli.CutShort("fitprune-recipe: interrupted, there is no recipe")
	}
	if err != nil {
		return err
	}
	recipe.Source = fmt.Sprintf("%d questions about %s", len(questions), source)
	if err := file.Write(recipe.Write); err != nil || file.Path == "-" {
		return err
	}
	return showRecipe(a.Out, o.out, recipe)
}

// Limits of the input of one recipe.
const (
	maxFitQuestions = 1 << 12
	maxCuts         = 64
)

// ask encodes the pictures and chooses a question about each: the first of the first picture, the
// second of the second, and so on, to mix the tasks.
func ask(
	ctx context.Context, m *engine.Engine, b *eval.Benchmark,
) (questions []engine.Request, err error) {
	pictures, err := eval.ByPictures(b)
	if err != nil {
		return nil, err
	}
	for i, about := range pictures {
		encoded, err := lab.Encode(ctx, m, about[0].Images)
		if err != nil {
			return nil, err
		}
		questions = append(questions, engine.Request{
			Prompt: about[i%len(about)].Text, Encoded: encoded,
		})
	}
	return questions, nil
}

// showRecipe prints the rows that each schedule leaves.
func showRecipe(w io.Writer, path string, r *methods.Recipe) error {
	rows := [][]string{{"CUT", "TOKENS A LAYER", "AT THE END", "SCHEDULE"}}
	for _, s := range r.Schedules {
		left, sum := r.Tokens, 0
		var stages []string
		for l, d := range s.Drop {
			sum += left
			if left -= d; d > 0 {
				stages = append(stages, fmt.Sprintf("%d:%d", l, left))
			}
		}
		rows = append(rows, []string{
			fmt.Sprint(s.Cut), fmt.Sprintf("%.1f", float64(sum)/float64(r.Layers)),
			fmt.Sprint(left), strings.Join(stages, ","),
		})
	}
	if _, err := fmt.Fprintf(w, "%s: %s, %d layers, %d tokens, %s\n", path, r.Model, r.Layers,
		r.Tokens, r.Source); err != nil {
		return err
	}
	return cli.Table(w, rows)
}
