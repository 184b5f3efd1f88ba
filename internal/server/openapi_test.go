package server

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/restore-vlm/restore/internal/anthropic"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/protocols"
)

// checker checks replies against an OpenAPI document.
type checker struct {
	compiler *jsonschema.Compiler
	doc      map[string]any
	mu       sync.Mutex
}

var (
	checkersMu sync.Mutex
	checkers   = map[string]*checker{} // by document
)

func newChecker(t testing.TB, document []byte) *checker {
	t.Helper()
	checkersMu.Lock()
	defer checkersMu.Unlock()
	if c := checkers[string(document)]; c != nil {
		return c
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{compiler: jsonschema.NewCompiler(), doc: doc.(map[string]any)}
	if err := c.compiler.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	checkers[string(document)] = c
	return c
}

// schema compiles the schema at a JSON pointer, nil if there is none.
func (c *checker) schema(t testing.TB, parts ...string) *jsonschema.Schema {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	pointer, at := "", any(c.doc)
	for _, p := range parts {
		m, _ := at.(map[string]any)
		if at = m[p]; at == nil {
			return nil
		}
		escapes := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
		pointer += "/" + escapes.Replace(p)
	}
	s, err := c.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		t.Fatalf("%s: %v", pointer, err)
	}
	return s
}

// check checks the reply to a request. Replies of unknown paths are not described.
func (c *checker) check(t testing.TB, method, path string, r *http.Response, body string) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	path = strings.TrimSuffix(path, "/")
	for begin, end := range map[string]string{"/v1/models/": "", "/v1/files/": "/content",
		"/v1/batches/": "/cancel"} {
		if id, found := strings.CutPrefix(path, begin); found {
			path = begin + "{id}"
			if strings.HasSuffix(id, end) {
				path += end
			}
		}
	}
	status, kind := "default", r.Header.Get("Content-Type")
	if r.StatusCode == 200 {
		status = "200"
	}
	s := c.schema(t, "paths", path, strings.ToLower(method), "responses", status, "content", kind,
		"schema")
	if s == nil {
		return
	}
	values := []string{body}
	switch kind {
	case api.EventStream:
		values = nil
		for line := range strings.SplitSeq(body, "\n") {
			if data, ok := strings.CutPrefix(line, "data: {"); ok {
				values = append(values, "{"+data)
			}
		}
	case api.LineStream:
		values = slices.Collect(strings.SplitSeq(strings.TrimSuffix(body, "\n"), "\n"))
	}
	for _, text := range values {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			continue // a reply that was cut off
		}
		if err := s.Validate(v); err != nil {
			t.Errorf("%s %s: %s is not what /openapi.json says: %v", method, path, text, err)
		}
	}
}

// CheckReply checks the reply of the server at url.
func CheckReply(t testing.TB, url, method, path string, r *http.Response, body string) {
	t.Helper()
	got, err := http.Get(url + "/openapi.json")
	if err != nil {
		return // the server has ended
	}
	defer got.Body.Close()
	document, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode != 200 {
		return
	}
	newChecker(t, document).check(t, method, path, r, body)
}

func docsWithReplies() map[string]api.Doc {
	docs := infoDocs()
	maps.Copy(docs, protocols.Docs())
	maps.Copy(docs, jobDocs())
	maps.DeleteFunc(docs, func(_ string, d api.Doc) bool { return d.Reply == nil })
	return docs
}

// Ensure that the OpenAPI document describes the routes that are on, and no other.
func TestOpenAPI(t *testing.T) {
	for _, off := range []bool{false, true} {
		s := New(Options{NoPage: off, NoMetrics: off, Jobs: jobs.New(jobs.Options{})})
		document, err := json.Marshal(s.document())
		if err != nil {
			t.Fatal(err)
		}
		for at, doc := range docsWithReplies() {
			method, path := described(at, &doc)
			for _, status := range []string{"200", "default"} {
				if newChecker(t, document).schema(t, "paths", path, method, "responses", status,
					"content", "application/json", "schema") == nil {
					t.Errorf("%s %s, status %s: got no schema", method, path, status)
				}
			}
		}
		chat := newChecker(t, document).schema(t, "paths", "/v1/chat/completions", "post",
			"responses", "200", "content", "application/json", "schema")
		if chat.Validate(object{"id": "a"}) == nil || chat.Validate(object{"more": 1}) == nil {
			t.Error("a reply without its fields passes")
		}
		paths := s.document()["paths"].(object)
		for path, r := range s.routes {
			if strings.HasPrefix(path, "/assets/") {
				path = "/assets/{name}"
			}
			got, _ := paths[path].(object)
			if (got["get"] != nil) != (r.get != nil) || (got["post"] != nil) != (r.post != nil) ||
				(got["delete"] != nil) != (r.delete != nil) {
				t.Errorf("off %t: %s: got %v", off, path, slices.Collect(maps.Keys(got)))
			}
			delete(paths, path)
			if strings.HasPrefix(path, "/assets/") {
				paths[path] = got
			}
		}
		delete(paths, "/assets/{name}")
		if len(paths) > 0 {
			t.Errorf("off %t: %v are described and not there", off,
				slices.Collect(maps.Keys(paths)))
		}
	}
}

// Ensure that parsers know every property that the document describes, and refuse the numbers that
// it does not allow.
func TestBodiesOfOpenAPI(t *testing.T) {
	front := api.NewFront(newFake(), api.Settings{MaxImages: 4})
	front.Sampling.Temperature = 1
	parsers, docs := protocols.Calls(), protocols.Docs()
	parsers[anthropic.CountPath] = anthropic.ParseCount
	base := map[string]string{
		"/v1/chat/completions": `"messages":[{"role":"user","content":"a"}]`,
		"/v1/completions":      `"prompt":"a"`, "/v1/responses": `"input":"a"`,
		"/api/chat":         `"messages":[{"role":"user","content":"a"}]`,
		"/api/generate":     `"prompt":"a"`,
		"/v1/messages":      `"messages":[{"role":"user","content":"a"}],"max_tokens":9`,
		anthropic.CountPath: `"messages":[{"role":"user","content":"a"}]`,
	}
	for path, doc := range docs {
		properties := doc.Body["properties"].(object)
		for name := range properties {
			if strings.HasPrefix(base[path], `"`+name+`"`) {
				continue
			}
			c, err := parsers[path]([]byte(`{`+base[path]+`,"`+name+`":false}`), front)
			if err == nil && slices.Contains(c.Ignored, name) {
				t.Errorf("%s: %s is described and ignored", path, name)
			}
		}
		in, inside := "", properties
		if options, ok := properties["options"].(object); ok {
			in, inside = "options", options["properties"].(object)
		}
		for name, of := range inside {
			s, _ := of.(object)
			for limit, off := range map[string]float64{"minimum": -0.001, "maximum": 1000} {
				v, ok := s[limit].(float64)
				if !ok || in == "" && strings.HasPrefix(name, "top_logprobs") {
					continue
				}
				if types, _ := s["type"].([]any); slices.Contains(types, any("integer")) {
					if off = 1; limit == "minimum" {
						off = -1
					}
				}
				value, err := json.Marshal(map[string]float64{name: v + off})
				if err != nil {
					t.Fatal(err)
				}
				body := `{` + base[path] + `,` + string(value[1:])
				if in != "" {
					body = `{` + base[path] + `,"` + in + `":` + string(value) + `}`
				}
				if _, err := parsers[path]([]byte(body), front); err == nil {
					t.Errorf("%s: %s is accepted beyond the %s", path, body, limit)
				}
			}
		}
	}
}
