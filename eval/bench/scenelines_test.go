package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/scene"
)

func TestLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pics"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pics", "a.png")
	if err := os.WriteFile(file, scene.New(1).PNG(), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "q.jsonl")
	text := "\ufeff{\"image\": \"pics/a.png\", \"text\": \"What is it?\", \"question_id\": " +
		"7}\n\n{\"picture\": \"pics/a.png\", \"question\": \"Why?\"}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := SceneLines(path, 5)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := eval.ByPictures(b)
	if err != nil || len(groups) != 2 || groups[0][0].Text != "What is it?" ||
		groups[1][0].Text != "Why?" {
		t.Fatalf("got %v, %v, want two questions", groups, err)
	}
	if data, err := groups[1][0].Images[0].Bytes(); err != nil || len(data) == 0 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if b, err = SceneLines(path, 1); err != nil {
		t.Fatal(err)
	}
	if groups, err = eval.ByPictures(b); err != nil || len(groups) != 1 {
		t.Errorf("the first question: %v, %v", groups, err)
	}
	for name, c := range map[string][2]string{
		"empty":    {"\n", "holds no questions"},
		"not JSON": {"{}\nx", `line 1: image "", want a file name inside the folder`},
		"outside":  {`{"image": "../a.png", "text": "x"}`, `line 1: image "../a.png", want a file name inside the folder`},
		"mute":     {`{"image": "a.png"}`, "line 1 (a.png): no question"},
		"array":    {"\n[]", "line 2: want a JSON object"},
		"long":     {`{"image": "` + strings.Repeat("a", maxSceneLine) + `"}`, "line 1: bufio.Scanner: token too long"},
	} {
		if _, err := parseLines([]byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: got %v, want %q", name, err, c[1])
		}
	}
	wide := filepath.Join(dir, "wide.jsonl")
	if err := os.WriteFile(wide, []byte("\xff\xfe{\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := SceneLines(wide, 1); err == nil ||
		!strings.Contains(err.Error(), "wide.jsonl: is UTF-16") {
		t.Errorf("UTF-16: got %v", err)
	}
	if _, err := SceneLines(filepath.Join(dir, "none"), 1); err == nil ||
		!strings.HasPrefix(err.Error(), "eval: ") {
		t.Errorf("no file: got %v", err)
	}
}

// FuzzLines: every accepted line names a picture inside the folder and has a question.
func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"image": "a.png", "question": "x"}`))
	f.Add([]byte("{\"picture\": \"b/c.jpg\", \"text\": \"y\"}\n\n[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseLines(data)
		if err != nil {
			return
		}
		for _, r := range rows {
			if !filepath.IsLocal(r.Picture) || r.Question == "" {
				t.Errorf("accepted %+v", r)
			}
		}
	})
}
