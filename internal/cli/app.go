package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/restore-vlm/restore/errs"
)

// Exit codes of every command.
const (
	ExitOK      = 0
	ExitFailure = 1 // the work failed, or Ctrl-C cut it short
	ExitUsage   = 2 // the command line or a flag's variable is wrong; nothing was done
)

// App is the environment of a command; tests use buffers.
type App struct {
	program *Program

	In       io.Reader
	Out, Err io.Writer // out is for results only
	Getenv   func(string) string
	Environ  func() []string // nil: unknown

	Quiet bool // notes are not shown

	stdinOf string // what in holds, after it was read; "" before

	Interrupts Interrupts
	Partial    Partial
	Screen     *Screen // nil if err is not a terminal
}

// NewApp returns the environment of a command with the streams of a process.
func NewApp(p *Program, in io.Reader, out, err io.Writer, getenv func(string) string) *App {
	a := &App{program: p, In: in, Out: out, Err: err, Getenv: getenv, Screen: newScreen(err)}
	if a.Screen != nil {
		a.Err = a.Screen.writer(err)
		if IsTerminal(out) {
			a.Out = a.Screen.writer(out)
		}
	}
	return a
}

// Execute runs one command line and returns the exit code. It prints an error as one line on a.err;
// after a usage error it also names the help command.
func Execute(ctx context.Context, a *App, args []string) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &stdout{failWriter: failWriter{w: a.Out}, cancel: cancel}
	a.Out = out
	defer func() { a.Out = out.w }()
	cmd, err := attempt(ctx, a, args)
	switch interrupted := new(interruptError); {
	case out.err != nil:
		err = PathError("stdout", out.err)
	case err == nil:
		return ExitOK
	case ctx.Err() != nil && !errors.As(err, &interrupted):
		err = CutShort("%s: interrupted", Path(cmd))
	}
	a.Say("%s", ErrorLine(cmd.Flags(), err))
	var u *UsageError
	var option *errs.OptionError
	if errors.As(err, &u) || errors.As(err, &option) {
		fmt.Fprintf(a.Err, "see '%s --help'\n", cmd.CommandPath())
		return ExitUsage
	}
	return ExitFailure
}

// attempt runs the command line.
func attempt(ctx context.Context, a *App, args []string) (*cobra.Command, error) {
	root := NewRoot(a)
	root.AddCommand(newMan()) // for who makes packages: no help lists it, no shell completes it
	root.SetArgs(joinBools(root, args))
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		completeValues(a, root)
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	if cmd, err := unknownCommand(root, args); err != nil {
		return cmd, err
	}
	return root.ExecuteContextC(ctx)
}

// unknownCommand refuses a misspelt command before its flags are parsed, because they would be
// parsed as flags of another command.
func unknownCommand(root *cobra.Command, args []string) (*cobra.Command, error) {
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil || !cmd.HasAvailableSubCommands() || len(rest) == 0 ||
		strings.HasPrefix(rest[0], "-"):
		return cmd, nil // other errors are found when it runs
	case cmd == root && rest[0] == "help": // of cobra: it takes what it does not know for nothing
		return unknownCommand(root, rest[1:])
	case cmd == root && strings.HasPrefix(rest[0], "__complete"):
		return cmd, nil // of cobra too
	}
	return cmd, NoArgs(cmd, rest[:1])
}

// flagFor names the flags that would avoid an error of the library; library errors name no flags.
func flagFor(flags *pflag.FlagSet, err error) string {
	var pic *errs.PictureError
	var full *errs.ContextError
	var memory *errs.MemoryError
	switch {
	case errors.As(err, &memory) && memory.Weights != "":
		return " (--quant " + memory.Weights + ")"
	case errors.As(err, &pic) && pic.Fault == errs.TooManyPixels:
		return " (--max-image-pixels)"
	case errors.As(err, &full) && flags.Lookup("positions") != nil:
		return " (--positions sequential, --n-vis)"
	}
	return ""
}

// ErrorLine writes err in one line. An error about a flag or an option begins with the flag, or
// with its variable if the value came from there.
func ErrorLine(flags *pflag.FlagSet, err error) string {
	text := err.Error()
	var usage *UsageError
	var option *errs.OptionError
	switch {
	case errors.As(err, &option):
		text = subject(err, option) + option.Text(origin(flags, option.Name)) + meantOption(option)
	case errors.As(err, &usage) && usage.flag != "":
		text = origin(flags, usage.flag) + ": " + usage.Err.Error()
	default:
		text += variableOf(flags, text)
	}
	return OneLine(plain(text, err) + flagFor(flags, err))
}

// plain replaces the wording of Go's library in text, which is err's: calls of the system, and
// names of types.
func plain(text string, err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		text = strings.Replace(text, path.Error(), PathError(path.Path, path).Error(), 1)
	}
	var value *json.UnmarshalTypeError
	if errors.As(err, &value) {
		kind := map[string]string{
			"array": "a list", "object": "an object", "string": "a text", "bool": "true or false",
		}[value.Value]
		got := fmt.Sprintf("got %s, want %s",
			cmp.Or(kind, strings.TrimPrefix(value.Value, "number ")), kindOf(value.Type))
		if value.Field != "" {
			got = fmt.Sprintf("%q: %s", value.Field, got)
		}
		text = strings.Replace(text, value.Error(), got, 1)
	}
	return text
}

// kindOf describes the JSON values of a type.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return kindOf(t.Elem())
	}
	return fmt.Sprintf("a whole number of at most %d bits", t.Bits())
}

// variableOf names the variable that set the file that text, an error, is about, or the folder that
// it lies in; "" if none did.
func variableOf(flags *pflag.FlagSet, text string) (named string) {
	if flags == nil {
		return ""
	}
	flags.VisitAll(func(f *pflag.Flag) {
		for _, v := range f.Annotations[fromEnvironment] {
			for _, path := range []string{strings.TrimPrefix(v, "@"), Local(v)} {
				path = strings.TrimRight(path, string(filepath.Separator))
				in := path + string(filepath.Separator)
				if path != "" && (strings.Contains(" "+text, " "+path+":") ||
					strings.Contains(" "+text, " "+in)) {
					named = " (" + EnvName(f) + ")"
				}
			}
		}
	})
	return named
}

// Fault returns the flag or option that err is about, "" if there is none.
func Fault(err error) string {
	var usage *UsageError
	var option *errs.OptionError
	switch {
	case errors.As(err, &option):
		return option.Name
	case errors.As(err, &usage):
		return usage.flag
	}
	return ""
}

// subject is what err says before the option: the picture or the file that it is about.
func subject(err error, option *errs.OptionError) string {
	before, _, _ := strings.Cut(err.Error(), option.Error())
	return packageName.ReplaceAllString(before, "")
}

// packageName is the name of the package that refused an option.
var packageName = regexp.MustCompile(`\b(reduce|methods|model|engine(: predict)?|restore|sample): $`)

// origin is what set an option: its flag, or the flag's variable. An option without a flag is its
// own name.
func origin(fs *pflag.FlagSet, option string) string {
	f := fs.Lookup(option)
	switch {
	case f == nil:
		return option
	case f.Annotations[fromEnvironment] != nil:
		return EnvName(f)
	}
	return "--" + option
}

// UsageError marks an error in the command line.
type UsageError struct {
	flag string // the flag at fault; "" for others
	Err  error
}

// Error is the text of the error, after its flag.
func (u *UsageError) Error() string {
	if u.flag == "" {
		return u.Err.Error()
	}
	return "--" + u.flag + ": " + u.Err.Error()
}

func (u *UsageError) Unwrap() error { return u.Err }

// Usagef formats an error about a command line as a whole.
func Usagef(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Flagf formats an error about a flag.
func Flagf(flag, format string, args ...any) error {
	return &UsageError{flag, fmt.Errorf(format, args...)}
}

// OneLine joins lines, and replaces other control characters, which file names may contain, so that
// they cannot affect a terminal.
func OneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }),
		"; ")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// NewRoot returns the command without a name, with all others below it.
func NewRoot(a *App) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use:           a.program.Name,
		Short:         a.program.Short,
		Long:          a.program.Long,
		Annotations:   a.program.Elsewhere,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuseEmpty(cmd.Flags()); err != nil {
				return err
			}
			if err := readEnvironment(cmd.Flags(), a.Getenv); err != nil {
				return err
			}
			if strings.HasPrefix(cmd.Name(), "__") { // a shell that completes
				return findModels(cmd.Context(), a, cmd.Flags())
			}
			if err := CheckValues(cmd.Flags()); err != nil {
				return err
			}
			noteUnknown(a, cmd)
			return findModels(cmd.Context(), a, cmd.Flags())
		},
	}
	root.Flags().Bool("version", false, "print the version, and which kernels are in use")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("version") {
			return writeVersion(a)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n'%s --help' lists all commands.\n",
			a.program.First, a.program.Name)
		return err
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd, err) })
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { writeHelp(cmd.OutOrStdout(), cmd) })
	root.AddCommand(a.program.Commands(a)...)
	root.AddCommand(newCompletion(a))
	arrange(root)
	return root
}

// flagError gives errors of pflag this program's wording.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &bad):
		return badValue(bad.GetFlag(), bad.GetValue(), err)
	case errors.As(err, &unknown):
		return unknownFlag(cmd.Flags(), unknown)
	}
	return &UsageError{Err: err}
}

// badValue is the error for a value that f refuses.
func badValue(f *pflag.Flag, value string, err error) error {
	var option *errs.OptionError
	if errors.As(err, &option) {
		return &UsageError{Err: option}
	}
	return Flagf(f.Name, "cannot be used, got %q, want %s", value, Kind(f))
}

// Kind describes the values of a flag.
func Kind(f *pflag.Flag) string {
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
	case "duration":
		return "a time, as 10s or 5m"
	default:
		return t
	}
}

// OneArg takes one positional argument. In the error's text, %d is how many were given.
func OneArg(format string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return Usagef(format, len(args))
		}
		return nil
	}
}

// NoArgs refuses positional arguments; for a command with subcommands the argument is a misspelt
// subcommand.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasParent() && cmd.Annotations[args[0]] != "":
		return Usagef("%s is in %s now", args[0], cmd.Annotations[args[0]])
	case cmd.HasAvailableSubCommands():
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		in := ""
		if cmd.HasParent() {
			in = Path(cmd) + ": "
		}
		return Usagef("%sunknown command, got %q, want %s%s", in, args[0],
			strings.Join(names, "|"), DidYouMean(args[0], names))
	}
	hint := ""
	if _, err := os.Stat(args[0]); err == nil && cmd.Flags().Lookup("image") != nil {
		hint = fmt.Sprintf(", as in --image %s", args[0])
	}
	return Usagef("%s: unexpected argument, got %q, want flags only%s", Path(cmd), args[0], hint)
}

// Path is the name of a command in errors, as in "inspect chat".
func Path(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// Group is a command that only has subcommands.
func Group(use, short string, subs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return Usagef("%s: no command given, want one of its subcommands", Path(cmd))
		},
	}
	g.AddCommand(subs...)
	return g
}

// IsTerminal reports whether v is a terminal.
func IsTerminal(v any) bool {
	f, ok := unwrap(v).(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Need reports the first missing one of the required flags, given as pairs of name and value.
func Need(cmd *cobra.Command, pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return Usagef("%s: --%s is missing, want %s", Path(cmd), pairs[i],
				wanted(cmd.Flags().Lookup(pairs[i])))
		}
	}
	return nil
}

// Calibrating tells the user why the first command on a machine takes a second longer.
func (a *App) Calibrating() {
	if IsTerminal(a.Err) {
		a.Note("measuring the speed of this machine, once")
	}
}

// Warnings is a log of warnings for the user.
func Warnings(a *App) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
