package jobs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/wire"
)

// Purposes of files.
const (
	Input  = "batch"        // requests, from a client
	Output = "batch_output" // results, from a batch
)

// File describes a file, as OpenAI's API does.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"` // Unix seconds, as all times
	ExpiresAt int64  `json:"expires_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"`
}

// fileEntry is a file of the store, as its description has it.
type fileEntry struct {
	File
	Owner  string `json:"owner"`
	Number int64  `json:"number"`
}

func (f *fileEntry) id() string    { return f.ID }
func (f *fileEntry) seq() int64    { return f.Number }
func (f *fileEntry) owned() string { return f.Owner }

// loadFiles reads the descriptions of all files. A content without description is what a killed
// process or a deletion left.
func (s *Store) loadFiles() error {
	dir := s.filesFolder()
	ids, err := named(dir, ".json")
	if err != nil {
		return err
	}
	for _, id := range ids {
		f := new(fileEntry)
		if err := readJSON(filepath.Join(dir, id+".json"), f); err != nil {
			s.o.Log.Warn("a file is left out", "error", err)
			continue
		}
		if f.ID == id {
			s.files[id], s.last = f, max(s.last, f.Number)
		}
	}
	all, err := named(dir, "")
	if err != nil {
		return err
	}
	for _, id := range all {
		if s.files[id] == nil {
			if _, err := os.Stat(filepath.Join(dir, id+".json")); errors.Is(err, fs.ErrNotExist) {
				_ = os.Remove(filepath.Join(dir, id)) // tried again at the next start
			}
		}
	}
	return nil
}

// Upload is a file whose content arrives.
type Upload struct {
	s    *Store
	file *files.New
	size int64
	most int64 // 0: any size
}

// Create begins a file.
func (s *Store) Create() (*Upload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ready(); e != nil {
		return nil, e
	}
	if len(s.files) >= most {
		return nil, wire.New(http.StatusTooManyRequests, "too_many_files", "",
			"the server keeps %d files, want some of them deleted", len(s.files))
	}
	return s.create(s.o.MaxFile)
}

func (s *Store) create(most int64) (*Upload, error) {
	f, err := files.Create(s.filesFolder(), 0o600)
	if err != nil {
		return nil, s.failed(err)
	}
	return &Upload{s: s, file: f, most: most}, nil
}

// Write implements io.Writer. Its errors are for the client.
func (u *Upload) Write(b []byte) (int, error) {
	if u.most > 0 && u.size+int64(len(b)) > u.most {
		return 0, TooLarge(u.most)
	}
	n, err := u.file.Write(b)
	u.size += int64(n)
	if err != nil {
		return n, u.s.failed(err)
	}
	return n, nil
}

// TooLarge is the error of a file with more than most bytes.
func TooLarge(most int64) *wire.Error {
	return wire.New(http.StatusRequestEntityTooLarge, "request_too_large", "file",
		"file: got more than %d bytes, want at most as many (--max-file-mb)", most)
}

// Discard removes what has arrived. It does nothing after Commit.
func (u *Upload) Discard() { _ = u.file.Discard() } // a later start removes it too

// Commit keeps the file for a time, at most the store's; 0 is the store's.
func (u *Upload) Commit(owner, name, purpose string, keep time.Duration) (*File, error) {
	f, err := u.commit(api.NewID("file-"), owner, name, purpose, keep)
	if err != nil {
		return nil, u.s.failed(err)
	}
	return f, nil
}

// commit keeps the file under an id, in place of an earlier one.
func (u *Upload) commit(id, owner, name, purpose string, keep time.Duration) (*File, error) {
	s := u.s
	path := filepath.Join(s.filesFolder(), id)
	if err := u.file.Commit(path); err != nil {
		return nil, err
	}
	if keep <= 0 || keep > s.o.Keep {
		keep = s.o.Keep
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	f := &fileEntry{Owner: owner, Number: s.number(), File: File{
		ID: id, Object: "file", Bytes: u.size, CreatedAt: now.Unix(),
		ExpiresAt: now.Add(keep).Unix(), Filename: name, Purpose: purpose, Status: "processed",
	}}
	if err := writeJSON(path+".json", f); err != nil {
		_ = os.Remove(path) // else the next start does
		return nil, err
	}
	s.files[id] = f
	out := f.File
	return &out, nil
}

// Files lists files of an owner; purpose "" is any.
func (s *Store) Files(owner, purpose string, p Page) (list []File, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.reach(); e != nil {
		return nil, false, e
	}
	found, more, err := page(s.files, owner, &p, func(f *fileEntry) bool {
		return purpose == "" || f.Purpose == purpose
	})
	list = make([]File, len(found))
	for i, f := range found {
		list[i] = f.File
	}
	return list, more, err
}

// file returns a file of an owner, with s.mu held. param is the field that names it.
func (s *Store) file(owner, id, param string) (*fileEntry, *wire.Error) {
	if e := s.reach(); e != nil {
		return nil, e
	}
	f := s.files[id]
	if f == nil || f.Owner != owner {
		return nil, wire.New(http.StatusNotFound, "file_not_found", param, "there is no file %s",
			wire.Quote(id))
	}
	return f, nil
}

// File describes a file.
func (s *Store) File(owner, id string) (*File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, e := s.file(owner, id, "")
	if e != nil {
		return nil, e
	}
	out := f.File
	return &out, nil
}

// Content opens a file. The caller closes it.
func (s *Store) Content(owner, id string) (io.ReadSeekCloser, *File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, e := s.file(owner, id, "")
	if e != nil {
		return nil, nil, e
	}
	in, err := os.Open(filepath.Join(s.filesFolder(), id))
	if err != nil {
		return nil, nil, s.failed(err)
	}
	if info, err := in.Stat(); err != nil || info.Size() != f.Bytes || info.IsDir() {
		return nil, nil, s.failed(errors.Join(err, in.Close(),
			fmt.Errorf("jobs: %s: is not what was stored", in.Name())))
	}
	out := f.File
	return in, &out, nil
}

// DeleteFile deletes a file that no unfinished batch reads.
func (s *Store) DeleteFile(owner, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, e := s.file(owner, id, "")
	if e != nil {
		return e
	}
	if b := s.reader(id); b != "" {
		return wire.New(http.StatusConflict, "file_in_use", "", "batch %s reads the file, want it "+
			"completed or cancelled before", b)
	}
	if err := s.remove(f); err != nil {
		return s.failed(err)
	}
	return nil
}

// reader is the id of an unfinished batch that reads a file, with s.mu held; "" if there is none.
func (s *Store) reader(id string) string {
	for _, b := range s.batches {
		if b.InputFileID == id && !b.Status.final() {
			return b.ID
		}
	}
	return ""
}

// remove removes a file, with s.mu held. Without its description it does not come back.
func (s *Store) remove(f *fileEntry) error {
	path := filepath.Join(s.filesFolder(), f.ID)
	if err := files.Remove(path + ".json"); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	delete(s.files, f.ID)
	_ = os.Remove(path) // else the next start does
	return nil
}
