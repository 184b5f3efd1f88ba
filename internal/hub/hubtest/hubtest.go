// Package hubtest is a Hugging Face hub for tests: a server of repositories that
// answers as the real one does, and that can be made to fail.
package hubtest

import (
	"compress/gzip"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Repo is a repository with one commit.
type Repo struct {
	Commit string            // 40 hexadecimal digits
	Refs   []string          // branches and tags of the commit
	Files  map[string][]byte // by path
	Large  int               // files of so many bytes and more are on the other host; 0 for none
	Gated  bool              // the token must be Token
	Hidden bool              // without the token the repository does not exist
	Moved  string            // the repository's new name
	Paged  bool              // the list of files comes in pages of two
	Packed bool              // small files come with gzip, without a length
}

// large says whether a file is on the other host.
func (r *Repo) large(data []byte) bool { return r.Large > 0 && len(data) >= r.Large }

// Token is the one that gated and hidden repositories want.
const Token = "hf_right"

// Request is what a client asked for.
type Request struct {
	Method, Path, Range, Token string
	Other                      bool // asked of the other host
}

// Hub is a running server.
type Hub struct {
	URL   string // of the hub
	Other string // of the host that large files are redirected to
	// Fault, where set, may answer a request in the hub's place; it returns false
	// where it has not.
	Fault func(w http.ResponseWriter, r *http.Request) bool
	// Cut holds, by path, the number of bytes after which the next answers break
	// off, one after another.
	Cut map[string][]int
	// Slow is how long an answer waits between two pieces of content.
	Slow time.Duration

	mu     sync.Mutex
	repos  map[string]*Repo
	asked  []Request
	server [2]*httptest.Server
}

// New starts a hub. Close ends it.
func New(repos map[string]*Repo) *Hub {
	h := &Hub{repos: repos, Cut: map[string][]int{}}
	h.server[0] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		h.serve(w, r, false)
	}))
	h.server[1] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		h.serve(w, r, true)
	}))
	h.URL, h.Other = h.server[0].URL, h.server[1].URL
	return h
}

// Close ends both servers.
func (h *Hub) Close() {
	for _, s := range h.server {
		s.CloseClientConnections()
		s.Close()
	}
}

// Asked returns the requests so far.
func (h *Hub) Asked() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// Forget empties what Asked returns.
func (h *Hub) Forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = nil
}

// Etag is the hash by which the hub names a file's content.
func Etag(data []byte, large bool) string {
	if large {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request, other bool) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	h.mu.Lock()
	h.asked = append(h.asked, Request{r.Method, r.URL.EscapedPath(), r.Header.Get("Range"), token,
		other})
	fault := h.Fault
	h.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	if other {
		h.content(w, r)
		return
	}
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if rest, ok := strings.CutPrefix(path, "api/models/"); ok {
		h.lists(w, r, rest, token)
		return
	}
	h.resolve(w, r, path, token)
}

// fail answers with one of the hub's errors.
func fail(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", text)
	w.WriteHeader(status)
}

// repo finds the repository at the head of a quoted path, and whether the token may
// see it; ok is false where an answer was given.
func (h *Hub) repo(w http.ResponseWriter, r *http.Request, path, token string) (repo *Repo,
	rest []string, ok bool) {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i], _ = url.PathUnescape(p)
	}
	if len(parts) < 4 {
		fail(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
		return nil, nil, false
	}
	name := parts[0] + "/" + parts[1]
	repo = h.repos[name]
	switch {
	case repo == nil || repo.Hidden && token != Token:
		status := http.StatusNotFound
		if token == "" {
			status = http.StatusUnauthorized
		}
		fail(w, status, "RepoNotFound", "Repository not found")
	case repo.Moved != "":
		w.Header().Set("Location", strings.Replace(r.URL.EscapedPath(), name, repo.Moved, 1))
		w.WriteHeader(http.StatusTemporaryRedirect)
	case repo.Gated && token != Token && parts[2] != "revision" && parts[2] != "tree":
		status := http.StatusForbidden
		if token == "" {
			status = http.StatusUnauthorized
		}
		fail(w, status, "GatedRepo", "Access to model "+name+" is restricted")
	case parts[3] != repo.Commit && !slices.Contains(repo.Refs, parts[3]):
		fail(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+parts[3])
	default:
		return repo, parts[2:], true
	}
	return nil, nil, false
}

// lists answers api/models/….
func (h *Hub) lists(w http.ResponseWriter, r *http.Request, path, token string) {
	repo, rest, ok := h.repo(w, r, path, token)
	if !ok {
		return
	}
	names := slices.Sorted(maps.Keys(repo.Files))
	type sibling struct {
		Name string `json:"rfilename"`
	}
	type lfs struct {
		OID         string `json:"oid"`
		Size        int    `json:"size"`
		PointerSize int    `json:"pointerSize"`
	}
	type entry struct {
		Type string `json:"type"`
		Path string `json:"path"`
		Size int    `json:"size"`
		OID  string `json:"oid"`
		LFS  *lfs   `json:"lfs,omitempty"`
	}
	name := strings.Join(strings.Split(path, "/")[:2], "/")
	var reply any
	switch {
	case rest[0] == "revision" && repo.Paged:
		reply = map[string]any{"id": name, "sha": repo.Commit}
	case rest[0] == "revision":
		list := []sibling{}
		for _, name := range names {
			list = append(list, sibling{name})
		}
		reply = map[string]any{
			"id": name, "sha": repo.Commit, "siblings": list, "gated": repo.Gated,
		}
	default:
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		page := []entry{{Type: "directory", Path: "folder"}}
		for i := from; i < min(from+2, len(names)); i++ {
			data := repo.Files[names[i]]
			e := entry{Type: "file", Path: names[i], Size: len(data), OID: Etag(data, false)}
			if repo.large(data) {
				e.LFS = &lfs{Etag(data, true), len(data), 130}
			}
			page = append(page, e)
		}
		if from+2 < len(names) {
			w.Header().Set("Link", fmt.Sprintf("<%s%s?recursive=true&cursor=%d>; rel=\"next\"",
				h.URL, r.URL.EscapedPath(), from+2))
		}
		reply = page
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply) // a client that has gone
}

// resolve answers HEAD and GET of a file on the hub itself.
func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, path, token string) {
	repo, rest, ok := h.repo(w, r, path, token)
	if !ok {
		return
	}
	name := strings.Join(rest[2:], "/")
	data, ok := repo.Files[name]
	if !ok {
		w.Header().Set("X-Repo-Commit", repo.Commit)
		fail(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	large := repo.large(data)
	w.Header().Set("X-Repo-Commit", repo.Commit)
	etag := Etag(data, large)
	if large {
		w.Header().Set("X-Linked-Etag", `"`+etag+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		w.Header().Set("ETag", `"of-the-redirect"`)
		w.Header().Set("Location", h.Other+"/"+path+"?signature=secret")
		w.WriteHeader(http.StatusFound)
		return
	}
	if repo.Packed && r.Method == http.MethodGet {
		w.Header().Set("ETag", `W/"`+etag+`"`)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(data) // a client that has gone
		_ = z.Close()
		return
	}
	w.Header().Set("ETag", `"`+etag+`"`)
	h.send(w, r, data)
}

// content answers on the other host, which knows no token.
func (h *Hub) content(w http.ResponseWriter, r *http.Request) {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 5)
	if r.Header.Get("Authorization") != "" || r.URL.Query().Get("signature") != "secret" ||
		len(parts) < 5 {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	data, ok := h.repos[parts[0]+"/"+parts[1]].Files[parts[4]]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.send(w, r, data)
}

// send writes data from where the client wants it, and breaks off where Cut says.
func (h *Hub) send(w http.ResponseWriter, r *http.Request, data []byte) {
	from, status := 0, http.StatusOK
	if s, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, _ = strconv.Atoi(strings.TrimSuffix(s, "-"))
		if from >= len(data) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		status = http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	part := data[from:]
	h.mu.Lock()
	cuts := h.Cut[r.URL.Path]
	cut := len(cuts) > 0
	if cut {
		part = part[:min(cuts[0], len(part))]
		h.Cut[r.URL.Path] = cuts[1:]
	}
	h.mu.Unlock()
	const piece = 64 << 10
	for len(part) > 0 {
		n := min(piece, len(part))
		if _, err := w.Write(part[:n]); err != nil {
			return
		}
		if part = part[n:]; h.Slow > 0 {
			_ = http.NewResponseController(w).Flush() // a client that has gone
			time.Sleep(h.Slow)
		}
	}
	if cut {
		_ = http.NewResponseController(w).Flush() // a client that has gone
		panic(http.ErrAbortHandler)
	}
}
