package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/wire"
	"github.com/restore-vlm/restore/reduce"
)

// layer is one object of reduction parameters.
type layer struct {
	object json.RawMessage // as written; nil: no parameters
	path   string          // of the object
	given  *restore.Reduction
}

// Layer reads an object "restore" of a picture.
func (p *Picture) Layer(x *wire.Object) {
	RefuseUnknown(x, parameterFields())
	p.own = layerOf(x, nil)
}

// Detail reads the detail of a picture, a budget only where the settings say so: harnesses and
// clients send one with every picture.
func (c *Call) Detail(p *Picture, o *wire.Object, f *Front) {
	detail := o.String("detail")
	switch _, ok := details[detail]; {
	case detail == "" || detail == "auto":
	case !ok:
		o.Fail("invalid_value", "detail", "got %s, want auto, low, high or original",
			wire.Quote(detail))
	case f.DetailBudget:
		p.detail, p.detailPath = detail, o.Path("detail")
	case len(c.Ignored) < maxIgnored:
		c.Ignored = append(c.Ignored, o.Path("detail"))
	}
}

// details are the budgets of a picture's detail: one in so many of its tokens.
var details = map[string]int{"low": 18, "high": 3, "original": 1}

// DetailBudget returns the budget of a picture of n tokens for a detail.
func DetailBudget(detail string, n int) int { return max(1, n/details[detail]) }

// parameterFields are the JSON fields of reductions.
func parameterFields() []string {
	var out []string
	for _, p := range restore.Parameters() {
		if p.Kind != reduce.File {
			out = append(out, p.JSONName())
		}
	}
	return out
}

// parameter returns the description of a parameter, by either form of its name.
func parameter(name string) (p reduce.Parameter) {
	name = strings.ReplaceAll(name, "_", "-")
	for _, p = range restore.Parameters() {
		if p.Name == name {
			return p
		}
	}
	return reduce.Parameter{}
}

// at says that err is about a parameter in the object at path.
func at(path string, err error) error {
	f := &FieldError{Path: path, Err: err}
	var option *errs.OptionError
	if errors.As(err, &option) {
		f.Decimal = parameter(option.Name).Kind == reduce.Float
	}
	return f
}

// budget returns the name of the budget in a reduction, "" if there is none.
func budget(r *restore.Reduction) string {
	for name := range r.Options {
		if parameter(name).Budget {
			return name
		}
	}
	return ""
}

// parse reads the object, and refuses contradictions within it.
func (l *layer) parse() error {
	l.given = new(restore.Reduction)
	if l.object == nil {
		return nil
	}
	err := l.given.UnmarshalJSON(l.object)
	if err == nil {
		err = contradiction(l.given.Options)
	}
	if err != nil {
		return at(l.path, err)
	}
	return nil
}

// fine is the budget of the picture's detail.
func (p *Picture) fine() *restore.Reduction {
	out := new(restore.Reduction)
	if n := details[p.detail]; n > 0 {
		out.Options = map[string]any{"keep-ratio": 1 / float64(n)}
	}
	return out
}

// reduce sets the reduction of each picture: its own object overrides its detail, which overrides
// the body's object, which overrides the server's defaults. An inner source may leave values of an
// outer one without effect; the innermost must be valid by itself.
func (c *Call) reduce(defaults *restore.Reduction) error {
	if err := c.outer.parse(); err != nil {
		return err
	}
	if len(c.Shown) == 0 { // the body's is not used, but may be wrong
		_, err := c.merged(&Picture{own: layer{given: new(restore.Reduction)}}, defaults)
		return err
	}
	for _, p := range c.Shown {
		if err := p.own.parse(); err != nil {
			return err
		}
		if name := budget(p.own.given); details[p.detail] > 0 && name != "" {
			return wire.Bad("invalid_value", p.detailPath,
				"got %q together with %s, want one of them", p.detail, jsonName(name))
		}
		r, err := c.merged(p, defaults)
		if err != nil {
			return err
		}
		*p.reduction = *r
	}
	return nil
}

// merged returns the reduction of p.
func (c *Call) merged(p *Picture, defaults *restore.Reduction) (*restore.Reduction, error) {
	own, fine, outer := p.own.given, p.fine(), c.outer.given
	sources := slices.DeleteFunc([]*restore.Reduction{own, fine, outer, defaults},
		func(r *restore.Reduction) bool { return r == nil || len(r.Options) == 0 })
	sources = append(sources, new(restore.Reduction))
	r, err := sources[0].Over(sources[1:]...)
	if err == nil {
		r.AtMost = budget(own) == "" && budget(fine) == "" && budget(outer) == ""
		for _, name := range slices.Sorted(maps.Keys(r.Options)) {
			if own.Options[name] == nil && fine.Options[name] == nil &&
				outer.Options[name] == nil && !slices.Contains(r.Defaults, name) {
				r.Defaults = append(r.Defaults, name)
			}
		}
		err = r.Check()
	}
	var option *errs.OptionError
	if errors.As(err, &option) {
		return nil, c.blame(option, p)
	}
	return r, err
}

// contradiction finds two budgets in one object, or base none with another parameter.
func contradiction(g map[string]any) error {
	first := ""
	for _, p := range restore.Parameters() {
		v, given := g[p.Name]
		switch {
		case !given:
		case g["base"] == "none" && p.Name != "base":
			return &errs.OptionError{
				Name: p.Name, Got: text(v), Why: "with base none, which reads every token",
				Fault: errs.Useless,
			}
		case p.Budget && first != "":
			return &errs.OptionError{
				Name: p.Name, Got: text(v) + " and " + jsonName(first), Want: "one of them",
				Fault: errs.Conflict,
			}
		case p.Budget:
			first = p.Name
		}
	}
	return nil
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(out)
}

func jsonName(name string) string { return (&reduce.Parameter{Name: name}).JSONName() }

// located adds the field to an error of a service.
func (c *Call) located(err error) error {
	var picture *errs.PictureError
	var option *errs.OptionError
	var field *FieldError
	switch {
	case errors.As(err, &field):
	case errors.As(err, &picture) && picture.Index >= 0 && picture.Index < len(c.Shown):
		return &FieldError{Path: c.Shown[picture.Index].Path, Err: err}
	case errors.As(err, &option) && option.Name == "cache-salt":
		return at("restore", option)
	case errors.As(err, &option) && parameter(option.Name).Name != "":
		name := parameter(option.Name).Name
		for _, p := range c.Shown {
			if p.own.given.Options[name] != nil || p.fine().Options[name] != nil {
				return c.blame(option, p)
			}
		}
		return c.blame(option, &Picture{own: layer{given: new(restore.Reduction)}})
	}
	return err
}

// blame names the innermost source of an option of p.
func (c *Call) blame(option *errs.OptionError, p *Picture) error {
	name := strings.ReplaceAll(option.Name, "_", "-")
	if _, ok := p.own.given.Options[name]; ok {
		return at(p.own.path, option)
	}
	if _, ok := p.fine().Options[name]; ok {
		return wire.Bad("invalid_value", p.detailPath, "got %q, which cannot be honoured: %v",
			p.detail, option)
	}
	path := c.outer.path
	if path == "" {
		path = "restore"
	}
	return at(path, option)
}
