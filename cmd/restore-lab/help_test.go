package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that the help of every command lists its subcommands, and each flag with its variable, but
// for the parameters that 'restore methods' lists.
func TestHelp(t *testing.T) {
	parameters := commandLine("methods", "--parameters").Out
	everyCommand(t, func(c *cobra.Command, help string) {
		help = clitest.Plain(help)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			listed := strings.Contains(help, "env "+cli.EnvName(f)+")")
			more := cli.IsParameter(f) && strings.Contains(parameters, "`"+cli.EnvName(f)+"`")
			if cli.HasVariable(f) && !listed && !more {
				t.Errorf("%s --help: --%s is not explained with its variable", cli.Path(c), f.Name)
			}
			if strings.Contains(f.Usage, "\n") {
				t.Errorf("%s: the manual page breaks the line of --%s", cli.Path(c), f.Name)
			}
		})
		if strings.Contains(help, "(default [") {
			t.Errorf("%s --help: a default in brackets, want it as it is typed", cli.Path(c))
		}
		for _, s := range c.Commands() {
			if !strings.Contains(help, clitest.Plain(s.Short)) {
				t.Errorf("%s --help: %s is not listed", cli.Path(c), s.Name())
			}
		}
	})
	first := commandLine()
	if first.Code != cli.ExitOK || strings.Count(first.Out, "\n  restore-lab ") != 4 ||
		!strings.HasSuffix(first.Out, "\n'restore-lab --help' lists all commands.\n") {
		t.Errorf("no arguments: exit %d, %q, want what to do first", first.Code, first.Out)
	}
}

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
	everyCommand(t, func(c *cobra.Command, help string) {
		f := c.LocalFlags().Lookup("model")
		if f != nil && cli.HasVariable(f) && !strings.Contains(f.Usage, "file or ORG/NAME") ||
			strings.Contains(help, "default: ") {
			t.Errorf("%s --help: -m is explained in another way:\n%s", cli.Path(c), help)
		}
	})
}

// Ensure that helps stay short: six flags for a reduction, and few enough in all.
func TestHelpIsShort(t *testing.T) {
	most := map[string]int{"run": 42, "serve": 60}
	everyCommand(t, func(c *cobra.Command, help string) {
		_, flags, _ := strings.Cut(help, "\nFlags (")
		shown, parameters := 0, 0
		for line := range strings.SplitSeq(flags, "\n") {
			name, ok := strings.CutPrefix(line[min(len(line), 6):], "--")
			if !ok {
				continue
			}
			shown++
			if f := c.Flags().Lookup(strings.SplitN(name, " ", 2)[0]); cli.IsParameter(f) {
				parameters++
			}
		}
		if n := most[cli.Path(c)]; n > 0 && (shown > n || shown < n/2) {
			t.Errorf("%s --help: %d flags, want at most %d", cli.Path(c), shown, n)
		}
		if base := c.Flags().Lookup("base"); base != nil && cli.IsParameter(base) &&
			parameters != 6 {
			t.Errorf("%s --help: %d flags of a reduction, want 6", cli.Path(c), parameters)
		}
	})
}

// Ensure that no line of any help is wider than a terminal of 80 columns.
func TestHelpWidth(t *testing.T) {
	everyCommand(t, func(c *cobra.Command, help string) {
		for line := range strings.SplitSeq(help, "\n") {
			if utf8.RuneCountInString(line) > cli.HelpWidth {
				t.Errorf("%s --help: %q is wider than %d columns", cli.Path(c), line, cli.HelpWidth)
			}
		}
	})
}

// everyCommand calls do with every command and its help.
func everyCommand(t *testing.T, do func(c *cobra.Command, help string)) {
	var visit func(c *cobra.Command, args []string)
	visit = func(c *cobra.Command, args []string) {
		r := commandLine(append(args, "--help")...)
		if r.Code != cli.ExitOK || r.Err != "" {
			t.Errorf("%v --help: exit %d, stderr %q", args, r.Code, r.Err)
		}
		do(c, r.Out)
		for _, s := range c.Commands() {
			visit(s, append(args[:len(args):len(args)], s.Name()))
		}
	}
	visit(cli.NewRoot(cli.NewApp(thisProgram, nil, nil, nil, nil)), nil)
}
