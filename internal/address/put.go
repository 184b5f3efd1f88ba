package address

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/restore-vlm/restore/internal/web"
)

// Put makes a file the content of an address, in one request, or in parts for a large object of S3.
// After an error that may go away it tries again.
func (c *Client) Put(ctx context.Context, path, address string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("address: put %s: %w", Name(address), err)
		}
	}()
	u, err := parse(address)
	if err != nil {
		return err
	}
	if u.Scheme == "s3" {
		return c.putObject(ctx, path, u)
	}
	t := c.tries()
	for {
		err := c.put(ctx, path, u)
		if err == nil {
			return nil
		}
		if err := t.Again(ctx, err); err != nil {
			return err
		}
	}
}

// put sends a file once.
func (c *Client) put(ctx context.Context, path string, u *url.URL) error {
	f, err := os.Open(path)
	if err != nil {
		return &web.PermanentError{Err: err}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return &web.PermanentError{Err: err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := &sent{f: f, c: c, size: info.Size(), timer: time.AfterFunc(web.Silence, func() {
		cancel(fmt.Errorf("the server took nothing for %v", web.Silence))
	})}
	defer body.timer.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), io.NopCloser(body))
	if err != nil {
		return web.Permanentf("%s: cannot be asked", u.Host)
	}
	header(req)
	req.ContentLength = info.Size()
	if info.Size() == 0 {
		req.Body = http.NoBody
	}
	req.GetBody = func() (io.ReadCloser, error) {
		_, err := f.Seek(0, io.SeekStart)
		body.done = 0
		return io.NopCloser(body), err
	}
	req.Header.Set("Expect", "100-continue") // a refusal comes before the file is sent
	resp, err := c.http.Do(req)
	if err != nil {
		return web.TransportError(ctx, u.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return statusError(resp)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return web.TransportError(ctx, u.Host, err)
	}
	return nil
}

// sent is a file on its way. Its timer is stopped when all of it was read.
type sent struct {
	f     *os.File
	c     *Client
	done  int64
	size  int64
	timer *time.Timer
}

// Read implements io.Reader.
func (s *sent) Read(b []byte) (int, error) {
	s.timer.Reset(web.Silence)
	n, err := s.f.Read(b)
	if s.done += int64(n); err != nil || s.done == s.size {
		s.timer.Stop()
	}
	s.c.progress(s.done, s.size)
	return n, err
}
