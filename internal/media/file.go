package media

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// file reads the part of a file URL after "file:": a path below the folder, relative to it (with or
// without a leading slash) or absolute.
func (l *Loader) file(rest string) ([]byte, error) {
	if l.root == nil {
		return nil, fail(NotAllowed,
			"got a file URL, want another: no folder of pictures is served")
	}
	name, err := url.PathUnescape(strings.TrimPrefix(rest, "//"))
	if err != nil || strings.ContainsRune(name, 0) {
		return nil, fail(InvalidURL, "got %q, which is no file URL", clip("file:"+rest))
	}
	for _, folder := range l.folders {
		if below, ok := strings.CutPrefix(name, folder+"/"); ok {
			name = below
			break
		}
	}
	name = strings.TrimLeft(name, "/")
	if slices.Contains(strings.Split(filepath.ToSlash(name), "/"), "..") {
		return nil, fail(NotAllowed,
			"got a path with \"..\", want one below the folder of pictures")
	}
	if name == "" {
		return nil, fail(NotFound, "got no file name, want one below the folder of pictures")
	}
	// Without O_NONBLOCK, opening a FIFO would block until it has a writer.
	f, err := l.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.ENXIO):
		return nil, fail(NotFound, "%q: there is no such file below the folder of pictures",
			clip(name))
	case err != nil:
		return nil, fail(NotAllowed, "%q: is not a file below the folder of pictures", clip(name))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, fail(NotAllowed, "%q: is not a regular file", clip(name))
	}
	return l.all(f, info.Size(), NotFound)
}

// all reads a body of size bytes, -1 if not known.
func (l *Loader) all(r io.Reader, size int64, failed Code) ([]byte, error) {
	if size > l.o.MaxBytes {
		return nil, fail(TooLarge, "got %d bytes, want at most %d", size, l.o.MaxBytes)
	}
	data, err := io.ReadAll(io.LimitReader(r, l.o.MaxBytes+1))
	switch {
	case err != nil:
		return nil, fail(failed, "could not be read")
	case int64(len(data)) > l.o.MaxBytes:
		return nil, fail(TooLarge, "got more than %d bytes, want at most %d", l.o.MaxBytes,
			l.o.MaxBytes)
	case len(data) == 0 && failed == DownloadFailed:
		return nil, fail(DownloadFailed, "got an empty body, want a picture")
	case len(data) == 0:
		return nil, fail(Empty, "got an empty file, want a picture")
	}
	return data, nil
}
