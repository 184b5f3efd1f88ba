package pack

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/internal/checkpoint"
)

// sourceFile describes a packed file's source at the time of packing.
type sourceFile struct {
	Path     string `json:"path"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
	SHA256   []byte `json:"sha256"`
}

// A packed file is refused if one of its sources has changed. Size and time are compared first. If
// only times differ, the contents are compared, and the new times are written to the head, in
// place, so that this happens only once:
//
//	seenAt   "seen", the SHA-256 of all paths, sizes and times, and a CRC-32C of both
const (
	seenAt   = 64
	seenMark = "seen"
	seenSize = len(seenMark) + sha256.Size + 4
)

// noteSources records the source files.
func (p *Writer) noteSources(files []string) error {
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		p.index.Sources = append(p.index.Sources,
			sourceFile{Path: file, Size: info.Size(), Modified: info.ModTime().UnixNano()})
	}
	return nil
}

// hashSources records the hashes of the sources, which must not have changed during packing.
func (p *Writer) hashSources() error {
	list := p.index.Sources
	failed := make([]error, len(list))
	var wait sync.WaitGroup
	room := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range list {
		wait.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			s := &list[i]
			if s.SHA256, failed[i] = hashFile(s.Path); failed[i] != nil {
				return
			}
			info, err := os.Stat(s.Path)
			if err != nil || info.Size() != s.Size || info.ModTime().UnixNano() != s.Modified {
				failed[i] = fmt.Errorf("%s: changed while it was packed", s.Path)
			}
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}

// hashFile returns the SHA-256 of a regular file's content.
func hashFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: got a %s, want a file", path, checkpoint.Kind(info.Mode()))
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, f, make([]byte, 1<<20)); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// unchanged compares the sources with the files that are now in their places. Missing sources are
// allowed, because a packed file is useful without them. seen is the note in the head. A non-nil
// note is the new one to write.
func (x *packIndex) unchanged(seen []byte) (note []byte, err error) {
	var missing string
	var later []sourceFile
	now := sha256.New()
	present := 0
	for _, f := range x.Sources {
		// An untrusted file must not make this machine ask another (\\host\share).
		if !filepath.IsAbs(f.Path) || strings.HasPrefix(f.Path, `\\`) {
			return nil, fmt.Errorf("index: source: got file %q, want an absolute path",
				checkpoint.Excerpt([]byte(f.Path)))
		}
		info, err := os.Stat(f.Path)
		if err != nil {
			missing = f.Path
			continue
		}
		present++
		if info.Size() != f.Size {
			return nil, stale(f.Path)
		}
		if info.ModTime().UnixNano() != f.Modified {
			later = append(later, f)
		}
		fmt.Fprintf(now, "%q %d %d\n", f.Path, info.Size(), info.ModTime().UnixNano())
	}
	switch sum := now.Sum(nil); {
	case present == 0:
		return nil, nil
	case missing != "":
		return nil, stale(missing)
	case len(later) == 0 || bytes.Equal(seen, sum):
		return nil, nil
	default:
		note = sum
	}
	for _, f := range later {
		if sum, err := hashFile(f.Path); err != nil || !bytes.Equal(sum, f.SHA256) {
			return nil, stale(f.Path)
		}
	}
	return note, nil
}

func stale(path string) error {
	return fmt.Errorf("stale: %s has changed since it was packed: pack the checkpoint again", path)
}

// seen returns the note in the head, nil if there is none, and whether the head is a packed file's.
func seen(head []byte) ([]byte, bool) {
	clean := bytes.Clone(head)
	note := clean[seenAt : seenAt+seenSize]
	if bytes.Equal(note, make([]byte, seenSize)) {
		return nil, bytes.Equal(clean, packStart())
	}
	sum := note[:seenSize-4]
	ok := bytes.HasPrefix(note, []byte(seenMark)) &&
		crc32.Checksum(sum, castagnoli) == binary.LittleEndian.Uint32(note[seenSize-4:])
	found := bytes.Clone(sum[len(seenMark):])
	clear(note)
	return found, ok && bytes.Equal(clean, packStart())
}

// remember writes sum to the head of the file at path. If the file is not writable, the sources are
// compared again next time.
func remember(path string, sum []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	b := append([]byte(seenMark), sum...)
	_, _ = f.WriteAt(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), seenAt)
	f.Close()
}
