package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/wire"
)

// Options configure a store.
type Options struct {
	Folder    string        // made when the first file comes; "": no file can come
	MaxFile   int64         // largest file in bytes
	MaxLine   int           // largest line of a batch in bytes
	Keep      time.Duration // how long files and batches are kept
	Endpoints []string      // paths that a batch may name
	Log       *slog.Logger
}

// Store keeps files and batches. It is safe for concurrent use.
type Store struct {
	o   Options
	now func() time.Time

	mu      sync.Mutex
	lock    *files.Locked // nil while the folder is not open
	files   map[string]*fileEntry
	batches map[string]*batchEntry
	last    int64         // number of the newest entry
	changed chan struct{} // closed when a batch may have work to do
}

// most is how many files, and how many batches, a store keeps.
const most = 100_000

// New returns a store.
func New(o Options) *Store {
	s := &Store{o: o, now: time.Now, files: map[string]*fileEntry{},
		batches: map[string]*batchEntry{}, changed: make(chan struct{})}
	if s.o.Log == nil {
		s.o.Log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Open reads the folder, if it is there: [Store.Run] then continues its batches. Without Open, the
// first file does it.
func (s *Store) Open() error {
	if _, err := os.Stat(s.o.Folder); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open()
}

// MaxFile is the size of the largest file in bytes.
func (s *Store) MaxFile() int64 { return s.o.MaxFile }

// Close lets other processes use the folder. Run must have returned.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

func (s *Store) filesFolder() string   { return filepath.Join(s.o.Folder, "files") }
func (s *Store) batchesFolder() string { return filepath.Join(s.o.Folder, "batches") }

// open makes or opens the folder, with s.mu held.
func (s *Store) open() (err error) {
	switch {
	case s.lock != nil:
		return nil
	case s.o.Folder == "":
		return errors.New("jobs: got no folder")
	}
	for _, dir := range []string{s.filesFolder(), s.batchesFolder()} {
		if err := files.MakeFolder(dir, 0o700); err != nil { // they hold questions and answers
			return fmt.Errorf("jobs: %w", err)
		}
	}
	lock, err := files.OpenLocked(filepath.Join(s.o.Folder, "lock"), 0o600)
	if err != nil {
		return fmt.Errorf("jobs: folder %s: %w", s.o.Folder, err)
	}
	files.RemoveAbandoned(s.filesFolder())
	if err := errors.Join(s.loadFiles(), s.loadBatches()); err != nil {
		return errors.Join(err, lock.Close())
	}
	s.lock = lock
	s.wake()
	return nil
}

// ready opens the folder for a client's call, with s.mu held.
func (s *Store) ready() *wire.Error {
	if err := s.open(); err != nil {
		return s.failed(err)
	}
	return nil
}

// reach opens the folder if it is there, for a client's call that makes nothing, with s.mu held.
func (s *Store) reach() *wire.Error {
	if s.lock != nil {
		return nil
	}
	if _, err := os.Stat(s.o.Folder); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return s.ready()
}

// failed words an error of the folder for a client; the log says all of it.
func (s *Store) failed(err error) *wire.Error {
	s.o.Log.Error("files and batches", "error", err)
	switch {
	case s.o.Folder == "":
		return wire.New(http.StatusServiceUnavailable, "no_folder", "",
			"the server has no folder for files, want one (--batch-dir)")
	case errors.Is(err, syscall.ENOSPC):
		return wire.New(http.StatusInsufficientStorage, "insufficient_storage", "",
			"the disk of the server's folder for files is full (--batch-dir)")
	case errors.Is(err, files.ErrInUse):
		return wire.New(http.StatusServiceUnavailable, "files_in_use", "",
			"another server uses the folder for files, want one for each (--batch-dir)")
	}
	return wire.New(http.StatusInternalServerError, "internal_error", "",
		"the server's folder for files cannot be used; its log says more (--batch-dir)")
}

// number returns the number of a new entry, with s.mu held: entries are listed by it.
func (s *Store) number() int64 {
	s.last = max(s.last+1, s.now().UnixNano())
	return s.last
}

// changes returns a channel that is closed at the next change of a batch.
func (s *Store) changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// wake tells Run that a batch has changed, with s.mu held.
func (s *Store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// idForm is the form of all ids, which are names of files.
var idForm = regexp.MustCompile(`^[a-z]+[-_][A-Za-z0-9]{8,64}$`)

// readJSON reads a description of at most a megabyte.
func readJSON(path string, to any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > 1<<20 || !info.Mode().IsRegular() {
		return fmt.Errorf("jobs: %s: is no description of this program", path)
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		err = fmt.Errorf("jobs: %s: %w", path, err)
	}
	return err
}

// writeJSON writes a description; it is on disk afterwards.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return files.Write(path, data, 0o600)
}

// Page selects a part of a list.
type Page struct {
	Limit     int    // most entries
	After     string // id of the entry before the first one; "": from the begin
	Ascending bool   // the oldest first
}

// entry is a file or a batch in a list.
type entry interface {
	id() string
	seq() int64
	owned() string
}

// page returns the entries of an owner on a page, and whether there are more.
func page[E entry](all map[string]E, owner string, p *Page, keep func(E) bool) (
	list []E, more bool, err error,
) {
	for _, e := range all {
		if e.owned() == owner && keep(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b E) int {
		if p.Ascending {
			a, b = b, a
		}
		return int(min(1, max(-1, b.seq()-a.seq())))
	})
	if p.After != "" {
		i := slices.IndexFunc(list, func(e E) bool { return e.id() == p.After })
		if i < 0 {
			return nil, false, wire.Bad("invalid_value", "after", "there is no %s",
				wire.Quote(p.After))
		}
		list = list[i+1:]
	}
	if len(list) > p.Limit {
		return list[:p.Limit], true, nil
	}
	return list, false, nil
}

// tick calls f at once and then periodically, until ctx ends.
func tick(ctx context.Context, every time.Duration, f func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		f()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// named returns the ids of the descriptions in a folder.
func named(dir, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && idForm.MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
