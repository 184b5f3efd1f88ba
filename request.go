package restore

import (
	"fmt"
	"reflect"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
)

// Request is one question.
type Request struct {
	// Prompt is the question.
	Prompt string
	// System is the system prompt, read before the first question. Empty means the chat template's
	// own. It is an error if the template has no place for it.
	System string
	// Pictures belong to this question, in order; they come before its text.
	Pictures []*Picture
	// Video belongs to this question and comes before its pictures; nil means none.
	Video *Video

	// Reduction says how many visual tokens of each picture the decoder reads; nil means all of
	// them. In a [Conversation], nil means the conversation's reduction.
	Reduction *Reduction

	// Sampling says how tokens are chosen. The zero value takes the likeliest token.
	Sampling Sampling
	// MaxTokens is the most tokens to generate; 0 means up to the context's end.
	MaxTokens int
}

// Reduction says how the visual tokens of a picture are reduced (RESTORE, Eqs. 3-8): a
// published criterion keeps some, and the others are merged into anchors. The budget is
// exact: a picture that has fewer tokens is an error, unless AtMost is set.
type Reduction struct {
	// Base is the criterion: "holov", "divprune" or any other that `restore methods` lists, or one
	// that [RegisterMethod] added. Empty and "none" read every token.
	Base string
	// NVis is the budget n_vis in tokens; KeepRatio, more than 0 and at most 1, is a
	// share of the picture's tokens instead.
	NVis      int
	KeepRatio float64
	// AtMost reads all tokens of a picture that has fewer than NVis.
	AtMost bool
	// Plain runs the criterion without RESTORE: tokens that it does not keep are dropped,
	// and attention is not calibrated.
	Plain bool
	// Options holds all other parameters by the names that [Parameters] lists, as in {"gamma":
	// 0.25, "join": "all"}. A value has the parameter's type, or is the text that a command line
	// would contain.
	Options map[string]any
}

// ParseReduction reads a reduction from a JSON object. Its fields are parameters, with underscores
// for hyphens: {"base": "holov", "n_vis": 64}. RESTORE runs over the base unless the object has
// "restore": false. The error is an [errs.OptionError].
func ParseReduction(object []byte) (*Reduction, error) {
	g, err := methods.ParseJSON(object)
	if err != nil {
		return nil, err
	}
	r := &Reduction{Options: g}
	if _, err := r.options(); err != nil {
		return nil, err
	}
	return r, nil
}

// Sampling says how each token is chosen.
type Sampling struct {
	Temperature float64 // 0 takes the likeliest token, and the fields below must be 0 then
	TopK        int     // draws from the k likeliest tokens; 0: all
	TopP        float64 // draws from the likeliest tokens with this total probability; 0, 1: all
	MinP        float64 // draws from tokens with this share of the highest probability; 0: all
	Seed        int64   // the draw depends only on it and the logits
}

func (r *Reduction) options() (methods.Options, error) {
	if r == nil {
		return methods.Options{}, nil
	}
	g := methods.Given{}
	for name, v := range r.Options {
		if err := g.Set(name, v); err != nil {
			return methods.Options{}, err
		}
	}
	for _, f := range []struct {
		name  string
		value any
		given bool
	}{
		{"base", r.Base, r.Base != ""},
		{"n-vis", r.NVis, r.NVis != 0},
		{"keep-ratio", r.KeepRatio, r.KeepRatio != 0},
		{"restore", false, r.Plain},
	} {
		if !f.given {
			continue
		}
		if _, twice := g[f.name]; twice {
			return methods.Options{}, &errs.OptionError{
				Name: f.name, Got: fmt.Sprint(f.value), Want: "one value",
				Why: "Options has one too", Fault: errs.Conflict}
		}
		if err := g.Set(f.name, f.value); err != nil {
			return methods.Options{}, err
		}
	}
	o, err := g.Options()
	o.UpTo = r.AtMost
	return o, err
}

// equal reports whether r and other mean the same reduction; nil is no reduction.
func (r *Reduction) equal(other *Reduction) bool {
	a, err := r.options()
	b, err2 := other.options()
	return err == nil && err2 == nil && reflect.DeepEqual(a, b)
}

// check refuses fields that have no effect.
func (s *Sampling) check() error {
	if s.Temperature != 0 {
		return nil
	}
	for _, f := range []struct {
		name  string
		value any
		given bool
	}{
		{"top-k", s.TopK, s.TopK != 0}, {"top-p", s.TopP, s.TopP != 0 && s.TopP != 1},
		{"min-p", s.MinP, s.MinP != 0}, {"seed", s.Seed, s.Seed != 0},
	} {
		if f.given {
			return &errs.OptionError{
				Name: f.name, Got: fmt.Sprint(f.value), Why: "at temperature 0",
				Fault: errs.Useless,
			}
		}
	}
	return nil
}

func (r *Request) engine() (engine.Request, error) {
	s := r.Sampling
	if err := s.check(); err != nil {
		return engine.Request{}, err
	}
	how, err := r.Reduction.options()
	out := engine.Request{
		Prompt: r.Prompt, System: r.System, MaxTokens: r.MaxTokens, Reduce: how,
		Sample: sample.Options{
			Temp: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, Seed: s.Seed,
		},
		Images: pictures(r.Pictures),
	}
	if r.Video != nil {
		out.Video = &imageproc.Video{Frames: pictures(r.Video.Frames), FPS: r.Video.FPS}
	}
	return out, err
}

func pictures(list []*Picture) []*imageproc.Picture {
	out := make([]*imageproc.Picture, len(list))
	for i, p := range list {
		if p != nil {
			out[i] = p.p
		}
	}
	return out
}
