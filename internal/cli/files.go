package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/restore-vlm/restore/internal/files"
)

// Limits in bytes of files that are read into memory as a whole. A picture's pixels have another
// limit.
const (
	MaxPictureBytes = 1 << 30
	MaxTextBytes    = 256 << 20
)

// ReadFile reads a whole file of at most limit bytes. Its errors name the path once.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := OpenInput(path, limit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, path, limit, nil)
}

// address matches the beginning of a URL, which is not a file name.
var address = regexp.MustCompile(`^(?:[a-zA-Z][a-zA-Z0-9+.-]+://|data:)`)

// Local returns the path of a file that may be named as file://, or with ~ for the home folder. If
// a file with exactly that name exists, it wins.
func Local(path string) string {
	if _, err := os.Lstat(path); err == nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, "file://"); ok {
		path = strings.TrimPrefix(rest, "localhost")
		if _, err := os.Lstat(path); err != nil {
			if plain, err := url.PathUnescape(path); err == nil {
				path = plain
			}
		}
	}
	return ExpandHome(path)
}

// ExpandHome replaces ~/ with the home folder.
func ExpandHome(path string) string {
	rest, ok := strings.CutPrefix(path, "~")
	if !ok || rest != "" && rest[0] != '/' && rest[0] != filepath.Separator {
		return path
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path
	}
	return home + rest
}

// OpenInput opens a file that will be read as a whole: a regular file or a pipe, named as for
// Local. It refuses devices, which never end, or are a terminal on which somebody types something
// else.
func OpenInput(path string, limit int64) (*os.File, error) {
	path = Local(path)
	info, err := os.Stat(path)
	switch {
	case err != nil && address.MatchString(path):
		kind, _, _ := strings.Cut(path, ":")
		return nil, fmt.Errorf(
			"%.60s: is an address (%s:), want a file on this machine: download it first", path,
			kind)
	case err != nil:
		return nil, PathError(path, err)
	case info.IsDir():
		return nil, fmt.Errorf("%s: is a folder, want a file", path)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: too large, got %d bytes, want at most %d", path, info.Size(),
			limit)
	case info.Mode()&fs.ModeDevice != 0 && path != os.DevNull:
		return nil, fmt.Errorf("%s: is a device, want a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, PathError(path, err)
	}
	return f, nil
}

// PathError gives an operating system's error about a path this program's wording.
func PathError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: no such file or folder", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied", path)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: the disk is full", path)
	case errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s: nobody reads it any more (broken pipe)", path)
	}
	switch e := err.(type) {
	case *fs.PathError:
		return fmt.Errorf("%s: %w", path, e.Err)
	case *os.LinkError:
		return fmt.Errorf("%s: %w", path, e.Err)
	}
	if strings.Contains(err.Error(), path) {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// ReadText reads a whole text file.
func ReadText(path string) ([]byte, error) {
	data, err := ReadFile(path, MaxTextBytes)
	if err != nil {
		return nil, err
	}
	return asText(path, data)
}

// asText is the text in data, of the file with that name.
func asText(name string, data []byte) ([]byte, error) {
	text, err := files.Text(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// ReadJSON decodes a file that contains exactly one JSON value.
func ReadJSON(path string, v any) error {
	b, err := ReadFile(path, MaxTextBytes)
	if err != nil {
		return err
	}
	if b, err = files.Text(b); err != nil {
		return fmt.Errorf("%s: not the JSON that is wanted here: %w", path, err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: not the JSON that is wanted here: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%s: more than one JSON value, want one", path)
	}
	return nil
}

// StateFolder is the user's folder for what programs keep between their runs; "" if there is none.
func StateFolder() string {
	dir := os.Getenv("XDG_STATE_HOME")
	home, err := os.UserHomeDir()
	switch {
	case filepath.IsAbs(dir):
	case err != nil:
		return ""
	case runtime.GOOS == "windows":
		if dir = os.Getenv("LocalAppData"); dir == "" {
			return ""
		}
	case runtime.GOOS == "darwin":
		dir = filepath.Join(home, "Library", "Application Support")
	default:
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "restore")
}
