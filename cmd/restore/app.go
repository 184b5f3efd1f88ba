package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Exit codes of every command.
const (
	exitOK      = 0
	exitFailure = 1 // the work failed, or Ctrl-C cut it short
	exitUsage   = 2 // the command line or an environment twin is wrong; nothing was done
)

// app is the world as a command sees it; tests hand in buffers.
type app struct {
	in       io.Reader
	out, err io.Writer // out carries results only
	getenv   func(string) string
}

// execute runs one command line and returns the exit code. An error becomes one line on a.err; a usage error adds where to look.
func execute(ctx context.Context, a *app, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(a.err, "restore: %s\n", strings.TrimPrefix(oneLine(err.Error()), "restore: "))
	var u *usageError
	if errors.As(err, &u) {
		fmt.Fprintf(a.err, "see '%s --help'\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailure
}

// usageError marks an error that a different command line would avoid.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// usagef formats a usage error.
func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// oneLine folds line breaks, and makes other control characters, which a file name may hold, harmless for a terminal.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

func newRoot(a *app) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use:   "restore",
		Short: "Ask about pictures; read 64 visual tokens instead of 576",
		Long: `restore answers questions about pictures with LLaVA-like models that read few visual tokens.

Every flag has a twin in the environment; a flag wins over its twin, the twin over the default.
Exit codes: 0 success, 1 failure (or cut short by Ctrl-C), 2 wrong usage.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              noArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return readEnvironment(cmd.Flags(), a.getenv) },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(cmd.OutOrStdout(), cmd) })
	root.AddCommand(commands(a)...)
	return root
}

// flagError words what pflag says about a flag the way all our errors are worded.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		f := bad.GetFlag()
		return usagef("--%s: cannot be used, got %q, want %s", f.Name, bad.GetValue(), kind(f))
	}
	return &usageError{err}
}

// kind says in words what a flag takes.
func kind(f *pflag.Flag) string {
	switch t := f.Value.Type(); t {
	case "int", "int64":
		return "a whole number"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	default:
		return t
	}
}

// noArgs refuses positional arguments; for a command with subcommands the argument is a misspelt one.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		return usagef("%s: unknown command, got %q, want %s", path(cmd), args[0], strings.Join(names, "|"))
	}
	return usagef("%s: unexpected argument, got %q, want flags only", path(cmd), args[0])
}

// path names a command in errors: "inspect chat".
func path(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), "restore ")
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return usagef("%s: no command given, want one of its subcommands", path(cmd))
	}}
	g.AddCommand(subs...)
	return g
}

// Keys of a flag's annotations.
const (
	fromEnvironment = "from-environment" // the value came from the environment twin
	applies         = "applies"          // what applies when the flag is not given, where that is not its zero value
	choices         = "choices"          // the values that it takes
)

// envName is the environment twin of a flag: --n-vis is RESTORE_N_VIS.
func envName(flag string) string {
	return "RESTORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment sets every flag that the command line left alone from its twin. An empty twin counts as absent.
func readEnvironment(fs *pflag.FlagSet, getenv func(string) string) error {
	var first error
	fs.VisitAll(func(f *pflag.Flag) {
		v := getenv(envName(f.Name))
		if f.Changed || v == "" || f.Name == "help" || first != nil {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			first = usagef("%s: cannot be used, got %q, want %s", envName(f.Name), v, kind(f))
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[fromEnvironment] = []string{v}
	})
	return first
}

// onCommandLine reports whether the flag was typed, rather than read from its twin.
func onCommandLine(f *pflag.Flag) bool {
	_, env := f.Annotations[fromEnvironment]
	return f.Changed && !env
}

// writeHelp prints a command's help: what it does, how it is called, and each flag with its default and its twin.
func writeHelp(w io.Writer, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	use := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		use = cmd.CommandPath() + " COMMAND"
		if hasFlags(cmd) {
			use = cmd.UseLine() + "\n  " + use
		}
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", strings.TrimSpace(text), use)
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprint(w, "\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(w, "  %-10s %s\n", c.Name(), c.Short)
			}
		}
	}
	if !hasFlags(cmd) {
		return
	}
	fmt.Fprint(w, "\nFlags (default, environment twin):\n")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		short := "    "
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		arg, usage := pflag.UnquoteUsage(f)
		def := f.DefValue
		if v := f.Annotations[applies]; v != nil {
			def = v[0]
		} else if def == "" || def == "[]" {
			def = "none"
		}
		if v := f.Annotations[choices]; v != nil {
			arg = v[0]
		} else if f.Value.Type() == "bool" {
			arg = ""
		}
		fmt.Fprintf(w, "  %s--%s\n        %s (default %s, env %s)\n", short, strings.TrimSpace(f.Name+" "+arg), usage, def, envName(f.Name))
	})
}

// hasFlags reports whether the command has flags besides --help.
func hasFlags(cmd *cobra.Command) (found bool) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { found = found || !f.Hidden && f.Name != "help" })
	return found
}

// isTerminal reports whether v is a file that a person looks at or types into.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
