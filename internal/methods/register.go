package methods

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/reduce"
)

// registered are the methods that Register added.
var registered struct {
	adding sync.Mutex // held by Register
	sync.RWMutex
	list       []*method
	parameters []reduce.Parameter // of all methods; nil: not made yet
}

// maxRegistered limits the methods that a program adds.
const maxRegistered = 256

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Register adds a method to the table under m.Name for the whole program. It then works like any
// other, alone and with RESTORE, and is drawn, measured and compared wherever Methods is used.
// criterion makes a new criterion for every picture. If m.PerView is set, it sees each view of a
// picture separately. A method that needs a text ([reduce.PromptText], [reduce.QuestionText])
// chooses for each question.
//
// A name consists of lower-case letters, digits and hyphens and must be new; so must the name of a
// parameter. The method acts after the encoder (AfterEncoder, or an empty Site). Register may be
// called at any time, also while requests run.
func Register(m reduce.Method, criterion func() reduce.Criterion) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("methods: register: "+format, a...)
	}
	switch {
	case !validName.MatchString(m.Name) || m.Name == restoreMethod.Name:
		return bad("name: got %q, want 1 to 32 lower-case letters, digits and hyphens that begin "+
			"with a letter, and not %q", m.Name, restoreMethod.Name)
	case criterion == nil || criterion() == nil:
		return bad("%s: got no criterion, want a function that makes one", m.Name)
	case m.Site != reduce.AfterEncoder && m.Site != 0:
		return bad("%s: site: got %q, want %q", m.Name, m.Site, reduce.AfterEncoder)
	case len(m.Parameters) > 0:
		return bad("%s: parameters: got %d, want none: the criterion declares them",
			m.Name, len(m.Parameters))
	case m.Adaptive:
		return bad("%s: got a method that finds its budget itself, want one that does not", m.Name)
	case len(m.NeedsPlain) > 0:
		return bad("%s: needs without RESTORE: got %d, want none", m.Name, len(m.NeedsPlain))
	}
	text := slices.IndexFunc(m.Needs, reduce.Need.ReadsText)
	switch {
	case m.Text && text < 0:
		return bad("%s: got a method that reads the question, want %q or %q among its needs",
			m.Name, reduce.PromptText, reduce.QuestionText)
	case text >= 0 && slices.ContainsFunc(m.Needs[text+1:], reduce.Need.ReadsText):
		return bad("%s: needs: got %q and %q, want one of them", m.Name, reduce.PromptText,
			reduce.QuestionText)
	}
	m.Text = text >= 0
	readable := []reduce.Need{
		reduce.ClsAttn, reduce.Hidden, reduce.Keys, reduce.Grid, reduce.LastKeys, reduce.Pixels,
		reduce.ClsAttnShallow, reduce.ReceivedMid, reduce.ReceivedDeep, reduce.Cells,
		reduce.PromptText, reduce.QuestionText,
	}
	for _, n := range m.Needs {
		if !slices.Contains(readable, n) {
			return bad("%s: needs: got %q, want one of %q", m.Name, n, readable)
		}
	}
	if m.Site = reduce.AfterEncoder; m.Title == "" {
		m.Title = m.Name
	}
	m.Needs = slices.Clone(m.Needs)
	add := &method{Method: m, pick: keepBy, parameters: func() own { return newAdded(criterion()) }}
	var d reduce.Declaration
	newAdded(criterion()).Declare(&d)
	registered.adding.Lock()
	defer registered.adding.Unlock()
	all := methods()
	if slices.ContainsFunc(all, func(o *method) bool { return o.Name == m.Name }) {
		return bad("name: got %q, which is taken, want a new one", m.Name)
	}
	if len(all)-len(table) == maxRegistered {
		return bad("%s: got %d methods before, want at most that many", m.Name, maxRegistered)
	}
	taken := append(parameterNames(parametersOf(all)), fieldNames()...)
	defaults := d.Values()
	for _, p := range d.Parameters() {
		if !validName.MatchString(p.Name) || slices.Contains(taken, p.Name) {
			return bad("%s: parameter: got %q, want a new name of lower-case letters, digits and "+
				"hyphens", m.Name, p.Name)
		}
		taken = append(taken, p.Name)
		switch {
		case p.Budget:
			return bad("%s: parameter %s: got a budget, want n-vis to be it", m.Name, p.Name)
		case p.Kind > reduce.File:
			return bad("%s: parameter %s: got %v, want a kind of package reduce", m.Name, p.Name,
				p.Kind)
		case p.Above && p.Least == nil:
			return bad("%s: parameter %s: got Above without Least, want both", m.Name, p.Name)
		case p.Kind == reduce.File:
			continue
		}
		if _, err := p.Parse(defaults[0].Value); err != nil {
			return bad("%s: default: %w", m.Name, err)
		}
		defaults = defaults[1:]
	}
	registered.Lock()
	defer registered.Unlock()
	registered.list, registered.parameters = append(registered.list, add), nil
	return nil
}

// fieldNames are the names that parameters cannot have, because a reduction's JSON has fields of
// these names: in a request, and in the description of what was done.
func fieldNames() []string {
	names := []string{"at-most", "defaults"}
	for f := range reflect.TypeFor[reduce.Resolved]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, strings.ReplaceAll(name, "_", "-"))
	}
	return names
}

// added are the parameters of a registered method: its criterion.
type added struct{ reduce.Criterion }

func newAdded(c reduce.Criterion) *added { return &added{c} }

// Declare implements own.
func (a *added) Declare(d *reduce.Declaration) {
	if c, ok := a.Criterion.(reduce.Declarer); ok {
		c.Declare(d)
	}
}

// keepBy is the pick of a registered method.
func keepBy(w *work, k int) (*selection, error) {
	name := w.o.Base
	kept, err := w.o.own.(*added).Keep(w.in, k)
	if err != nil {
		return nil, fmt.Errorf("methods: %s: %w", name, err)
	}
	if len(kept) != k {
		return nil, fmt.Errorf("methods: %s: got %d tokens, want %d", name, len(kept), k)
	}
	seen := make([]bool, w.in.N)
	for _, t := range kept {
		if t < 0 || int(t) >= w.in.N || seen[t] {
			return nil, fmt.Errorf("methods: %s: token %d is out of 0..%d or repeated", name, t,
				w.in.N-1)
		}
		seen[t] = true
	}
	return &selection{kept: slices.Clone(kept)}, nil
}

// methods returns all methods: this module's and the registered ones.
func methods() []*method {
	all, _ := known()
	return all
}

// known returns all methods and, if they have been made, their parameters.
func known() ([]*method, []reduce.Parameter) {
	registered.RLock()
	defer registered.RUnlock()
	return append(table[:len(table):len(table)], registered.list...), registered.parameters
}

// parameters returns Parameters, which several callers share. They are made once for each list of
// methods, because every request asks for them several times.
func parameters() []reduce.Parameter {
	all, made := known()
	if made != nil {
		return made
	}
	made = parametersOf(all)
	registered.Lock()
	defer registered.Unlock()
	if len(table)+len(registered.list) == len(all) {
		registered.parameters = made
	}
	return made
}
