package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/wire"
)

// Preset is a further name of the model, with defaults of its own, for clients that can choose
// nothing but the name. What a preset does not say is as in [Settings].
type Preset struct {
	Name   string
	Fields json.RawMessage // as written

	reduction *restore.Reduction
	object    *wire.Object // its sampling fields
	maxTokens int
	seed      *int64
	system    string
}

// presetFields are the fields of a preset besides the parameters of reductions. Base random
// uses the seed too.
var presetFields = []string{
	"temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "system",
}

// maxSystem limits a preset's system prompt in bytes.
const maxSystem = 1 << 16

// ParsePreset reads the fields of a preset, a JSON object.
func ParsePreset(name string, object []byte) (*Preset, error) {
	if name == "" {
		return nil, errors.New("got no name, want NAME={...}")
	}
	object = slices.Clone(object)
	p := &Preset{Name: name, Fields: object}
	o, err := wire.Parse(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	all := presetFields
	for _, field := range parameterFields() {
		if !slices.Contains(all, field) {
			all = append(slices.Clone(all), field)
		}
	}
	RefuseUnknown(o, all)
	c := Call{Request: new(restore.Request)}
	Sampling(o, &c)
	if c.seeded {
		p.seed = &c.Sampling.Seed
	}
	n, _ := o.Int("max_tokens", 1, math.MaxInt32)
	p.maxTokens = int(n)
	if p.system = o.String("system"); len(p.system) > maxSystem {
		o.Fail("invalid_value", "system", "got %d bytes, want at most %d", len(p.system), maxSystem)
	}
	p.object = o
	l := layerOf(o, presetFields)
	if err := o.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := l.parse(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Unwrap(err))
	}
	p.reduction = l.given
	if p.seed != nil && p.reduction.Options["base"] == "random" {
		p.reduction.Options["seed"] = *p.seed
	}
	return p, nil
}

// over returns settings with the preset's in their place.
func (p *Preset) over(s Settings) (Settings, error) {
	c := Call{Request: &restore.Request{Sampling: s.Sampling}}
	Sampling(p.object, &c)
	s.Sampling, s.seed, s.system = c.Sampling, p.seed, p.system
	if p.maxTokens > 0 {
		s.MaxTokens = p.maxTokens
	}
	r, err := p.reduction.Over(s.Reduction)
	if err == nil {
		err = r.Check()
	}
	s.Reduction = r
	return s, err
}

// Check refuses defaults that the model cannot honour: a budget of more tokens than every picture
// has, and, if the service can tell, every other reduction that all pictures would be refused for.
func (s *Settings) Check(service restore.Service) error {
	return fits(s.Reduction, s.Exact, service)
}

// CheckPresets refuses a preset's name that occurs twice, and what [Settings.Check] refuses.
func (s *Settings) CheckPresets(service restore.Service) error {
	i := service.Info()
	seen := map[string]bool{}
	for _, name := range append([]string{i.ID}, s.Aliases...) {
		seen[name], seen[name+":latest"] = true, true
	}
	for _, p := range s.Presets {
		if seen[p.Name] || seen[p.Name+":latest"] {
			return fmt.Errorf("%s: the name is taken, want another than those of the "+
				"model and of other presets", p.Name)
		}
		seen[p.Name], seen[p.Name+":latest"] = true, true
		over, err := p.over(*s)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if err := fits(over.Reduction, budget(p.reduction) != "", service); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// fits refuses a reduction that no picture can have, if all have as many tokens; exact: also a
// budget of more tokens.
func fits(r *restore.Reduction, exact bool, service restore.Service) error {
	n, ok := r.Options["n-vis"].(int64)
	if !ok {
		n = int64(r.NVis)
	}
	if most := service.Info().VisualTokens; exact && most > 0 && n > int64(most) {
		return &errs.OptionError{Name: "n-vis", Got: fmt.Sprint(n),
			Want: fmt.Sprintf("at most %d, the tokens of a picture", most)}
	}
	s, ok := service.(interface {
		CheckReduction(r *restore.Reduction) error
	})
	if !ok {
		return nil
	}
	asked := *r
	asked.AtMost = true // as for a request that says nothing
	return s.CheckReduction(&asked)
}

// Named returns the front of a preset, or f for other names.
func (f *Front) Named(model string) *Front {
	if p := f.presets[model]; p != nil {
		return p
	}
	return f
}

// Each returns the front and those of its presets, in order.
func (f *Front) Each() []*Front {
	out := []*Front{f}
	for _, p := range f.Presets {
		out = append(out, f.presets[p.Name])
	}
	return out
}

// Name is the name of the preset, or the model's id.
func (f *Front) Name() string {
	if f.preset != nil {
		return f.preset.Name
	}
	return f.About.ID
}

// Preset is the preset that f is of; nil if it is of the model's own names.
func (f *Front) Preset() *Preset { return f.preset }
