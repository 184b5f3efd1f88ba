// Command restore answers questions about pictures with multimodal models that read few
// visual tokens. See `restore --help`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // writing to a broken pipe returns an error
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}
	ctx, stop := a.interrupts.watch(context.Background(), func() {
		a.partial.remove()
		if isTerminal(os.Stderr) { // the terminal echoed ^C
			fmt.Fprintln(os.Stderr)
		}
		fmt.Fprintln(os.Stderr, "restore: interrupted")
	})
	code := execute(ctx, a, os.Args[1:])
	stop()
	if err := os.Stdout.Close(); err != nil && code == exitOK {
		fmt.Fprintf(os.Stderr, "restore: %v\n", pathError("stdout", err))
		code = exitFailure
	}
	os.Exit(code)
}
