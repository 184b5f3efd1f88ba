package server

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy forbids the page to load anything from elsewhere.
const pagePolicy = "default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'; " +
	"base-uri 'none'; form-action 'none'"

// pageTypes maps the extensions of the page's files to content types.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".jpg": "image/jpeg",
}

// pageAssets lists the files that the page loads.
func pageAssets() []string {
	var names []string
	all, err := fs.ReadDir(pageFiles, "page")
	if err != nil {
		panic(err) // the files are part of the program
	}
	for _, f := range all {
		if f.Name() != "index.html" {
			names = append(names, f.Name())
		}
	}
	return names
}

// newPage serves the page and its assets.
func newPage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/assets/"), "/")
		if r.URL.Path == "/" {
			name = "index.html"
		}
		data, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			panic(err) // every route has a file
		}
		h := w.Header()
		h.Set("Content-Type", pageTypes[path.Ext(name)])
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data) // a client that is gone gets nothing
	})
}
