package programtest

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// EveryCommand calls do with every command and its help.
func (p *Tested) EveryCommand(t *testing.T, do func(c *cobra.Command, help string)) {
	var visit func(c *cobra.Command, args []string)
	visit = func(c *cobra.Command, args []string) {
		r := p.Command(append(args, "--help")...)
		if r.Code != cli.ExitOK || r.Err != "" {
			t.Errorf("%v --help: exit %d, stderr %q", args, r.Code, r.Err)
		}
		do(c, r.Out)
		for _, s := range c.Commands() {
			visit(s, append(args[:len(args):len(args)], s.Name()))
		}
	}
	visit(cli.NewRoot(cli.NewApp(p.Program, nil, nil, nil, nil)), nil)
}

// Helps checks that the help of every command lists its subcommands, and each flag with its
// variable, but for the parameters that 'restore methods' lists, and that without a command the
// program says what to do first, with a number of command lines.
func (p *Tested) Helps(t *testing.T, first int) {
	parameters := p.Command("methods", "--parameters").Out
	p.EveryCommand(t, func(c *cobra.Command, help string) {
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
	r := p.Command()
	if r.Code != cli.ExitOK || strings.Count(r.Out, "\n  "+p.Name+" ") != first ||
		!strings.HasSuffix(r.Out, "\n'"+p.Name+" --help' lists all commands.\n") {
		t.Errorf("no arguments: exit %d, %q, want what to do first", r.Code, r.Out)
	}
}

// HelpsBriefly checks that helps stay short: six flags for a reduction, and in all at most as many
// as most says for the command.
func (p *Tested) HelpsBriefly(t *testing.T, most map[string]int) {
	p.EveryCommand(t, func(c *cobra.Command, help string) {
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

// HelpsNarrowly checks that no line of any help, or that other command lines print, is wider than a
// terminal of 80 columns.
func (p *Tested) HelpsNarrowly(t *testing.T, others ...[]string) {
	check := func(what, text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if utf8.RuneCountInString(line) > cli.HelpWidth {
				t.Errorf("%s: %q is wider than %d columns", what, line, cli.HelpWidth)
			}
		}
	}
	for _, args := range others {
		check(strings.Join(args, " "), p.Command(args...).Out)
	}
	p.EveryCommand(t, func(c *cobra.Command, help string) { check(cli.Path(c)+" --help", help) })
}
