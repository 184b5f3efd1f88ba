package cli

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvName is the environment variable of a flag: --n-vis is RESTORE_N_VIS.
func EnvName(f *pflag.Flag) string {
	if names := f.Annotations[Variable]; len(names) > 0 {
		return names[0]
	}
	if name, ok := variables[f.Name]; ok {
		return name
	}
	return "RESTORE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// Variable annotates a flag whose name means something else in other commands with a variable of
// its own.
const Variable = "variable"

// variables are the variables whose names do not follow from the flag's.
var variables = map[string]string{"restore": "RESTORE_OVER_BASE"}

// HasVariable reports whether a flag can be set in the environment.
func HasVariable(f *pflag.Flag) bool { return f.Name != "help" && f.Name != "version" }

// exclusive are groups of flags: the first flag of a group and each of the others exclude each
// other. Two of them on the command line are an error; a flag on the command line overrides the
// variable of one that it excludes.
var exclusive = [][]string{
	{"model", "shape"},
	{"all", "base", "restore"},
	{"json", "format"},
	{"verbose", "quiet", "json"},
	{"in", "image", "video-frames", "prompt", "system-prompt", "min-pixels", "max-pixels"},
}

// excluded reports whether a flag on the command line excludes f.
func excluded(fs *pflag.FlagSet, f *pflag.Flag) bool {
	typed := func(name string) bool {
		g := fs.Lookup(name)
		return g != nil && OnCommandLine(g)
	}
	for _, group := range exclusive {
		i, others := slices.Index(group, f.Name), group[:1]
		if i == 0 {
			others = group[1:]
		}
		if i >= 0 && slices.ContainsFunc(others, typed) {
			return true
		}
	}
	return false
}

// readEnvironment sets every flag that is not on the command line from its variable. It ignores
// empty variables, and those whose flag is excluded by one on the command line.
func readEnvironment(fs *pflag.FlagSet, getenv func(string) string) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		v := getenv(EnvName(f))
		if f.Changed || v == "" || !HasVariable(f) || err != nil || excluded(fs, f) {
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[fromEnvironment] = []string{v}
		if refused := fs.Set(f.Name, v); refused != nil {
			err = badValue(f, v, refused)
		}
	})
	return err
}

// refuseEmpty refuses an empty value on the command line, for example from an unset shell variable:
// the flag's default would be used without the user's knowledge.
func refuseEmpty(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		values := valuesOf(f)
		empty := func(v string) bool { return strings.TrimSpace(v) == "" }
		if err == nil && (len(values) == 0 || slices.ContainsFunc(values, empty)) {
			err = Flagf(f.Name, "empty, want %s, or no --%s for the default", wanted(f), f.Name)
		}
	})
	return err
}

// wanted describes a flag's value as its help does.
func wanted(f *pflag.Flag) string {
	if v := f.Annotations[Choices]; v != nil {
		return v[0]
	}
	if name, _ := pflag.UnquoteUsage(f); name != "" && name != "string" && name != "strings" {
		switch {
		case strings.HasSuffix(name, "s") && !strings.HasSuffix(name, "ss"):
			return name
		case strings.ContainsRune("aeiou", rune(name[0])):
			return "an " + name
		}
		return "a " + name
	}
	return "a value"
}

// OnCommandLine reports whether the flag was given on the command line, not by its variable.
func OnCommandLine(f *pflag.Flag) bool {
	_, env := f.Annotations[fromEnvironment]
	return f.Changed && !env
}

// fromVariables are the names of the flags that variables set; fs is nil if there are no flags.
func fromVariables(fs *pflag.FlagSet) (names []string) {
	if fs == nil {
		return nil
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[fromEnvironment] != nil {
			names = append(names, f.Name)
		}
	})
	return names
}

// NoUse refuses flags on the command line that have no effect, if when is true. In why, %v is the
// flag's value. A variable may serve other commands: a flag that it set gets its default back.
func NoUse(fs *pflag.FlagSet, when bool, why string, names ...string) error {
	for _, name := range names {
		f := fs.Lookup(name)
		switch {
		case !when || f == nil || !f.Changed:
		case OnCommandLine(f):
			return Flagf(name, "%s", strings.Replace(why, "%v", strings.Join(valuesOf(f), ","), 1))
		default:
			if err := resetFlag(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// resetFlag gives a flag its default back.
func resetFlag(f *pflag.Flag) error {
	f.Changed = false
	delete(f.Annotations, fromEnvironment)
	if list := listOf(f); list != nil {
		return list.Replace(strings.FieldsFunc(f.DefValue, func(r rune) bool {
			return strings.ContainsRune("[,]", r)
		}))
	}
	if IsParameter(f) {
		return nil // it counts only if it is set
	}
	return f.Value.Set(f.DefValue)
}

// listOf is the list that is the value of a flag, nil for a flag of one value.
func listOf(f *pflag.Flag) pflag.SliceValue {
	value := f.Value
	if d, ok := value.(decimal); ok {
		value = d.Value
	}
	list, _ := value.(pflag.SliceValue)
	return list
}

// valuesOf returns the values of a flag.
func valuesOf(f *pflag.Flag) []string {
	if list := listOf(f); list != nil {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}

// decimal is a flag of whole numbers that are always decimal: 064 is 64.
type decimal struct{ pflag.Value }

// wholeNumber matches a number's sign and its digits after leading zeros.
var wholeNumber = regexp.MustCompile(`^\s*([+-]?)0*([0-9]+)\s*$`)

// Set implements pflag.Value.
func (d decimal) Set(text string) error {
	parts := strings.Split(text, ",")
	if d.Type() != "intSlice" {
		parts = []string{text}
	}
	for i, p := range parts {
		digits := wholeNumber.FindStringSubmatch(p)
		if digits == nil {
			return errors.New("not a whole number")
		}
		parts[i] = digits[1] + digits[2]
	}
	return d.Value.Set(strings.Join(parts, ","))
}

// arrange leaves the flags of cmd and its subcommands in the order of their declarations, and makes
// flags of whole numbers decimal.
func arrange(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int32", "int64", "intSlice":
			if _, done := f.Value.(decimal); !done {
				f.Value = decimal{f.Value}
			}
		}
	})
	for _, c := range cmd.Commands() {
		arrange(c)
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
