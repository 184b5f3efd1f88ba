package lineedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/files"
)

// History are the lines that a person entered, in this session and in earlier ones.
type History struct {
	file  string // "": only this session's
	lines []string
}

// Limits of a history.
const (
	mostLines = 1000
	mostBytes = 4 << 20 // of the file
)

// NewHistory returns the history of this session alone.
func NewHistory() *History { return new(History) }

// OpenHistory reads the history in a file, which need not exist. The file has a line in JSON for
// each entry.
func OpenHistory(file string) (*History, error) {
	h := &History{file: file}
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // opening a pipe would wait
		return nil, fmt.Errorf("%s: is no file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := info.Size()
	data := make([]byte, min(size, mostBytes))
	if _, err := f.ReadAt(data, size-int64(len(data))); err != nil && err != io.EOF {
		return nil, err
	}
	for entry := range bytes.Lines(data) {
		var line string
		if json.Unmarshal(entry, &line) == nil { // else it was cut off
			h.remember(line)
		}
	}
	if size > mostBytes {
		return h, h.rewrite()
	}
	return h, nil
}

// rewrite writes the file with the newest lines, in half of its limit.
func (h *History) rewrite() error {
	var entries [][]byte
	size := 0
	for _, line := range slices.Backward(h.lines) {
		entry, err := encode(line)
		if size += len(entry); err != nil || size > mostBytes/2 {
			break
		}
		entries = append(entries, entry)
	}
	slices.Reverse(entries)
	return files.Write(h.file, bytes.Join(entries, nil), 0o600)
}

// encode returns a line's entry in the file.
func encode(line string) ([]byte, error) {
	entry, err := json.Marshal(line)
	return append(entry, '\n'), err
}

// remember adds a line if it is not the last one again.
func (h *History) remember(line string) bool {
	if n := len(h.lines); line == "" || n > 0 && h.lines[n-1] == line {
		return false
	}
	if h.lines = append(h.lines, line); len(h.lines) > mostLines {
		h.lines = h.lines[1:]
	}
	return true
}

// Add adds a line. An error says that other sessions will not have it.
func (h *History) Add(line string) error {
	if !utf8.ValidString(line) || !h.remember(line) || h.file == "" {
		return nil
	}
	entry, err := encode(line)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(h.file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(h.file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(entry)
	return errors.Join(err, f.Close())
}
