package address

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/web"
)

// Get stores the content of an address in a file. What an earlier call has got of it is continued,
// if the server says that it is the same content. After an error that may go away Get tries again.
func (c *Client) Get(ctx context.Context, address, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("address: get %s: %w", Name(address), err)
		}
	}()
	sign, err := c.signer(ctx, http.MethodGet, address)
	if err != nil {
		return err
	}
	p, err := openPartial(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.file.Close()) }()
	t, furthest, again := c.tries(), p.have, false
	for {
		whole, err := c.part(ctx, sign, p)
		if p.have > furthest {
			furthest, t.Failed = p.have, 0
		}
		switch {
		case whole:
			return p.finish(path)
		case errors.Is(err, errContent) && !again: // once more from the beginning
			again, furthest = true, 0
			if err := p.reset(); err != nil {
				return err
			}
		case errors.Is(err, errContent):
			return err
		default:
			if err := t.Again(ctx, err); err != nil {
				return err
			}
		}
	}
}

// errContent means that what came is not what the server has.
var errContent = errors.New("the content is not what the server's hash says")

// signer returns a function that makes an address which needs no more credentials.
func (c *Client) signer(
	ctx context.Context, method, address string,
) (func() (*url.URL, error), error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "s3" {
		return func() (*url.URL, error) { return u, nil }, nil
	}
	return c.presigner(ctx, method, u)
}

// part requests the missing bytes of p, and appends those that come.
func (c *Client) part(
	ctx context.Context, sign func() (*url.URL, error), p *partial,
) (whole bool, err error) {
	u, err := sign()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, web.Permanentf("%s: cannot be asked", u.Host)
	}
	header(req)
	if p.Tag == "" { // nobody can tell whether the rest is of the same content
		if err := p.reset(); err != nil {
			return false, &web.PermanentError{Err: err}
		}
	} else if p.have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", p.have))
		req.Header.Set("If-Range", p.Tag)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return false, web.TransportError(ctx, u.Host, err)
	}
	defer resp.Body.Close()
	size, err := p.align(resp)
	if err != nil {
		return false, err
	}
	body := web.Watch(resp.Body, cancel)
	n, err := io.Copy(&counted{p, c, size}, body)
	switch {
	case p.failed != nil: // this machine's fault
		return false, &web.PermanentError{Err: p.failed}
	case err == nil && size >= 0 && p.have != size:
		err = io.ErrUnexpectedEOF
	case err == nil:
		err = p.check(resp.Header)
		return err == nil, err
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return false, fmt.Errorf("%s: after %d bytes: %w", u.Host, n, err)
}

// counted appends to a partial and shows the progress.
type counted struct {
	p    *partial
	c    *Client
	size int64
}

// Write implements io.Writer.
func (w *counted) Write(b []byte) (int, error) {
	n, err := w.p.file.Write(b)
	w.p.have += int64(n)
	w.p.failed = err
	w.c.progress(w.p.have, w.size)
	return n, err
}

// partial is the part of a content that is in a file, and how to recognise the content.
type partial struct {
	file   *files.Locked
	have   int64
	failed error // of the last write

	Tag string `json:"etag"` // strong; "" if there is none, then nothing can be continued
}

const (
	partEnd = ".part"      // ends the name of an unfinished file
	tagEnd  = ".part.json" // ends the name of its partial
)

// openPartial opens what there is of a file. No other process may get it at the same time.
func openPartial(path string) (*partial, error) {
	f, err := files.OpenLocked(path+partEnd, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path+partEnd, err)
	}
	p := &partial{file: f}
	data, err := os.ReadFile(path + tagEnd)
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err != nil || !strong(p.Tag) {
		err = p.reset()
	} else {
		p.have, err = f.Seek(0, io.SeekEnd)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// reset drops the content.
func (p *partial) reset() error {
	p.have, p.Tag = 0, ""
	err := p.file.Truncate(0)
	if err == nil {
		_, err = p.file.Seek(0, io.SeekStart)
	}
	return err
}

// remember keeps the tag of the content, so that another process can continue.
func (p *partial) remember(tag string) error {
	if !strong(tag) || tag == p.Tag {
		return nil
	}
	p.Tag = tag
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return files.Write(strings.TrimSuffix(p.file.Name(), partEnd)+tagEnd, data, 0o600)
}

// strong reports whether an ETag says that two contents with it are equal byte for byte.
func strong(tag string) bool {
	return len(tag) > 2 && len(tag) < 1000 && tag[0] == '"' && tag[len(tag)-1] == '"'
}

// align makes p continue where the answer begins. It returns the size of the whole; -1 if the
// server does not say it.
func (p *partial) align(resp *http.Response) (size int64, err error) {
	tag := resp.Header.Get("Etag")
	switch resp.StatusCode {
	case http.StatusOK: // from the beginning: other content, or a server without ranges
		if err := p.reset(); err != nil {
			return 0, &web.PermanentError{Err: err}
		}
		size = resp.ContentLength
	case http.StatusPartialContent:
		start, ok := web.RangeStart(resp.Header)
		if !ok || start != p.have || tag != "" && tag != p.Tag {
			if err := p.reset(); err != nil {
				return 0, &web.PermanentError{Err: err}
			}
			return 0, fmt.Errorf(
				"got the range %q of %q, want one that continues: from the beginning",
				web.Clean(resp.Header.Get("Content-Range")), web.Clean(tag))
		}
		if size = -1; resp.ContentLength >= 0 {
			size = start + resp.ContentLength
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if p.have == 0 {
			return 0, statusError(resp)
		}
		if err := p.reset(); err != nil {
			return 0, &web.PermanentError{Err: err}
		}
		return 0, errors.New("the content has become shorter: from the beginning")
	default:
		return 0, statusError(resp)
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return 0, web.Permanentf("an answer in the encoding %q, want none", web.Clean(e))
	}
	if err := p.remember(tag); err != nil {
		return 0, &web.PermanentError{Err: err}
	}
	return size, nil
}

// md5Tag matches the ETag of an object of S3 that is the MD5 of its content.
var md5Tag = regexp.MustCompile(`^"[0-9a-f]{32}"$`)

// isMD5 reports whether an answer's ETag is the MD5 of the content: a server of S3 says it of
// parts and of objects that were not put in parts, if no key of the customer's encrypts them.
func isMD5(tag string, h http.Header) bool {
	cipher := h.Get("X-Amz-Server-Side-Encryption")
	return h.Get("X-Amz-Request-Id") != "" && md5Tag.MatchString(tag) &&
		(cipher == "" || cipher == "AES256") &&
		h.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") == ""
}

// check compares the content with its hash, where the server says it.
func (p *partial) check(h http.Header) error {
	if !isMD5(p.Tag, h) {
		return nil
	}
	if _, err := p.file.Seek(0, io.SeekStart); err != nil {
		return &web.PermanentError{Err: err}
	}
	sum := md5.New()
	if _, err := io.Copy(sum, p.file); err != nil {
		return &web.PermanentError{Err: err}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != strings.Trim(p.Tag, `"`) {
		return fmt.Errorf("%w: got the MD5 %s, want %s", errContent, got, p.Tag)
	}
	return nil
}

// finish gives the file its name.
func (p *partial) finish(path string) error {
	err := p.file.Sync()
	if err == nil {
		err = files.Move(p.file.Name(), path)
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path + tagEnd); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
