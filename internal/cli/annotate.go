package cli

import (
	"strings"

	"github.com/spf13/pflag"
)

// ShowDefault shows in help what holds without the flag, in place of its value.
func ShowDefault(fs *pflag.FlagSet, name, text string) { annotate(fs, name, Applies, text) }

// ShowChoices shows in help what the flag takes.
func ShowChoices(fs *pflag.FlagSet, name string, values ...string) {
	annotate(fs, name, Choices, strings.Join(values, "|"))
}

// SetVariable gives a variable of its own to a flag whose name means something else in other
// commands.
func SetVariable(fs *pflag.FlagSet, name, env string) { annotate(fs, name, Variable, env) }

func annotate(fs *pflag.FlagSet, name, key, value string) {
	if err := fs.SetAnnotation(name, key, []string{value}); err != nil {
		panic("cli: " + err.Error()) // a command's own flag
	}
}
