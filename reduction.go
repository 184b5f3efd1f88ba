package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/methods"
)

// Reduction says how the visual tokens of a picture are reduced (RESTORE, Eqs. 3-8): a
// published criterion keeps some, and the others are merged into anchors. The budget is
// exact: a picture that has fewer tokens is an error, unless AtMost is set.
//
// Its JSON is an object of parameters with underscores for hyphens: {"base": "holov", "n_vis": 64}.
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
	// would contain. The parameters above may be here instead.
	Options map[string]any
	// Defaults names parameters in Options that are dropped where they have no effect, instead of
	// an error.
	Defaults []string
}

// Check refuses parameters that no model and no picture could make right: unknown ones, values out
// of range, and those that exclude each other. The error is an [errs.OptionError].
func (r *Reduction) Check() error {
	_, err := r.checked()
	return err
}

// checked returns the options, which [Reduction.Check] accepts.
func (r *Reduction) checked() (methods.Options, error) {
	o, err := r.options()
	if err == nil {
		err = methods.Check(o)
	}
	return o, err
}

// Over adds the parameters of defaults to those of r, which are demands. Earlier defaults override
// later ones. A default is dropped if it would be refused as useless, or excludes what is there.
// AtMost is r's, and Defaults names what the Defaults of its source named. A nil reduction has no
// parameters.
func (r *Reduction) Over(defaults ...*Reduction) (*Reduction, error) {
	var given []methods.Given
	all := append([]*Reduction{r}, defaults...)
	for _, x := range all {
		g, err := x.given()
		if err != nil {
			return nil, err
		}
		given = append(given, g)
	}
	out := &Reduction{
		Options: methods.Merge(given[0], given[1:]...), AtMost: r != nil && r.AtMost,
	}
	for _, name := range slices.Sorted(maps.Keys(out.Options)) {
		from := slices.IndexFunc(given, func(g methods.Given) bool {
			return reflect.DeepEqual(g[name], out.Options[name])
		})
		if x := all[from]; slices.Contains(x.Defaults, name) {
			out.Defaults = append(out.Defaults, name)
		}
	}
	return out, nil
}

// given returns all parameters by name.
func (r *Reduction) given() (methods.Given, error) {
	g := methods.Given{}
	if r == nil {
		return g, nil
	}
	for name, v := range r.Options {
		if err := g.Set(name, v); err != nil {
			return nil, err
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
			return nil, &errs.OptionError{Name: f.name, Got: fmt.Sprint(f.value), Want: "one value",
				Why: "Options has one too", Fault: errs.Conflict}
		}
		if err := g.Set(f.name, f.value); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (r *Reduction) options() (methods.Options, error) {
	if r == nil {
		return methods.Options{}, nil
	}
	g, err := r.given()
	if err != nil {
		return methods.Options{}, err
	}
	o, err := g.Options()
	o.UpTo, o.Defaults = r.AtMost, r.Defaults
	return o, err
}

// equal reports whether r and other mean the same reduction; nil is no reduction.
func (r *Reduction) equal(other *Reduction) bool {
	a, err := r.options()
	b, err2 := other.options()
	return err == nil && err2 == nil && reflect.DeepEqual(a, b)
}

// reductionFields are the fields of a reduction in JSON besides its parameters.
type reductionFields struct {
	AtMost   bool     `json:"at_most,omitempty"`
	Defaults []string `json:"defaults,omitempty"`
}

// MarshalJSON implements [json.Marshaler]. Parameters that are files are left out.
func (r Reduction) MarshalJSON() ([]byte, error) {
	g, err := r.given()
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(g)
	if err != nil || !r.AtMost && r.Defaults == nil {
		return data, err
	}
	more, err := json.Marshal(reductionFields{r.AtMost, r.Defaults})
	if err != nil || string(data) == "{}" {
		return more, err
	}
	return append(append(data[:len(data)-1], ','), more[1:]...), nil
}

// UnmarshalJSON implements [json.Unmarshaler]: an object of parameters by name, as in requests to a
// server. RESTORE runs over the base unless "restore" is false. An error about a parameter is an
// [errs.OptionError]; [Reduction.Check] finds those that exclude each other.
func (r *Reduction) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	var more reductionFields
	if err := errors.Join(json.Unmarshal(data, &fields), json.Unmarshal(data, &more)); err != nil {
		return err
	}
	before := len(fields)
	delete(fields, "at_most")
	delete(fields, "defaults")
	if len(fields) != before {
		var err error
		if data, err = json.Marshal(fields); err != nil {
			return err
		}
	}
	g, err := methods.ParseJSON(data)
	*r = Reduction{Options: maps.Clone(g), AtMost: more.AtMost, Defaults: more.Defaults}
	return err
}
