package hub

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/web"
)

// FuzzReplies reads what a hostile hub could answer: lists of files, an index, and
// headers. What is accepted must stay inside the cache, and must be checkable.
func FuzzReplies(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(`{"sha":%q,"siblings":[{"rfilename":"a/b.json"}]}`, commit)),
		"Etag: \"x\"\nLink: <u>; rel=\"next\"", "org/name@v1:Q8_0")
	f.Add([]byte(`[{"type":"file","path":"m-Q4_K_M-00001-of-00002.gguf"},{"type":"file","path":"mmproj.gguf"}]`),
		"X-Repo-Commit: "+commit+"\nEtag: W/\""+commit+"\"\nContent-Length: 5", "o/n:UD-Q4_K_XL")
	f.Add([]byte(`{"weight_map":{"a":"model-1.safetensors"}}`),
		"Content-Range: bytes 5-9/10\nRetry-After: 7", "a/b")
	f.Add([]byte(`[{"type":"file","path":"a"},{"type":"file","path":"a"}] []`), "", "a/b")
	f.Add([]byte(`{"sha":"`+commit+`","siblings":{"rfilename":[]}}`), "", "a/b")
	f.Add([]byte(`{}`), "Location: //host/x\nX-Linked-Size: "+
		"99999999999999999999\nRateLimit: \"api\";r=0;t=3", "[a-z]*.json")
	f.Fuzz(func(t *testing.T, body []byte, headers, s string) {
		inside := func(names []string) {
			for _, n := range names {
				if n == "" || strings.HasPrefix(n, "/") || strings.Contains("/"+n+"/", "/../") ||
					strings.ContainsAny(n, "\\\x00\n") {
					t.Errorf("accepted the name %q", n)
				}
			}
		}
		pick := func(list []string) {
			inside(list)
			for _, quant := range []string{"", s} {
				if ch, err := choose(list, quant); err == nil {
					inside(ch.files)
				}
			}
			for _, n := range list {
				quantOf(n)
				_, _ = glob(s, n) // only that it ends
			}
		}
		if i, err := parseInfo(body); err == nil {
			if !commitPattern.MatchString(i.commit) {
				t.Errorf("accepted the commit %q", i.commit)
			}
			pick(i.files)
		}
		var tree info
		if err := parseTree(&tree, body); err == nil {
			pick(tree.files)
		}
		if files, err := shards("i", body); err == nil {
			inside(files)
		}
		h := http.Header{}
		for _, line := range strings.Split(headers, "\n") {
			if k, v, ok := strings.Cut(line, ": "); ok {
				h.Set(k, v)
			}
		}
		u := &url.URL{Scheme: "https", Host: "hub", Path: "/x"}
		for _, status := range []int{200, 302} {
			m, err := parseMetadata(commit, u, &http.Response{StatusCode: status, Header: h})
			if err != nil {
				continue
			}
			if !etagPattern.MatchString(m.etag) || m.size < -1 ||
				!strings.HasPrefix(m.address, "http") {
				t.Errorf("accepted %+v", m)
			}
		}
		nextPage(h)
		if web.Pause(h) < 0 {
			t.Error("a negative pause")
		}
		if start, ok := web.RangeStart(h); ok && start < 0 {
			t.Errorf("a range from %d", start)
		}
		if strings.ContainsAny(web.Clean(headers), "\n\r\x1b") {
			t.Errorf("clean: got %q", web.Clean(headers))
		}
		if n, err := ParseName(s); err == nil {
			inside([]string{n.folder(), n.revision()})
			if again, err := ParseName(n.String()); err != nil || again != n {
				t.Errorf("%q: read as %+v, and that as %+v, %v", s, n, again, err)
			}
		}
	})
}
