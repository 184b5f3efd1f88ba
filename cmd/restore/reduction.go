package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// reductionFlags are the flags of a reduction, shared by run, trace, reduce and eval: one for every
// parameter in the table of package methods.
type reductionFlags struct {
	fs       *pflag.FlagSet
	defaults methods.Given // defaults of the command
	seed     int64         // value of --seed, which the command declares
}

// parameterFlag is the flag of one parameter. It checks its value when it is set; the value of a
// file parameter is the file's name.
type parameterFlag struct {
	reduce.Parameter
	text string
}

// Set implements pflag.Value.
func (p *parameterFlag) Set(text string) error {
	if p.Kind != reduce.File {
		if _, err := p.Parse(text); err != nil {
			return err
		}
	}
	p.text = text
	return nil
}

// String implements pflag.Value.
func (p *parameterFlag) String() string { return p.text }

// Type implements pflag.Value: it describes the flag's value.
func (p *parameterFlag) Type() string {
	if p.Kind == reduce.Bool {
		return "bool"
	}
	return p.Range()
}

// add declares the flags. base and nVis are the command's defaults, "" and 0 if the command does
// not reduce by default.
func (r *reductionFlags) add(fs *pflag.FlagSet, base string, nVis int) {
	r.fs, r.defaults = fs, methods.Given{}
	if base != "" {
		r.defaults["base"] = base
	}
	if nVis > 0 {
		r.defaults["n-vis"] = int64(nVis)
	}
	onTop := methods.OnTop().Name
	for _, p := range methods.Parameters() {
		if p.Name == "seed" { // the command declares it
			continue
		}
		help := p.Help
		if len(p.Methods) > 0 && p.Methods[0] != onTop {
			help += " (" + strings.Join(p.Methods, ", ") + ")"
		}
		f := fs.VarPF(&parameterFlag{Parameter: p}, p.Name, "", help)
		shows := map[string][]string{applies: {p.Default}}
		if v, ok := r.defaults[p.Name]; ok {
			shows[applies] = []string{fmt.Sprint(v)}
		}
		switch {
		case p.Kind == reduce.Bool:
			f.NoOptDefVal = "true"
		case p.Kind == reduce.Choice:
			shows[choices] = []string{strings.Join(p.Values, "|")}
		case p.Unit != "":
			shows[choices] = []string{p.Unit}
		}
		f.Annotations = shows
	}
}

// methodNames are the values of --base.
func methodNames() (names []string) {
	for _, m := range methods.Methods() {
		names = append(names, m.Name)
	}
	return names
}

// each calls do for every flag of a reduction that has a value.
func (r *reductionFlags) each(do func(f *pflag.Flag, p *parameterFlag)) {
	r.fs.VisitAll(func(f *pflag.Flag) {
		switch p := f.Value.(type) {
		case *parameterFlag:
			if f.Changed {
				do(f, p)
			}
		case *budgetsFlag:
			if f.Changed {
				do(f, &p.parameterFlag)
			}
		}
	})
}

// sources returns the values from the command line, and those from the environment.
func (r *reductionFlags) sources() (typed, env methods.Given, err error) {
	typed, env = methods.Given{}, methods.Given{}
	r.each(func(f *pflag.Flag, p *parameterFlag) {
		source := env
		if onCommandLine(f) {
			source = typed
		}
		var value any = p.text
		if p.Kind == reduce.File {
			data, readErr := readFile(p.text, maxTextBytes)
			value, err = data, errors.Join(err, readErr)
		}
		err = errors.Join(err, source.Set(p.Name, value))
	})
	return typed, env, err
}

// options returns the requested options. A flag on the command line overrides variables that it
// excludes or leaves without effect; both override the command's defaults.
func (r *reductionFlags) options() (methods.Options, error) { return r.with(nil) }

// variant returns the options overridden by the parameters in a JSON object.
func (r *reductionFlags) variant(object string) (methods.Options, error) {
	over, err := methods.ParseJSON([]byte(object))
	if err != nil {
		return methods.Options{}, &usageError{err}
	}
	return r.with(over)
}

// with returns the flags' options, overridden by over.
func (r *reductionFlags) with(over methods.Given) (methods.Options, error) {
	typed, env, err := r.sources()
	if err != nil {
		return methods.Options{}, err
	}
	demands, defaults := typed, []methods.Given{env, r.defaults}
	if over != nil {
		demands, defaults = over, append([]methods.Given{typed}, defaults...)
	}
	o, err := methods.Merge(demands, defaults...).Options()
	if err != nil {
		return o, &usageError{err}
	}
	o.UpTo = over["n-vis"] == nil && typed["n-vis"] == nil && env["n-vis"] == nil
	m, err := methods.Lookup(o.Base)
	if err != nil {
		return o, &usageError{err}
	}
	if m.Draws && o.Seed == nil {
		o.Seed = &r.seed
	}
	if err := methods.Check(o); err != nil {
		return o, &usageError{r.inFile(err)}
	}
	return o, nil
}

// inFile adds the name of the parameter file if err is about its content.
func (r *reductionFlags) inFile(err error) error {
	var bad *errs.OptionError
	if !errors.As(err, &bad) || bad.Fault != errs.Invalid {
		return err
	}
	r.each(func(f *pflag.Flag, p *parameterFlag) {
		if p.Kind == reduce.File && p.Name == bad.Name {
			err = fmt.Errorf("%s: %w", p.text, err)
		}
	})
	return err
}

// files are the files named by the reduction's flags.
func (r *reductionFlags) files() (files []input) {
	r.each(func(_ *pflag.Flag, p *parameterFlag) {
		if p.Kind == reduce.File {
			files = append(files, input{p.Name, p.text})
		}
	})
	return files
}

// base returns the requested method, or the command's default.
func (r *reductionFlags) base() string {
	if f := r.fs.Lookup("base"); f.Changed {
		return f.Value.String()
	}
	base, _ := r.defaults["base"].(string)
	return base
}

// checkSeed refuses a seed on the command line if nothing is random.
func (r *reductionFlags) checkSeed() error {
	f := r.fs.Lookup("seed")
	if m, err := methods.Lookup(r.base()); err == nil && !m.Draws && onCommandLine(f) {
		return usagef("--seed: has no use without --base random, got %s", f.Value)
	}
	return nil
}

// given names the first reduction flag on the command line, except those in but; "" if there is
// none. Variables do not count, because they may be for other commands.
func (r *reductionFlags) given(but ...string) (name string) {
	r.each(func(f *pflag.Flag, _ *parameterFlag) {
		if name == "" && onCommandLine(f) && !slices.Contains(but, f.Name) {
			name = f.Name
		}
	})
	return name
}

// budgetsFlag is --n-vis with several budgets, separated by commas.
type budgetsFlag struct {
	parameterFlag
	list []int
}

// maxBudgets limits the budgets of one comparison.
const maxBudgets = 64

// addBudgets declares the flags like add, with a list of budgets for --n-vis.
func (r *reductionFlags) addBudgets(fs *pflag.FlagSet, base string, nVis int) *budgetsFlag {
	r.add(fs, base, nVis)
	f := fs.Lookup("n-vis")
	b := &budgetsFlag{parameterFlag: *f.Value.(*parameterFlag), list: []int{nVis}}
	f.Value = b
	return b
}

// Set implements pflag.Value.
func (b *budgetsFlag) Set(text string) error {
	if strings.HasPrefix(text, reduce.AutoPrefix) {
		b.list = nil
		return b.parameterFlag.Set(text)
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxBudgets {
		return fmt.Errorf("%d budgets, want at most %d", len(parts), maxBudgets)
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
	b.list, b.text = list, strconv.Itoa(list[0])
	return nil
}

// String implements pflag.Value.
func (b *budgetsFlag) String() string {
	if b.list == nil {
		return b.text
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(b.list), " ", ","), "[]")
}

// Type implements pflag.Value.
func (b *budgetsFlag) Type() string { return "whole numbers" }
