package cli

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// ShowDefault shows in help what holds without the flag, in place of its value.
func ShowDefault(fs *pflag.FlagSet, name, text string) { annotate(fs, name, Applies, text) }

// ShowChoices shows in help what the flag takes.
func ShowChoices(fs *pflag.FlagSet, name string, values ...string) {
	annotate(fs, name, Choices, strings.Join(values, "|"))
}

// OneOf makes a flag take one of these values, or several of them if it is a list. Help shows them.
func OneOf(fs *pflag.FlagSet, name string, values ...string) {
	ShowChoices(fs, name, values...)
	annotate(fs, name, closed, "")
}

// Within makes flags of numbers or times take values from least to most; times count in seconds.
func Within(fs *pflag.FlagSet, least, most float64, names ...string) {
	limit(fs, names, least, most)
}

// Above is Within without the value least itself.
func Above(fs *pflag.FlagSet, least, most float64, names ...string) {
	limit(fs, names, least, most, "without the least")
}

func limit(fs *pflag.FlagSet, names []string, least, most float64, open ...string) {
	for _, name := range names {
		annotate(fs, name, bounds, append([]string{decimals(least), decimals(most)}, open...)...)
	}
}

func decimals(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

// CheckValues refuses values that flags do not take, see [OneOf] and [Within]. It runs before every
// command.
func CheckValues(fs *pflag.FlagSet) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		if err == nil && f.Changed {
			err = checkValue(f)
		}
	})
	return err
}

func checkValue(f *pflag.Flag) error {
	choices := strings.Split(strings.Join(f.Annotations[Choices], ""), "|")
	limits := f.Annotations[bounds]
	for _, v := range valuesOf(f) {
		if f.Annotations[closed] != nil && !slices.Contains(choices, v) {
			return NotOneOf(f.Name, v, choices)
		}
		if limits == nil {
			continue
		}
		if want, ok := within(v, limits); !ok {
			return Flagf(f.Name, "out of range, got %s, want %s", v, want)
		}
	}
	return nil
}

// within reports whether a number or a time lies in a range, and describes the range.
func within(value string, limits []string) (want string, ok bool) {
	number := func(text string) float64 {
		if t, err := time.ParseDuration(text); err == nil {
			return t.Seconds()
		}
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return math.NaN()
		}
		return x
	}
	x, least, most := number(value), number(limits[0]), number(limits[1])
	open, endless := len(limits) > 2, math.IsInf(most, 1)
	switch {
	case open && endless:
		want = "more than " + limits[0]
	case open:
		want = "more than " + limits[0] + " and at most " + limits[1]
	case endless:
		want = limits[0] + " or more"
	default:
		want = limits[0] + " to " + limits[1]
	}
	return want, x <= most && (x > least || x == least && !open)
}

// Format is the value of --format, or json with --json. The two must not disagree.
func Format(fs *pflag.FlagSet, format string, json bool) (string, error) {
	if json && fs.Changed("format") && format != "json" {
		return "", Usagef("--json and --format: both given, got %s, want one of them", format)
	}
	if json {
		return "json", nil
	}
	return format, nil
}

// SetVariable gives a variable of its own to a flag whose name means something else in other
// commands.
func SetVariable(fs *pflag.FlagSet, name, env string) { annotate(fs, name, Variable, env) }

func annotate(fs *pflag.FlagSet, name, key string, values ...string) {
	if err := fs.SetAnnotation(name, key, values); err != nil {
		panic("cli: " + err.Error()) // a command's own flag
	}
}
