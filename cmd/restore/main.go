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
	a := newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	ctx, stop := a.interrupts.watch(context.Background(), func() {
		a.partial.remove()
		a.screen.leave()
		if isTerminal(a.err) { // the terminal echoed ^C
			fmt.Fprintln(a.err)
		}
		fmt.Fprintln(a.err, "restore: interrupted")
	})
	code := execute(ctx, a, os.Args[1:])
	stop()
	if err := os.Stdout.Close(); err != nil && code == exitOK {
		fmt.Fprintf(os.Stderr, "restore: %v\n", pathError("stdout", err))
		code = exitFailure
	}
	os.Exit(code)
}
