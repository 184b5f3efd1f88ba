package hub

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/web"
)

// Limits of a list of files: the bytes of an answer, and the files of all its pages.
const (
	maxReply = 64 << 20
	maxFiles = 600_000
)

// info is the hub's description of a revision.
type info struct {
	commit string
	files  []string // nil if the answer has no list
	odd    []string // names that cannot be kept here
}

// parseInfo reads the answer of api/models/REPO/revision/REVISION.
func parseInfo(raw []byte) (info, error) {
	var reply struct {
		SHA      string          `json:"sha"`
		Siblings json.RawMessage `json:"siblings"`
	}
	if err := json.Unmarshal(raw, &reply); err != nil {
		return info{}, web.Permanentf("the list of files: no JSON as the hub writes it (%v)", err)
	}
	if !commitPattern.MatchString(reply.SHA) {
		return info{}, web.Permanentf(
			"the list of files: got the commit %q, want 40 hexadecimal digits",
			web.Clean(reply.SHA))
	}
	i := info{commit: reply.SHA}
	if reply.Siblings == nil || string(reply.Siblings) == "null" {
		return i, nil
	}
	err := addFiles(&i, reply.Siblings, func(s *struct {
		Name string `json:"rfilename"`
	}) (string, bool) {
		return s.Name, true
	})
	return i, err
}

// addFiles adds the names of the items of a JSON list that are files. It reads the items one by
// one, so that a list is refused before all of it is in memory.
func addFiles[Item any](
	i *info, raw []byte, name func(*Item) (file string, ok bool),
) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	begin, err := d.Token()
	if err == nil && begin != json.Delim('[') {
		err = fmt.Errorf("got %v, want a list", begin)
	}
	for err == nil && d.More() {
		var item Item
		if err = d.Decode(&item); err != nil {
			break
		}
		file, ok := name(&item)
		switch {
		case !ok:
			continue
		case file == "":
			return web.Permanentf("the list of files: an item without a name")
		case !validPath(file): // which could leave the snapshot's folder
			i.odd = append(i.odd, file)
		default:
			i.files = append(i.files, file)
		}
		if len(i.files)+len(i.odd) > maxFiles {
			return web.Permanentf("the list of files: more than %d files", maxFiles)
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	if _, after := d.Token(); err == nil && after != io.EOF {
		err = errors.New("more than one value")
	}
	if err != nil {
		return web.Permanentf("the list of files: no JSON as the hub writes it (%v)", err)
	}
	return nil
}

// parseTree adds the files of a page of api/models/REPO/tree/REVISION.
func parseTree(i *info, raw []byte) error {
	return addFiles(i, raw, func(e *struct {
		Type string `json:"type"`
		Path string `json:"path"`
	}) (string, bool) {
		return e.Path, e.Type == "file"
	})
}

// linkPattern matches the next page in a Link header.
var linkPattern = regexp.MustCompile(`<([^>]*)>\s*;[^,]*\brel="?next"?`)

// nextPage returns the address in a Link header with rel="next", empty if there is none.
func nextPage(h http.Header) string {
	if m := linkPattern.FindStringSubmatch(h.Get("Link")); m != nil {
		return m[1]
	}
	return ""
}

// metadata is the answer to HEAD about a file.
type metadata struct {
	etag    string // sha256 of the content, or git's sha1
	size    int64  // bytes; -1 if unknown
	address string // address of the content
}

// etagPattern matches a hash: an etag becomes a file name and is compared with the content, so only
// hashes are accepted.
var etagPattern = regexp.MustCompile(`^([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$`)

// parseMetadata reads the answer of a HEAD at u.
func parseMetadata(commit string, u *url.URL, resp *http.Response) (metadata, error) {
	h := resp.Header
	if got := h.Get("X-Repo-Commit"); got != commit {
		if got == "" {
			return metadata{}, web.Permanentf("an answer without X-Repo-Commit: %s is no hub",
				u.Host)
		}
		return metadata{}, web.Permanentf("an answer of commit %q, want %s", web.Clean(got), commit)
	}
	m := metadata{etag: h.Get("X-Linked-Etag"), size: -1, address: u.String()}
	if m.etag == "" {
		m.etag = h.Get("ETag")
	}
	m.etag = strings.Trim(strings.TrimPrefix(strings.TrimSpace(m.etag), "W/"), `"`)
	if !etagPattern.MatchString(m.etag) {
		return metadata{}, web.Permanentf(
			"the etag %q is no hash, so the file could not be checked", web.Clean(m.etag))
	}
	size := h.Get("X-Linked-Size")
	if size == "" && !isRedirect(resp.StatusCode) && h.Get("Content-Encoding") == "" {
		size = h.Get("Content-Length")
	}
	if size != "" {
		n, err := strconv.ParseUint(size, 10, 63)
		if err != nil {
			return metadata{}, web.Permanentf("the size %q is no number", web.Clean(size))
		}
		m.size = int64(n)
	}
	if isRedirect(resp.StatusCode) {
		next, err := redirectTarget(u, resp)
		if err != nil {
			return metadata{}, err
		}
		m.address = next.String()
	}
	return m, nil
}

// decoded decompresses an answer. The request forbids compression, but caches before the hub
// compress text anyway.
func decoded(resp *http.Response, body io.Reader) (io.Reader, error) {
	switch e := strings.ToLower(resp.Header.Get("Content-Encoding")); e {
	case "", "identity":
		return body, nil
	case "gzip":
		return gzip.NewReader(body)
	default:
		return nil, web.Permanentf("an answer in the encoding %q, want gzip or none", web.Clean(e))
	}
}
