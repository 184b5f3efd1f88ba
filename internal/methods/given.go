package methods

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/spell"
	"github.com/restore-vlm/restore/reduce"
)

// Given holds parameters by name from one source: flags, the environment, a JSON object, or the
// defaults of a command. Each value has been checked by itself.
type Given map[string]any

// Set sets a parameter to a value that [reduce.Parameter.Parse] accepts.
func (g Given) Set(name string, value any) error {
	all := parameters()
	i := slices.IndexFunc(all, func(p reduce.Parameter) bool { return p.Name == name })
	if i < 0 {
		return unknown(name, fmt.Sprint(value), parameterNames(all))
	}
	v, err := all[i].Parse(value)
	if err != nil {
		return err
	}
	g[name] = v
	return nil
}

// maxJSON limits the size of an object of parameters.
const maxJSON = 1 << 16

// ParseJSON reads an object of parameters under their JSON names. The Name of an [errs.OptionError]
// is the field's, with underscores.
func ParseJSON(data []byte) (Given, error) {
	if len(data) > maxJSON {
		return nil, fmt.Errorf("methods: %d bytes, want at most %d", len(data), maxJSON)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("methods: got %.40q, want an object of parameters", data)
	}
	all := slices.DeleteFunc(Parameters(), func(p reduce.Parameter) bool {
		return p.Kind == reduce.File
	})
	fields := make([]string, len(all))
	for i := range all {
		fields[i] = all[i].JSONName()
	}
	g := Given{}
	for dec.More() {
		field, err := dec.Token()
		var raw json.RawMessage
		if err == nil {
			err = dec.Decode(&raw)
		}
		if err != nil {
			return nil, fmt.Errorf("methods: %w", err)
		}
		name := field.(string)
		i := slices.Index(fields, name)
		if i < 0 {
			return nil, unknown(name, "no such field", fields)
		}
		if _, twice := g[all[i].Name]; twice {
			return nil, refused(name, errs.Conflict, string(raw), "one value", "given twice")
		}
		if err := g.Set(all[i].Name, fromJSON(&all[i], raw)); err != nil {
			return nil, renamed(err, name)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("methods: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("methods: text after the object, want one object")
	}
	return g, nil
}

// fromJSON converts a JSON value for Parse. A value of another type than the parameter's stays as
// written, and Parse refuses it.
func fromJSON(p *reduce.Parameter, raw json.RawMessage) any {
	var value any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return raw
	}
	_, isText := value.(string)
	takesText := p.Kind == reduce.Choice || p.Kind == reduce.Text
	auto := p.Auto && isText && strings.HasPrefix(value.(string), reduce.AutoPrefix)
	switch value.(type) {
	case string, json.Number, bool:
		if isText == takesText || auto {
			return value
		}
	}
	return rawJSON(raw)
}

// rawJSON is a value that no parameter accepts.
type rawJSON string

// renamed replaces the name of the option in err.
func renamed(err error, name string) error {
	var o *errs.OptionError
	if !errors.As(err, &o) {
		return err
	}
	other := *o
	other.Name = name
	return fmt.Errorf("methods: %w", &other)
}

// Merge adds defaults to the parameters of the first source, the demands. Earlier defaults override
// later ones. A default is dropped if it would be refused as useless, or for a conflict with what
// is there, or if it would make that useless. The method is chosen first, then the budget. Demands
// are never dropped, nor are two budgets of one source, which Options refuses.
func Merge(demands Given, defaults ...Given) Given {
	out := maps.Clone(demands)
	if out == nil {
		out = Given{}
	}
	out.addBase(defaults)
	if out["base"] == "none" {
		return out
	}
	all := parameters()
	out.addBudget(defaults, all)
	for _, name := range defaultsOrder(all) {
		for _, source := range defaults {
			v, ok := source[name]
			if _, there := out[name]; ok && !there && out.takes(name, v) {
				out[name] = v
			}
		}
	}
	return out
}

// deciding are the parameters on which the use of others depends.
var deciding = []string{"restore", "compat", "gamma", "anchors", "join"}

// defaultsOrder returns the names of all parameters but the method and the budgets, those first on
// which the use of others depends.
func defaultsOrder(all []reduce.Parameter) []string {
	names := slices.Clone(deciding)
	for _, p := range all {
		if p.Name != "base" && !p.Budget && !slices.Contains(deciding, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// addBase adds the first default method with which the demands have an effect, or the first one.
func (g Given) addBase(defaults []Given) {
	first := any(nil)
	for _, source := range defaults {
		base, ok := source["base"]
		if _, there := g["base"]; !ok || there {
			continue
		}
		if g["base"] = base; !excludes(refusal(g)) {
			return
		}
		delete(g, "base")
		first = cmp.Or(first, base)
	}
	if first != nil {
		g["base"] = first
	}
}

// addBudget adds the budget of the first source that has one for the method.
func (g Given) addBudget(defaults []Given, known []reduce.Parameter) {
	if len(g.budgets(known)) > 0 {
		return
	}
	method := Given{"base": g["base"], "restore": cmp.Or(g["restore"], any(true))}
	for _, source := range defaults {
		all := source.budgets(known)
		for _, name := range all {
			if len(all) > 1 || method.takes(name, source[name]) {
				g[name] = source[name]
			}
		}
		if len(g.budgets(known)) > 0 {
			return
		}
	}
}

// budgets returns the names of the budgets in g, in the order of all parameters.
func (g Given) budgets(all []reduce.Parameter) (names []string) {
	for _, p := range all {
		if _, ok := g[p.Name]; ok && p.Budget {
			names = append(names, p.Name)
		}
	}
	return names
}

// takes reports whether a default has an effect and leaves the others theirs. A default that is
// wrong in itself is taken, because it must be refused; so is one that is not at fault.
func (g Given) takes(name string, v any) bool {
	with := maps.Clone(g)
	with[name] = v
	after := refusal(with)
	if !excludes(after) {
		return true
	}
	before := refusal(g)
	return before != nil && before.Name == after.Name && before.Why == after.Why
}

// excludes reports whether err is about parameters that exclude each other.
func excludes(err *errs.OptionError) bool {
	return err != nil && (err.Fault == errs.Useless || err.Fault == errs.Conflict)
}

// refusal is the error of Check for g, nil if there is none or it is about no option.
func refusal(g Given) *errs.OptionError {
	o, err := g.Options()
	if err == nil {
		err = Check(o)
	}
	var bad *errs.OptionError
	errors.As(err, &bad)
	return bad
}

// Options converts g for Resolve. RESTORE is on unless g turns it off.
func (g Given) Options() (Options, error) {
	o := Options{Restore: true}
	var d reduce.Declaration
	o.declare(&d)
	ofAll := parameterNames(d.Parameters())
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if !slices.Contains(ofAll, name) {
			if o.Own == nil {
				o.Own = map[string]any{}
			}
			o.Own[name] = g[name]
			continue
		}
		if err := d.Set(name, g[name]); err != nil {
			return o, err
		}
	}
	if o.Base == "" || o.Base == "none" {
		o.Restore = false
		if on, ok := g["restore"].(bool); ok && on {
			return o, useless("restore", "true", "without a base")
		}
		return o, nil
	}
	m, err := lookup(o.Base)
	if err != nil {
		return o, err
	}
	finds := m.Adaptive && (!o.Restore || m.before != nil) // the number of tokens
	if _, ok := g["n-vis"]; ok && o.NVis == 0 && o.AutoMean == 0 && !finds {
		return o, refused("n-vis", errs.TooSmall, "0", "at least 1", "")
	}
	return o, nil
}

// MarshalJSON writes the parameters under their JSON names; parameters that are files are left out.
func (g Given) MarshalJSON() ([]byte, error) {
	out := map[string]any{}
	for name, v := range g {
		if _, file := v.([]byte); !file {
			p := reduce.Parameter{Name: name}
			out[p.JSONName()] = v
		}
	}
	return json.Marshal(out)
}

func parameterNames(all []reduce.Parameter) []string {
	out := make([]string, len(all))
	for i := range all {
		out[i] = all[i].Name
	}
	return out
}

// trimPackage is the text of err without this package's prefix.
func trimPackage(err error) string { return strings.TrimPrefix(err.Error(), "methods: ") }

// refused is an error about one option.
func refused(name string, fault errs.Fault, got, want, why string) error {
	return fmt.Errorf("methods: %w",
		&errs.OptionError{Name: name, Got: got, Want: want, Why: why, Fault: fault})
}

// useless is an error about an option that would change nothing.
func useless(name, got, why string) error { return refused(name, errs.Useless, got, "", why) }

// unknown is an error about an unknown name.
func unknown(name, got string, list []string) error {
	want, why := "one of "+strings.Join(list, ", "), ""
	if near := spell.Nearest(name, list); near != "" {
		why = "the nearest is " + near
	}
	return refused(name, errs.Unknown, got, want, why)
}
