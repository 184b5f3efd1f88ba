package local

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/wire"
	"github.com/restore-vlm/restore/reduce"
)

// parameter returns what is known of a parameter.
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

// budget returns the budget among g, "" where there is none.
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

// detail is the budget that a picture's detail stands for.
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

// reduction returns how a picture is reduced: as its own object says, before its detail,
// the body's object and the server's flags. Of a nil picture the body is checked alone.
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
	}{{own, pictureLayer(p)}, {outer, body}} { // what one object contradicts itself in
		if err := contradiction(layer.g); err != nil {
			return nil, at(layer.path.Path, err)
		}
	}
	// What an inner source says may leave an outer one without effect; the innermost has
	// to make sense itself.
	var sources []methods.Given
	for _, g := range []methods.Given{own, fine, outer, b.o.Reduction} {
		if len(g) > 0 {
			sources = append(sources, g)
		}
	}
	o, err := methods.Merge(sources...).Options()
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

// contradiction finds two budgets in one object, and base none with any other parameter.
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

// blame names the field that an option of the engine came from.
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

// blameLayer names the innermost object that gives an option.
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
