package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/hub/hubtest"
)

const (
	commit  = "0123456789abcdef0123456789abcdef01234567"
	shard1  = "model-00001-of-00002.safetensors"
	shard2  = "model-00002-of-00002.safetensors"
	indexed = "model.safetensors.index.json"
)

// content is n bytes that differ from those of another seed.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// tinyRepo is a repository with two shards and much that no model needs.
func tinyRepo() *hubtest.Repo {
	return &hubtest.Repo{Commit: commit, Refs: []string{"main", "refs/pr/1"}, Large: 1000,
		Files: map[string][]byte{
			"config.json": []byte(`{"model_type":"llava"}`), "tokenizer.json": content(1, 900),
			"README.md":       []byte("# hello"),
			"tokenizer.model": content(9, 20), ".gitattributes": []byte("*"),
			"training_args.bin": content(8, 10),
			indexed:             fmt.Appendf(nil, `{"weight_map":{"a":%q,"b":%q,"c":%q}}`, shard1, shard2, shard1),
			shard1:              content(2, 300_000), shard2: content(3, 200_000),
			"consolidated.safetensors": content(4, 5000),
			"pytorch_model.bin":        content(5, 5000), "original/model.safetensors": content(6, 2000),
			"preprocessor_config.json": []byte("{}"),
		}}
}

// tinyNeeds are the files of tinyRepo that a model needs.
var tinyNeeds = []string{"config.json", shard1, shard2, indexed, "preprocessor_config.json",
	"tokenizer.json"}

// ggufRepo is a repository of GGUF files.
func ggufRepo() *hubtest.Repo {
	return &hubtest.Repo{Commit: commit, Refs: []string{"main"}, Large: 1, Files: map[string][]byte{
		"m-Q4_K_M.gguf": content(1, 5000), "m-Q8_0.gguf": content(2, 9000), "README.md": []byte("x"),
		"big/m-f16-00001-of-00002.gguf": content(3, 4000),
		"big/m-f16-00002-of-00002.gguf": content(4, 4000),
		"mmproj-m-f32.gguf":             content(5, 3000), "mmproj-m-f16.gguf": content(6, 2000),
		"config.json": []byte("{}"),
	}}
}

// start runs a hub with the repositories me/tiny and me/gguf and a client whose
// cache is empty and that does not wait; waits holds what it would have waited.
func start(t *testing.T, repos map[string]*hubtest.Repo, env ...string) (*hubtest.Hub, *Client,
	*[]time.Duration) {
	t.Helper()
	if repos == nil {
		repos = map[string]*hubtest.Repo{"me/tiny": tinyRepo(), "me/gguf": ggufRepo()}
	}
	h := hubtest.New(repos)
	t.Cleanup(h.Close)
	c := client(t, t.TempDir(), append([]string{"HF_ENDPOINT=" + h.URL}, env...)...)
	waits := new([]time.Duration)
	c.wait = func(d time.Duration) <-chan time.Time {
		*waits = append(*waits, d)
		return time.After(0)
	}
	return h, c, waits
}

func client(t *testing.T, home string, env ...string) *Client {
	t.Helper()
	c, err := New(func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return map[string]string{"HF_HOME": home}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func name(t *testing.T, s string) Name {
	t.Helper()
	n, err := ParseName(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// check compares a snapshot's files with the repository's.
func check(t *testing.T, dir string, repo *hubtest.Repo, want []string) {
	t.Helper()
	got, err := localFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	want = slices.Clone(want)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("files: got %q, want %q", got, want)
	}
	for _, file := range got {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !bytes.Equal(data, repo.Files[file]) {
			t.Errorf("%s: content differs (%v)", file, err)
		}
	}
}

// Ensure that a pull fetches what a model needs, in the layout of huggingface_hub,
// that a second one asks only for the list, and that nothing is asked offline.
func TestPull(t *testing.T) {
	h, c, _ := start(t, nil)
	last := [2]int64{}
	p, err := c.Pull(t.Context(), name(t, "me/tiny"),
		PullOptions{Progress: func(done, total int64) { last = [2]int64{done, total} }})
	if err != nil {
		t.Fatal(err)
	}
	repo := tinyRepo()
	root := filepath.Join(c.Cache(), "models--me--tiny")
	if want := filepath.Join(root, "snapshots", commit); p.Dir != want || p.Model != want ||
		p.Projector != "" {
		t.Errorf("got %+v, want the folder %s", p.Snapshot, want)
	}
	check(t, p.Dir, repo, tinyNeeds)
	var size int64
	for _, f := range tinyNeeds {
		size += int64(len(repo.Files[f]))
	}
	if last != [2]int64{size, size} || p.Bytes != size || p.New != len(tinyNeeds) ||
		p.Files != len(tinyNeeds) {
		t.Errorf("progress ended at %v, report %d bytes of %d files (%d new), want %d bytes of %d",
			last, p.Bytes, p.Files, p.New, size, len(tinyNeeds))
	}
	if ref, err := os.ReadFile(filepath.Join(root, "refs", "main")); err != nil ||
		string(ref) != commit {
		t.Errorf("refs/main: got %q, %v, want the commit and no newline", ref, err)
	}
	etag := hubtest.Etag(repo.Files[shard1], true)
	if target, err := os.Readlink(filepath.Join(p.Dir, shard1)); err != nil ||
		target != "../../blobs/"+etag {
		t.Errorf("%s: got a link to %q, %v, want a relative one to its blob", shard1, target, err)
	}
	if _, err := os.Stat(filepath.Join(c.Cache(), ".locks", "models--me--tiny",
		etag+".lock")); err != nil {
		t.Error(err)
	}
	h.Forget()
	p, err = c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
	if err != nil || p.New != 0 || len(h.Asked()) != 1 {
		t.Errorf("again: %d new files, %v, asked %v, want the list alone", p.New, err, h.Asked())
	}
	h.Forget()
	if _, err := c.Pull(t.Context(), name(t, "me/tiny@"+commit), PullOptions{}); err != nil ||
		len(h.Asked()) != 0 {
		t.Errorf("a commit that is there: %v, asked %v, want nothing", err, h.Asked())
	}
	c.offline = "HF_HUB_OFFLINE"
	if s, err := c.Find(name(t, "me/tiny")); err != nil || s.Model != p.Dir {
		t.Errorf("Find: got %+v, %v", s, err)
	}
	if _, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{}); err != nil {
		t.Error("offline:", err)
	}
	if _, err := c.Pull(t.Context(), name(t, "me/gguf"), PullOptions{}); err == nil ||
		!strings.Contains(err.Error(), "HF_HUB_OFFLINE") {
		t.Errorf("offline and not there: got %v", err)
	}
	if len(h.Asked()) != 0 {
		t.Errorf("offline: asked %v", h.Asked())
	}
}

// Ensure that one GGUF file comes with all its parts and one projector.
func TestPullGGUF(t *testing.T) {
	for _, c := range []struct {
		name, model string
		want        []string
	}{
		{"me/gguf:q8_0", "m-Q8_0.gguf", []string{"m-Q8_0.gguf", "mmproj-m-f16.gguf"}},
		{"me/gguf", "m-Q4_K_M.gguf", []string{"m-Q4_K_M.gguf", "mmproj-m-f16.gguf"}},
		{"me/gguf:F16", "big/m-f16-00001-of-00002.gguf",
			[]string{"big/m-f16-00001-of-00002.gguf", "big/m-f16-00002-of-00002.gguf",
				"mmproj-m-f16.gguf"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, cl, _ := start(t, nil)
			var notices []string
			p, err := cl.Pull(t.Context(), name(t, c.name),
				PullOptions{Notice: func(s string) { notices = append(notices, s) }})
			if err != nil {
				t.Fatal(err)
			}
			check(t, p.Dir, ggufRepo(), c.want)
			if p.Model != filepath.Join(p.Dir, c.model) ||
				p.Projector != filepath.Join(p.Dir, "mmproj-m-f16.gguf") {
				t.Errorf("got %+v, want %s and its projector", p.Snapshot, c.model)
			}
			if got := len(notices) > 0; got != !strings.Contains(c.name, ":") {
				t.Errorf("notices %q", notices)
			}
			if s, err := cl.Find(name(t, c.name)); err != nil || s.Model != p.Model ||
				s.Projector != p.Projector {
				t.Errorf("Find: got %+v, %v, want what Pull has returned", s, err)
			}
		})
	}
	_, cl, _ := start(t, nil)
	if _, err := cl.Pull(t.Context(), name(t, "me/gguf:Q4_K"), PullOptions{}); !errors.Is(err,
		errs.ErrNotFound) || !strings.Contains(err.Error(), "m-Q4_K_M.gguf") {
		t.Errorf("a quantisation that is not there: got %v", err)
	}
}

// Ensure that a download cut at any byte goes on there, in the same call and in
// the next one, and that what was left is checked.
func TestResume(t *testing.T) {
	path := "/me/tiny/resolve/" + commit + "/"
	size := len(tinyRepo().Files[shard1])
	t.Run("same call", func(t *testing.T) {
		h, c, _ := start(t, nil)
		h.Cut[path+shard1] = []int{1, 70_000, 0, 0, 0, 65_536, size - 135_538}
		h.Cut[path+"config.json"] = []int{0, 3}
		p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		check(t, p.Dir, tinyRepo(), tinyNeeds)
		var ranges []string
		for _, a := range h.Asked() {
			if a.Other && strings.HasSuffix(a.Path, shard1) {
				ranges = append(ranges, a.Range)
			}
		}
		want := []string{
			"", "bytes=1-", "bytes=70001-", "bytes=70001-", "bytes=70001-", "bytes=70001-",
			fmt.Sprintf("bytes=%d-", 70001+65536), fmt.Sprintf("bytes=%d-", size-1)}
		if !slices.Equal(ranges, want) {
			t.Errorf("ranges: got %q, want %q", ranges, want)
		}
	})
	t.Run("next call", func(t *testing.T) {
		h, c, _ := start(t, nil)
		h.Cut[path+shard1] = []int{100_000, 0, 0, 0, 0, 0}
		n := name(t, "me/tiny")
		_, err := c.Pull(t.Context(), n, PullOptions{})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("got %v, want an error of one line", err)
		}
		if _, err := c.Find(n); !errors.Is(err, errs.ErrNotFound) {
			t.Errorf("Find: got %v, want ErrNotFound", err)
		}
		if s, err := c.Find(name(t, "me/tiny@"+commit)); !errors.Is(err, errs.ErrNotFound) ||
			!strings.Contains(err.Error(), shard1) {
			t.Errorf("Find of the commit: got %v, %v, want ErrNotFound that names the shard", s,
				err)
		}
		left := c.blob(n, hubtest.Etag(tinyRepo().Files[shard1], true)+incomplete)
		if st, err := os.Stat(left); err != nil || st.Size() != 100_000 {
			t.Fatalf("what was left: %v, %v, want 100000 bytes", st, err)
		}
		h.Forget()
		p, err := c.Pull(t.Context(), n, PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		check(t, p.Dir, tinyRepo(), tinyNeeds)
		if !slices.ContainsFunc(h.Asked(),
			func(a hubtest.Request) bool { return a.Range == "bytes=100000-" }) {
			t.Errorf("asked %v, want the rest alone", h.Asked())
		}
	})
	for what, left := range map[string][]byte{
		"damaged": content(99, 1000), "damaged whole": content(99, size),
		"too long": content(99, size+1),
		"whole":    tinyRepo().Files[shard1],
	} {
		t.Run(what, func(t *testing.T) {
			_, c, _ := start(t, nil)
			n := name(t, "me/tiny")
			if err := c.prepare(n, commit); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.blob(n, hubtest.Etag(tinyRepo().Files[shard1],
				true)+incomplete), left, 0o666); err != nil {
				t.Fatal(err)
			}
			var last [2]int64
			p, err := c.Pull(t.Context(), n,
				PullOptions{Progress: func(done, total int64) { last = [2]int64{done, total} }})
			if err != nil {
				t.Fatal(err)
			}
			check(t, p.Dir, tinyRepo(), tinyNeeds)
			if last[0] != last[1] {
				t.Errorf("progress ended at %v", last)
			}
		})
	}
}

// Ensure that servers which ignore ranges, lie about lengths, change hashes or
// compress do no harm.
func TestOddServers(t *testing.T) {
	shard := tinyRepo().Files[shard1]
	on := func(method, suffix string, f http.HandlerFunc) func(http.ResponseWriter,
		*http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || !strings.HasSuffix(r.URL.Path, suffix) {
				return false
			}
			f(w, r)
			return true
		}
	}
	header := func(h http.Header) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Repo-Commit", commit)
			w.Header().Set("ETag", hubtest.Etag(shard, true))
			for k, v := range h {
				w.Header()[k] = v
			}
		}
	}
	asked := 0
	cases := map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		want  string // part of the error; empty where the pull succeeds
	}{
		"range ignored": {on("GET", shard1, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(shard)))
			if asked++; asked == 1 {
				_, _ = w.Write(shard[:1000])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(shard)
		}), ""},
		"wrong part": {on("GET", shard1, func(w http.ResponseWriter, r *http.Request) {
			if asked++; asked == 2 {
				w.Header().Set("Content-Range", "bytes 5-9/300000")
				w.WriteHeader(206)
				return
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(shard)))
			if asked == 1 {
				_, _ = w.Write(shard[:1000])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(shard)
		}), ""},
		"ends early and says so": {on("GET", shard1,
			func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(shard[:99]) }),
			"cut after 99 of 300000 bytes (5 tries)"},
		"longer than announced": {on("GET", shard1,
			func(w http.ResponseWriter,
				r *http.Request) {
				_, _ = w.Write(append(shard[:len(shard):len(shard)], 1))
			}),
			"more than the 300000 bytes"},
		"shorter than announced": {on("HEAD", shard1,
			header(http.Header{"Content-Length": {"300001"}})), ""},
		"other content": {on("GET", shard1,
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write(content(7, len(shard)))
			}),
			"the sha256 of the 300000 bytes"},
		"no etag": {on("HEAD", shard1, header(http.Header{"Etag": nil})), "is no hash"},
		"etag that is a path": {on("HEAD", shard1, header(http.Header{"Etag": {`"../../../x"`}})),
			"is no hash"},
		"no commit": {on("HEAD", shard1, header(http.Header{"X-Repo-Commit": nil})),
			"is no hub"},
		"another commit": {on("HEAD", shard1, header(http.Header{"X-Repo-Commit": {"x"}})),
			`of commit "x"`},
		"size that is no number": {on("HEAD", shard1, header(http.Header{"X-Linked-Size": {"-1"}})),
			"is no number"},
		"location to a file": {on("HEAD", shard1, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(302)
		}), "redirect"},
		"endless redirects": {on("HEAD", shard1, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", r.URL.Path)
			w.WriteHeader(302)
		}), "redirects"},
		"names that climb": {on("GET", "main", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"../config.json"}]}`, commit)
		}), ""},
		"no JSON": {on("GET", "main",
			func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `<html>login</html>`) }),
			"no JSON"},
		"commit that is a path": {on("GET", "main",
			func(w http.ResponseWriter,
				r *http.Request) {
				fmt.Fprint(w, `{"sha":"../x","siblings":[]}`)
			}), "the commit"},
		"index that climbs": {on("GET", "main", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"model.safetensors.index.json"}]}`, commit)
		}), "which the repository does not have"},
		"list on another host": {on("GET", "main", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://example.invalid/")
			w.WriteHeader(302)
		}), "another host"},
	}
	for what, cs := range cases {
		t.Run(what, func(t *testing.T) {
			asked = 0
			h, c, _ := start(t, nil)
			h.Fault = cs.fault
			p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
			if cs.want == "" {
				if what == "shorter than announced" {
					if err == nil || !strings.Contains(err.Error(),
						"no bytes after the first 300000 of 300001") {
						t.Errorf("got %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				check(t, p.Dir, tinyRepo(), tinyNeeds)
				return
			}
			if err == nil || !strings.Contains(err.Error(), cs.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, cs.want)
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(c.Cache()), "x")); err == nil {
				t.Error("a file outside of the cache was written")
			}
		})
	}
}

// Ensure that a file whose hash changes after HEAD comes with the new one.
func TestEtagChanges(t *testing.T) {
	h, c, _ := start(t, nil)
	changed := content(77, 300_000)
	gets := 0
	h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, shard1) {
			return false
		}
		if r.Method == http.MethodGet {
			gets++
			_, _ = w.Write(changed)
			return true
		}
		if gets == 0 {
			return false
		}
		w.Header().Set("X-Repo-Commit", commit)
		w.Header().Set("ETag", hubtest.Etag(changed, true))
		w.Header().Set("Content-Length", fmt.Sprint(len(changed)))
		return true
	}
	p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(p.Dir, shard1))
	if err != nil || !bytes.Equal(got, changed) {
		t.Errorf("got other content than the hub has now (%v)", err)
	}
}

// Ensure that a file whose content is wrong ends only its own download: other downloads stop,
// and what they have received stays.
func TestOthersStayWhole(t *testing.T) {
	h, c, _ := start(t, nil)
	n := name(t, "me/tiny")
	left := c.blob(n, hubtest.Etag(tinyRepo().Files[shard1], true)+incomplete)
	size := func() int64 {
		info, err := os.Stat(left)
		if err != nil {
			return -1
		}
		return info.Size()
	}
	h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method != http.MethodGet:
			return false
		case strings.HasSuffix(r.URL.Path, shard1):
			_, _ = w.Write(tinyRepo().Files[shard1][:1000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "config.json"):
			for end := time.Now().Add(10 * time.Second); size() < 1000 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			_, _ = w.Write(content(7, len(tinyRepo().Files["config.json"])))
		default:
			return false
		}
		return true
	}
	var notes []string
	_, err := c.Pull(t.Context(), n, PullOptions{
		Include: []string{"config.json", shard1},
		Notice:  func(s string) { notes = append(notes, s) },
	})
	if !errors.Is(err, errs.ErrDamaged) || !strings.Contains(err.Error(), ": config.json: ") {
		t.Errorf("got %v, want an error about config.json", err)
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "config.json: ") {
		t.Errorf("notices: got %q, want one about config.json", notes)
	}
	if size() != 1000 {
		t.Errorf("%s: %d bytes are left, want the 1000 that came", shard1, size())
	}
}

// Ensure that a stored token is read without a byte-order mark, and that a file in another encoding
// is named.
func TestStoredToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	getenv := func(name string) string {
		return map[string]string{"HF_TOKEN_PATH": file}[name]
	}
	for in, want := range map[string]string{
		"\ufeffhf_x\r\n":     "hf_x, <nil>",
		"\xff\xfeh\x00f\x00": ", hub: the stored token: " + file + ": is UTF-16",
	} {
		if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		token, err := readToken(getenv, "")
		if got := fmt.Sprintf("%s, %v", token, err); !strings.HasPrefix(got, want) {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

// Ensure that the token goes to the hub and to nobody else, through a redirect of
// the hub too.
func TestToken(t *testing.T) {
	repo := tinyRepo()
	repo.Gated = true
	h, c, _ := start(t, map[string]*hubtest.Repo{"me/tiny": repo, "old/tiny": {Moved: "me/tiny"}},
		"HF_TOKEN="+hubtest.Token)
	p, err := c.Pull(t.Context(), name(t, "old/tiny"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, p.Dir, repo, tinyNeeds)
	others := 0
	for _, a := range h.Asked() {
		if a.Other {
			others++
		}
		if (a.Token == hubtest.Token) == a.Other {
			t.Errorf("%+v: the token is for the hub alone", a)
		}
	}
	if others != 2 {
		t.Errorf("%d requests to the other host, want 2", others)
	}
}

// Ensure that no token is sent, and none is read, where huggingface_hub sends none.
func TestNoImplicitToken(t *testing.T) {
	hidden := tinyRepo()
	hidden.Hidden = true
	const variable = "HF_HUB_DISABLE_IMPLICIT_TOKEN"
	for value, kept := range map[string]bool{"1": true, "true": true, "0": false, "": false} {
		h, c, _ := start(t, map[string]*hubtest.Repo{"me/tiny": hidden},
			"HF_TOKEN="+hubtest.Token, variable+"="+value)
		_, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
		if says := fmt.Sprint(err); kept != strings.Contains(says, "unset "+variable) {
			t.Errorf("%q: got %v", value, err)
		}
		for _, a := range h.Asked() {
			if kept && a.Token != "" {
				t.Errorf("%q: a request with the token: %+v", value, a)
			}
		}
	}
	if _, err := New(func(name string) string {
		return map[string]string{"HF_TOKEN_PATH": t.TempDir(), "HF_HOME": t.TempDir(),
			variable: "YES"}[name]
	}); err != nil {
		t.Errorf("a token that cannot be read: %v", err)
	}
}

// Ensure that lists in pages, compressed files and revisions with slashes work.
func TestPages(t *testing.T) {
	repo := tinyRepo()
	repo.Paged, repo.Packed = true, true
	_, c, _ := start(t, map[string]*hubtest.Repo{"me/tiny": repo})
	p, err := c.Pull(t.Context(), name(t, "me/tiny@refs/pr/1"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, p.Dir, repo, tinyNeeds)
	if _, err := os.Stat(filepath.Join(c.Cache(), "models--me--tiny", "refs", "refs", "pr",
		"1")); err != nil {
		t.Error(err)
	}
}

// Ensure that nothing is written where nothing is missing: a complete cache may be read-only, and
// without the folder of the locks, as in an image that holds only the model's own folder.
func TestPullWritesNothing(t *testing.T) {
	_, c, _ := start(t, nil)
	if _, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{}); err != nil {
		t.Fatal(err)
	}
	locks := filepath.Join(c.Cache(), ".locks")
	if err := os.RemoveAll(locks); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(locks, nil, 0o666); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	for _, verify := range []bool{false, true} {
		p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{Verify: verify})
		if err != nil || p.New != 0 || p.Files != len(tinyNeeds) {
			t.Errorf("verify %v: got %+v, %v, want all files and none new", verify, p, err)
		}
	}
	if err := os.Remove(locks); err != nil {
		t.Fatal(err)
	}
	pr := name(t, "me/tiny@refs/pr/1")
	if _, err := c.Pull(t.Context(), pr, PullOptions{}); err != nil {
		t.Errorf("another branch of the same commit: %v", err)
	}
	if _, err := c.Find(pr); err != nil {
		t.Error(err)
	}
}

// Ensure that patterns choose files, and that what matches nothing is refused.
func TestInclude(t *testing.T) {
	_, c, _ := start(t, nil)
	p, err := c.Pull(t.Context(), name(t, "me/tiny"),
		PullOptions{Include: []string{"*.json", "original/*"}})
	if err != nil {
		t.Fatal(err)
	}
	check(t, p.Dir, tinyRepo(),
		[]string{"config.json", "tokenizer.json", indexed, "preprocessor_config.json",
			"original/model.safetensors"})
	_, err = c.Pull(t.Context(), name(t, "me/tiny"),
		PullOptions{Include: []string{"*.json", "*.onnx"}})
	if !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// Ensure that a pattern fetches files with any name that this system can keep, and that one that it
// cannot keep is named.
func TestOddNames(t *testing.T) {
	repo := tinyRepo()
	names := []string{"logs/what?.txt", "logs/12:30.txt", `logs/"a" *<b>|.txt`}
	if runtime.GOOS == "windows" {
		names = nil
	}
	for _, file := range names {
		repo.Files[file] = []byte(file)
	}
	repo.Files["logs/plain.txt"] = []byte("x")
	repo.Files[`logs\back.txt`] = []byte("y")
	_, c, _ := start(t, map[string]*hubtest.Repo{"me/tiny": repo})
	var notices []string
	p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{Include: []string{"logs*"},
		Notice: func(s string) { notices = append(notices, s) }})
	if err != nil {
		t.Fatal(err)
	}
	check(t, p.Dir, repo, append(names, "logs/plain.txt"))
	if len(notices) != 1 || !strings.Contains(notices[0], `logs\\back.txt" is left out`) {
		t.Errorf("got the notices %q, want one about the name that is left out", notices)
	}
}

// Ensure that every refusal of the hub is one line that says what to do, and that
// what may pass is tried again for as long as the hub says.
func TestRefusals(t *testing.T) {
	gated, hidden := tinyRepo(), tinyRepo()
	gated.Gated, hidden.Hidden = true, true
	repos := map[string]*hubtest.Repo{"me/gated": gated, "me/hidden": hidden, "me/tiny": tinyRepo()}
	answer := func(status int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			return true
		}
	}
	for what, cs := range map[string]struct {
		name, token, want string
		missing           bool
		fault             func(http.ResponseWriter, *http.Request) bool
		waits             []time.Duration
	}{
		"gated, no token": {name: "me/gated",
			want: "401: gated: accept the conditions at URL/me/gated and set HF_TOKEN"},
		"gated, wrong token": {name: "me/gated", token: "hf_wrong",
			want: "403: gated: accept the conditions at URL/me/gated with the account"},
		"hidden": {name: "me/hidden",
			want: "401: no such repository, or a private one (set HF_TOKEN)", missing: true},
		"no repository": {name: "me/none", token: "hf_wrong", want: "404: no such repository",
			missing: true},
		"no revision": {name: "me/tiny@v9", want: `404: no revision "v9"`, missing: true},
		"forbidden": {name: "me/tiny", fault: answer(403),
			want: "403: the token gives no access"},
		"teapot": {name: "me/tiny",
			fault: answer(418, "X-Error-Message", "short\tand\u009bstout"),
			want:  "418: I'm a teapot (the hub says: short and stout)"},
		"too many": {name: "me/tiny", fault: answer(429, "Retry-After", "2"),
			want: "429: too many requests, try again in 2s (5 tries)", waits: seconds(2, 2, 2, 2)},
		"far too many": {name: "me/tiny", fault: answer(429, "Retry-After", "3600"),
			want: "429: too many requests, try again in 1h0m0s"},
		"rate limit": {name: "me/tiny", fault: answer(429, "RateLimit", `"api";r=0;t=7`),
			want: "try again in 7s", waits: seconds(7, 7, 7, 7)},
		"server error": {name: "me/tiny", fault: answer(503),
			want: "503: Service Unavailable (5 tries)", waits: seconds(.1, .4, 1.6, 6.4)},
	} {
		t.Run(what, func(t *testing.T) {
			h, c, waits := start(t, repos, "HF_TOKEN="+cs.token)
			h.Fault = cs.fault
			_, err := c.Pull(t.Context(), name(t, cs.name), PullOptions{})
			if err == nil ||
				!strings.Contains(err.Error(), strings.Replace(cs.want, "URL", h.URL, 1)) ||
				strings.ContainsAny(err.Error(), "\r\n\u009b") {
				t.Errorf("got %q, want one line with %q", err, cs.want)
			}
			if errors.Is(err, errs.ErrNotFound) != cs.missing {
				t.Errorf("ErrNotFound: got %v, want %v", !cs.missing, cs.missing)
			}
			if !slices.Equal(*waits, cs.waits) {
				t.Errorf("waited %v, want %v", *waits, cs.waits)
			}
		})
	}
	t.Run("passes", func(t *testing.T) {
		h, c, waits := start(t, repos)
		asked := 0
		h.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			asked++
			status := map[int]int{1: 500, 2: 429, 4: 502, 5: 504}[asked]
			if status != 0 {
				w.Header().Set("Retry-After", map[int]string{429: "3"}[status])
				w.WriteHeader(status)
			}
			return status != 0
		}
		p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		check(t, p.Dir, tinyRepo(), tinyNeeds)
		if want := seconds(.1, 3, .1, .4); !slices.Equal(*waits, want) {
			t.Errorf("waited %v, want %v", *waits, want)
		}
	})
}

// seconds are durations.
func seconds(s ...float64) (d []time.Duration) {
	for _, v := range s {
		d = append(d, time.Duration(v*float64(time.Second)))
	}
	return d
}

// Ensure that two pullers of one cache fetch each file once.
func TestTwoPullers(t *testing.T) {
	h, c, _ := start(t, nil)
	h.Slow = 20 * time.Millisecond
	second := client(t, filepath.Dir(c.Cache()), "HF_ENDPOINT="+h.URL)
	done := make(chan error, 2)
	for _, cl := range []*Client{c, second} {
		go func() {
			_, err := cl.Pull(context.Background(), Name{Repo: "me/tiny"}, PullOptions{})
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	gets := map[string]int{}
	for _, a := range h.Asked() {
		if a.Method == http.MethodGet && !strings.HasPrefix(a.Path, "/api/") {
			gets[a.Path]++
		}
	}
	if len(gets) != len(tinyNeeds) {
		t.Errorf("%d files, want %d", len(gets), len(tinyNeeds))
	}
	for path, n := range gets {
		if n != 1 {
			t.Errorf("%s: fetched %d times, want once", path, n)
		}
	}
	s, err := c.Find(Name{Repo: "me/tiny"})
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Dir, tinyRepo(), tinyNeeds)
}

// Ensure that what another process downloaded while this one waited is not downloaded again, also
// on a file system without links, where the content has moved to the snapshot.
func TestOtherPullerWithoutLinks(t *testing.T) {
	h, c, _ := start(t, nil)
	pulled, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &puller{client: c, name: pulled.Name, commit: commit, out: *pulled,
		PullOptions: PullOptions{Notice: func(string) {}}}
	w := &wantedFile{name: shard1}
	if err := p.heads(t.Context(), []*wantedFile{w}); err != nil {
		t.Fatal(err)
	}
	pointer := filepath.Join(pulled.Dir, shard1)
	blob := blobOf(pointer)
	if err := os.Remove(pointer); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(blob, pointer); err != nil {
		t.Fatal(err)
	}
	h.Forget()
	if err := p.blob(t.Context(), w); err != nil || len(h.Asked()) != 0 {
		t.Errorf("got %v after the requests %v, want none", err, h.Asked())
	}
	if _, err := os.Lstat(blob); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second copy: %v, want none", err)
	}
}

// Ensure that a cancelled pull stops, and that the next one goes on.
func TestCancel(t *testing.T) {
	h, c, _ := start(t, nil)
	h.Slow = 50 * time.Millisecond
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by hand")
	_, err := c.Pull(ctx, Name{Repo: "me/tiny"}, PullOptions{Progress: func(done, total int64) {
		if done > 100_000 {
			cancel(stop)
		}
	}})
	if !errors.Is(err, stop) {
		t.Fatalf("got %v, want the cause", err)
	}
	p, err := c.Pull(t.Context(), Name{Repo: "me/tiny"}, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(t, p.Dir, tinyRepo(), tinyNeeds)
	if p.Bytes > 500_000 {
		t.Errorf("%d bytes came again, want the rest alone", p.Bytes)
	}
}
