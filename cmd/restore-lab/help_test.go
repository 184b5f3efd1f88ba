package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that the help of every command lists its subcommands, and each flag with its variable, but
// for the parameters that 'restore methods' lists.
func TestHelp(t *testing.T) { tested.Helps(t, 4) }

// Ensure that --shape of the commands that ask a random model offers the shapes that they take.
func TestHelpOfShapes(t *testing.T) {
	for _, args := range [][]string{{"load"}, {"attention"}, {"paper", "list"}} {
		help := commandLine(append(args, "--help")...).Out
		if !strings.Contains(help, "llava-onevision-0.5b") || strings.Contains(help, "qwen") {
			t.Errorf("%v --help: want LLaVA's shapes only, got:\n%s", args, help)
		}
	}
}

// Ensure that every command with -m says that it takes files and names too, and that a default is
// shown once.
func TestHelpOfModels(t *testing.T) {
	tested.EveryCommand(t, func(c *cobra.Command, help string) {
		f := c.LocalFlags().Lookup("model")
		if f != nil && cli.HasVariable(f) && !strings.Contains(f.Usage, "file or ORG/NAME") ||
			strings.Contains(help, "default: ") {
			t.Errorf("%s --help: -m is explained in another way:\n%s", cli.Path(c), help)
		}
	})
}

// Ensure that helps stay short: six flags for a reduction, and few enough in all.
func TestHelpIsShort(t *testing.T) { tested.HelpsBriefly(t, nil) }

// Ensure that no line of any help is wider than a terminal of 80 columns.
func TestHelpWidth(t *testing.T) { tested.HelpsNarrowly(t) }
