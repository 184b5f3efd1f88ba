package cli

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

// grace is how long a command may run after the first signal. After that its unfinished files are
// removed and the process ends.
const grace = 500 * time.Millisecond

// ErrInterrupted is the cause of a context that a signal cancelled.
var ErrInterrupted = errors.New("interrupted")

// signals are the signals that end a command.
var signals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// Interrupts turns signals into cancellation. The zero value has no signals, as in tests.
type Interrupts struct {
	cancel context.CancelCauseFunc // cancels the command

	lock    sync.Mutex
	patient bool                    // no time limit for the end after the first signal
	turn    context.CancelCauseFunc // cancels the current turn; nil: no turn runs
	undo    func()                  // restores the terminal; nil: it was not changed
}

// watch returns a context that the first signal cancels, and stop, which ends the watch. A second
// signal, or grace after the first one, ends the process after calling quit. If the parent ignored
// hang-ups, as under nohup, they stay ignored.
func (i *Interrupts) watch(ctx context.Context, quit func()) (_ context.Context, stop func()) {
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
					i.cancel(ErrInterrupted)
					late = i.patience()
					continue
				}
			case <-late:
			case <-done:
				return
			}
			i.Restore()
			quit()
			os.Exit(ExitFailure)
		}
	}()
	return ctx, func() { signal.Stop(ch); close(done); i.cancel(nil) }
}

// patience returns when a cancelled command must be ended by force.
func (i *Interrupts) patience() <-chan time.Time {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.patient {
		return make(chan time.Time)
	}
	return time.After(grace)
}

// Wait lets the command run without a limit after the first signal; a second one ends it.
func (i *Interrupts) Wait() {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.patient = true
}

// Begin starts a turn: it returns a context that the next Ctrl-C cancels instead of the command's;
// another Ctrl-C ends the command. The caller must call end when the turn is over.
func (i *Interrupts) Begin(ctx context.Context) (_ context.Context, end func()) {
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

// endTurn cancels the current turn; false if there is none or it was cancelled before.
func (i *Interrupts) endTurn() bool {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.turn == nil {
		return false
	}
	i.turn(ErrInterrupted)
	i.turn = nil
	return true
}

// Changed sets the function that restores the terminal; nil: nothing to restore.
func (i *Interrupts) Changed(undo func()) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.undo = undo
}

// Restore restores the terminal.
func (i *Interrupts) Restore() {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.undo != nil {
		i.undo()
		i.undo = nil
	}
}

// interruptError ends an interrupted command. The text says what was done.
type interruptError struct{ text string }

func (e *interruptError) Error() string { return e.text }
func (e *interruptError) Unwrap() error { return ErrInterrupted }

// CutShort words the end of a command that a signal or a broken output cancelled.
func CutShort(format string, args ...any) error {
	return &interruptError{fmt.Sprintf(format, args...)}
}
