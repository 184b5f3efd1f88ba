package address

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/restore-vlm/restore/internal/web"
)

// Sizes of the parts of an object of S3.
const (
	leastPart = 8 << 20 // S3 takes 5 MiB and more; the last part may be smaller
	maxPart   = 5 << 30
	maxParts  = 10_000
)

// maxCompletion is how long a server may take to make an object of its parts.
const maxCompletion = 10 * time.Minute

// Parts are the signed addresses of a multipart upload of S3. A file needs as many parts as it
// has; the others stay unused.
type Parts struct {
	Parts    []string `json:"parts"`    // of UploadPart, number 1 first
	Complete string   `json:"complete"` // of CompleteMultipartUpload
}

// Name is the address of the object, without secrets.
func (p *Parts) Name() string { return Name(p.Complete) }

// Check returns why the addresses are no upload; nil if they are one.
func (p *Parts) Check() error {
	if n := len(p.Parts); n == 0 || n > maxParts {
		return fmt.Errorf("address: parts: got %d addresses, want 1 to %d", n, maxParts)
	}
	last, err := signed(p.Complete)
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	upload := last.Query().Get("uploadId")
	for i, a := range p.Parts {
		u, err := signed(a)
		if err != nil {
			return fmt.Errorf("parts[%d]: %w", i, err)
		}
		q := u.Query()
		if n := q.Get("partNumber"); n != "" && n != strconv.Itoa(i+1) {
			return fmt.Errorf("address: parts[%d]: got the partNumber %q, want %d", i, web.Clean(n),
				i+1)
		}
		if q.Get("uploadId") != upload {
			return fmt.Errorf("address: parts[%d]: got another uploadId than in complete", i)
		}
	}
	return nil
}

// signed reads an address that needs no credentials.
func signed(address string) (*url.URL, error) {
	u, err := parse(address)
	if err == nil && u.Scheme != "https" && u.Scheme != "http" {
		err = fmt.Errorf("address: got %q, want a signed https://HOST/PATH", Name(address))
	}
	return u, err
}

// split returns the number of parts for a file and the size of each but the last.
func (p *Parts) split(size int64) (n int, each int64, err error) {
	most := int64(len(p.Parts))
	each = max(leastPart, (size+most-1)/most)
	if each > maxPart {
		return 0, 0, fmt.Errorf("%d parts take %d bytes at most, got %d: make a longer list", most,
			most*maxPart, size)
	}
	return int(max(1, (size+each-1)/each)), each, nil
}

// PutParts sends a file in parts and completes the upload. After an error that may go away it tries
// again.
func (c *Client) PutParts(ctx context.Context, path string, p *Parts) (err error) {
	defer func() {
		var s *web.StatusError
		if errors.As(err, &s) && s.Missing {
			err = fmt.Errorf("%w: the upload has ended, because an earlier attempt completed "+
				"it or somebody aborted it; a new list begins another", err)
		}
		if err != nil {
			err = fmt.Errorf("address: put %s: %w", p.Name(), err)
		}
	}()
	if err := p.Check(); err != nil {
		return err
	}
	all, err := whole(path)
	if err != nil {
		return err
	}
	defer all.f.Close()
	n, each, err := p.split(all.size)
	if err != nil {
		return err
	}
	tags := make([]string, n)
	for i := range tags {
		at := int64(i) * each
		s := span{all.f, at, min(each, all.size-at), all.size}
		err := c.tries().Do(ctx, func() (err error) {
			tags[i], err = c.putPart(ctx, s, p.Parts[i])
			return err
		})
		if err != nil {
			return fmt.Errorf("part %d of %d: %w", i+1, n, err)
		}
	}
	return c.tries().Do(ctx, func() error { return c.complete(ctx, p.Complete, tags) })
}

// putPart sends a part once and returns its ETag.
func (c *Client) putPart(ctx context.Context, s span, address string) (tag string, err error) {
	u, err := signed(address)
	if err != nil {
		return "", &web.PermanentError{Err: err}
	}
	h, err := c.send(ctx, s, u)
	if err != nil {
		return "", err
	}
	if tag = h.Get("Etag"); tag == "" {
		return "", errors.New("an answer without an ETag")
	}
	if !isMD5(tag, h) {
		return tag, nil
	}
	sum := md5.New()
	if _, err := io.Copy(sum, s.reader()); err != nil {
		return "", &web.PermanentError{Err: err}
	}
	if want := hex.EncodeToString(sum.Sum(nil)); tag != `"`+want+`"` {
		return "", fmt.Errorf("the server has other content: got the ETag %s, want %s",
			web.Clean(tag), want)
	}
	return tag, nil
}

// completed is the body of the request that completes an upload.
type completed struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUpload"`
	Parts   []completedPart
}

type completedPart struct {
	XMLName    xml.Name `xml:"Part"`
	PartNumber int
	ETag       string
}

// complete makes the parts with these ETags an object.
func (c *Client) complete(ctx context.Context, address string, tags []string) error {
	u, err := signed(address)
	if err != nil {
		return &web.PermanentError{Err: err}
	}
	var list completed
	for i, tag := range tags {
		list.Parts = append(list.Parts, completedPart{PartNumber: i + 1, ETag: tag})
	}
	body, err := xml.Marshal(list)
	if err != nil {
		return &web.PermanentError{Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, maxCompletion)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(),
		bytes.NewReader(body))
	if err != nil {
		return web.Permanentf("%s: cannot be asked", u.Host)
	}
	header(req)
	resp, err := c.http.Do(req)
	if err != nil {
		return web.TransportError(ctx, u.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return statusError(resp)
	}
	return completion(ctx, resp)
}

// completion reads the answer to the completing request. S3 sends its status before it knows the
// outcome.
func completion(ctx context.Context, resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return web.TransportError(ctx, resp.Request.URL.Host, err)
	}
	var said struct {
		XMLName       xml.Name
		Code, Message string
	}
	err = xml.Unmarshal(raw, &said)
	switch host := resp.Request.URL.Host; {
	case err == nil && said.XMLName.Local == "CompleteMultipartUploadResult":
		return nil
	case err == nil && said.XMLName.Local == "Error":
		e := &web.StatusError{Code: http.StatusBadRequest, Missing: said.Code == "NoSuchUpload",
			Text: fmt.Sprintf("%s: %s: %s", host, web.Clean(said.Code), web.Clean(said.Message))}
		switch said.Code {
		case "InternalError", "ServiceUnavailable", "SlowDown":
			e.Code = http.StatusServiceUnavailable
		}
		return e
	default:
		return web.Permanentf("%s: got %q, want a CompleteMultipartUploadResult", host,
			web.Clean(string(raw)))
	}
}
