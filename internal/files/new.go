package files

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Unfinished begins the names of files that are not complete.
const Unfinished = ".restore-unfinished-"

// New is a file that is not complete: it has a temporary name. Commit or Rename gives it its name,
// else Discard removes it. Its lock tells other processes that its writer lives.
type New struct {
	*os.File
	closed bool
}

// Create makes a file in a folder of the same file system, of mode perm before umask.
func Create(dir string, perm os.FileMode) (*New, error) {
	for {
		name := filepath.Join(dir, fmt.Sprintf("%s%08x", Unfinished, rand.Uint32()))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		n := &New{File: f}
		if !errors.Is(Lock(f), ErrInUse) { // a file system without locks will do
			return n, nil
		}
		_ = n.Discard() // RemoveAbandoned of another process was faster than the lock
	}
}

// Commit gives the file its name, in place of an earlier file. File and name are then on disk.
func (n *New) Commit(path string) error {
	if err := n.Sync(); err != nil { // else a crash can leave the name without content
		return err
	}
	return cmp.Or(n.Rename(path), SyncFolder(filepath.Dir(path)))
}

// Rename is Commit for a file whose reader recognises what a crash of the machine damages: it does
// not wait for the disk.
func (n *New) Rename(path string) error {
	return n.close(func() error { return os.Rename(n.Name(), path) })
}

// Discard removes the file. It does nothing after Commit or Rename, unless they failed.
func (n *New) Discard() error {
	err := n.close(func() error { return os.Remove(n.Name()) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// close closes the file after last has renamed or removed it, so that no other process takes it for
// abandoned. Windows does neither with open files.
func (n *New) close(last func() error) error {
	if n.closed {
		return last()
	}
	n.closed = true
	if runtime.GOOS == "windows" {
		return cmp.Or(n.Close(), last())
	}
	return cmp.Or(last(), n.Close())
}

// Write writes a whole file of mode perm before umask. It makes missing folders. Processes and
// goroutines may write the same path at once: the last one wins.
func Write(path string, data []byte, perm os.FileMode) error {
	dir := filepath.Dir(path)
	folder := perm | perm>>2&0o111 // who may read the file may search its folder
	if err := MakeFolder(dir, folder); err != nil {
		return err
	}
	f, err := Create(dir, perm)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = f.Commit(path)
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return nil
}

// WriteJSON writes v as JSON, indented by indent unless it is empty, for whoever the umask allows.
func WriteJSON(path string, v any, indent string) error {
	marshal := json.Marshal
	if indent != "" {
		marshal = func(v any) ([]byte, error) { return json.MarshalIndent(v, "", indent) }
	}
	data, err := marshal(v)
	if err != nil {
		return err
	}
	return Write(path, append(data, '\n'), 0o666)
}

// JSON writes v as JSON on a line, or on lines indented by indent unless it is empty, without
// escapes for HTML.
func JSON(v any, indent string) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	err := e.Encode(v)
	return b.Bytes(), err
}

// IsFolder reports whether there is a folder, or a link to one, at path.
func IsFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// MissingFolders lists a folder and those above it that do not exist, the innermost first.
func MissingFolders(dir string) (missing []string) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			return missing
		}
		missing = append(missing, at)
	}
}

// MakeFolder makes a folder, and those above it, unless it exists. Their names are then on disk.
func MakeFolder(dir string, perm os.FileMode) error {
	missing := MissingFolders(dir)
	err := os.MkdirAll(dir, perm)
	for _, made := range missing {
		err = cmp.Or(err, SyncFolder(filepath.Dir(made)))
	}
	return err
}

// Remove removes a file, if it exists; its name is then gone from the disk.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// Move renames a complete file or folder; its name is then on disk.
func Move(from, to string) error {
	return cmp.Or(os.Rename(from, to), SyncFolder(filepath.Dir(to)))
}

// SyncFolder writes the names in a folder to disk: new files and renamed ones.
func SyncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // it has no such call
	}
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil // who may only write to it cannot
	}
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // some network file systems cannot
	}
	return errors.Join(err, d.Close())
}

// RemoveAbandoned removes the unfinished files of dead processes from a folder.
func RemoveAbandoned(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), Unfinished) {
			continue
		}
		name := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		abandoned := Lock(f) == nil
		f.Close()
		if abandoned {
			os.Remove(name)
		}
	}
}
