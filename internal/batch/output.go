package batch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
)

// tailBytes is how much of the output's end a journal recognises it by.
const tailBytes = 64 << 10

// relative is path as seen from a folder, so that both can be moved together.
func relative(folder, path string) string {
	from, err := filepath.Abs(folder)
	if err != nil {
		return path
	}
	to, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(from, to); err == nil {
		return rel
	}
	return to
}

// openOutput opens the output, if there is one, and refuses it unless the journal wrote it. It
// changes nothing.
func (j *Journal) openOutput() error {
	if err := j.checkPath(); err != nil {
		return err
	}
	info, err := os.Stat(j.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && j.mark.Bytes == 0:
		return nil // Begin makes it
	case errors.Is(err, fs.ErrNotExist):
		return mismatch("%s: is gone, and journal %s has written %d bytes to it: bring "+
			"it back, or remove the journal to answer all lines again", j.path, j.dir, j.mark.Bytes)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return mismatch("%s: is no regular file, want one as output", j.path)
	}
	if j.out, err = j.disk.open(j.path, os.O_RDWR); err != nil {
		return err
	}
	j.outSize = info.Size()
	return j.checkOutput()
}

// checkPath refuses another output than the journal's.
func (j *Journal) checkPath() error {
	if j.head.Output == relative(j.dir, j.path) {
		return nil
	}
	recorded := j.head.Output
	if !filepath.IsAbs(recorded) {
		recorded = filepath.Join(j.dir, recorded)
	}
	if a, err := os.Stat(recorded); err == nil {
		if b, err := os.Stat(j.path); err == nil && os.SameFile(a, b) {
			return nil
		}
	}
	return mismatch("journal %s: belongs to the output %s, got %s: name that one, or "+
		"another journal", j.dir, recorded, j.path)
}

// checkOutput refuses an output with another content than the journal's.
func (j *Journal) checkOutput() error {
	switch {
	case j.fresh && j.outSize > 0:
		return mismatch("%s: exists and journal %s did not write it: remove it, or name "+
			"another output", j.path, j.dir)
	case j.outSize < j.mark.Bytes:
		return mismatch("%s: got %d bytes, want at least the %d that journal %s wrote: "+
			"bring the file back, or remove it and the journal to start again", j.path, j.outSize,
			j.mark.Bytes, j.dir)
	}
	from := max(0, j.mark.Bytes-tailBytes)
	j.tail = make([]byte, j.mark.Bytes-from)
	if _, err := j.out.ReadAt(j.tail, from); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if sum := sha256.Sum256(j.tail); j.mark.Bytes > 0 && !bytes.Equal(sum[:], j.mark.Tail) {
		return mismatch("%s: its first %d bytes are not those that journal %s wrote: "+
			"bring the file back, or remove it and the journal to start again", j.path,
			j.mark.Bytes, j.dir)
	}
	return j.checkRest()
}

// checkRest refuses bytes at the end of the output that no killed run left there. Such a run leaves
// results that are in the log, the last of them cut, and a crash of the machine may leave zeros in
// their place.
func (j *Journal) checkRest() error {
	end, err := j.trimZeros()
	if err != nil {
		return err
	}
	longest, known := 0, map[[sha256.Size]byte]bool{}
	for _, r := range j.earlier {
		longest = max(longest, len(r.text)+1)
		known[sha256.Sum256(r.text)] = true
	}
	rest := bufio.NewReaderSize(io.NewSectionReader(j.out, j.mark.Bytes, end-j.mark.Bytes), longest)
	for {
		text, err := rest.ReadSlice('\n')
		switch {
		case err == nil && known[sha256.Sum256(text[:len(text)-1])]:
		case errors.Is(err, io.EOF) && (len(text) == 0 || j.begins(text)):
			return nil
		case err == nil || errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull):
			return mismatch("%s: got %d bytes, want the %d that journal %s wrote: what "+
				"follows is not the journal's, move it elsewhere", j.path, j.outSize, j.mark.Bytes,
				j.dir)
		default:
			return err
		}
	}
}

// begins reports whether a result of an earlier run begins with text.
func (j *Journal) begins(text []byte) bool {
	for _, r := range j.earlier {
		if bytes.HasPrefix(r.text, text) {
			return true
		}
	}
	return false
}

// trimZeros returns where the zeros at the end of the output begin.
func (j *Journal) trimZeros() (end int64, err error) {
	var block [1 << 16]byte
	for end = j.outSize; end > j.mark.Bytes; {
		from := max(j.mark.Bytes, end-int64(len(block)))
		b := block[:end-from]
		if _, err := j.out.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		left := len(bytes.TrimRight(b, "\x00"))
		end = from + int64(left)
		if left > 0 {
			break
		}
	}
	return end, nil
}

// prepareOutput makes the output, or cuts what a killed run left at its end.
func (j *Journal) prepareOutput() (err error) {
	if j.out == nil {
		if j.out, err = j.disk.open(j.path, os.O_RDWR|os.O_CREATE); err != nil {
			return err
		}
		if err := j.inPlace(0); err != nil {
			return err
		}
		j.madeOut = true
		return j.disk.syncDir(filepath.Dir(j.path))
	}
	if err := j.inPlace(j.outSize); err != nil || j.outSize == j.mark.Bytes {
		return err
	}
	return j.out.Truncate(j.mark.Bytes)
}

// inPlace reports whether the output is still the file that was opened, with that size. Another
// process may have removed it, or may write to it too.
func (j *Journal) inPlace(size int64) error {
	held, err := j.out.Stat()
	if err != nil {
		return err
	}
	at, err := os.Stat(j.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(at, held) {
		return fmt.Errorf("%s: was removed or replaced during the run", j.path)
	}
	if err == nil && held.Size() != size {
		err = fmt.Errorf("%s: got %d bytes, want %d: another process writes to it", j.path,
			held.Size(), size)
	}
	return err
}

// discard removes what a new journal that never began has made.
func (j *Journal) discard() {
	defer func() {
		for _, dir := range j.made {
			_ = os.Remove(dir) // stays if it holds anything
		}
	}()
	if !j.fresh {
		return
	}
	if info, err := os.Lstat(j.path); err == nil && j.madeOut && info.Mode().IsRegular() {
		_ = os.Remove(j.path) // no result is in it
	}
	if j.size > 0 {
		_ = os.Remove(j.logPath())
	}
	_ = os.Remove(filepath.Join(j.dir, lockName)) // likewise
}

// Emit appends waiting results to the output and writes a checkpoint. If ordered, it writes only
// the results of the lines that directly follow the output's end; otherwise it writes all. input
// returns the sums over the first lines of the input, and false if this run has not read as many.
func (j *Journal) Emit(ordered bool, input func(lines int) (sums, bool)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	err := j.inPlace(j.mark.Bytes)
	lines := j.ready(ordered)
	if m := j.mark; err == nil && (len(lines) > 0 || m.join(input)) {
		err = j.emit(lines, input)
	}
	if err != nil {
		return j.fail(err)
	}
	return nil
}

// ready lists the lines whose results may be written.
func (j *Journal) ready(ordered bool) (lines []int) {
	if !ordered {
		return slices.Sorted(maps.Keys(j.results))
	}
	for line := j.mark.Lines; ; line++ {
		if j.results[line] != nil {
			lines = append(lines, line)
		} else if !j.mark.holds(line) {
			return lines
		}
	}
}

// isAnswer reports whether a line of the output has an answer of the model.
func isAnswer(text []byte) bool {
	var r Result
	err := json.Unmarshal(text, &r)
	return err == nil && r.Response != nil && r.Response.Status == http.StatusOK
}

// emit writes results. They are in the log on disk before they are in the output, so that a later
// run knows them if this one is killed in between.
func (j *Journal) emit(lines []int, input func(lines int) (sums, bool)) error {
	if err := j.sync(); err != nil {
		return err
	}
	m, tail := j.mark, slices.Clone(j.tail)
	m.Extra = slices.Clone(m.Extra)
	w := bufio.NewWriterSize(io.NewOffsetWriter(j.out, m.Bytes), 1<<16)
	for _, line := range lines {
		r := j.results[line]
		_, _ = w.Write(r.text) // Flush returns the error
		_ = w.WriteByte('\n')
		m.Bytes += int64(len(r.text)) + 1
		tail = append(append(tail, r.text...), '\n')
		tail = tail[max(0, len(tail)-tailBytes):]
		if isAnswer(r.text) {
			m.Answers++
		}
		m.Extra = append(m.Extra, lineKey{line, r.key})
	}
	err := w.Flush()
	if err == nil {
		err = j.out.Sync()
	}
	if err != nil {
		return errors.Join(err, j.out.Truncate(j.mark.Bytes))
	}
	slices.SortFunc(m.Extra, func(a, b lineKey) int { return a.Line - b.Line })
	m.join(input)
	end := sha256.Sum256(tail)
	m.Tail = end[:]
	payload, err := tagged('C', m)
	if err == nil {
		err = j.append(payload)
	}
	if err != nil {
		return err
	}
	j.mark, j.tail = m, tail
	for _, line := range lines {
		j.bytes -= int64(len(j.results[line].text))
		delete(j.results, line)
	}
	if j.size > j.most && j.size > 4*j.bytes {
		return j.rewrite()
	}
	return nil
}
