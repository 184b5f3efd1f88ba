package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// grace is how long a command may take to end after the first signal. What it does then is
// given up: its unfinished files are removed and the process ends.
const grace = 500 * time.Millisecond

// errInterrupted is the cause of a context that a signal cancelled.
var errInterrupted = errors.New("interrupted")

// signals are those that end a command.
var signals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// interrupts turns signals into cancellation. The zero value has no signals, as in tests.
type interrupts struct {
	cancel context.CancelCauseFunc // ends the command

	lock    sync.Mutex
	patient bool                    // the command ends by itself after the first signal
	turn    context.CancelCauseFunc // ends what runs now in its place; nil: nothing to end first
	undo    func()                  // puts the terminal back; nil: it was not changed
}

// watch returns a context that the first signal cancels, and stop, which ends the watch. A
// second signal, or grace after the first one, ends the process: quit is called before.
// A hang-up that the parent had ignored stays so, as under nohup.
func (i *interrupts) watch(ctx context.Context, quit func()) (_ context.Context, stop func()) {
	ctx, i.cancel = context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 4)
	for _, s := range signals {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	done := make(chan struct{})
	go func() {
		var late <-chan time.Time
		for {
			select {
			case s := <-ch:
				if late == nil && s == os.Interrupt && i.endTurn() {
					continue
				}
				if late == nil {
					i.cancel(errInterrupted)
					late = i.patience()
					continue
				}
			case <-late:
			case <-done:
				return
			}
			i.restore()
			quit()
			os.Exit(exitFailure)
		}
	}()
	return ctx, func() { signal.Stop(ch); close(done); i.cancel(nil) }
}

// patience returns when a command that was told to end is given up.
func (i *interrupts) patience() <-chan time.Time {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.patient {
		return make(chan time.Time)
	}
	return time.After(grace)
}

// wait lets the command take its time after the first signal; a second one ends it.
func (i *interrupts) wait() {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.patient = true
}

// begin returns a context that the next Ctrl-C cancels instead of the command's; one after it
// ends the command. end must be called when the turn is over.
func (i *interrupts) begin(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	i.lock.Lock()
	i.turn = cancel
	i.lock.Unlock()
	return ctx, func() {
		i.lock.Lock()
		i.turn = nil
		i.lock.Unlock()
		cancel(nil)
	}
}

// endTurn cancels the turn that runs; false when there is none, or it was cancelled before.
func (i *interrupts) endTurn() bool {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.turn == nil {
		return false
	}
	i.turn(errInterrupted)
	i.turn = nil
	return true
}

// changed says how to put the terminal back; nil: it is as it was.
func (i *interrupts) changed(undo func()) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.undo = undo
}

// restore puts the terminal back.
func (i *interrupts) restore() {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.undo != nil {
		i.undo()
		i.undo = nil
	}
}

// interruptError ends a command that was cut short. The text says what became of the work.
type interruptError struct{ text string }

func (e *interruptError) Error() string { return e.text }
func (e *interruptError) Unwrap() error { return errInterrupted }

// cutShort words the end of a command that a signal or a broken output cancelled.
func cutShort(format string, args ...any) error {
	return &interruptError{fmt.Sprintf(format, args...)}
}
