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
		})
		for _, s := range c.Commands() {
			if !strings.Contains(help, clitest.Plain(s.Short)) {
				t.Errorf("%s --help: %s is not listed", cli.Path(c), s.Name())
			}
		}
	})
	first := commandLine()
	if first.Code != cli.ExitOK || strings.Count(first.Out, "\n  restore ") != 5 ||
		!strings.HasSuffix(first.Out, "\n'restore --help' lists all commands.\n") {
		t.Errorf("no arguments: exit %d, %q, want what to do first", first.Code, first.Out)
	}
	for line := range strings.SplitSeq(first.Out, "\n") {
		if utf8.RuneCountInString(line) > cli.HelpWidth {
			t.Errorf("no arguments: %q is wider than %d columns", line, cli.HelpWidth)
		}
	}
}

// Ensure that the help of run shows values, defaults and where the other parameters are.
func TestHelpOfRun(t *testing.T) {
	help := clitest.Plain(commandLine("run", "--help").Out)
	for _, want := range []string{
		"--n-vis N|auto:N keep N", "(default 64, env RESTORE_N_VIS)", "-m, --model folder",
		"--compat paper|released", "Visual tokens: --base NAME method that selects the kept " +
			"tokens: none, holov, divprune", "more parameters: restore methods NAME Answer:",
	} {
		if !strings.Contains(help, want) {
			t.Errorf("run --help: lacks %q", want)
		}
	}
}

// Ensure that no line of any help is wider than a terminal of 80 columns.
func TestHelpWidth(t *testing.T) {
	for _, args := range [][]string{{"methods"}, {"methods", "fitprune"}, {"methods", "restore"},
		{"show"}, {"show", "--shape", "llava-1.5-7b"}} {
		for line := range strings.SplitSeq(commandLine(args...).Out, "\n") {
			if utf8.RuneCountInString(line) > cli.HelpWidth {
				t.Errorf("%v: %q is wider than %d columns", args, line, cli.HelpWidth)
			}
		}
	}
	everyCommand(t, func(c *cobra.Command, help string) {
		for line := range strings.SplitSeq(help, "\n") {
			if utf8.RuneCountInString(line) > cli.HelpWidth {
				t.Errorf("%s --help: %q is wider than %d columns", cli.Path(c), line, cli.HelpWidth)
			}
		}
	})
}

// Ensure that helps stay short: six flags for a reduction, and few enough in all.
func TestHelpIsShort(t *testing.T) {
	most := map[string]int{"run": 42, "serve": 61}
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

// Ensure that the shell completes a method's parameters once the method is on the command line.
func TestCompleteParameters(t *testing.T) {
	for line, want := range map[string]string{
		"run --holov":                             "",
		"run --base holov --holov":                "--holov-patches --holov-overflow",
		"run --base=dart --holov":                 "",
		"serve --base dart --dart":                "--dart-pivots",
		"batch --base tome --proportional":        "--proportional-attention",
		"run --anch":                              "",
		"run --base grid --anch":                  "--anchors --anchor-pool",
		"run --base none --anch":                  "",
		"run --base none --newl":                  "",
		"run --base grid --newl":                  "--newlines",
		"run --gam":                               "--gamma",
		"run --base holov --gam":                  "--gamma",
		"run --base random --base fastv --fastv-": "--fastv-layer",
	} {
		r := commandLine(append([]string{"__complete"}, strings.Fields(line)...)...)
		var got []string
		for l := range strings.SplitSeq(r.Out, "\n") {
			if strings.HasPrefix(l, "--") {
				got = append(got, strings.SplitN(l, "\t", 2)[0])
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: completed with %q, want %q", line, got, want)
		}
	}
}
