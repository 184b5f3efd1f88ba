package batch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Journal is a folder that records the progress of a run. Its file "log" is append-only: records of
// a length, a CRC-32C and a payload. Each record is written with one call before anything depends
// on it, so it survives the process. The log is synced several times per second, so a crash of the
// machine loses at most the last moments.
//
//	'H' header, once: JSON of what the run is
//	'R' result: line (8 bytes), then its line of the output
//	'C' checkpoint: what is in the output, after the output was synced
//
// Records after the first incomplete or damaged one are dropped, and their lines are asked again.
// Results that a checkpoint covers are dropped when the log has grown.
type Journal struct {
	dir  string
	lock *os.File
	out  *os.File

	mu      sync.Mutex
	log     *os.File
	size    int64 // of log
	unsaved bool  // log has unsynced records
	head    header
	mark    mark           // content of the output
	results map[int][]byte // answered but not in the output, by line
	bytes   int64          // of results
}

// header identifies the run of a journal.
type header struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`       // unique id of this journal
	Settings string `json:"settings"` // everything that changes answers: model, method, defaults
}

// mark describes the content of the output.
type mark struct {
	Lines int    `json:"lines"`           // it has the results of all lines before this one
	Extra []int  `json:"extra,omitempty"` // and the results of these lines, ascending
	Bytes int64  `json:"bytes"`           // of the output
	Input []byte `json:"input,omitempty"` // SHA-256 of the lines before Lines, as its state
}

const (
	journalVersion = 1
	frameBytes     = 8       // length and checksum of a record
	maxRecord      = 1 << 30 // bytes of a payload
	rewriteFrom    = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrInUse is returned when another process uses the journal.
var ErrInUse = errors.New("another process uses it")

// OpenJournal opens or makes the journal in dir, for results that go to the file out. settings
// describes everything that changes answers; OpenJournal calls it with the journal's id once this
// process holds the lock. A journal with other settings is refused. out is truncated to the length
// that the journal recorded.
func OpenJournal(
	dir, out string, settings func(id string) (string, error),
) (_ *Journal, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	j := &Journal{dir: dir, results: map[int][]byte{}}
	defer func() {
		if err != nil {
			j.release()
		}
	}()
	if j.lock, err = lockFile(filepath.Join(dir, "lock")); err != nil {
		return nil, fmt.Errorf("batch: journal %s: %w", dir, err)
	}
	if err := j.load(); err != nil {
		return nil, err
	}
	if j.size == 0 {
		j.head = header{Version: journalVersion, ID: newID("")}
	}
	now, err := settings(j.head.ID)
	if err != nil {
		return nil, err
	}
	if j.size > 0 && j.head.Settings != now {
		return nil, fmt.Errorf(
			"batch: journal %s: was begun with other settings, got %s, want %s: "+
				"use those, or remove the journal to start again", dir, now, j.head.Settings)
	}
	j.head.Settings = now
	if j.out, err = os.OpenFile(out, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	info, err := j.out.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.Size() < j.mark.Bytes:
		return nil, fmt.Errorf("batch: %s: got %d bytes, want at least the %d that the "+
			"journal %s wrote: bring the file back, or remove the journal to start again",
			out, info.Size(), j.mark.Bytes, dir)
	case j.size == 0 && info.Size() > 0:
		return nil, fmt.Errorf("batch: %s: exists and journal %s did not write it: remove "+
			"it, or name another output", out, dir)
	}
	if err := j.out.Truncate(j.mark.Bytes); err != nil {
		return nil, err
	}
	if _, err := j.out.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	if j.size == 0 {
		return j, j.rewrite()
	}
	return j, nil
}

// load reads the log and truncates it before the first damaged record.
func (j *Journal) load() (err error) {
	if j.log, err = os.OpenFile(j.path(), os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return err
	}
	r := bufio.NewReaderSize(j.log, 1<<16)
	for {
		payload, err := readRecord(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, errDamaged) {
				return err
			}
			break
		}
		if err := j.apply(payload); err != nil {
			return err
		}
		j.size += frameBytes + int64(len(payload))
	}
	if err := j.log.Truncate(j.size); err != nil {
		return err
	}
	_, err = j.log.Seek(j.size, io.SeekStart)
	return err
}

var errDamaged = errors.New("damaged record")

// readRecord returns the next payload, io.EOF at the end, or errDamaged if a record is incomplete
// or does not match its checksum.
func readRecord(r io.Reader) ([]byte, error) {
	var frame [frameBytes]byte
	if _, err := io.ReadFull(r, frame[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errDamaged
		}
		return nil, err
	}
	n := binary.LittleEndian.Uint32(frame[:])
	if n == 0 || n > maxRecord {
		return nil, errDamaged
	}
	var payload bytes.Buffer // grows with the data, not with the claimed length
	if m, err := io.CopyN(&payload, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) || m < int64(n) {
			return nil, errDamaged
		}
		return nil, err
	}
	if crc32.Checksum(payload.Bytes(), castagnoli) != binary.LittleEndian.Uint32(frame[4:]) {
		return nil, errDamaged
	}
	return payload.Bytes(), nil
}

// apply applies one payload of the log.
func (j *Journal) apply(payload []byte) error {
	data := payload[1:]
	bad := func() error {
		return fmt.Errorf("batch: journal %s: record at byte %d is not of this program", j.dir,
			j.size)
	}
	switch payload[0] {
	case 'H':
		var h header
		if json.Unmarshal(data, &h) != nil {
			return bad()
		}
		if h.Version != journalVersion {
			return fmt.Errorf(
				"batch: journal %s: got version %d, want %d: remove it to start again", j.dir,
				h.Version, journalVersion)
		}
		j.head = h
	case 'R':
		if len(data) < 8 {
			return bad()
		}
		j.keep(int(binary.LittleEndian.Uint64(data)), data[8:])
	case 'C':
		var m mark
		if json.Unmarshal(data, &m) != nil || m.Lines < 0 || m.Bytes < 0 {
			return bad()
		}
		j.mark = m
		j.forget()
	default:
		return bad()
	}
	return nil
}

func (j *Journal) path() string { return filepath.Join(j.dir, "log") }

func (j *Journal) keep(line int, result []byte) {
	j.results[line] = result
	j.bytes += int64(len(result))
}

// forget drops the results that are in the output.
func (j *Journal) forget() {
	for line, r := range j.results {
		if j.mark.holds(line) {
			j.bytes -= int64(len(r))
			delete(j.results, line)
		}
	}
}

func (m *mark) holds(line int) bool {
	_, extra := slices.BinarySearch(m.Extra, line)
	return line < m.Lines || extra
}

// Done reports whether line has a result, in the output or waiting to be written.
func (j *Journal) Done(line int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, ok := j.results[line]
	return ok || j.mark.holds(line)
}

// written returns the first line that is not in the output.
func (j *Journal) written() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mark.Lines
}

// Add stores the result of line: a line of the output without its line break.
func (j *Journal) Add(line int, result []byte) error {
	payload := make([]byte, 9, 9+len(result))
	payload[0] = 'R'
	binary.LittleEndian.PutUint64(payload[1:], uint64(line))
	payload = append(payload, result...)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.append(payload); err != nil {
		return err
	}
	j.keep(line, payload[9:])
	return nil
}

// append writes one record with one call.
func (j *Journal) append(payload []byte) error {
	if len(payload) > maxRecord {
		return fmt.Errorf("batch: journal: got a result of %d bytes, want at most %d", len(payload),
			maxRecord)
	}
	frame := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	frame = binary.LittleEndian.AppendUint32(frame, crc32.Checksum(payload, castagnoli))
	n, err := j.log.Write(append(frame, payload...))
	if err != nil {
		if n > 0 { // so that the next record does not follow half a record
			err = errors.Join(err, j.log.Truncate(j.size))
			j.log.Seek(j.size, io.SeekStart)
		}
		return err
	}
	j.size += int64(n)
	j.unsaved = true
	return nil
}

// Sync syncs the added records to disk.
func (j *Journal) Sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.unsaved {
		return nil
	}
	j.unsaved = false
	return j.log.Sync()
}

// Emit appends waiting results to the output and writes a checkpoint. If ordered, it writes only
// the results of the lines that directly follow the output's end; otherwise it writes all. It calls
// input with the number of the first line that has no result; input returns the state of the hash
// over all lines before that one.
func (j *Journal) Emit(ordered bool, input func(lines int) []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := mark{Lines: j.mark.Lines, Extra: slices.Clone(j.mark.Extra), Bytes: j.mark.Bytes}
	w := bufio.NewWriterSize(j.out, 1<<16)
	write := func(line int) {
		n, _ := w.Write(j.results[line]) // Flush returns the error
		w.WriteByte('\n')
		m.Bytes += int64(n) + 1
	}
	if ordered {
		for ; j.results[m.Lines] != nil; m.Lines++ {
			write(m.Lines)
		}
	} else {
		var ready []int
		for line := range j.results {
			ready = append(ready, line)
		}
		slices.Sort(ready)
		for _, line := range ready {
			write(line)
		}
		m.Extra = append(m.Extra, ready...)
		slices.Sort(m.Extra)
		for len(m.Extra) > 0 && m.Extra[0] == m.Lines {
			m.Lines, m.Extra = m.Lines+1, m.Extra[1:]
		}
	}
	if m.Bytes == j.mark.Bytes {
		return nil
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := j.out.Sync(); err != nil && !errors.Is(err, os.ErrInvalid) {
		return err
	}
	m.Input = input(m.Lines)
	payload, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := j.append(append([]byte{'C'}, payload...)); err != nil {
		return err
	}
	j.mark = m
	j.forget()
	if j.size > rewriteFrom && j.size > 4*j.bytes {
		return j.rewrite()
	}
	return nil
}

// rewrite replaces the log by one with only the records that are still needed.
func (j *Journal) rewrite() error {
	old, size, path := j.log, j.size, j.path()+".new"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	j.log, j.size = f, 0
	put := func(kind byte, v any) {
		if err != nil {
			return
		}
		var payload []byte
		if payload, err = json.Marshal(v); err == nil {
			err = j.append(append([]byte{kind}, payload...))
		}
	}
	put('H', j.head)
	if j.mark.Bytes > 0 {
		put('C', j.mark)
	}
	for line, r := range j.results {
		if err == nil {
			err = j.append(
				append(binary.LittleEndian.AppendUint64([]byte{'R'}, uint64(line)), r...))
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(path, j.path())
	}
	if err != nil {
		j.log, j.size = old, size
		return errors.Join(err, f.Close(), os.Remove(path))
	}
	j.unsaved = false
	return old.Close()
}

// Close closes the journal. Waiting results stay in it.
func (j *Journal) Close() error {
	err := j.Sync()
	j.release()
	return err
}

func (j *Journal) release() {
	for _, f := range []*os.File{j.log, j.out, j.lock} {
		if f != nil {
			f.Close()
		}
	}
}
