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

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
)

// Exit codes of every command.
const (
	exitOK      = 0
	exitFailure = 1 // the work failed, or Ctrl-C cut it short
	exitUsage   = 2 // the command line or a flag's variable is wrong; nothing was done
)

// app is the environment of a command; tests use buffers.
type app struct {
	in       io.Reader
	out, err io.Writer // out is for results only
	getenv   func(string) string

	stdinOf string // what in holds, after it was read; "" before

	interrupts interrupts
	partial    partial
	screen     *screen // nil if err is not a terminal
}

// newApp returns the environment of a command with the streams of a process.
func newApp(in io.Reader, out, err io.Writer, getenv func(string) string) *app {
	a := &app{in: in, out: out, err: err, getenv: getenv, screen: newScreen(err)}
	if a.screen != nil {
		a.err = a.screen.writer(err)
		if isTerminal(out) {
			a.out = a.screen.writer(out)
		}
	}
	return a
}

// execute runs one command line and returns the exit code. It prints an error as one line on a.err;
// after a usage error it also names the help command.
func execute(ctx context.Context, a *app, args []string) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &stdout{failWriter: failWriter{w: a.out}, cancel: cancel}
	a.out = out
	defer func() { a.out = out.w }()
	getenv := a.getenv
	defer func() { a.getenv = getenv }()
	var cmd *cobra.Command
	var err error
	for {
		if cmd, err = attempt(ctx, a, args); ctx.Err() != nil || out.written || a.stdinOf != "" {
			break
		}
		// A variable without effect in this command may serve other commands: ignore it.
		useless := uselessVariable(cmd.Flags(), err)
		if useless == nil {
			break
		}
		before := a.getenv
		a.getenv = func(name string) string {
			if name == envName(useless) {
				return ""
			}
			return before(name)
		}
	}
	switch interrupted := new(interruptError); {
	case out.err != nil:
		err = pathError("stdout", out.err)
	case err == nil:
		return exitOK
	case ctx.Err() != nil && !errors.As(err, &interrupted):
		err = cutShort("%s: interrupted", path(cmd))
	}
	fmt.Fprintf(a.err, "restore: %s\n", errorLine(cmd.Flags(), err))
	var u *usageError
	var option *errs.OptionError
	if errors.As(err, &u) || errors.As(err, &option) {
		fmt.Fprintf(a.err, "see '%s --help'\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailure
}

// attempt runs the command line once.
func attempt(ctx context.Context, a *app, args []string) (*cobra.Command, error) {
	root := newRoot(a)
	root.SetArgs(joinBools(root, args))
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	if cmd, err := unknownCommand(root, args); err != nil {
		return cmd, err
	}
	return root.ExecuteContextC(ctx)
}

// unknownCommand refuses a misspelt command before its flags are parsed, because they would be
// parsed as flags of another command.
func unknownCommand(root *cobra.Command, args []string) (*cobra.Command, error) {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasAvailableSubCommands() || len(rest) == 0 ||
		strings.HasPrefix(rest[0], "-") {
		return cmd, nil // other errors are found when it runs
	}
	if cmd == root &&
		(rest[0] == "help" || rest[0] == "completion" || strings.HasPrefix(rest[0], "__complete")) {
		return cmd, nil // a command of cobra
	}
	return cmd, noArgs(cmd, rest[:1])
}

// flagFor names the flags that would avoid an error of the library; library errors name no flags.
func flagFor(err error) string {
	var pic *errs.PictureError
	var full *errs.ContextError
	var size *engine.SizeError
	switch {
	case errors.As(err, &size) && size.Quant != "":
		return " (--quant " + size.Quant + ")"
	case errors.As(err, &pic) && pic.Fault == errs.TooManyPixels:
		return " (--max-image-pixels)"
	case errors.As(err, &full):
		return " (--positions sequential, --n-vis)"
	}
	return ""
}

// errorLine writes err in one line. If a flag's value came from the environment, it names the
// variable. For a misspelt word it suggests the word that was probably meant.
func errorLine(fs *pflag.FlagSet, err error) string {
	line := strings.TrimPrefix(oneLine(flagged(fs, err)+flagFor(err)), "restore: ")
	fs.VisitAll(func(f *pflag.Flag) {
		if _, env := f.Annotations[fromEnvironment]; env {
			line = replaceWord(line, "--"+f.Name, envName(f))
			// the library's name for the option
			if rest, ok := strings.CutPrefix(line, f.Name+": "); ok {
				line = envName(f) + ": " + rest
			}
		}
	})
	return line + suggestion(fs, line)
}

// flagged is the text of err with the flag's name instead of the library's option name.
func flagged(fs *pflag.FlagSet, err error) string {
	var o *errs.OptionError
	if !errors.As(err, &o) || fs.Lookup(o.Name) == nil {
		return err.Error()
	}
	before, after, _ := strings.Cut(err.Error(), o.Error())
	for _, pkg := range []string{"reduce: ", "methods: ", "engine: "} {
		before = strings.TrimSuffix(before, pkg)
	}
	return before + o.Text("--"+o.Name) + after
}

// replaceWord replaces word in s, except at the beginning of a longer word.
func replaceWord(s, word, by string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, word)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if after != "" && (after[0] == '-' || after[0] >= 'a' && after[0] <= 'z') {
			b.WriteString(word)
		} else {
			b.WriteString(by)
		}
		s = after
	}
}

// usageError marks an error in the command line.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// usagef formats a usage error.
func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// oneLine joins lines, and replaces other control characters, which file names may contain, so that
// they cannot affect a terminal.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }),
		"; ")
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

Every flag can also be set by an environment variable. A flag wins over its variable, the variable over the default.
Text in files is UTF-8; a byte-order mark at its beginning is ignored.
Exit codes: 0 success, 1 failure (or cut short by Ctrl-C), 2 wrong usage.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              noArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuseEmpty(cmd.Flags()); err != nil {
				return err
			}
			if err := readEnvironment(cmd.Flags(), a.getenv); err != nil {
				return err
			}
			return findModels(cmd.Context(), a, cmd.Flags())
		},
	}
	root.Flags().Bool("version", false, "print the version, and which kernels are in use")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("version") {
			return writeVersion(a.out)
		}
		return cmd.Help()
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(cmd.OutOrStdout(), cmd) })
	root.AddCommand(commands(a)...)
	readDecimals(root)
	return root
}

// flagError gives errors of pflag this program's wording.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	var option *errs.OptionError
	if errors.As(err, &option) {
		return &usageError{option}
	}
	if errors.As(err, &bad) {
		f := bad.GetFlag()
		return usagef("--%s: cannot be used, got %q, want %s", f.Name, bad.GetValue(), kind(f))
	}
	return &usageError{err}
}

// kind describes the values of a flag.
func kind(f *pflag.Flag) string {
	switch t := f.Value.Type(); t {
	case "int", "int32", "int64":
		return "a whole number"
	case "float64":
		return "a number"
	case "intSlice":
		return "whole numbers"
	case "float64Slice":
		return "numbers"
	case "bool":
		return "true or false"
	default:
		return t
	}
}

// noArgs refuses positional arguments; for a command with subcommands the argument is a misspelt
// subcommand.
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
		return usagef("%s: unknown command, got %q, want %s", path(cmd), args[0],
			strings.Join(names, "|"))
	}
	return usagef("%s: unexpected argument, got %q, want flags only", path(cmd), args[0])
}

// path is the name of a command in errors, as in "inspect chat".
func path(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), "restore ")
}

// group is a command that only has subcommands.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("%s: no command given, want one of its subcommands", path(cmd))
		},
	}
	g.AddCommand(subs...)
	return g
}

// Keys of a flag's annotations.
const (
	fromEnvironment = "from-environment" // the value came from the environment variable
	// the default to show, if it is not the flag's zero value
	applies = "applies"
	choices = "choices" // the allowed values
)

// writeHelp prints a command's help: what it does, its usage, and each flag with its default and
// its environment variable.
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
		width := 0
		for _, c := range cmd.Commands() {
			width = max(width, len(c.Name()))
		}
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(w, "  %-*s %s\n", width, c.Name(), c.Short)
			}
		}
	}
	if !hasFlags(cmd) {
		return
	}
	fmt.Fprint(w, "\nFlags (default, environment variable):\n")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if f.Name == "version" {
			fmt.Fprintf(w, "      --%s\n        %s\n", f.Name, f.Usage)
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
		fmt.Fprintf(w, "  %s--%s\n        %s (default %s, env %s)\n", short,
			strings.TrimSpace(f.Name+" "+arg), usage, def, envName(f))
	})
}

// hasFlags reports whether the command has flags other than --help.
func hasFlags(cmd *cobra.Command) (found bool) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) { found = found || !f.Hidden && f.Name != "help" })
	return found
}

// isTerminal reports whether v is a terminal.
func isTerminal(v any) bool {
	f, ok := unwrap(v).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
