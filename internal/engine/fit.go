package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// FitOptions say how a recipe is made.
type FitOptions struct {
	Cuts []float64 // shares of the decoder's work on visual rows to cut, each above 0 and below 1
	// leave out cuts that the model cannot reach, instead of an error; one has to be left
	Skip bool
	// Progress is told how many times of at most total a question was led through the
	// decoder; may be nil.
	Progress func(done, total int)
}

// fitted is one calibration question, ready for the decoder.
type fitted struct {
	in    *rows
	first int // the picture's first row
	pic   *picture
}

// FitRecipe makes FitPrune's recipe for the model from questions that show one
// picture each, all of the same number of tokens. It leads every question through
// the decoder once, and once more for each trial of the search: at most 8 times
// for one cut, fewer for each further one.
func (e *Engine) FitRecipe(
	ctx context.Context, questions []Request, o FitOptions,
) (*methods.Recipe, error) {
	if len(questions) == 0 || len(o.Cuts) == 0 {
		return nil, fmt.Errorf("engine: recipe: got %d questions and %d cuts, want at least "+
			"one of each", len(questions), len(o.Cuts))
	}
	asked := make([]fitted, len(questions))
	for i, q := range questions {
		q.Reduce, q.NoCache = methods.Options{}, true
		f, err := e.fitted(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", i, err)
		}
		if asked[i] = *f; f.tokens() != asked[0].tokens() {
			return nil, fmt.Errorf(
				"engine: recipe: question %d: picture of %d tokens, want %d as in the others", i,
				f.tokens(), asked[0].tokens())
		}
	}
	each := methods.FitTrials * len(asked) // runs of a cut, of which some serve several
	done, total := 0, len(asked)+each*len(o.Cuts)
	fit := &methods.Fitting{
		Layers: e.shape.Layers, Hidden: e.shape.Hidden, MLP: e.shape.MLP, Tokens: asked[0].tokens(),
		Questions: len(asked),
		Run: func(i int, p *methods.Inside) error {
			if done++; o.Progress != nil {
				o.Progress(done, total)
			}
			return e.Do(ctx, func(r *model.Run) error { return e.probe(ctx, r, &asked[i], p) })
		},
	}
	recipe := &methods.Recipe{Model: e.ck.Name, Layers: fit.Layers, Tokens: fit.Tokens}
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

func (f *fitted) tokens() int { return f.pic.shape.N }

// fitted encodes the picture of a question and makes the rows of its prompt.
func (e *Engine) fitted(ctx context.Context, req Request) (*fitted, error) {
	s, err := e.sequence(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(s.pics) != 1 {
		return nil, fmt.Errorf("engine: recipe: got %d pictures, want one", len(s.pics))
	}
	f := &fitted{
		pic: s.pics[0], first: slices.IndexFunc(s.units, func(u unit) bool { return u.pic != nil }),
	}
	return f, e.Do(ctx, func(r *model.Run) (err error) {
		f.in, err = s.rows(r)
		return err
	})
}

// probe leads a question through the decoder, its picture's rows followed by p.
func (e *Engine) probe(ctx context.Context, r *model.Run, f *fitted, p *methods.Inside) error {
	start := f.in.pos[f.first][0]
	staged := model.Staged{
		Inside: p, First: f.first, Start: start, Extent: f.pic.shape.Extent(),
		At: func(row *reduce.Row) nn.Pos { return f.pic.shape.At(start, row.Position) },
	}
	cache := e.newCache()
	defer cache.Free()
	spans := []model.Span{
		{Pos: f.in.pos, Cache: cache, Staged: []model.Staged{staged}, Context: ctx},
	}
	e.m.Decoder().Forward(r, slices.Clone(f.in.x), spans)
	return spans[0].Err
}
