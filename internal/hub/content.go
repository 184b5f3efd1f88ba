package hub

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/web"
)

// maxUnsaid is the size limit in bytes of a file whose size the hub does not report: text files
// have no length when the server compresses them.
const maxUnsaid = 1 << 30

// incomplete is the suffix of an incomplete blob.
const incomplete = ".incomplete"

// contentError says that the received content differs from the announced one.
type contentError struct{ text string }

func (e *contentError) Error() string        { return e.text }
func (e *contentError) Is(target error) bool { return target == errs.ErrDamaged }

// partial is an incomplete blob.
type partial struct {
	file  *os.File
	have  int64     // bytes
	kept  int64     // of these, bytes from an earlier call
	sum   hash.Hash // hash of the bytes
	meta  metadata
	count func(done, total int64) // receives the progress of this call, and changes of its total
}

// openPartial opens the partial blob at path.
func openPartial(path string, meta metadata, count func(done, total int64)) (*partial, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	p := &partial{file: f, sum: sha256.New(), meta: meta, count: count}
	n, err := io.Copy(p.sum, bufio.NewReaderSize(f, 1<<20))
	if err == nil {
		p.have, p.kept = n, n
		if meta.size >= 0 {
			count(0, -n)
		}
		if meta.size >= 0 && n > meta.size {
			err = p.reset()
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// reset empties the file.
func (p *partial) reset() error {
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	p.sum.Reset()
	p.forget()
	return nil
}

// forget counts all bytes as not yet downloaded.
func (p *partial) forget() {
	if came := p.have - p.kept; p.meta.size >= 0 {
		p.count(-came, p.kept)
	} else {
		p.count(-came, -came)
	}
	p.have, p.kept = 0, 0
}

// Write appends to the file. More bytes than announced cause a contentError.
func (p *partial) Write(b []byte) (int, error) {
	after := p.have + int64(len(b))
	switch {
	case p.meta.size >= 0 && after > p.meta.size:
		return 0, &contentError{fmt.Sprintf("more than the %d bytes that the hub announced",
			p.meta.size)}
	case after > maxUnsaid && p.meta.size < 0:
		return 0, &contentError{fmt.Sprintf("more than %d bytes, and the hub does not say how many",
			maxUnsaid)}
	}
	n, err := p.file.Write(b)
	p.sum.Write(b[:n])
	p.have += int64(n)
	if p.meta.size >= 0 {
		p.count(int64(n), 0)
	} else {
		p.count(int64(n), int64(n))
	}
	if err != nil {
		return n, &web.PermanentError{Err: err}
	}
	return n, nil
}

// check compares the content with its hash.
func (p *partial) check() error {
	if len(p.meta.etag) == sha1.Size*2 {
		if _, err := p.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		return checkContent(p.file, p.have, p.meta.etag)
	}
	return checkHash(p.sum, p.have, p.meta.etag)
}

// checkContent compares the content of a file of the given size with its hash, git's or sha256.
func checkContent(r io.Reader, size int64, etag string) error {
	h := sha256.New()
	if len(etag) == sha1.Size*2 {
		h = sha1.New()
		fmt.Fprintf(h, "blob %d\x00", size)
	}
	if _, err := io.Copy(h, r); err != nil {
		return err
	}
	return checkHash(h, size, etag)
}

// checkHash compares the hash of a content with the one that is wanted.
func checkHash(h hash.Hash, size int64, etag string) error {
	kind := "the sha256"
	if h.Size() == sha1.Size {
		kind = "git's sha1"
	}
	if got := hex.EncodeToString(h.Sum(nil)); !strings.EqualFold(got, etag) {
		return &contentError{fmt.Sprintf("%s of the %d bytes is %s, want %s", kind, size, got,
			etag)}
	}
	return nil
}

// content downloads w to path, starting where an earlier call stopped, and checks it. A file that
// fails the check is removed, and so is one that cannot be synced, because a later sync may succeed
// without its bytes. An incomplete one stays.
func (p *puller) content(ctx context.Context, w *wantedFile, path string) (err error) {
	f, err := openPartial(path, w.meta, p.count)
	if err != nil {
		return err
	}
	var unsynced error
	defer func() {
		err = errors.Join(err, f.file.Close())
		var wrong *contentError
		if errors.As(err, &wrong) || unsynced != nil {
			f.forget()
			err = errors.Join(err, os.Remove(path))
		}
	}()
	t := web.Tries{Wait: p.client.wait, Notice: p.Notice}
	furthest := f.have
	for whole := w.meta.size >= 0 && f.have == w.meta.size; !whole; {
		whole, err = p.part(ctx, w, f)
		if f.have > furthest {
			furthest, t.Failed = f.have, 0
		}
		if err != nil {
			if err := p.retry(ctx, w, &t, err); err != nil {
				return err
			}
		}
	}
	if err := f.check(); err != nil {
		return err
	}
	unsynced = f.file.Sync()
	return unsynced
}

// retry waits for the next attempt after err, and gets a new address if the old one may have
// expired.
func (p *puller) retry(
	ctx context.Context, w *wantedFile, t *web.Tries, err error,
) error {
	var wrong *contentError
	if errors.As(err, &wrong) {
		return err
	}
	var s *web.StatusError
	expired := errors.As(err, &s) && s.Code >= 400 && s.Code < 500 && !s.Temporary()
	if expired && t.Failed > 0 {
		return err
	}
	if expired {
		err = errors.New(err.Error()) // another try at the new address
	}
	if err := t.Again(ctx, err); err != nil {
		return err
	}
	m, err := p.head(ctx, w.name, t)
	if err != nil {
		return err
	}
	if m.etag != w.meta.etag {
		return &contentError{fmt.Sprintf("the etag changed from %s to %s", w.meta.etag, m.etag)}
	}
	w.meta.address = m.address
	return nil
}

// part requests the missing bytes of f and appends them. whole says that the file is complete, as
// far as known.
func (p *puller) part(ctx context.Context, w *wantedFile, f *partial) (whole bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resp, err := p.client.send(ctx,
		&request{method: http.MethodGet, address: w.meta.address, offset: f.have,
			repo: p.name.Repo, revision: p.name.revision(), file: w.name, anyHost: true})
	var s *web.StatusError
	if errors.As(err, &s) && s.Code == http.StatusRequestedRangeNotSatisfiable {
		return false, &contentError{fmt.Sprintf("no bytes after the first %d of %d", f.have,
			w.meta.size)}
	}
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if err := p.align(resp, f); err != nil {
		return false, err
	}
	body, err := decoded(resp, web.Watch(resp.Body, cancel))
	if err != nil {
		return false, err
	}
	n, err := io.CopyBuffer(f, body, make([]byte, 1<<18))
	p.received.Add(n)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return false, err
	}
	if w.meta.size >= 0 && f.have < w.meta.size {
		return false, fmt.Errorf("cut after %d of %d bytes", f.have, w.meta.size)
	}
	return true, nil
}

// align truncates f to where the answer begins.
func (p *puller) align(resp *http.Response, f *partial) error {
	packed := resp.Header.Get("Content-Encoding")
	if resp.StatusCode == http.StatusOK {
		if f.have > 0 {
			return f.reset() // the range was ignored
		}
		return nil
	}
	start, ok := web.RangeStart(resp.Header)
	if ok && start == f.have && (packed == "" || packed == "identity") {
		return nil
	}
	// A range that does not fit, or without a range header.
	if f.have == 0 {
		return web.Permanentf("a part of the file, got the range %q, want the whole",
			web.Clean(resp.Header.Get("Content-Range")))
	}
	if err := f.reset(); err != nil {
		return err
	}
	return fmt.Errorf("a part that begins elsewhere, got the range %q",
		web.Clean(resp.Header.Get("Content-Range")))
}
