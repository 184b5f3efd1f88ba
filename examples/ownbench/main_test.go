package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
)

// Ensure that the benchmark asks, scores, and reports a missing picture, and that its source stays
// short.
func TestPlates(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil || strings.Count(string(source), "\n") > 60 {
		t.Errorf("%d lines, want at most 60, %v", strings.Count(string(source), "\n"), err)
	}
	dir := t.TempDir()
	scene, err := os.ReadFile("../../docs/scene.png")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a.png", string(scene))
	right := `{"image":"a.png","question":"What number is written?","answer":"22"}` + "\n"
	wrong := `{"image":"a.png","question":"What number is written?","answer":"23"}` + "\n"
	model, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	ask := func(lines string) (*eval.Result, error) {
		b := plates(write("q.jsonl", lines))
		r, _, err := eval.Run(t.Context(), b, &eval.Service{Model: model}, eval.RunOptions{})
		return r, err
	}
	r, err := ask(right + wrong)
	if err != nil || r.Questions != 2 ||
		r.Metrics[0] != (eval.Metric{Name: "accuracy", Value: 50}) {
		t.Errorf("%+v, %v", r, err)
	}
	for lines, want := range map[string]string{
		`{"image":"b.png"}` + "\n": "q.jsonl:1: ",
		"{\n":                      "unexpected end of JSON",
	} {
		if _, err := ask(lines); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", lines, err, want)
		}
	}
}
