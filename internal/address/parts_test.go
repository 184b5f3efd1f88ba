package address

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/restore-vlm/restore/errs"
)

const partKey = "s3://bucket/a folder/results"

// upload begins a multipart upload and signs the addresses of n parts.
func upload(t *testing.T, c *Client, n int) *Parts {
	t.Helper()
	m, err := c.s3()
	if err != nil {
		t.Fatal(err)
	}
	object, err := url.Parse(partKey)
	if err != nil {
		t.Fatal(err)
	}
	id, err := (&minio.Core{Client: m}).NewMultipartUpload(t.Context(), object.Host, key(object),
		minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sign := func(method string, q url.Values) string {
		q.Set("uploadId", id)
		u, err := m.Presign(t.Context(), method, object.Host, key(object), 15*time.Minute, q)
		if err != nil {
			t.Fatal(err)
		}
		return u.String()
	}
	p := &Parts{Complete: sign(http.MethodPost, url.Values{})}
	for i := range n {
		p.Parts = append(p.Parts,
			sign(http.MethodPut, url.Values{"partNumber": {strconv.Itoa(i + 1)}}))
	}
	return p
}

// pass answers as the server.
func pass(w http.ResponseWriter, q *http.Request, next http.Handler) { next.ServeHTTP(w, q) }

// lost ends the connection after the server has done what was asked.
func lost(w http.ResponseWriter, q *http.Request, next http.Handler) {
	pass(discarding{w}, q, next)
	panic(http.ErrAbortHandler)
}

type discarding struct{ http.ResponseWriter }

func (discarding) Write(b []byte) (int, error) { return len(b), nil }
func (discarding) WriteHeader(int)             {}

// otherTag answers with the ETag of other content.
func otherTag(w http.ResponseWriter, q *http.Request, next http.Handler) {
	pass(discarding{w}, q, next)
	w.Header().Set("Etag", `"`+strings.Repeat("0", 32)+`"`)
	w.WriteHeader(200)
}

// said answers with a status of 200 and a text.
func said(text string) fault {
	return func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
		_, _ = io.WriteString(w, text)
	}
}

// expired refuses what was signed for less time than the clock of the server says.
func expired(now time.Time) fault {
	return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		at, err := time.Parse("20060102T150405Z", q.URL.Query().Get("X-Amz-Date"))
		keep, failed := strconv.Atoi(q.URL.Query().Get("X-Amz-Expires"))
		if err == nil && failed == nil && now.Before(at.Add(time.Duration(keep)*time.Second)) {
			pass(w, q, next)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code><Message>Request has expired"+
			"</Message></Error>")
	}
}

// Ensure that a file is sent whole to the signed addresses of its parts, with faults at each.
func TestPutParts(t *testing.T) {
	later := "<Error><Code>InternalError</Code><Message>again</Message></Error>"
	const three = 2*leastPart + 1000
	for what, c := range map[string]struct {
		size   int
		parts  int // addresses
		faults []fault
		want   int // requests
		wait   string
	}{
		"three of five":        {three, 5, nil, 4, ""},
		"larger parts":         {three, 2, nil, 3, ""},
		"503 with Retry-After": {1000, 1, []fault{status(503, "Retry-After", "7")}, 3, "7s"},
		"cut":                  {three, 3, []fault{pass, cutBody, cutBody}, 6, "100ms"},
		"a lost answer":        {three, 3, []fault{lost}, 5, ""},
		"another ETag":         {three, 3, []fault{pass, otherTag}, 5, ""},
		"no ETag":              {1000, 1, []fault{status(200)}, 3, ""},
		"503 at the end": {1000, 1, []fault{pass, status(503, "Retry-After", "9")}, 3,
			"9s"},
		"an error after 200": {1000, 1, []fault{pass, said(later)}, 3, ""},
		"not expired":        {1000, 1, []fault{expired(time.Now().Add(10 * time.Minute))}, 2, ""},
	} {
		t.Run(what, func(t *testing.T) {
			f, client, waits := s3(t, 0)
			list := upload(t, client, c.parts)
			f.mu.Lock()
			f.asked, f.faults = nil, c.faults
			f.mu.Unlock()
			from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
			data := content(1, c.size)
			if err := os.WriteFile(from, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := client.PutParts(t.Context(), from, list); err != nil {
				t.Fatal(err)
			}
			if len(f.asked) != c.want {
				t.Errorf("%d requests, want %d", len(f.asked), c.want)
			}
			if c.wait != "" && !slices.Contains(*waits, c.wait) {
				t.Errorf("waited %v, want %s too", *waits, c.wait)
			}
			if err := client.Get(t.Context(), partKey, to); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
				t.Errorf("got %d bytes, %v, want %d", len(got), err, len(data))
			}
		})
	}
}

// Ensure that errors of an upload say what to do and repeat no signature.
func TestPutPartsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content(1, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, faults := range map[string][]fault{
		"part 1 of 1: 127.0.0.1:.*Request has expired": {expired(time.Now().Add(time.Hour))},
		"(InvalidPart:": {func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
			w.Header().Set("Etag", `"of-another-part"`) // not an MD5, so nobody can tell
		}},
		"MalformedXML: no": {pass, said("<Error><Code>MalformedXML</Code>" +
			"<Message>no</Message></Error>")},
		"want a CompleteMultipartUploadResult": {pass, said("<html>")},
		"got the ETag":                         {otherTag, otherTag, otherTag, otherTag, otherTag},
		"the upload has ended, because an earlier attempt completed it": {pass, lost},
	} {
		f, client, _ := s3(t, 0)
		list := upload(t, client, 1)
		f.faults = faults
		err := client.PutParts(t.Context(), path, list)
		ok := err != nil
		for _, part := range strings.Split(want, ".*") {
			ok = ok && strings.Contains(err.Error(), part)
		}
		if !ok || strings.Contains(err.Error(), "X-Amz") ||
			strings.Contains(err.Error(), "uploadId") {
			t.Errorf("got %v, want %q", err, want)
		}
		if strings.HasPrefix(want, "the upload") && !errors.Is(err, errs.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
}

// Ensure that addresses that are no upload are refused before anything is sent.
func TestPartsCheck(t *testing.T) {
	part := func(n int, id string) string {
		return fmt.Sprintf("https://h/k?partNumber=%d&uploadId=%s&X-Amz-Signature=secret", n, id)
	}
	end := "https://h/k?uploadId=u&X-Amz-Signature=secret"
	for want, p := range map[string]Parts{
		"":                     {[]string{part(1, "u"), part(2, "u")}, end},
		"got 0 addresses":      {nil, end},
		"got 10001 addresses":  {make([]string, 10_001), end},
		"complete: ":           {[]string{part(1, "u")}, ""},
		"parts[1]: ":           {[]string{part(1, "u"), "s3://h/k"}, end},
		`partNumber "3", want`: {[]string{part(1, "u"), part(3, "u")}, end},
		"another uploadId":     {[]string{part(1, "v")}, end},
	} {
		err := p.Check()
		if (err == nil) != (want == "") || err != nil &&
			(!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	p := Parts{Parts: make([]string, 2)}
	if _, _, err := p.split(2*maxPart + 1); err == nil {
		t.Error("two parts take more than twice the largest")
	}
	for size, want := range map[int64][2]int64{0: {1, leastPart}, leastPart + 1: {2, leastPart},
		2*maxPart - 1: {2, maxPart}, 3*leastPart + 1: {2, 3*leastPart/2 + 1}} {
		if n, each, err := p.split(size); err != nil || [2]int64{int64(n), each} != want {
			t.Errorf("%d bytes: got %d parts of %d, %v, want %v", size, n, each, err, want)
		}
	}
}
