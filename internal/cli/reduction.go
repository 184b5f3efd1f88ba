package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// ReductionFlags are the flags of a reduction, shared by run, trace, reduce and eval: one for every
// parameter of [restore.Parameters].
type ReductionFlags struct {
	Flags    *pflag.FlagSet
	defaults *restore.Reduction // of the command
	Seed     int64              // value of --seed, which the command declares
}

// ParameterFlag is the flag of one parameter. It checks its value when it is set; the value of a
// file parameter is the file's name.
type ParameterFlag struct {
	reduce.Parameter
	Text string
	then func(text string) // called after the value is set; may be nil
}

// IsParameter reports whether f is a flag of a reduction.
func IsParameter(f *pflag.Flag) bool {
	switch f.Value.(type) {
	case *ParameterFlag, *BudgetsFlag:
		return true
	}
	return false
}

// Set implements pflag.Value.
func (p *ParameterFlag) Set(text string) error {
	if p.Kind != reduce.File {
		if _, err := p.Parse(text); err != nil {
			return err
		}
	}
	if p.Text = text; p.then != nil {
		p.then(text)
	}
	return nil
}

// String implements pflag.Value.
func (p *ParameterFlag) String() string { return p.Text }

// Type implements pflag.Value: it describes the flag's value.
func (p *ParameterFlag) Type() string {
	if p.Kind == reduce.Bool {
		return "bool"
	}
	return p.Range()
}

// Add declares the flags. base and nVis are the command's defaults, "" and 0 if the command does
// not reduce by default.
func (r *ReductionFlags) Add(fs *pflag.FlagSet, base string, nVis int) {
	r.Flags, r.defaults = fs, &restore.Reduction{Base: base, NVis: nVis}
	applies := map[string]string{"base": base}
	if nVis > 0 {
		applies["n-vis"] = strconv.Itoa(nVis)
	}
	for _, p := range restore.Parameters() {
		if p.Name == "seed" { // the command declares it
			continue
		}
		value := &ParameterFlag{Parameter: p}
		if p.Name == "base" {
			value.then = r.reveal
		}
		f := fs.VarPF(value, p.Name, "", p.Help)
		f.Hidden = !slices.Contains(ShownParameters, p.Name)
		shows := map[string][]string{Applies: {cmp.Or(applies[p.Name], p.Default)}}
		switch {
		case p.Kind == reduce.Bool:
			f.NoOptDefVal = "true"
		case p.Kind == reduce.Choice:
			shows[Choices] = []string{strings.Join(p.Values, "|")}
		case p.Unit != "":
			shows[Choices] = []string{p.Unit}
		}
		f.Annotations = shows
	}
}

// reveal lets the shell complete the parameters that have a use with a method.
func (r *ReductionFlags) reveal(base string) {
	serves := []string{base, restore.OnTop().Name}
	for _, p := range restore.Parameters() {
		ofBase := len(p.Methods) == 0 || slices.ContainsFunc(p.Methods, func(name string) bool {
			return slices.Contains(serves, name)
		})
		if f := r.Flags.Lookup(p.Name); f != nil && IsParameter(f) {
			f.Hidden = !slices.Contains(ShownParameters, p.Name) && (base == "none" || !ofBase)
		}
	}
}

// MethodNames are the values of --base.
func MethodNames() (names []string) {
	for _, m := range restore.Methods() {
		names = append(names, m.Name)
	}
	return names
}

// each calls do for every flag of a reduction that has a value.
func (r *ReductionFlags) each(do func(f *pflag.Flag, p *ParameterFlag)) {
	r.Flags.VisitAll(func(f *pflag.Flag) {
		switch p := f.Value.(type) {
		case *ParameterFlag:
			if f.Changed {
				do(f, p)
			}
		case *BudgetsFlag:
			if f.Changed {
				do(f, &p.ParameterFlag)
			}
		}
	})
}

// sources returns the parameters from the command line, and those from the environment. A file of a
// variable that cannot be read is empty; unread is the reason by the parameter's name.
func (r *ReductionFlags) sources() (
	typed, env *restore.Reduction, unread map[string]error, err error,
) {
	unread = map[string]error{}
	typed = &restore.Reduction{Options: map[string]any{}}
	env = &restore.Reduction{Options: map[string]any{}}
	r.each(func(f *pflag.Flag, p *ParameterFlag) {
		source := env
		if OnCommandLine(f) {
			source = typed
		}
		var value any = p.Text
		if p.Kind == reduce.File {
			data, readErr := ReadFile(p.Text, MaxTextBytes)
			if value = data; OnCommandLine(f) {
				err = errors.Join(err, readErr)
			} else if readErr != nil {
				unread[p.Name] = readErr
			}
		}
		v, parseErr := p.Parse(value)
		source.Options[p.Name], err = v, errors.Join(err, parseErr)
	})
	return typed, env, unread, err
}

// settle returns the error of a file that given needs. It removes the others.
func settle(given map[string]any, unread map[string]error) error {
	for _, name := range slices.Sorted(maps.Keys(unread)) {
		_, byContent := given["n-vis"].(string)
		base, _ := given["base"].(string)
		switch {
		case given[name] == nil: // the method has no use for it
		case !serves(name, base):
			delete(given, name)
		case name == "budget-file" && !byContent && given["guard"] != true:
			delete(given, name)
		default:
			return unread[name]
		}
	}
	return nil
}

// serves reports whether a parameter belongs to a method, or to all.
func serves(name, base string) bool {
	all := restore.Parameters()
	i := slices.IndexFunc(all, func(p reduce.Parameter) bool { return p.Name == name })
	return len(all[i].Methods) == 0 || slices.Contains(all[i].Methods, base)
}

// over is typed.Over(…) without files that cannot be read and are not needed.
func over(
	unread map[string]error, first *restore.Reduction, others ...*restore.Reduction,
) (*restore.Reduction, error) {
	out, err := first.Over(others...)
	if err != nil {
		return nil, err
	}
	return out, settle(out.Options, unread)
}

// Merged returns the parameters from the command line, the environment and the defaults.
func (r *ReductionFlags) Merged() (*restore.Reduction, error) {
	typed, env, unread, err := r.sources()
	if err != nil {
		return nil, err
	}
	return over(unread, typed, env, r.defaults)
}

// Reduction returns the requested reduction. A flag on the command line overrides variables that it
// excludes or leaves without effect; both override the command's defaults.
func (r *ReductionFlags) Reduction() (*restore.Reduction, error) { return r.with(nil) }

// Variant returns the requested reduction, overridden by the parameters in a JSON object.
func (r *ReductionFlags) Variant(object string) (*restore.Reduction, error) {
	over := new(restore.Reduction)
	if err := over.UnmarshalJSON([]byte(object)); err != nil {
		return nil, &UsageError{Err: err}
	}
	return r.with(over)
}

// Demanded returns the parameters of the command line and of variables, for a server with defaults
// of its own.
func (r *ReductionFlags) Demanded() (*restore.Reduction, error) {
	typed, env, unread, err := r.sources()
	if err != nil {
		return nil, err
	}
	out, err := over(unread, typed, env)
	if err == nil && Method(r.Base()).Draws {
		out.Options["seed"] = r.Seed
	}
	return out, err
}

// Method describes the method with that name; the zero value is none.
func Method(name string) (m reduce.Method) {
	for _, m := range restore.Methods() {
		if m.Name == name {
			return m
		}
	}
	return m
}

// with returns the flags' reduction, overridden by over, which may be nil.
func (r *ReductionFlags) with(over *restore.Reduction) (*restore.Reduction, error) {
	typed, env, unread, err := r.sources()
	if err != nil {
		return nil, err
	}
	sources := []*restore.Reduction{typed, env, r.defaults}
	if over != nil {
		sources = append([]*restore.Reduction{over}, sources...)
	}
	out, err := sources[0].Over(sources[1:]...)
	if err != nil {
		return nil, &UsageError{Err: err}
	}
	asked := func(name string) bool { // for this command
		return typed.Options[name] != nil || over != nil && over.Options[name] != nil
	}
	out.AtMost = !asked("n-vis") && env.Options["n-vis"] == nil
	for _, name := range slices.Sorted(maps.Keys(env.Options)) {
		if !asked(name) {
			out.Defaults = append(out.Defaults, name)
		}
	}
	base, _ := out.Options["base"].(string)
	if Method(base).Draws && out.Options["seed"] == nil {
		out.Options["seed"] = r.Seed
	}
	if err := settle(out.Options, unread); err != nil {
		return nil, err
	}
	if err := out.Check(); err != nil {
		return nil, &UsageError{Err: r.inFile(err)}
	}
	return out, nil
}

// inFile adds the name of the parameter file if err is about its content.
func (r *ReductionFlags) inFile(err error) error {
	var bad *errs.OptionError
	if !errors.As(err, &bad) || bad.Fault != errs.Invalid {
		return err
	}
	r.each(func(f *pflag.Flag, p *ParameterFlag) {
		if p.Kind == reduce.File && p.Name == bad.Name {
			err = fmt.Errorf("%s: %w", p.Text, err)
		}
	})
	return err
}

// Files are the files named by the reduction's flags.
func (r *ReductionFlags) Files() (files []Input) {
	r.each(func(_ *pflag.Flag, p *ParameterFlag) {
		if p.Kind == reduce.File {
			files = append(files, Input{p.Name, p.Text})
		}
	})
	return files
}

// Base returns the requested method, or the command's default.
func (r *ReductionFlags) Base() string {
	if f := r.Flags.Lookup("base"); f.Changed {
		return f.Value.String()
	}
	return r.defaults.Base
}

// CheckSeed refuses a seed on the command line if nothing is random.
func (r *ReductionFlags) CheckSeed() error {
	return NoUse(r.Flags, !Method(r.Base()).Draws, "has no use without --base random, got %v",
		"seed")
}

// Given names the first reduction flag on the command line, except those in but; "" if there is
// none. Variables do not count, because they may be for other commands.
func (r *ReductionFlags) Given(but ...string) (name string) {
	r.each(func(f *pflag.Flag, _ *ParameterFlag) {
		if name == "" && OnCommandLine(f) && !slices.Contains(but, f.Name) {
			name = f.Name
		}
	})
	return name
}

// BudgetsFlag is --n-vis with several budgets, separated by commas.
type BudgetsFlag struct {
	ParameterFlag
	List []int
}

// MaxBudgets limits the budgets of one comparison.
const MaxBudgets = 64

// AddBudgets declares the flags like add, with a list of budgets for --n-vis.
func (r *ReductionFlags) AddBudgets(fs *pflag.FlagSet, base string, nVis int) *BudgetsFlag {
	r.Add(fs, base, nVis)
	f := fs.Lookup("n-vis")
	b := &BudgetsFlag{ParameterFlag: *f.Value.(*ParameterFlag), List: []int{nVis}}
	f.Value = b
	return b
}

// Set implements pflag.Value.
func (b *BudgetsFlag) Set(text string) error {
	if strings.HasPrefix(text, reduce.AutoPrefix) {
		b.List = nil
		return b.ParameterFlag.Set(text)
	}
	parts := strings.Split(text, ",")
	if len(parts) > MaxBudgets {
		return fmt.Errorf("%d budgets, want at most %d", len(parts), MaxBudgets)
	}
	list := make([]int, len(parts))
	for i, part := range parts {
		v, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		if slices.Contains(list[:i], v) {
			return fmt.Errorf("%d occurs twice", v)
		}
		list[i] = v
	}
	b.List, b.Text = list, strconv.Itoa(list[0])
	return nil
}

// String implements pflag.Value.
func (b *BudgetsFlag) String() string {
	if b.List == nil {
		return b.Text
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(b.List), " ", ","), "[]")
}

// Type implements pflag.Value.
func (b *BudgetsFlag) Type() string { return "whole numbers" }

// Extension is the object "restore" of a request: the parameters that were set, under their JSON
// names. It is nil without any.
func (r *ReductionFlags) Extension() (json.RawMessage, error) {
	object := map[string]any{}
	var err error
	r.each(func(f *pflag.Flag, p *ParameterFlag) {
		if p.Kind == reduce.File {
			if OnCommandLine(f) {
				err = errors.Join(err,
					Flagf(p.Name, "cannot be sent to a server, got %s", p.Text))
			}
			return
		}
		v, parseErr := p.Parse(p.Text)
		err = errors.Join(err, parseErr)
		object[p.JSONName()] = v
	})
	if Method(r.Base()).Draws {
		object["seed"] = r.Seed
	}
	if err != nil || len(object) == 0 {
		return nil, err
	}
	return json.Marshal(object)
}
