package jobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/batch"
)

// Answering answers the lines of one batch.
type Answering struct {
	Backend  batch.Backend
	Settings batch.Settings
	// Parallel and Places are options of [batch.Options].
	Parallel int
	Places   func() int
	// File is [batch.Options.File].
	File func(url string) (content [sha256.Size]byte, file bool)
	// Close ends it. done says that every line has a result and that they are on disk.
	Close func(done bool) error
}

// Prepare makes the answering of a batch of an owner. journal is the id of the batch's journal.
type Prepare func(ctx context.Context, owner, journal string) (*Answering, error)

// Reasons why the run of a batch ends before its lines do.
var (
	errCancelled = errors.New("the batch is cancelled")
	errExpired   = errors.New("the batch's window is over")
)

// retryAfter is how long Run waits after an error that is not the batch's.
const retryAfter = 5 * time.Second

// Run checks batches as they come and answers them in order of arrival, until ctx ends. Then the
// batches wait for the next Run of this folder.
func (s *Store) Run(ctx context.Context, p Prepare) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.each(ctx, Validating, func(b *batchEntry) error { return s.check(ctx, b) })
	}()
	expiring := make(chan struct{})
	go func() {
		defer close(expiring)
		tick(ctx, 10*time.Minute, s.expire)
	}()
	s.each(ctx, InProgress, func(b *batchEntry) error { return s.advance(ctx, b, p) })
	<-done
	<-expiring
}

// over reports whether the window of a begun batch that does not run is over. Such a batch does not
// wait until those before it have ended.
func (b *batchEntry) over(now time.Time) bool {
	return b.Status == InProgress && b.stop == nil && b.ExpiresAt <= now.Unix() ||
		b.Status == Finalizing && b.Outcome == Expired
}

// check checks the lines of a new batch, or ends one whose window is over.
func (s *Store) check(ctx context.Context, b *batchEntry) error {
	s.mu.Lock()
	status, runs := b.Status, b.stop != nil
	s.mu.Unlock()
	switch {
	case status == Validating:
		return s.validate(ctx, b)
	case status == Finalizing:
		return s.finalize(b)
	case runs: // it began in between
		return nil
	}
	return s.change(b, InProgress, func(now int64) {
		b.Status, b.Outcome, b.FinalizingAt = Finalizing, Expired, &now
	})
}

// each calls f with the oldest batch that is in a state until there is none, and again when a batch
// has changed. Validating stands also for batches whose window is over, InProgress for all other
// states of begun batches. A batch with an error does not keep the others from theirs.
func (s *Store) each(ctx context.Context, in Status, f func(*batchEntry) error) {
	for ctx.Err() == nil {
		changes := s.changes()
		b, wait := s.oldest(in)
		if b == nil {
			select {
			case <-changes:
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		}
		if err := f(b); err != nil && ctx.Err() == nil {
			s.o.Log.Error("batch", "id", b.ID, "error", err, "again_in", retryAfter)
			s.mu.Lock()
			b.again = s.now().Add(retryAfter)
			s.mu.Unlock()
		}
	}
}

// oldest returns the oldest batch that is in a state. A batch that was cancelled comes first:
// nothing is left to ask. If there is none, wait is how long there will be none without a change.
func (s *Store) oldest(in Status) (first *batchEntry, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	wait = time.Hour
	for _, b := range s.batches {
		switch {
		case b.Status.final() || (b.Status == Validating || b.over(now)) != (in == Validating):
			if in == Validating && b.Status == InProgress && b.stop == nil {
				wait = min(wait, max(0, time.Unix(b.ExpiresAt, 0).Sub(now)))
			}
		case b.again.After(now):
			wait = min(wait, b.again.Sub(now))
		case first == nil, first.Status != Cancelling && b.Status == Cancelling,
			(first.Status == Cancelling) == (b.Status == Cancelling) && b.Number < first.Number:
			first = b
		}
	}
	return first, wait
}

// change changes a batch that is still in a state, and writes it.
func (s *Store) change(b *batchEntry, from Status, f func(now int64)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Status != from {
		return nil // it was cancelled in between
	}
	before := *b
	f(s.now().Unix())
	if err := s.save(b); err != nil {
		*b = before
		return err
	}
	s.wake()
	return nil
}

// faultsMost is how many errors of lines a batch lists.
const faultsMost = 100

// errNoInput is returned when somebody has removed a batch's input from the folder.
var errNoInput = errors.New("the input file is gone from the server's folder")

// input opens the lines of a batch.
func (s *Store) input(b *batchEntry) (*os.File, error) {
	in, err := os.Open(filepath.Join(s.filesFolder(), b.InputFileID))
	if errors.Is(err, os.ErrNotExist) {
		err = errNoInput
	}
	return in, err
}

// faultOf is an error for which a batch fails, because it does not go away by itself, as its client
// reads it; nil for other errors. The log has all of it: paths and settings are not the client's.
func faultOf(err error) *Fault {
	var other *batch.MismatchError
	switch {
	case errors.Is(err, errNoInput):
		return &Fault{Code: "file_not_found", Message: err.Error()}
	case errors.As(err, &other):
		return &Fault{Code: "server_changed", Message: "the server does not answer as it did " +
			"when the batch began, or its files of the batch have changed; its log says more"}
	}
	return nil
}

// validate checks the lines of a batch.
func (s *Store) validate(ctx context.Context, b *batchEntry) error {
	in, err := s.input(b)
	if f := faultOf(err); f != nil {
		return s.fail(b, Validating, []Fault{*f})
	}
	if err != nil {
		return err
	}
	defer in.Close()
	lines, bad, err := batch.Check(ctx, in, batch.CheckOptions{
		URL: b.Endpoint, MaxLine: s.o.MaxLine, Most: faultsMost})
	if err != nil {
		return err
	}
	var faults []Fault
	for _, e := range bad {
		faults = append(faults, Fault{Code: e.Code, Message: e.Error(), Line: &e.Line})
	}
	if lines == 0 && len(bad) == 0 {
		faults = []Fault{{Code: "empty_file", Message: "the file has no line, want requests"}}
	}
	if len(faults) > 0 {
		return s.fail(b, Validating, faults)
	}
	return s.change(b, Validating, func(now int64) {
		b.Status, b.InProgressAt, b.RequestCounts.Total = InProgress, &now, lines
	})
}

// fail ends a batch for a reason of its own. What is answered gets its files before.
func (s *Store) fail(b *batchEntry, from Status, why []Fault) error {
	return s.change(b, from, func(now int64) {
		b.Errors = &Errors{Object: "list", Data: why}
		if from == Validating {
			b.Status, b.FailedAt = Failed, &now
			return
		}
		b.Status, b.Outcome, b.FinalizingAt = Finalizing, Failed, &now
	})
}

// advance answers the lines of a batch, or writes its files.
func (s *Store) advance(ctx context.Context, b *batchEntry, p Prepare) error {
	s.mu.Lock()
	status := b.Status
	s.mu.Unlock()
	if status != InProgress {
		return s.finalize(b)
	}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	over := time.AfterFunc(time.Unix(b.ExpiresAt, 0).Sub(s.now()), func() { stop(errExpired) })
	defer over.Stop()
	s.mu.Lock()
	if b.Status != InProgress || b.over(s.now()) { // cancelled in between, or its window is over
		s.mu.Unlock()
		return nil
	}
	b.stop = stop
	s.mu.Unlock()
	err := s.answer(run, b, p)
	s.mu.Lock()
	b.stop = nil
	s.mu.Unlock()
	outcome := Completed
	switch f := faultOf(err); {
	case errors.Is(err, errExpired):
		outcome = Expired
	case errors.Is(err, errCancelled):
		return nil // its state says so
	case f != nil:
		s.o.Log.Error("batch", "id", b.ID, "error", err)
		return s.fail(b, InProgress, []Fault{*f})
	case err != nil:
		return err
	}
	return s.change(b, InProgress, func(now int64) {
		b.Status, b.Outcome, b.FinalizingAt = Finalizing, outcome, &now
	})
}

// answerWindow is how many bytes of a batch's lines are in memory before they are answered. It
// leaves a server's memory to the requests of others.
const answerWindow = 64 << 20

// answer answers the lines of a batch that have no result.
func (s *Store) answer(ctx context.Context, b *batchEntry, p Prepare) (err error) {
	in, err := s.input(b)
	if err != nil {
		return err
	}
	defer in.Close()
	j, err := batch.OpenJournal(s.journal(b), s.results(b))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	a, err := p(ctx, b.Owner, j.ID())
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	done := false
	defer func() { err = errors.Join(err, a.Close(done)) }()
	if err := j.Begin(a.Settings); err != nil {
		return err
	}
	s.follow(b, j)
	_, err = batch.Run(ctx, in, j, a.Backend, batch.Options{
		Parallel: a.Parallel, Places: a.Places, MaxLine: s.o.MaxLine, Window: answerWindow,
		Unordered: true, File: a.File,
	})
	s.follow(b, nil)
	done = err == nil
	return err
}

// follow counts the lines of a batch in a journal from now on; nil ends it.
func (s *Store) follow(b *batchEntry, j *batch.Journal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.count()
	b.journal = j
}

// finalize writes the files of a batch whose lines have their results, and ends it. After a kill it
// writes them again.
func (s *Store) finalize(b *batchEntry) error {
	s.mu.Lock()
	if b.Output == "" {
		b.Output, b.Error = api.NewID("file-"), api.NewID("file-")
	}
	err := s.save(b)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	counts, err := s.divide(b)
	f := faultOf(err)
	if err != nil && f == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, now := *b, s.now().Unix()
	if f != nil && b.Errors == nil {
		s.o.Log.Error("batch", "id", b.ID, "error", err)
		b.Outcome, b.Errors = Failed, &Errors{Object: "list", Data: []Fault{*f}}
	}
	b.Status, b.RequestCounts.Completed, b.RequestCounts.Failed = b.Outcome, counts.Completed,
		counts.Failed
	if s.files[b.Output] != nil {
		b.OutputFileID = &b.Output
	}
	if s.files[b.Error] != nil {
		b.ErrorFileID = &b.Error
	}
	switch b.Outcome {
	case Completed:
		b.CompletedAt = &now
	case Failed:
		b.FailedAt = &now
	case Expired:
		b.ExpiredAt = &now
	case Cancelled:
		b.CancelledAt = &now
	}
	if err := s.save(b); err != nil {
		*b = before
		return err
	}
	s.clear(b)
	return nil
}

// divide writes the results of a batch into a file of answers and one of errors; neither is empty.
// The lines of an expired batch that have no result get an error. After an error for which the
// batch fails, the files have what there is.
func (s *Store) divide(b *batchEntry) (counts Counts, err error) {
	if _, err := os.Stat(s.journal(b)); errors.Is(err, os.ErrNotExist) && b.Outcome != Expired {
		return counts, nil // no line was asked
	}
	j, err := batch.OpenJournal(s.journal(b), s.results(b))
	if err != nil {
		return counts, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	var parts [2]*Upload
	for i := range parts {
		if parts[i], err = s.create(0); err != nil {
			return counts, err
		}
		defer parts[i].Discard()
	}
	if counts.Completed, counts.Failed, err = j.Split(parts[0], parts[1]); err != nil {
		return counts, err
	}
	var gone error
	if b.Outcome == Expired {
		n, err := s.late(b, j, parts[1])
		if gone = err; err != nil && faultOf(err) == nil {
			return counts, err
		}
		counts.Failed += n
	}
	for i, kind := range []struct{ id, name string }{{b.Output, "output"}, {b.Error, "error"}} {
		if parts[i].size == 0 {
			continue
		}
		name := fmt.Sprintf("%s_%s.jsonl", b.ID, kind.name)
		if _, err := parts[i].commit(kind.id, b.Owner, name, Output,
			time.Duration(b.Keep)*time.Second); err != nil {
			return counts, err
		}
	}
	return counts, gone
}

// late writes the errors of the lines that have no result when the window is over.
func (s *Store) late(b *batchEntry, j *batch.Journal, to *Upload) (n int, err error) {
	in, err := s.input(b)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return j.Missing(in, s.o.MaxLine, batch.Error{Code: "batch_expired",
		Message: "the line was not answered before the batch's completion window was over"}, to)
}

// expire removes files and ended batches whose time is over.
func (s *Store) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, f := range s.files {
		if f.ExpiresAt <= now.Unix() && s.reader(f.ID) == "" {
			if err := s.remove(f); err != nil {
				s.o.Log.Error("files and batches", "error", err)
			}
		}
	}
	for id, b := range s.batches {
		if b.Status.final() && time.Unix(b.CreatedAt, 0).Add(s.o.Keep).Before(now) {
			if err := os.RemoveAll(s.batchFolder(id)); err != nil {
				s.o.Log.Error("files and batches", "error", err)
				continue
			}
			delete(s.batches, id)
		}
	}
}
