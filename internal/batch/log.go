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
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

const (
	journalVersion = 2
	frameBytes     = 8       // length and checksum of a record
	maxRecord      = 1 << 30 // bytes of a payload
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record frames a payload.
func record(payload []byte) ([]byte, error) {
	if len(payload) > maxRecord {
		return nil, fmt.Errorf("batch: journal: got a result of %d bytes, want at most %d",
			len(payload), maxRecord)
	}
	out := make([]byte, 0, frameBytes+len(payload))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(payload)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(payload, castagnoli))
	return append(out, payload...), nil
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

// resultPayload is the payload of a result.
func resultPayload(line int, r *result) []byte {
	out := make([]byte, 0, 1+8+len(r.key)+len(r.text))
	out = binary.LittleEndian.AppendUint64(append(out, 'R'), uint64(line))
	return append(append(out, r.key[:]...), r.text...)
}

// readResult reads the payload of a result.
func readResult(payload []byte) (line int, r *result, ok bool) {
	r = new(result)
	at := 1 + 8 + len(r.key)
	if len(payload) < at {
		return 0, nil, false
	}
	n := binary.LittleEndian.Uint64(payload[1:])
	copy(r.key[:], payload[1+8:])
	r.text = payload[at:]
	return int(n), r, n <= math.MaxInt
}

func (j *Journal) logPath() string { return filepath.Join(j.dir, logName) }

// load reads the log up to the first damaged record. It changes nothing.
func (j *Journal) load() error {
	f, err := j.disk.open(j.logPath(), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		j.fresh = true
		return nil
	}
	if err != nil {
		return err
	}
	j.log = f
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return mismatch("journal %s: its log is no regular file", j.dir)
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, 0, info.Size()), 1<<16)
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
	for _, r := range j.earlier {
		j.bytes += int64(len(r.text))
	}
	j.fresh = info.Size() == 0
	if j.size == 0 && !j.fresh { // a log has its header before it has its name
		return mismatch("journal %s: %s is no log of a journal: name another folder",
			j.dir, j.logPath())
	}
	return nil
}

// apply applies one payload of the log.
func (j *Journal) apply(payload []byte) error {
	kind, data := payload[0], payload[1:]
	if (kind == 'H') != (j.size == 0) {
		return j.foreign()
	}
	switch kind {
	case 'H':
		var h header
		if json.Unmarshal(data, &h) != nil {
			return j.foreign()
		}
		if h.Version != journalVersion {
			return mismatch("journal %s: got version %d, want %d: remove it and its "+
				"output to start again", j.dir, h.Version, journalVersion)
		}
		j.head = h
	case 'R':
		line, r, ok := readResult(payload)
		if !ok {
			return j.foreign()
		}
		j.earlier[line] = r
	case 'C':
		var m mark
		if json.Unmarshal(data, &m) != nil || !m.valid() {
			return j.foreign()
		}
		j.mark = m
		for line := range j.earlier {
			if m.holds(line) {
				delete(j.earlier, line)
			}
		}
	default:
		return j.foreign()
	}
	return nil
}

func (j *Journal) foreign() error {
	return mismatch("journal %s: the record at byte %d of its log is not of this program",
		j.dir, j.size)
}

// append appends one record. After an error it cuts what may be there of it.
func (j *Journal) append(payload []byte) error {
	data, err := record(payload)
	if err != nil {
		return err
	}
	if err := writeAt(j.log, data, j.size); err != nil {
		return errors.Join(err, j.log.Truncate(j.size))
	}
	j.size += int64(len(data))
	j.unsaved = true
	return nil
}

// sync syncs the added records to disk.
func (j *Journal) sync() error {
	if !j.unsaved {
		return nil
	}
	if err := j.log.Sync(); err != nil {
		return err
	}
	j.unsaved = false
	return nil
}

// rewrite replaces the log by one with only the records that are still needed. All of them are then
// on disk, whatever an earlier failure left of the old log there.
func (j *Journal) rewrite() (err error) {
	path := filepath.Join(j.dir, newLogName)
	defer func() {
		if err != nil {
			_ = os.Remove(path) // the next one replaces it
		}
	}()
	f, err := j.disk.open(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	size, err := j.writeLog(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if old := j.log; old != nil {
		j.log = nil
		if err := old.Close(); err != nil { // Windows renames no open file
			return err
		}
	}
	if err := j.disk.rename(path, j.logPath()); err != nil {
		return err
	}
	j.size, j.unsaved = size, false
	if err := j.disk.syncDir(j.dir); err != nil {
		return err
	}
	j.log, err = j.disk.open(j.logPath(), os.O_RDWR)
	return err
}

// writeLog writes the records that are still needed and returns their size.
func (j *Journal) writeLog(f file) (size int64, err error) {
	w := bufio.NewWriterSize(io.NewOffsetWriter(f, 0), 1<<16)
	put := func(payload []byte) {
		var data []byte
		if err == nil {
			data, err = record(payload)
		}
		if err == nil {
			_, err = w.Write(data)
		}
		size += int64(len(data))
	}
	head, err := tagged('H', j.head)
	put(head)
	if j.mark.Bytes > 0 && err == nil {
		var at []byte
		at, err = tagged('C', j.mark)
		put(at)
	}
	for _, results := range []map[int]*result{j.earlier, j.results} {
		for line, r := range results {
			put(resultPayload(line, r))
		}
	}
	if err == nil {
		err = w.Flush()
	}
	return size, err
}

// tagged is a payload of JSON.
func tagged(kind byte, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	return append([]byte{kind}, data...), err
}
