package eval

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

// Files of a folder of records.
const (
	settingsFile = "settings.json"
	recordsFile  = "records.jsonl"
	resultFile   = "result.json"
)

// Record is one question with its answer: a line of a folder's records.jsonl.
type Record struct {
	ID       int      `json:"id"`
	Key      any      `json:"key"`
	Prompt   string   `json:"prompt"`
	Images   []string `json:"images"`
	Category string   `json:"category,omitempty"`
	Answer
	Parsed   *string  `json:"parsed"` // as in [LineScore]
	Score    *float64 `json:"score"`
	Settings string   `json:"settings"` // names the settings of the run
}

// Records are the records of a run in a folder.
type Records struct {
	Dir      string
	Hash     string         // of Settings
	Settings map[string]any // of the run
	List     []*Record      // in the order in which they were written
	Result   *Result        // nil while questions have no answer
}

// settingsDoc is settings.json.
type settingsDoc struct {
	Hash     string         `json:"hash"`
	Settings map[string]any `json:"settings"`
	Picture  string         `json:"picture,omitempty"` // pictureHash of the benchmark's first question
}

// pictureHash identifies the question's first picture by its content, so that a run notices other
// pictures of the same names. It is "" for a picture without a place, as a drawn one, and for one
// that cannot be read, for a complete run needs no pictures, or is damaged, for it may be mended.
func (q *Question) pictureHash() string {
	if len(q.Images) == 0 || q.Images[0].At == "" {
		return ""
	}
	p, err := q.Images[0].Picture()
	if err != nil {
		return ""
	}
	if _, err := p.Decode(); err != nil {
		return ""
	}
	data, err := p.File()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// maxSettings is the most bytes of settings.json and result.json.
const maxSettings = 256 << 20

// ReadRecords reads a folder that [Run] wrote or is writing. The scores are the result's: a record
// was written before the benchmark's Metrics had seen all answers, and perhaps by another version.
func ReadRecords(dir string) (*Records, error) {
	r := &Records{Dir: dir}
	var doc settingsDoc
	if err := readJSON(filepath.Join(dir, settingsFile), &doc); err != nil {
		return nil, err
	}
	r.Hash, r.Settings = doc.Hash, doc.Settings
	f, err := os.Open(filepath.Join(dir, recordsFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := r.read(f); err != nil {
		return nil, err
	}
	err = readJSON(filepath.Join(dir, resultFile), &r.Result)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || r.Result == nil {
		return r, err
	}
	of := map[int]LineScore{}
	for _, s := range r.Result.Scores {
		of[s.ID] = s
	}
	for _, x := range r.List {
		if s, ok := of[x.ID]; ok {
			x.Parsed, x.Score = s.Parsed, s.Score
		}
	}
	return r, nil
}

func readJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSettings))
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// maxRecord is the most bytes of a line.
const maxRecord = 64 << 20

// read reads all complete lines and returns where they end. It ignores an incomplete last line,
// which is left when the process is killed.
func (r *Records) read(in io.Reader) (end int64, err error) {
	b := bufio.NewReaderSize(in, 1<<16)
	seen := map[int]bool{}
	for line := 1; ; line++ {
		data, err := readLine(b)
		if err == io.EOF {
			return end, nil
		}
		var x Record
		if err == nil {
			err = decodeRecord(data, &x)
		}
		if err == nil && x.Settings != r.Hash {
			err = fmt.Errorf("of settings %s, want %s as in %s", x.Settings, r.Hash, settingsFile)
		}
		if err != nil {
			return end, fmt.Errorf("%s: line %d: %w", filepath.Join(r.Dir, recordsFile), line, err)
		}
		end += int64(len(data))
		if !seen[x.ID] { // shards that were joined may overlap
			seen[x.ID] = true
			r.List = append(r.List, &x)
		}
	}
}

// readLine reads a line of at most maxRecord bytes with its end.
func readLine(b *bufio.Reader) (line []byte, err error) {
	for {
		part, err := b.ReadSlice('\n')
		if len(line)+len(part) > maxRecord {
			return nil, fmt.Errorf("more than %d bytes", maxRecord)
		}
		if line = append(line, part...); err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

// decodeRecord decodes keys that are whole numbers as such.
func decodeRecord(data []byte, x *Record) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(x); err != nil {
		return err
	}
	if n, ok := x.Key.(json.Number); ok {
		whole, err := n.Int64()
		if err != nil {
			return fmt.Errorf("key: %w", err)
		}
		x.Key = whole
	}
	return nil
}

// journal appends records to a folder. After an error in writing it writes no more, so that no
// record follows a part of another.
type journal struct {
	*Records
	file *os.File
	lock *files.Locked

	mu     sync.Mutex
	size   int64 // of the complete lines
	synced time.Time
	failed error // the first error in writing
}

// syncEvery is how often records are forced to disk, in case the machine fails. If only the process
// is killed, no written record is lost.
const syncEvery = 5 * time.Second

// openJournal opens a folder for a run with these settings and pictures, and reads the records it
// has.
func openJournal(dir string, settings map[string]any, picture string) (_ *journal, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	j := &journal{Records: &Records{Dir: dir, Settings: settings}}
	if j.Hash, err = hashOf(settings); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			j.close()
		}
	}()
	j.lock, err = files.OpenLocked(filepath.Join(dir, "lock"), 0o666)
	if errors.Is(err, files.ErrInUse) {
		return nil, fmt.Errorf("%s: another run is writing there", dir)
	}
	if err != nil {
		return nil, err
	}
	if err := j.settle(picture); err != nil {
		return nil, err
	}
	j.file, err = os.OpenFile(filepath.Join(dir, recordsFile), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if j.size, err = j.read(j.file); err != nil {
		return nil, err
	}
	return j, j.file.Truncate(j.size)
}

// settle writes settings.json, or compares it with the settings and the pictures of this run.
func (j *journal) settle(picture string) error {
	path := filepath.Join(j.Dir, settingsFile)
	var doc settingsDoc
	err := readJSON(path, &doc)
	if errors.Is(err, fs.ErrNotExist) {
		records := filepath.Join(j.Dir, recordsFile)
		if info, err := os.Stat(records); err == nil && info.Size() > 0 {
			return fmt.Errorf("%s: exists without %s, so no run wrote it: name another folder",
				records, settingsFile)
		}
		return files.WriteJSON(path, settingsDoc{j.Hash, j.Settings, picture}, " ")
	}
	if err == nil && doc.Hash == j.Hash && doc.Picture != picture && doc.Picture != "" &&
		picture != "" {
		return fmt.Errorf("%s: holds answers about other pictures, want another folder", j.Dir)
	}
	if err != nil || doc.Hash == j.Hash {
		return err
	}
	return fmt.Errorf("%s: holds records of another run: %s", j.Dir,
		difference(doc.Settings, j.Settings))
}

// difference describes the first setting that differs.
func difference(old, now map[string]any) string {
	var fresh map[string]any // as read from a file
	if data, err := json.Marshal(now); err == nil {
		_ = json.Unmarshal(data, &fresh) // it was encoded in the line above
	}
	names := map[string]bool{}
	for name := range old {
		names[name] = true
	}
	for name := range fresh {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(old[name], fresh[name]) {
			return fmt.Sprintf("%s was %s, now %s", name, compact(old[name]), compact(fresh[name]))
		}
	}
	return "they were written by another version"
}

func compact(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(data)
}

// add appends a record in one write, so that a kill leaves at most one incomplete line.
func (j *journal) add(x *Record) error {
	line, err := files.JSON(x, "")
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if _, err := j.file.WriteAt(line, j.size); err != nil {
		return j.fail(err)
	}
	j.size += int64(len(line))
	j.List = append(j.List, x)
	if time.Since(j.synced) < syncEvery {
		return nil
	}
	return j.sync()
}

// fail cuts what an unfinished write may have left, and ends all writing of this run.
func (j *journal) fail(err error) error {
	err = errors.Join(err, j.file.Truncate(j.size))
	j.failed = fmt.Errorf("%w; nothing more was written, and the same run continues", err)
	return j.failed
}

// sync forces the records to disk. It must be called with j.mu held.
func (j *journal) sync() error {
	j.synced = time.Now()
	if err := j.file.Sync(); err != nil {
		return j.fail(err)
	}
	return nil
}

// finish forces the records to disk and stores the result.
func (j *journal) finish(r *Result) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.sync(); err != nil {
		return err
	}
	return files.WriteJSON(filepath.Join(j.Dir, resultFile), r, " ")
}

func (j *journal) close() error {
	var err error
	if j.file != nil {
		if j.failed == nil {
			err = j.file.Sync()
		}
		err = errors.Join(err, j.file.Close())
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
	}
	return err
}
