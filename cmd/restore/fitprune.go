package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scenebench"
)

// fitOptions are the flags of `restore fitprune-recipe`.
type fitOptions struct {
	model modelFlags
	data  string
	n     int
	cuts  []float64
	out   string
}

// fitQuestions is the default number of calibration questions: more questions change the embedded
// model's schedules by only a token or two.
const fitQuestions = 32

func newFitPruneRecipe(a *app) *cobra.Command {
	o := new(fitOptions)
	cmd := &cobra.Command{
		Use:   "fitprune-recipe",
		Short: "Fit FitPrune's recipe to questions about pictures",
		Long: `Find how many visual tokens each layer of the decoder can drop, for several shares of its work to cut, and write the result as a recipe for
--base fitprune. Pass the file as --fitprune-recipe FILE, or name it fitprune.json in the model's folder. Without --data the
questions are about drawn scenes, none of them in the benchmark of 'restore eval scenes'.`,
		Example: `  restore fitprune-recipe -m DIR --data FOLDER -o DIR/fitprune.json
  restore fitprune-recipe -m DIR --data questions.jsonl --n 64 --cut 0.5,0.6,0.7 -o recipe.json
  restore run -m DIR --image cat.jpg -p "What is there?" --base fitprune --n-vis 128`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	o.model.addResize(fs)
	fs.StringVar(&o.data, "data", "", "`folder` with questions.json and pictures/, or a "+
		".jsonl file with an image and a question per line,\n        instead of drawn scenes")
	fs.IntVar(&o.n, "n", fitQuestions, "ask `N` questions, one per picture")
	fs.Float64SliceVar(&o.cuts, "cut", []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9},
		"`shares` of the decoder's work on visual tokens to cut; an explicit one must be reached")
	fs.StringVarP(&o.out, "output", "o", "", "`file` to write; none is stdout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), a, fs.Changed("cut"))
	}
	return cmd
}

// pictures returns the questions, and a description of their source.
func (o *fitOptions) pictures() (items iter.Seq2[scenebench.Item, error], source string,
	err error) {
	switch {
	case o.data == "":
		return scenebench.DrawnFrom(scenebench.CalibrationSeed, o.n),
			fmt.Sprintf("drawn scenes from seed %d on", int64(scenebench.CalibrationSeed)), nil
	case strings.HasSuffix(o.data, ".jsonl"):
		l, err := scenebench.OpenLines(o.data)
		if err != nil {
			return nil, "", err
		}
		return l.Items(o.n), o.data, nil
	}
	f, err := scenebench.OpenFolder(o.data)
	if err != nil {
		return nil, "", err
	}
	return f.Items(o.n), o.data, nil
}

func (o *fitOptions) run(ctx context.Context, a *app, cutGiven bool) error {
	if o.n < 1 || o.n > maxFitQuestions {
		return usagef("--n: out of range, got %d, want 1 to %d", o.n, maxFitQuestions)
	}
	for _, c := range o.cuts {
		if !(c > 0 && c < 1) {
			return usagef("--cut: out of range, got %v, want more than 0 and less than 1", c)
		}
	}
	if len(o.cuts) == 0 || len(o.cuts) > maxCuts {
		return usagef("--cut: got %d shares, want 1 to %d", len(o.cuts), maxCuts)
	}
	outs := a.outputs(append(o.model.files.Paths(), o.data)...)
	defer outs.discard()
	file, err := outs.open("output", cmp.Or(o.out, "-"))
	if err != nil {
		return err
	}
	items, source, err := o.pictures()
	if err != nil {
		return err
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	questions, err := ask(ctx, m, items)
	if err != nil {
		return err
	}
	fit := lab.FitOptions{Cuts: o.cuts, Skip: !cutGiven}
	p := a.meter("questions read")
	defer p.end()
	fit.Progress = func(done, total int) { p.set(int64(done), int64(total)) }
	recipe, err := lab.FitRecipe(ctx, m, questions, fit)
	p.end()
	if ctx.Err() != nil {
		return cutShort("fitprune-recipe: interrupted, there is no recipe")
	}
	if err != nil {
		return err
	}
	recipe.Source = fmt.Sprintf("%d questions about %s", len(questions), source)
	if err := file.write(recipe.Write); err != nil || file.path == "-" {
		return err
	}
	return showRecipe(a.out, o.out, recipe)
}

// Limits of the input of one recipe.
const (
	maxFitQuestions = 1 << 12
	maxCuts         = 64
)

// ask encodes the pictures and chooses a question about each: the first of the first picture, the
// second of the second, and so on, to mix the tasks.
func ask(
	ctx context.Context, m *engine.Engine, items iter.Seq2[scenebench.Item, error],
) ([]engine.Request, error) {
	var questions []engine.Request
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		if len(item.Questions) == 0 {
			continue
		}
		encoded, err := m.Encode(ctx, []*imageproc.Picture{item.Picture})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Name, err)
		}
		questions = append(questions, engine.Request{
			Prompt: item.Questions[len(questions)%len(item.Questions)].Text, Encoded: encoded,
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
	return columns(w, rows)
}
