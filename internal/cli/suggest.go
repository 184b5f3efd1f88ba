package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/spell"
)

// DidYouMean is ", did you mean X?" for a misspelt word of a list, and empty for others.
func DidYouMean(got string, list []string) string {
	meant := spell.Nearest(got, list)
	if meant == "" || meant == got {
		return ""
	}
	return ", did you mean " + meant + "?"
}

// NotOneOf refuses a flag's value that is not in a list.
func NotOneOf(flag, got string, list []string) error {
	return Flagf(flag, "got %q, want %s%s", got, strings.Join(list, "|"), DidYouMean(got, list))
}

// meantOption is DidYouMean for an option that has a list of values.
func meantOption(o *errs.OptionError) string {
	list, ok := strings.CutPrefix(o.Want, "one of ")
	got, err := strconv.Unquote(o.Got)
	if !ok || err != nil {
		return ""
	}
	return DidYouMean(got, strings.Split(list, ", "))
}

// unknownFlag is pflag's error about an unknown flag, with the flag that was probably meant.
func unknownFlag(fs *pflag.FlagSet, err *pflag.NotExistError) error {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	meant := spell.Nearest(err.GetSpecifiedName(), names)
	if meant == "" || err.GetSpecifiedShortnames() != "" {
		return &UsageError{Err: err}
	}
	return Usagef("%w, did you mean --%s?", err, meant)
}
