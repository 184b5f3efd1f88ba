package address

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"

	"github.com/restore-vlm/restore/internal/version"
	"github.com/restore-vlm/restore/internal/web"
)

const (
	// signedFor is how long a signed address is valid. Each attempt signs a new one.
	signedFor = time.Hour
	// askMachine is how long to wait for credentials from the machine's own service (EC2).
	askMachine = 5 * time.Second
)

// profile returns the settings of the profile in AWS's file of configuration; none if there is no
// such file or profile.
func profile() (*ini.Section, error) {
	path := os.Getenv("AWS_CONFIG_FILE")
	if home, err := os.UserHomeDir(); path == "" && err == nil {
		path = filepath.Join(home, ".aws", "config")
	}
	all, err := ini.LooseLoad(path)
	if err != nil {
		return nil, web.Permanentf("%s: %w", path, err)
	}
	name := cmp.Or(os.Getenv("AWS_PROFILE"), "default")
	if !all.HasSection(name) {
		name = "profile " + name
	}
	return all.Section(name), nil
}

// s3 returns a client for the endpoint that the environment or the profile names, or AWS's.
func (c *Client) s3() (*minio.Client, error) {
	file, err := profile()
	if err != nil {
		return nil, err
	}
	endpoint, secure, lookup := "s3.amazonaws.com", true, minio.BucketLookupAuto
	if v := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		file.Key("endpoint_url").String()); v != "" {
		u, err := url.Parse(v)
		if err != nil || u.Host == "" || strings.Trim(u.Path, "/") != "" ||
			u.Scheme != "http" && u.Scheme != "https" {
			return nil, web.Permanentf("AWS_ENDPOINT_URL: got %q, want https://HOST", Name(v))
		}
		endpoint, secure, lookup = u.Host, u.Scheme == "https", minio.BucketLookupPath
	}
	m, err := minio.New(endpoint, &minio.Options{
		Secure: secure, BucketLookup: lookup, Transport: &patient{c.http.Transport, c},
		Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"),
			file.Key("region").String()),
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{Client: &http.Client{Timeout: askMachine}}}),
	})
	if err != nil {
		return nil, &web.PermanentError{Err: err}
	}
	m.SetAppInfo("restore", strings.TrimPrefix(version.UserAgent(), "restore/"))
	if _, err := m.GetCreds(); err != nil {
		return nil, web.Permanentf("no credentials, want AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY, or a profile (%w)", err)
	}
	return m, nil
}

// presigner returns a function that signs an object's address.
func (c *Client) presigner(
	ctx context.Context, method string, u *url.URL,
) (func() (*url.URL, error), error) {
	m, err := c.s3()
	if err != nil {
		return nil, err
	}
	return func() (*url.URL, error) {
		signed, err := m.Presign(ctx, method, u.Host, key(u), signedFor, nil)
		if err != nil {
			return nil, worded(err)
		}
		return signed, nil
	}, nil
}

func key(u *url.URL) string { return strings.TrimPrefix(u.Path, "/") }

// putObject puts an object, in parts if it is large. The client library tries parts again.
func (c *Client) putObject(ctx context.Context, path string, u *url.URL) error {
	m, err := c.s3()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	put, err := m.FPutObject(ctx, u.Host, key(u), path, minio.PutObjectOptions{
		ContentType: "application/jsonl", SendContentMd5: true,
		Progress: &shown{c: c, size: info.Size()}})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return worded(err)
	case put.Size != info.Size():
		return fmt.Errorf("%d of %d bytes were sent", put.Size, info.Size())
	}
	return nil
}

// worded says why a server of S3 refused something.
func worded(err error) error {
	var r minio.ErrorResponse
	if !errors.As(err, &r) || r.StatusCode == 0 {
		return err
	}
	return &web.StatusError{Code: r.StatusCode, Missing: r.StatusCode == http.StatusNotFound,
		Text: fmt.Sprintf("%s (%s: %s)", web.Status(r.StatusCode), web.Clean(r.Code),
			web.Clean(r.Message))}
}

// shown shows the progress of a file that the client library sends.
type shown struct {
	c          *Client
	done, size int64
}

// Read implements io.Reader: the client library reads what it has sent.
func (s *shown) Read(b []byte) (int, error) {
	s.done += int64(len(b))
	s.c.progress(s.done, s.size)
	return len(b), nil
}

// patient waits as long as a server says before it returns a refusal, which the client library then
// answers with another attempt.
type patient struct {
	next http.RoundTripper
	c    *Client
}

// RoundTrip implements http.RoundTripper.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := p.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	wait := web.Pause(resp.Header)
	temporary := (&web.StatusError{Code: resp.StatusCode}).Temporary()
	if temporary && 0 < wait && wait <= web.MaxPause {
		select {
		case <-p.c.wait(wait):
		case <-req.Context().Done():
		}
	}
	return resp, nil
}
