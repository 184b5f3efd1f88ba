package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// layouts writes the same image twice.
func layouts(t *testing.T) [2]string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "restore")
	if err := os.WriteFile(program, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out [2]string
	for i := range out {
		out[i] = filepath.Join(t.TempDir(), "image")
		l := layout{dir: out[i], version: "v1.2.3", at: time.Unix(1767225600, 0).UTC()}
		if err := l.write([]string{"amd64=" + program, "arm64=" + program}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Ensure that two runs write the same bytes, and that the name of every blob is its digest.
func TestReproducible(t *testing.T) {
	dirs := layouts(t)
	count := 0
	err := fs.WalkDir(os.DirFS(dirs[0]), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		count++
		first, err := os.ReadFile(filepath.Join(dirs[0], path))
		if err != nil {
			return err
		}
		second, err := os.ReadFile(filepath.Join(dirs[1], path))
		if err != nil {
			return err
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%s: two runs differ", path)
		}
		name := filepath.Base(path)
		if strings.HasPrefix(path, "blobs") && digest(first) != "sha256:"+name {
			t.Errorf("%s: got digest %s", path, digest(first))
		}
		return nil
	})
	// the layer is shared; two configurations, two manifests, one index, two files of the layout
	if err != nil || count != 8 {
		t.Errorf("got %d files, %v, want 8", count, err)
	}
}

// Ensure that a reader finds from index.json, for each processor, a layer with the program and a
// configuration that is not root's.
func TestImage(t *testing.T) {
	dir := layouts(t)[0]
	read := func(name string, v any) []byte {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && v != nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	blob := func(digest string) string {
		return filepath.Join("blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	if got := index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "v1.2.3" {
		t.Errorf("got name %q, want v1.2.3", got)
	}
	read(blob(index.Manifests[0].Digest), &index)
	if len(index.Manifests) != 2 || index.Manifests[1].Platform.Architecture != "arm64" {
		t.Fatalf("got %+v, want amd64 and arm64", index.Manifests)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(blob(index.Manifests[1].Digest), &manifest)
	var config struct {
		Architecture string
		Config       struct{ User string }
		RootFS       struct {
			Diffs []string `json:"diff_ids"`
		}
	}
	read(blob(manifest.Config.Digest), &config)
	if config.Architecture != "arm64" || config.Config.User != "65532:65532" {
		t.Errorf("got %+v, want arm64 and user 65532", config)
	}
	z, err := gzip.NewReader(bytes.NewReader(read(blob(manifest.Layers[0].Digest), nil)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil || digest(layer) != config.RootFS.Diffs[0] {
		t.Errorf("got layer %s, %v, want %s", digest(layer), err, config.RootFS.Diffs[0])
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if names = append(names, h.Name); (h.Uid == nobody) != (h.Name == state) {
			t.Errorf("%s: got owner %d", h.Name, h.Uid)
		}
	}
	if got := strings.Join(names, " "); !strings.HasSuffix(got, state) ||
		!strings.Contains(got, "tmp/ ") || !strings.Contains(got, "usr/bin/restore ") {
		t.Errorf("got files %s", got)
	}
}

// Ensure that what runs the image runs it as the owner of its folders.
func TestUser(t *testing.T) {
	for name, want := range map[string]string{
		"chart/templates/_helpers.tpl": fmt.Sprintf(
			"runAsUser: %d\n  runAsGroup: %d\n  fsGroup: %d\n", nobody, nobody, nobody),
		"compose.yaml": fmt.Sprintf("user: \"%d:%d\"", nobody, nobody),
	} {
		got, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}

// Ensure that a layout is not mixed with another, and that a program must have a processor.
func TestRefused(t *testing.T) {
	old := layout{dir: layouts(t)[0]}
	if err := old.write([]string{"amd64=x"}); err == nil {
		t.Error("an old folder: got no error")
	}
	for _, programs := range [][]string{nil, {"x"}, {"amd64=/no/file"}} {
		l := layout{dir: filepath.Join(t.TempDir(), "image")}
		if err := l.write(programs); err == nil {
			t.Errorf("%q: got no error", programs)
		}
	}
}
