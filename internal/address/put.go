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
	all, err := whole(path)
	if err != nil {
		return err
	}
	defer all.f.Close()
	return c.tries().Do(ctx, func() error {
		_, err := c.send(ctx, all, u)
		return err
	})
}

// span is a part of a file, or all of it.
type span struct {
	f              *os.File
	at, size, file int64 // its place, its size and the file's
}

// whole opens a file and returns all of it.
func whole(path string) (span, error) {
	f, err := os.Open(path)
	if err != nil {
		return span{}, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return span{}, err
	}
	return span{f, 0, info.Size(), info.Size()}, nil
}

func (s span) reader() io.Reader { return io.NewSectionReader(s.f, s.at, s.size) }

// send makes a span the content of an address, in one attempt, and returns the answer's header.
func (c *Client) send(ctx context.Context, s span, u *url.URL) (http.Header, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(web.Silence, func() {
		cancel(fmt.Errorf("the server took nothing for %v", web.Silence))
	})
	defer timer.Stop()
	body := func() (io.ReadCloser, error) {
		return io.NopCloser(&sent{r: s.reader(), c: c, span: s, timer: timer}), nil
	}
	first, _ := body()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), first)
	if err != nil {
		return nil, web.Permanentf("%s: cannot be asked", u.Host)
	}
	header(req)
	req.ContentLength, req.GetBody = s.size, body
	if s.size == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Expect", "100-continue") // a refusal comes before the file is sent
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, web.TransportError(ctx, u.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return nil, statusError(resp)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, web.TransportError(ctx, u.Host, err)
	}
	return resp.Header, nil
}

// sent is a span on its way. Its timer is stopped when all of it was read.
type sent struct {
	r     io.Reader
	c     *Client
	span  span
	done  int64
	timer *time.Timer
}

// Read implements io.Reader.
func (s *sent) Read(b []byte) (int, error) {
	s.timer.Reset(web.Silence)
	n, err := s.r.Read(b)
	if s.done += int64(n); err != nil || s.done == s.span.size {
		s.timer.Stop()
	}
	s.c.progress(s.span.at+s.done, s.span.file)
	return n, err
}
