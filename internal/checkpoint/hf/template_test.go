package hf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/golden"
)

func TestFind(t *testing.T) {
	find := func(files map[string]string) (string, string, error) {
		fsys := fstest.MapFS{}
		for name, text := range files {
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
		f, err := folder.OpenFS(fsys, ".")
		if err != nil {
			t.Fatal(err)
		}
		p, err := FindTemplate(f)
		return string(p.Data), p.From, err
	}
	all := map[string]string{
		"processor_config.json": `{"chat_template":"PC"}`, "chat_template.json": `{"chat_template":"CJ"}`, "chat_template.jinja": "JJ",
		"tokenizer_config.json": `{"chat_template":[{"name":"tool_use","template":"TT"},{"name":"default","template":"TC"}]}`,
	}
	for _, want := range []struct{ file, template string }{
		{"processor_config.json", "PC"}, {"chat_template.json", "CJ"}, {"chat_template.jinja", "JJ"}, {"tokenizer_config.json", "TC"}, {"", ""},
	} {
		template, source, err := find(all)
		if err != nil || template != want.template || source != want.file {
			t.Errorf("got %q from %q %v, want %q from %q", template, source, err, want.template,
				want.file)
		}
		delete(all, want.file)
	}
	if template, source, err := find(map[string]string{
		"processor_config.json": `{"x":1}`, "chat_template.json": `{"chat_template":{"default":"D"}}`,
	}); template != "D" ||
		source != "chat_template.json" ||
		err != nil {
		t.Errorf("got %q %q %v", template, source, err)
	}
	for _, bad := range []string{`{`, `{"chat_template":5}`, `{"chat_template":[{"name":"x","template":"y"}]}`} {
		if _, _, err := find(map[string]string{"tokenizer_config.json": bad}); err == nil ||
			!strings.Contains(err.Error(), "tokenizer_config.json") {
			t.Errorf("%s: got %v, want an error that names the file", bad, err)
		}
	}
}

func TestReferencePrecedence(t *testing.T) {
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	var d map[string]map[string]map[string]*string
	golden.JSON(t, filepath.Join(root, "chat", "precedence.json"), &d)
	files := map[string]string{
		"tokenizer_config": "tokenizer_config.json", "chat_template.json": "chat_template.json",
		"chat_template.jinja": "chat_template.jinja", "processor_config": "processor_config.json",
	}
	marks := map[string]string{
		"tokenizer_config.json": "TC",
		"chat_template.json":    "CJ",
		"chat_template.jinja":   "JJ",
		"processor_config.json": "PC",
	}
	for name, verdict := range d["5.23.0"] {
		fsys := fstest.MapFS{}
		for _, part := range strings.Split(name, " + ") {
			file := files[part]
			text := marks[file]
			if file != "chat_template.jinja" {
				text = `{"chat_template":"` + text + `"}`
			}
			fsys[file] = &fstest.MapFile{Data: []byte(text)}
		}
		f, err := folder.OpenFS(fsys, ".")
		if err != nil {
			t.Fatal(err)
		}
		got, err := FindTemplate(f)
		want := verdict["processor"]
		if want == nil {
			want = verdict["tokenizer"]
		}
		if err != nil || string(got.Data) != *want {
			t.Errorf("%s: got %q %v, want %q", name, got.Data, err, *want)
		}
	}
}

// Ensure that the picture processor of transformers 5 is found, and before the older file.
func TestProcessor(t *testing.T) {
	const newer, older = "processor_config.json", "preprocessor_config.json"
	for _, c := range []struct {
		files      fstest.MapFS
		data, from string
	}{
		{fstest.MapFS{older: {Data: []byte(`{"a":1}`)}}, `{"a":1}`, older},
		{fstest.MapFS{newer: {Data: []byte(`{"image_processor":{"b":2}}`)}}, `{"b":2}`, newer},
		{fstest.MapFS{
			newer: {Data: []byte(`{"image_processor":{"b":2}}`)},
			older: {Data: []byte(`{"a":1}`)},
		}, `{"b":2}`, newer},
		{fstest.MapFS{
			newer: {Data: []byte(`{"image_processor":null,"patch_size":14}`)},
			older: {Data: []byte(`{"a":1}`)},
		}, `{"a":1}`, older},
		{fstest.MapFS{newer: {Data: []byte(`{"patch_size":14}`)}}, "", older},
	} {
		f, err := folder.OpenFS(c.files, ".")
		if err != nil {
			t.Fatal(err)
		}
		p, err := Processor(f)
		if err != nil || string(p.Data) != c.data || p.From != c.from {
			t.Errorf("got %s of %s (%v), want %s of %s", p.Data, p.From, err, c.data, c.from)
		}
	}
	f, err := folder.OpenFS(fstest.MapFS{newer: {Data: []byte(`[]`)}}, ".")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Processor(f); err == nil || !strings.Contains(err.Error(), newer) {
		t.Errorf("a list: got %v, want an error that names the file", err)
	}
}
