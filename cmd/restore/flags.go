package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
)

// envName is the environment variable of a flag: --n-vis is RESTORE_N_VIS.
func envName(f *pflag.Flag) string {
	if name, ok := variables[f.Name]; ok {
		return name
	}
	return "RESTORE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// variables are the variables whose names do not follow from the flag's.
var variables = map[string]string{"restore": "RESTORE_OVER_BASE"}

// hasVariable reports whether a flag can be set in the environment.
func hasVariable(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

// exclusive are groups of flags: the first flag of a group and each of the others exclude each
// other. Two of them on the command line are an error; a flag on the command line overrides the
// variable of one that it excludes.
var exclusive = [][]string{
	{"model", "shape"},
	{"all", "base", "restore"},
	{"json", "format"},
	{"in", "image", "video-frames", "prompt", "system-prompt", "min-pixels", "max-pixels"},
}

// excluded reports whether a flag on the command line excludes f.
func excluded(fs *pflag.FlagSet, f *pflag.Flag) bool {
	typed := func(name string) bool {
		g := fs.Lookup(name)
		return g != nil && onCommandLine(g)
	}
	return slices.ContainsFunc(exclusive, func(pairs []string) bool {
		switch i := slices.Index(pairs, f.Name); {
		case i < 0:
			return false
		case i == 0:
			return slices.ContainsFunc(pairs[1:], typed)
		}
		return typed(pairs[0])
	})
}

// readEnvironment sets every flag that is not on the command line from its variable. It ignores
// empty variables, and those whose flag is excluded by one on the command line.
func readEnvironment(fs *pflag.FlagSet, getenv func(string) string) error {
	var first error
	fs.VisitAll(func(f *pflag.Flag) {
		v := getenv(envName(f))
		if f.Changed || v == "" || !hasVariable(f) || first != nil || excluded(fs, f) {
			return
		}
		var option *errs.OptionError
		if err := fs.Set(f.Name, v); errors.As(err, &option) {
			first = &usageError{errors.New(option.Text(envName(f)))}
			return
		} else if err != nil {
			first = usagef("%s: cannot be used, got %q, want %s", envName(f), v, kind(f))
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[fromEnvironment] = []string{v}
	})
	return first
}

// refuseEmpty refuses an empty value on the command line, for example from an unset shell variable:
// the flag's default would be used without the user's knowledge.
func refuseEmpty(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if err == nil &&
			slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) == "" }) {
			err = usagef("--%s: empty, want %s, or no --%s for the default", f.Name, wanted(f),
				f.Name)
		}
	})
	return err
}

// wanted describes a flag's value as its help does.
func wanted(f *pflag.Flag) string {
	if v := f.Annotations[choices]; v != nil {
		return v[0]
	}
	if name, _ := pflag.UnquoteUsage(f); name != "" && name != "string" && name != "strings" {
		return "a " + name
	}
	return "a value"
}

// onCommandLine reports whether the flag was given on the command line, not by its variable.
func onCommandLine(f *pflag.Flag) bool {
	_, env := f.Annotations[fromEnvironment]
	return f.Changed && !env
}

// uselessWords are the words with which commands report that a value has no effect.
var uselessWords = []string{"has no effect", "has no use", "has nothing to show"}

// uselessVariable returns the flag that err refuses for having no effect, if its value came from
// the environment.
func uselessVariable(fs *pflag.FlagSet, err error) *pflag.Flag {
	if err == nil {
		return nil
	}
	var option *errs.OptionError
	name, text, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), ":")
	useless := slices.ContainsFunc(uselessWords,
		func(words string) bool { return strings.Contains(text, words) })
	if errors.As(err, &option) {
		name, useless = option.Name, option.Fault == errs.Useless
	}
	f := fs.Lookup(name)
	if f == nil || !useless || f.Annotations[fromEnvironment] == nil {
		return nil
	}
	return f
}

// decimal is a flag of whole numbers that are always decimal: 064 is 64.
type decimal struct{ pflag.Value }

// Set implements pflag.Value.
func (d decimal) Set(text string) error {
	parts := strings.Split(text, ",")
	if d.Type() != "intSlice" {
		parts = []string{text}
	}
	for i, p := range parts {
		p = strings.TrimSpace(p)
		sign := ""
		if p != "" && strings.ContainsRune("+-", rune(p[0])) {
			sign, p = p[:1], p[1:]
		}
		if p == "" || strings.Trim(p, "0123456789") != "" {
			return errors.New("not a whole number")
		}
		if p = strings.TrimLeft(p, "0"); p == "" {
			p = "0"
		}
		parts[i] = sign + p
	}
	return d.Value.Set(strings.Join(parts, ","))
}

// readDecimals makes the whole-number flags of cmd and its subcommands decimal.
func readDecimals(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int32", "int64", "intSlice":
			if _, done := f.Value.(decimal); !done {
				f.Value = decimal{f.Value}
			}
		}
	})
	for _, c := range cmd.Commands() {
		readDecimals(c)
	}
}

// joinBools joins "--flag false" to "--flag=false" for boolean flags, so that both forms work for
// every flag.
func joinBools(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil {
		return args
	}
	out := []string{} // nil would stand for the arguments of the process
	for i := 0; i < len(args); i++ {
		arg := args[i]
		out = append(out, arg)
		if arg == "--" {
			return append(out, args[i+1:]...)
		}
		f := flagOf(cmd, arg)
		if f == nil || i+1 == len(args) {
			continue
		}
		next := args[i+1]
		switch {
		case f.NoOptDefVal == "": // the next argument is its value
			out = append(out, next)
			i++
		case next == "true" || next == "false":
			out[len(out)-1] = arg + "=" + next
			i++
		}
	}
	return out
}

// flagOf returns the flag that arg names without a value; nil for other arguments.
func flagOf(cmd *cobra.Command, arg string) *pflag.Flag {
	if name, ok := strings.CutPrefix(arg, "--"); ok {
		return cmd.Flags().Lookup(name)
	}
	if len(arg) == 2 && arg[0] == '-' {
		return cmd.Flags().ShorthandLookup(arg[1:])
	}
	return nil
}
