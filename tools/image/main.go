// Command image writes a container image of restore as an OCI image layout, without a daemon: one
// layer from scratch for each processor. Two runs on the same programs write the same bytes.
//
//	go run ./tools/image -version v1.2.3 -time 1767225600 -o dist/image amd64=FILE arm64=FILE
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// nobody is the user of the image, without a name on most machines.
const nobody = 65532

// state is the folder for a volume with uploaded files and batches. A new volume takes its owner
// from it.
const state = "var/lib/restore/"

// Media types of https://github.com/opencontainers/image-spec, version 1.1.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

func main() {
	version := flag.String("version", "v0.0.0", "the `version` of the programs")
	seconds := flag.Int64("time", 0, "the time of all files, in `seconds` since 1970")
	out := flag.String("o", "dist/image", "the `folder` of the layout, which must not exist")
	flag.Parse()
	l := layout{dir: *out, version: *version, at: time.Unix(*seconds, 0).UTC()}
	if err := l.write(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// layout is a folder in the form of the OCI image layout.
type layout struct {
	dir, version string
	at           time.Time
}

// write writes the layout for programs, each as PROCESSOR=FILE.
func (l *layout) write(programs []string) error {
	if len(programs) == 0 {
		return fmt.Errorf("no program, want PROCESSOR=FILE")
	}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs", "sha256"), 0o755); err != nil {
		return err
	}
	var images []descriptor
	for _, p := range programs {
		processor, file, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("got %q, want PROCESSOR=FILE", p)
		}
		d, err := l.image(processor, file)
		if err != nil {
			return err
		}
		images = append(images, d)
	}
	all, err := l.document(indexType, map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": images,
	})
	if err != nil {
		return err
	}
	all.Annotations = map[string]string{"org.opencontainers.image.ref.name": l.version}
	if err := l.file("index.json", map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{all},
	}); err != nil {
		return err
	}
	return l.file("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
}

// image writes the image of one processor.
func (l *layout) image(processor, program string) (descriptor, error) {
	content, err := l.tar(program)
	if err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(content); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	layer, err := l.blob(layerType, packed.Bytes())
	if err != nil {
		return descriptor{}, err
	}
	labels := map[string]string{
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   "https://github.com/restore-vlm/restore",
		"org.opencontainers.image.title":    "restore",
		"org.opencontainers.image.version":  strings.TrimPrefix(l.version, "v"),
	}
	created := l.at.Format(time.RFC3339)
	config, err := l.document(configType, map[string]any{
		"created": created, "architecture": processor, "os": "linux",
		"config": map[string]any{
			"User": fmt.Sprintf("%d:%d", nobody, nobody), "Labels": labels, "WorkingDir": "/tmp",
			"Env": []string{"PATH=/usr/bin", "HOME=/tmp", "XDG_CACHE_HOME=/tmp/cache"},
			// the server refuses to listen to others without a key
			"Entrypoint":   []string{"/usr/bin/restore"},
			"Cmd":          []string{"serve", "--host", "0.0.0.0"},
			"ExposedPorts": map[string]any{"8642/tcp": struct{}{}},
			"StopSignal":   "SIGTERM",
			// Docker's extension of the specification
			"Healthcheck": map[string]any{
				"Test":     []string{"CMD", "/usr/bin/restore", "doctor", "--server", "http://127.0.0.1:8642"},
				"Interval": 30 * time.Second, "Timeout": 10 * time.Second,
				"StartPeriod": 60 * time.Second, "Retries": 3,
			},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{digest(content)}},
		"history": []any{map[string]any{"created": created, "created_by": "tools/image"}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.document(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config,
		"layers": []descriptor{layer}, "annotations": labels,
	})
	d.Platform = &platform{Architecture: processor, OS: "linux"}
	return d, err
}

// tar returns the files of the image.
func (l *layout) tar(program string) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{
		{"etc/", 0o755, nil},
		{"etc/group", 0o644, fmt.Appendf(nil, "restore:x:%d:\n", nobody)},
		{"etc/passwd", 0o644, fmt.Appendf(nil,
			"restore:x:%d:%d::/tmp:/sbin/nologin\n", nobody, nobody)},
		{"tmp/", 0o1777, nil},
		{"usr/", 0o755, nil},
		{"usr/bin/", 0o755, nil},
		{"usr/bin/restore", 0o755, content},
		{"var/", 0o755, nil},
		{"var/lib/", 0o755, nil},
		{state, 0o750, nil},
	} {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: l.at,
			Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if f.name == state {
			h.Uid, h.Gid = nobody, nobody
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(t, bytes.NewReader(f.data)); err != nil {
			return nil, err
		}
	}
	err = t.Close()
	return b.Bytes(), err
}

// document writes a blob of JSON.
func (l *layout) document(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, data)
}

func (l *layout) blob(mediaType string, data []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
	name := strings.TrimPrefix(d.Digest, "sha256:")
	return d, os.WriteFile(filepath.Join(l.dir, "blobs", "sha256", name), data, 0o644)
}

func (l *layout) file(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.dir, name), data, 0o644)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
