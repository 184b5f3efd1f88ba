package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tokenizer/chat"
)

// FitOptions say how a recipe is made.
type FitOptions struct {
	Cuts     []float64 // shares of the decoder's work on visual rows to cut, each above 0 and below 1
	Skip     bool      // leave out cuts that the model cannot reach, instead of an error; one has to be left
	Progress func()    // told of every question that was led through the decoder; may be nil
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
func (e *Engine) FitRecipe(ctx context.Context, questions []Request, o FitOptions) (*reduce.Recipe, error) {
	if e.tok == nil {
		return nil, fmt.Errorf("engine: %s: no tokenizer.json, which questions need", e.ck.Name)
	}
	if len(questions) == 0 || len(o.Cuts) == 0 {
		return nil, fmt.Errorf("engine: recipe: got %d questions and %d cuts, want at least one of each", len(questions), len(o.Cuts))
	}
	r := e.run()
	defer e.runs.put(r)
	r.Context, r.Trace = ctx, nil
	asked := make([]fitted, len(questions))
	for i := range questions {
		f, err := e.fitted(r, &questions[i])
		if err != nil {
			return nil, fmt.Errorf("question %d: %w", i, err)
		}
		if asked[i] = *f; f.tokens() != asked[0].tokens() {
			return nil, fmt.Errorf("engine: recipe: question %d: picture of %d tokens, want %d as in the others", i, f.tokens(), asked[0].tokens())
		}
	}
	fit := &reduce.Fitting{
		Layers: e.shape.Layers, Hidden: e.shape.Hidden, MLP: e.shape.MLP, Tokens: asked[0].tokens(), Questions: len(asked),
		Run: func(i int, p *reduce.Inside) error {
			if o.Progress != nil {
				o.Progress()
			}
			return e.probe(r, &asked[i], p)
		},
	}
	recipe := &reduce.Recipe{Model: e.ck.Name, Layers: fit.Layers, Tokens: fit.Tokens}
	var unreached error
	for _, cut := range o.Cuts {
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

func (f *fitted) tokens() int { return f.pic.visual.N }

// fitted encodes the picture of a question and makes the rows of its prompt.
func (e *Engine) fitted(r *model.Run, req *Request) (*fitted, error) {
	seen := req.Seen
	if seen == nil {
		var err error
		if seen, err = e.see(r, req.Video, req.Images, model.Needs{}); err != nil {
			return nil, err
		}
	}
	if len(seen.visuals) != 1 {
		return nil, fmt.Errorf("engine: recipe: got %d pictures, want one", len(seen.visuals))
	}
	pic, err := e.reduce(r, seen.visuals[0], 0, reduce.Options{})
	if err != nil {
		return nil, err
	}
	units, err := e.prompt([]chat.Message{userMessage(req.Prompt, []*picture{pic})}, []*picture{pic})
	if err != nil {
		return nil, err
	}
	f := &fitted{pic: pic, first: slices.IndexFunc(units, func(u unit) bool { return u.pic != nil })}
	f.in, err = e.layout(units, 0)
	return f, err
}

// probe leads a question through the decoder, its picture's rows followed by p.
func (e *Engine) probe(r *model.Run, f *fitted, p *reduce.Inside) error {
	start := f.in.pos[f.first][0]
	staged := model.Staged{
		Inside: p, First: f.first, Start: start, Extent: f.pic.visual.Extent(),
		At: func(row *reduce.Row) nn.Pos { return f.pic.visual.At(start, row.Position) },
	}
	span := model.Span{Pos: f.in.pos, Cache: e.newCache(), Staged: []model.Staged{staged}}
	return e.m.Decoder().Forward(r, slices.Clone(f.in.x), []model.Span{span})
}
