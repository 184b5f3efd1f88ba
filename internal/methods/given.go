package methods

import (
	"bytes"
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
	all := Parameters()
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

// Merge combines sources; earlier ones override later ones. If a source has a budget, budgets in
// later ones are dropped; if it has base "none", all later parameters are. A parameter that would
// be refused as useless, or for a conflict with an earlier source, is dropped; so is one that would
// make an earlier parameter useless.
func Merge(sources ...Given) Given {
	m := merger{sources: sources, all: Parameters(), banned: map[ranked]bool{}}
	out, _ := m.settle()
	return out
}

// settle bans parameters until nothing of the kind is refused, and reports whether nothing at all
// is refused.
func (m *merger) settle() (out Given, ok bool) {
	for {
		out, rank := m.merge()
		bad := refusal(out)
		if bad == nil {
			return out, true
		}
		at, known := rank[bad.Name]
		switch {
		case !known || bad.Fault != errs.Useless && bad.Fault != errs.Conflict:
			return out, false
		case at > m.floor && (bad.Fault == errs.Useless || m.budgets(m.sources[at]) < 2):
			m.banned[ranked{bad.Name, at}] = true
		default:
			return m.yield(out, rank, at)
		}
	}
}

// ranked is a parameter of one of several sources.
type ranked struct {
	name string
	at   int
}

// merger is the state of Merge.
type merger struct {
	sources []Given
	all     []reduce.Parameter
	banned  map[ranked]bool // dropped parameters
	floor   int             // parameters of sources up to this one are never dropped
}

// merge combines the sources without the dropped parameters, and returns the source of each
// parameter.
func (m *merger) merge() (out Given, rank map[string]int) {
	out, rank = Given{}, map[string]int{}
	for i, source := range m.sources {
		if out["base"] == "none" {
			break
		}
		budgeted := m.budgets(out) > 0
		for name, v := range source {
			if _, above := out[name]; !above && !m.banned[ranked{name, i}] &&
				!(budgeted && m.isBudget(name)) {
				out[name], rank[name] = v, i
			}
		}
	}
	return out, rank
}

// yield bans the first parameter below rank at whose removal everything settles; if there is none
// it returns out.
func (m *merger) yield(out Given, rank map[string]int, at int) (Given, bool) {
	for _, other := range slices.Sorted(maps.Keys(rank)) {
		if rank[other] <= at {
			continue
		}
		n := merger{sources: m.sources, all: m.all, banned: maps.Clone(m.banned), floor: at}
		n.banned[ranked{other, rank[other]}] = true
		if settled, ok := n.settle(); ok {
			return settled, true
		}
	}
	return out, false
}

// budgets counts the budgets in g.
func (m *merger) budgets(g Given) int {
	n := 0
	for name := range g {
		if m.isBudget(name) {
			n++
		}
	}
	return n
}

func (m *merger) isBudget(name string) bool {
	return slices.ContainsFunc(m.all, func(p reduce.Parameter) bool {
		return p.Budget && p.Name == name
	})
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
	if _, ok := g["n-vis"]; ok && o.NVis == 0 && o.AutoMean == 0 && (o.Restore || !m.Adaptive) {
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
	if near := nearestName(name, list); near != "" {
		why = "the nearest is " + near
	}
	return refused(name, errs.Unknown, got, want, why)
}

// nearestName returns the name that was probably misspelt, "" if none is near.
func nearestName(name string, list []string) string {
	best, least := "", 1+max(min(2, len(name)/2), len(name)/3)
	for _, other := range list {
		if d := spell.Distance(name, other, least); d < least {
			best, least = other, d
		}
	}
	return best
}
