package jobs

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/wire"
)

// Status is the state of a batch.
type Status string

// The states of a batch.
const (
	Validating Status = "validating"  // its lines are checked
	InProgress Status = "in_progress" // they wait or are answered
	Finalizing Status = "finalizing"  // its files are written
	Completed  Status = "completed"   // every line has a result
	Failed     Status = "failed"      // Errors says why
	Expired    Status = "expired"     // its window is over
	Cancelling Status = "cancelling"
	Cancelled  Status = "cancelled"
)

// final reports whether a batch in this state does not change any more.
func (s Status) final() bool {
	return s == Completed || s == Failed || s == Expired || s == Cancelled
}

// Batch describes a batch, as OpenAI's API does. Times are Unix seconds, nil before they come.
type Batch struct {
	ID               string            `json:"id"`
	Object           string            `json:"object"`
	Endpoint         string            `json:"endpoint"`
	Errors           *Errors           `json:"errors"`
	InputFileID      string            `json:"input_file_id"`
	CompletionWindow string            `json:"completion_window"`
	Status           Status            `json:"status"`
	OutputFileID     *string           `json:"output_file_id"`
	ErrorFileID      *string           `json:"error_file_id"`
	CreatedAt        int64             `json:"created_at"`
	InProgressAt     *int64            `json:"in_progress_at"`
	ExpiresAt        int64             `json:"expires_at"`
	FinalizingAt     *int64            `json:"finalizing_at"`
	CompletedAt      *int64            `json:"completed_at"`
	FailedAt         *int64            `json:"failed_at"`
	ExpiredAt        *int64            `json:"expired_at"`
	CancellingAt     *int64            `json:"cancelling_at"`
	CancelledAt      *int64            `json:"cancelled_at"`
	RequestCounts    Counts            `json:"request_counts"`
	Metadata         map[string]string `json:"metadata"`
}

// Counts are numbers of lines: with an answer, and with an error.
type Counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// Errors say why a batch failed.
type Errors struct {
	Object string  `json:"object"`
	Data   []Fault `json:"data"`
}

// Fault is one of the reasons why a batch failed.
type Fault struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"` // of the input, from 1; nil if it is about no line
}

// batchEntry is a batch of the store, as its description has it.
type batchEntry struct {
	Batch
	Owner  string `json:"owner"`
	Number int64  `json:"number"`
	// Outcome is the state that follows Finalizing or Cancelling, and Output and Error are the ids
	// that its files get.
	Outcome Status `json:"outcome,omitempty"`
	Output  string `json:"output,omitempty"`
	Error   string `json:"error,omitempty"`
	Keep    int64  `json:"keep,omitempty"` // seconds that its files are kept; 0: the store's time

	stop    func(cause error) // ends the run; nil: it does not run
	journal *batch.Journal    // of the run; nil: none
	again   time.Time         // when it is tried again after an error
}

func (b *batchEntry) id() string    { return b.ID }
func (b *batchEntry) seq() int64    { return b.Number }
func (b *batchEntry) owned() string { return b.Owner }

func (s *Store) batchFolder(id string) string { return filepath.Join(s.batchesFolder(), id) }

// save writes the state of a batch, with s.mu held.
func (s *Store) save(b *batchEntry) error {
	return writeJSON(filepath.Join(s.batchFolder(b.ID), "batch.json"), b)
}

// loadBatches reads the states of all batches.
func (s *Store) loadBatches() error {
	ids, err := named(s.batchesFolder(), "")
	if err != nil {
		return err
	}
	for _, id := range ids {
		files.RemoveAbandoned(s.batchFolder(id))
		b := new(batchEntry)
		if err := readJSON(filepath.Join(s.batchFolder(id), "batch.json"), b); err != nil {
			if errors.Is(err, os.ErrNotExist) { // nobody was told of it
				_ = os.RemoveAll(s.batchFolder(id))
				continue
			}
			s.o.Log.Warn("a batch is left out", "error", err)
			continue
		}
		if b.ID != id {
			continue
		}
		s.batches[id], s.last = b, max(s.last, b.Number)
		if b.Status.final() {
			s.clear(b)
		}
	}
	return nil
}

// clear removes what only an unfinished batch needs.
func (s *Store) clear(b *batchEntry) {
	_ = os.RemoveAll(s.journal(b)) // the next start tries again
	_ = os.Remove(s.results(b))
}

func (s *Store) journal(b *batchEntry) string {
	return filepath.Join(s.batchFolder(b.ID), "journal")
}

func (s *Store) results(b *batchEntry) string {
	return filepath.Join(s.batchFolder(b.ID), "results")
}

// Limits of a batch's metadata, as OpenAI has them: entries, and characters.
const (
	metadataMost  = 16
	metadataName  = 64
	metadataValue = 512
)

// NewBatch is what a client asks for.
type NewBatch struct {
	InputFileID, Endpoint, Window string
	Metadata                      map[string]string
	Keep                          time.Duration // of its files; 0: the store's
}

// window is how long a batch may take.
const window = 24 * time.Hour

// CreateBatch begins a batch.
func (s *Store) CreateBatch(owner string, n *NewBatch) (*Batch, error) {
	switch {
	case !slices.Contains(s.o.Endpoints, n.Endpoint):
		return nil, wire.Bad("invalid_value", "endpoint", "got %s, want %s",
			wire.Quote(n.Endpoint), strings.Join(s.o.Endpoints, ", "))
	case n.Window != "24h":
		return nil, wire.Bad("invalid_value", "completion_window", "got %s, "+
			"want 24h", wire.Quote(n.Window))
	}
	if err := checkMetadata(n.Metadata); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ready(); e != nil {
		return nil, e
	}
	f, e := s.file(owner, n.InputFileID, "input_file_id")
	switch {
	case e != nil:
		return nil, e
	case f.Purpose != Input:
		return nil, wire.Bad("invalid_value", "input_file_id", "got a file with "+
			"purpose %s, want %s", f.Purpose, Input)
	case len(s.batches) >= most:
		return nil, wire.New(http.StatusTooManyRequests, "too_many_batches", "",
			"the server keeps %d batches", len(s.batches))
	}
	now := s.now()
	b := &batchEntry{Owner: owner, Number: s.number(), Keep: int64(n.Keep.Seconds()), Batch: Batch{
		ID: api.NewID("batch_"), Object: "batch", Endpoint: n.Endpoint,
		InputFileID: n.InputFileID, CompletionWindow: n.Window, Status: Validating,
		CreatedAt: now.Unix(), ExpiresAt: now.Add(window).Unix(), Metadata: n.Metadata,
	}}
	if err := s.save(b); err != nil {
		return nil, s.failed(err)
	}
	s.batches[b.ID] = b
	s.wake()
	return b.shown(), nil
}

// count updates the numbers of answered lines.
func (b *batchEntry) count() {
	if b.journal != nil {
		results, answers := b.journal.Results(), b.journal.Answers()
		b.RequestCounts.Completed, b.RequestCounts.Failed = answers, results-answers
	}
}

// shown is a copy for a client.
func (b *batchEntry) shown() *Batch {
	b.count()
	out := b.Batch
	return &out
}

func checkMetadata(m map[string]string) error {
	if len(m) > metadataMost {
		return wire.Bad("invalid_value", "metadata", "got %d entries, want at most %d",
			len(m), metadataMost)
	}
	for name, value := range m {
		n, v := utf8.RuneCountInString(name), utf8.RuneCountInString(value)
		if n > metadataName || v > metadataValue {
			return wire.Bad("invalid_value", "metadata", "%s: got a name of %d characters "+
				"and a value of %d, want at most %d and %d", wire.Quote(name), n, v,
				metadataName, metadataValue)
		}
	}
	return nil
}

// Batches lists batches of an owner.
func (s *Store) Batches(owner string, p Page) (list []Batch, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.reach(); e != nil {
		return nil, false, e
	}
	found, more, err := page(s.batches, owner, &p, func(*batchEntry) bool { return true })
	list = make([]Batch, len(found))
	for i, b := range found {
		list[i] = *b.shown()
	}
	return list, more, err
}

func (s *Store) batch(owner, id string) (*batchEntry, *wire.Error) {
	if e := s.reach(); e != nil {
		return nil, e
	}
	b := s.batches[id]
	if b == nil || b.Owner != owner {
		return nil, wire.New(http.StatusNotFound, "batch_not_found", "", "there is no batch %s",
			wire.Quote(id))
	}
	return b, nil
}

// Batch describes a batch.
func (s *Store) Batch(owner, id string) (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, e := s.batch(owner, id)
	if e != nil {
		return nil, e
	}
	return b.shown(), nil
}

// CancelBatch ends a batch. Its answers so far get a file.
func (s *Store) CancelBatch(owner, id string) (*Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, e := s.batch(owner, id)
	switch {
	case e != nil:
		return nil, e
	case b.Status == Cancelling:
		return b.shown(), nil
	case b.Status.final() || b.Status == Finalizing:
		return nil, wire.New(http.StatusConflict, "batch_ended", "",
			"batch %s is %s and can no longer be cancelled", id, b.Status)
	}
	before := *b
	now := s.now().Unix()
	b.Status, b.Outcome, b.CancellingAt = Cancelling, Cancelled, &now
	if _, err := os.Stat(s.journal(b)); b.stop == nil && errors.Is(err, os.ErrNotExist) {
		b.Status, b.CancelledAt = Cancelled, &now // no line was asked
	}
	if err := s.save(b); err != nil {
		*b = before
		return nil, s.failed(err)
	}
	if b.stop != nil {
		b.stop(errCancelled)
	}
	s.wake()
	return b.shown(), nil
}
