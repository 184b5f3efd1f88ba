package lab

import (
	"context"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// FitOptions configure FitRecipe.
type FitOptions struct {
	Cuts []float64 // shares of the decoder's work on visual rows to cut, each above 0 and below 1
	// Skip leaves out cuts that the model cannot reach, instead of an error; at least one must
	// remain
	Skip bool
	// Progress is called with the number of times a question ran through the decoder, and the most
	// times it may take; may be nil.
	Progress func(done, total int)
}

// fitted is one calibration question, ready for the decoder.
type fitted struct {
	prompt *engine.Prompt
	in     *engine.Rows
	first  int // the picture's first row
}

// FitRecipe makes FitPrune's recipe for the model from questions about one picture each, all with
// the same number of tokens. Every question runs through the decoder once, and once more for each
// trial of the search: at most 8 times for one cut, and fewer for each further one.
func FitRecipe(
	ctx context.Context, e *engine.Engine, questions []engine.Request, o FitOptions,
) (*methods.Recipe, error) {
	if len(questions) == 0 || len(o.Cuts) == 0 {
		return nil, fmt.Errorf("lab: recipe: got %d questions and %d cuts, want at least "+
			"one of each", len(questions), len(o.Cuts))
	}
	asked := make([]fitted, len(questions))
	for i, q := range questions {
		q.Reduce = methods.Options{}
		f, err := prepared(ctx, e, q)
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", i, err)
		}
		if asked[i] = *f; f.tokens() != asked[0].tokens() {
			return nil, fmt.Errorf(
				"lab: recipe: question %d: picture of %d tokens, want %d as in the others", i,
				f.tokens(), asked[0].tokens())
		}
	}
	shape := e.Model().Decoder().Shape()
	each := methods.FitTrials * len(asked) // runs for one cut; some serve several cuts
	done, total := 0, len(asked)+each*len(o.Cuts)
	fit := &methods.Fitting{
		Layers: shape.Layers, Hidden: shape.Hidden, MLP: shape.MLP, Tokens: asked[0].tokens(),
		Questions: len(asked),
		Run: func(i int, p *methods.Inside) error {
			if done++; o.Progress != nil {
				o.Progress(done, total)
			}
			return e.Do(ctx, func(r *model.Run) error { return asked[i].probe(r, p) })
		},
	}
	recipe := &methods.Recipe{Model: e.Source().Name, Layers: fit.Layers, Tokens: fit.Tokens}
	var unreached error
	for i, cut := range o.Cuts {
		done = max(done, len(asked)*min(i, 1)+each*i)
		s, trials, err := fit.Schedule(cut)
		if err != nil && o.Skip && trials != nil {
			unreached = err
			continue
		}
		if err != nil {
			return nil, err
		}
		recipe.Schedules = append(recipe.Schedules, s)
	}
	if len(recipe.Schedules) == 0 {
		return nil, unreached
	}
	return recipe, recipe.Check()
}

func (f *fitted) tokens() int { return f.prompt.Shape(0).N }

// prepared encodes the picture of a question and makes the rows of its prompt.
func prepared(ctx context.Context, e *engine.Engine, req engine.Request) (*fitted, error) {
	p, err := e.NewPrompt(ctx, req)
	if err != nil {
		return nil, err
	}
	if p.Len() != 1 {
		return nil, fmt.Errorf("lab: recipe: got %d pictures, want one", p.Len())
	}
	f := &fitted{prompt: p}
	return f, e.Do(ctx, func(r *model.Run) (err error) {
		if f.in, err = p.Rows(r); err == nil {
			f.first = slices.Index(p.Visual(0), true)
		}
		return err
	})
}

// probe runs the decoder on a question's prompt while p observes its picture's rows.
func (f *fitted) probe(r *model.Run, p *methods.Inside) error {
	shape, start := f.prompt.Shape(0), f.in.Pos[f.first][0]
	defer f.prompt.Free()
	_, err := f.prompt.Read(r, &engine.Rows{
		X: slices.Clone(f.in.X), Pos: f.in.Pos, Blocks: f.in.Blocks, Staged: []model.Staged{{
			Inside: p, First: f.first, Start: start, Extent: shape.Extent(),
			At: func(row *reduce.Row) nn.Pos { return shape.At(start, row.Position) },
		}},
	}, nil)
	return err
}
