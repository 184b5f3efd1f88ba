package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Program is a program with commands.
type Program struct {
	Name        string
	Short, Long string                        // its help
	First       string                        // what to do first, without a command
	Commands    func(a *App) []*cobra.Command // in the order of the help
	Elsewhere   map[string]string             // commands of other programs, with their program
}

// In returns commands of another program, for [Program].Elsewhere.
func In(program string, commands ...string) map[string]string {
	in := map[string]string{}
	for _, name := range commands {
		in[name] = program
	}
	return in
}

// Run runs the command line of this process, and returns the exit code.
func (p *Program) Run() int {
	signal.Ignore(syscall.SIGPIPE) // writing to a broken pipe returns an error
	a := NewApp(p, os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	a.Environ = os.Environ
	ctx, stop := a.Interrupts.watch(context.Background(), func() {
		a.Partial.remove()
		a.Screen.leave()
		if IsTerminal(a.Err) { // the terminal echoed ^C
			fmt.Fprintln(a.Err)
		}
		a.Say("interrupted")
	})
	code := Execute(ctx, a, os.Args[1:])
	stop()
	if err := os.Stdout.Close(); err != nil && code == ExitOK {
		a.Say("%v", PathError("stdout", err))
		code = ExitFailure
	}
	return code
}

// Say prints a line with the program's name.
func (a *App) Say(format string, args ...any) {
	fmt.Fprintf(a.Err, "%s: %s\n", a.program.Name, fmt.Sprintf(format, args...))
}
