package local

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/wire"
	"github.com/restore-vlm/restore/reduce"
)

// parameter returns the description of a parameter.
func parameter(name string) (p reduce.Parameter) {
	for _, p = range methods.Parameters() {
		if p.Name == name {
			return p
		}
	}
	return reduce.Parameter{}
}

// at says that err is about a parameter in the object at path.
func at(path string, err error) error {
	f := &server.FieldError{Path: path, Err: err}
	var option *errs.OptionError
	if errors.As(err, &option) {
		f.Decimal = parameter(strings.ReplaceAll(option.Name, "_", "-")).Kind == reduce.Float
	}
	return f
}

// budget returns the name of the budget in g, "" if there is none.
func budget(g methods.Given) string {
	for name := range g {
		if parameter(name).Budget {
			return name
		}
	}
	return ""
}

// parse reads an object of parameters.
func parse(l *ask.Layer) (methods.Given, error) {
	if l.Object == nil {
		return nil, nil
	}
	g, err := methods.ParseJSON(l.Object)
	if err != nil {
		return nil, at(l.Path, err)
	}
	return g, nil
}

// detail is the budget for a picture's detail.
func detail(name string) methods.Given {
	switch name {
	case "low":
		return methods.Given{"keep-ratio": 1. / 18}
	case "high":
		return methods.Given{"keep-ratio": 1. / 3}
	case "original":
		return methods.Given{"keep-ratio": 1.}
	}
	return nil
}

// reduction returns the reduction of a picture: the picture's object overrides its detail, which
// overrides the body's object, which overrides the server's flags. For a nil picture it only checks
// the body.
func (b *Backend) reduction(p *ask.Picture, body *ask.Layer) (*methods.Options, error) {
	var own, fine methods.Given
	var err error
	outer, err := parse(body)
	if err != nil {
		return nil, err
	}
	if p != nil {
		if own, err = parse(&p.Reduction); err != nil {
			return nil, err
		}
		fine = detail(p.Detail)
		if name := budget(own); fine != nil && name != "" {
			return nil, wire.Bad("invalid_value", p.DetailPath,
				"got %q together with %s, want one of them", p.Detail, jsonName(name))
		}
	}
	for _, layer := range []struct {
		g    methods.Given
		path *ask.Layer
	}{{own, pictureLayer(p)}, {outer, body}} { // contradictions within one object
		if err := contradiction(layer.g); err != nil {
			return nil, at(layer.path.Path, err)
		}
	}
	// An inner source may leave values of an outer one without effect; the innermost must be valid
	// by itself.
	sources := slices.DeleteFunc([]methods.Given{own, fine, outer, b.o.Reduction},
		func(g methods.Given) bool { return len(g) == 0 })
	sources = append(sources, methods.Given{})
	o, err := methods.Merge(sources[0], sources[1:]...).Options()
	if err == nil {
		o.UpTo = budget(own) == "" && budget(fine) == "" && budget(outer) == ""
		err = methods.Check(o)
	}
	var option *errs.OptionError
	if errors.As(err, &option) {
		return nil, blameLayer(option, p, own, fine, body, outer)
	}
	return &o, err
}

func pictureLayer(p *ask.Picture) *ask.Layer {
	if p == nil {
		return nil
	}
	return &p.Reduction
}

// contradiction finds two budgets in one object, or base none with another parameter.
func contradiction(g methods.Given) error {
	first := ""
	for _, p := range methods.Parameters() {
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
		return "a value"
	}
	return string(out)
}

func jsonName(name string) string { return (&reduce.Parameter{Name: name}).JSONName() }

// blame names the field that set an option of the engine.
func (b *Backend) blame(option *errs.OptionError, r *ask.Request, pics []*ask.Picture) error {
	outer, err := parse(&r.Reduction)
	if err != nil {
		return err
	}
	for _, p := range pics {
		own, err := parse(&p.Reduction)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(option.Name, "_", "-")
		if _, ok := own[name]; ok || detail(p.Detail)[name] != nil {
			return blameLayer(option, p, own, detail(p.Detail), &r.Reduction, outer)
		}
	}
	if option.Name == "cache-salt" {
		return at("restore", option)
	}
	return blameLayer(option, nil, nil, nil, &r.Reduction, outer)
}

// blameLayer names the innermost object that sets an option.
func blameLayer(
	option *errs.OptionError, p *ask.Picture, own, fine methods.Given, body *ask.Layer,
	outer methods.Given,
) error {
	name := strings.ReplaceAll(option.Name, "_", "-")
	if _, ok := own[name]; ok {
		return at(p.Reduction.Path, option)
	}
	if _, ok := fine[name]; ok {
		return wire.Bad("invalid_value", p.DetailPath, "got %q, which cannot be honoured: %v",
			p.Detail, option)
	}
	path := body.Path
	if path == "" {
		path = "restore"
	}
	return at(path, option)
}
