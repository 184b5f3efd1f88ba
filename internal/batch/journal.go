package batch

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/restore-vlm/restore/internal/files"
)

// Journal is a folder that records the progress of a run. Its file "log" is append-only: records of
// a length, a CRC-32C and a payload. Each record is written with one call before anything depends
// on it, so it survives the process. The log is synced several times per second, so a crash of the
// machine loses at most the last moments.
//
//	'H' header, once: JSON of what the run is
//	'R' result: line (8 bytes), key of the line (16 bytes), then its line of the output
//	'C' checkpoint: what is in the output, after the output was synced
//
// Records after the first incomplete or damaged one are dropped, and their lines are asked again.
// Results that a checkpoint covers are dropped when the log has grown. Lines count from 0, without
// blank ones.
//
// After an error in writing, the journal cuts what the write may have left and writes no more: the
// next run starts from what is known to be there.
type Journal struct {
	dir   string
	path  string // of the output
	disk  disk
	lock  *files.Locked
	made  []string // folders that were missing, the innermost first
	fresh bool     // there was no journal
	begun bool

	mu      sync.Mutex
	log     file
	size    int64 // of log
	unsaved bool  // log has unsynced records
	out     file  // nil until there is an output
	outSize int64 // of the output before this run
	madeOut bool
	tail    []byte
	head    header
	mark    mark            // content of the output
	before  mark            // the same at the start of this run
	earlier map[int]*result // of earlier runs, not yet compared with the input
	results map[int]*result // answered but not in the output, by line
	bytes   int64           // of earlier and results
	most    int64           // size of the log from which it is rewritten
	failed  error           // the first error in writing
}

// header identifies the run of a journal.
type header struct {
	Version  int                        `json:"version"`
	ID       string                     `json:"id"`     // unique id of this journal
	Output   string                     `json:"output"` // path from the journal's folder
	Settings map[string]json.RawMessage `json:"settings"`
}

// mark describes the content of the output.
type mark struct {
	Lines   int       `json:"lines"`           // it has the results of all lines before this one
	Extra   []lineKey `json:"extra,omitempty"` // and the results of these lines, ascending
	Answers int       `json:"answers"`         // how many of the results are answers
	Bytes   int64     `json:"bytes"`           // of the output
	Tail    []byte    `json:"tail,omitempty"`  // SHA-256 of the output's last tailBytes
	Text    []byte    `json:"text,omitempty"`  // of the input's lines before Lines, chained
	Files   []byte    `json:"files,omitempty"` // of the files that these lines name, chained
}

// lineKey is a line with its key.
type lineKey struct {
	Line int `json:"line"`
	Key  Key `json:"key"`
}

// Key identifies the content of a line: its text, and the bytes of the files that it names.
type Key [16]byte

// MarshalText implements encoding.TextMarshaler.
func (k Key) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(text []byte) error {
	data, err := hex.AppendDecode(nil, text)
	if err == nil && len(data) != len(k) {
		err = fmt.Errorf("batch: key: got %d bytes, want %d", len(data), len(k))
	}
	copy(k[:], data)
	return err
}

// result is one result that waits for its place in the output.
type result struct {
	key  Key
	text []byte // a line of the output without its line break
}

// valid reports whether a mark of a file can be one.
func (m *mark) valid() bool {
	if m.Lines < 0 || m.Bytes < 0 {
		return false
	}
	last := m.Lines - 1
	for _, e := range m.Extra {
		if e.Line <= last {
			return false
		}
		last = e.Line
	}
	return true
}

// holds reports whether the output has the result of a line.
func (m *mark) holds(line int) bool {
	_, extra := m.extra(line)
	return line < m.Lines || extra
}

// extra finds a line among those that were written before their turn.
func (m *mark) extra(line int) (Key, bool) {
	i, ok := slices.BinarySearchFunc(m.Extra, line, func(e lineKey, line int) int {
		return e.Line - line
	})
	if !ok {
		return Key{}, false
	}
	return m.Extra[i].Key, true
}

// join counts extra lines that follow the others to them, and reports whether there are any. A line
// of an earlier run has to be read first: input knows no sums over it before.
func (m *mark) join(input func(lines int) (sums, bool)) (joined bool) {
	for len(m.Extra) > 0 && m.Extra[0].Line == m.Lines {
		in, read := input(m.Lines + 1)
		if !read {
			break
		}
		m.Lines, m.Extra, m.Text, m.Files = m.Lines+1, m.Extra[1:], in.text[:], in.files[:]
		joined = true
	}
	return joined
}

// The files of a journal.
const (
	logName    = "log"
	newLogName = "log.new" // until it is complete
	lockName   = "lock"
)

// rewriteFrom is the size of a log from which it is rewritten.
const rewriteFrom = 64 << 20

// ErrInUse is returned when another process uses the journal.
var ErrInUse = files.ErrInUse

// WriteError is returned when the journal or its output could not be written. This run writes
// nothing more; the next one continues.
type WriteError struct{ Err error }

// Error implements error.
func (e *WriteError) Error() string {
	return fmt.Sprintf("batch: %v; nothing more was written, and the same command continues", e.Err)
}

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Err }

// MismatchError is returned when a journal and its output, the input or the settings do not belong
// together, or when the log or the output was damaged. It does not go away by itself.
type MismatchError struct{ why string }

// Error implements error.
func (e *MismatchError) Error() string { return "batch: " + e.why }

func mismatch(format string, args ...any) error {
	return &MismatchError{fmt.Sprintf(format, args...)}
}

// OpenJournal opens the journal in dir, for results that go to the file out, or prepares a new one.
// It refuses an output that the journal did not write. It writes nothing before Begin; without
// Begin, Close leaves nothing of a new journal.
func OpenJournal(dir, out string) (*Journal, error) { return openJournal(osDisk{}, dir, out) }

func openJournal(d disk, dir, out string) (_ *Journal, err error) {
	j := &Journal{dir: dir, path: out, disk: d, most: rewriteFrom,
		earlier: map[int]*result{}, results: map[int]*result{}}
	if rel := relative(dir, out); rel == logName || rel == newLogName || rel == lockName {
		return nil, mismatch("%s: is a file of journal %s, want another output", out, dir)
	}
	if at := filepath.Dir(out); !files.IsFolder(at) {
		return nil, fmt.Errorf("batch: %s: there is no folder %s", out, at)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.Close())
		}
	}()
	j.made = files.MissingFolders(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil { // its files hold questions and answers
		return nil, err
	}
	if j.lock, err = files.OpenLocked(filepath.Join(dir, lockName), 0o600); err != nil {
		return nil, fmt.Errorf("batch: journal %s: %w", dir, err)
	}
	if err := j.load(); err != nil {
		return nil, err
	}
	if j.fresh {
		j.head = header{Version: journalVersion, ID: newID(""), Output: relative(dir, out)}
	}
	j.before = j.mark
	return j, j.openOutput()
}

// ID is the unique id of the journal.
func (j *Journal) ID() string { return j.head.ID }

// Answers is the number of results in the output that are answers, of all runs.
func (j *Journal) Answers() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mark.Answers
}

// Results is the number of results in the output, of all runs.
func (j *Journal) Results() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mark.Lines + len(j.mark.Extra)
}

// written returns the first line that is not in the output.
func (j *Journal) written() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mark.Lines
}

// Begin starts a run with these settings. It refuses settings that differ from those of earlier
// runs, and cuts what a killed run left at the end of the output.
func (j *Journal) Begin(s Settings) error {
	now, err := s.encoded()
	if err != nil {
		return err
	}
	if !j.fresh {
		if d := difference(j.head.Settings, now); d != "" {
			return mismatch("journal %s: was begun with other settings: %s: use the "+
				"earlier ones, or remove it and its output to start again", j.dir, d)
		}
	}
	j.head.Settings = now
	if err := j.prepareOutput(); err != nil {
		return err
	}
	if err := j.rewrite(); err != nil {
		return err
	}
	for _, dir := range j.made {
		if err := j.disk.syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	j.begun = true
	return nil
}

// has reports whether line has a result, in the output or waiting for its place there. The run
// calls it once for each line, in order. A result of an earlier run that belongs to another line,
// or to other files, does not count; changed reports that there was one.
func (j *Journal) has(line int, key Key) (known, changed bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if line < j.before.Lines {
		return true, false, nil // the sums over all these lines are compared
	}
	if k, ok := j.before.extra(line); ok {
		if k != key {
			err = mismatch("input: result %d was written for another line, or its "+
				"pictures have changed: journal %s belongs to another input", line+1, j.dir)
		}
		return true, false, err
	}
	r, ok := j.earlier[line]
	if !ok {
		return false, false, nil
	}
	delete(j.earlier, line)
	if r.key != key {
		j.bytes -= int64(len(r.text))
		return false, true, nil
	}
	j.results[line] = r
	return true, false, nil
}

// Add stores the result of line: a line of the output without its line break.
func (j *Journal) Add(line int, key Key, text []byte) error {
	r := &result{key, text}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if err := j.append(resultPayload(line, r)); err != nil {
		return j.fail(err)
	}
	j.results[line] = r
	j.bytes += int64(len(text))
	return nil
}

// Sync syncs the added results to disk.
func (j *Journal) Sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if err := j.sync(); err != nil {
		return j.fail(err)
	}
	return nil
}

// fail ends all writing of this run.
func (j *Journal) fail(err error) error {
	j.failed = &WriteError{err}
	return j.failed
}

// Close closes the journal. Waiting results stay in it.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if j.begun && j.failed == nil {
		err = j.sync()
	}
	for _, f := range []file{j.log, j.out} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	if !j.begun {
		j.discard()
	}
	j.log, j.out, j.lock, j.made, j.fresh = nil, nil, nil, nil, false
	return err
}
