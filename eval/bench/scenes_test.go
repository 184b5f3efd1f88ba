package bench

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/scene"
)

func writeFolder(t *testing.T, questions string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pictures"), 0o755); err != nil {
		t.Fatal(err)
	}
	var pic bytes.Buffer
	if err := png.Encode(&pic, image.NewNRGBA(image.Rect(0, 0, 5, 3))); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"questions.json": []byte(questions), "pictures/a.png": pic.Bytes(), "pictures/bad.png": []byte("text"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Ensure that a folder's questions are read with their pictures, and that errors name the picture.
func TestSceneFolder(t *testing.T) {
	const one = `{"task": "exist", "question": "Is it?", "answer": "yes", "right": {"x": 1}}`
	dir := writeFolder(t, `[{"picture": "a.png", "seed": 5, "questions": [`+one+`]}, {"picture": "none.png", "questions": [`+one+`]}]`)
	b, pictures, err := SceneFolder(dir, 0)
	if err != nil || pictures != 2 {
		t.Fatalf("%v: %d pictures, want 2", err, pictures)
	}
	groups, err := eval.ByPictures(b)
	if err != nil || len(groups) != 2 || groups[0][0].Category != "exist" ||
		groups[0][0].Doc != "yes" || groups[0][0].MaxTokens != 5 {
		t.Fatalf("%v: %+v", err, groups)
	}
	if data, err := groups[0][0].Images[0].Bytes(); err != nil || len(data) == 0 {
		t.Errorf("%v: %d bytes", err, len(data))
	}
	if _, err := groups[1][0].Images[0].Bytes(); err == nil ||
		!strings.Contains(err.Error(), "none.png") {
		t.Errorf("no picture: got %v, want an error that names it", err)
	}
	if b, pictures, err = SceneFolder(dir, 1); err != nil || pictures != 2 {
		t.Fatalf("%v: %d pictures, want 2", err, pictures)
	}
	if groups, err = eval.ByPictures(b); err != nil || len(groups) != 1 {
		t.Errorf("%v: %d pictures, want the first", err, len(groups))
	}

	for name, c := range map[string][2]string{
		"not JSON":     {`x`, "want an array"},
		"marked":       {"\ufeff[]", "no pictures"},
		"UTF-16":       {"\xfe\xff\x00[", "questions.json: is UTF-16"},
		"not UTF-8":    {"[{\"picture\": \"\xe9\"", "questions.json: is not UTF-8: got 0xe9 at byte 14"},
		"object":       {`{}`, "want an array"},
		"empty":        {`[]`, "no pictures"},
		"outside":      {`[{"picture": "../a.png"}]`, "inside pictures/"},
		"absolute":     {`[{"picture": "/a.png"}]`, "inside pictures/"},
		"no answer":    {`[{"picture": "a.png", "questions": [{"task": "x", "question": "y"}]}]`, "needs task, question and answer"},
		"total's name": {`[{"picture": "a.png", "questions": [{"task": "all", "question": "y", "answer": "z"}]}]`, "name of a total"},
	} {
		if _, _, err := SceneFolder(writeFolder(t, c[0]), 0); err == nil ||
			!strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c[1])
		}
	}
	if _, _, err := SceneFolder(t.TempDir(), 0); err == nil ||
		!strings.Contains(err.Error(), "questions.json") {
		t.Errorf("no questions.json: %v", err)
	}
}

// Ensure that drawn scenes have no descriptions, and that answers count only whole.
func TestDrawnScenes(t *testing.T) {
	b := DrawnScenes(SceneWorlds[0], scene.EvalSeed, 12)
	groups, err := eval.ByPictures(b)
	if err != nil || len(groups) != 12 || !b.Whole {
		t.Fatalf("%v: %d pictures, want 12", err, len(groups))
	}
	for _, about := range groups {
		for _, q := range about {
			if q.Category == scene.Describe || q.MaxTokens != len(q.Doc.(string))+2 {
				t.Errorf("%+v", q)
			}
			if s := b.Score(q, " "+q.Doc.(string)); s.Points != 1 || s.Failed {
				t.Errorf("%+v: the answer after a space: %+v", q, s)
			}
			if s := b.Score(q, q.Doc.(string)+"."); s.Points != 0 || !s.Failed {
				t.Errorf("%+v: a longer answer: %+v", q, s)
			}
		}
	}
}

// Ensure that another world is no plain one.
func TestDrawnScenesWorld(t *testing.T) {
	var option *errs.OptionError
	if _, err := eval.ByPictures(DrawnScenes("moon", SceneSeed, 2)); !errors.As(err, &option) ||
		option.Name != "world" {
		t.Errorf("got %v, want an OptionError", err)
	}
}

func TestPossibleAnswers(t *testing.T) {
	for _, c := range []struct {
		task, text string
		want       bool
	}{
		{"exist", "yes", true}, {"exist", "Yes", false}, {"relation", "no", true}, {"relation", "2", false},
		{"attribute", "star", true}, {"attribute", "pink", true}, {"attribute", "hexagon", false},
		{"where", "center", true}, {"where", "middle left", true}, {"where", "middle center", false}, {"where", "left", false},
		{"count", "0", true}, {"count", "-1", false}, {"count", "two", false}, {"text", "47", true}, {"text", "047", false},
		{"poem", "anything", true}, {"poem", "", false},
	} {
		if got := possible(c.task, c.text); got != c.want {
			t.Errorf("%s: %q possible: %v, want %v", c.task, c.text, got, c.want)
		}
	}
}

func FuzzParseScenes(f *testing.F) {
	f.Add([]byte(`[{"picture": "a.png", "questions": [{"task": "exist", "question": "Is it?", "answer": "yes"}]}]`))
	f.Add([]byte(`[{"picture": "../a.png"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseScenes(data)
		if err == nil && len(rows) == 0 {
			t.Error("no pictures and no error")
		}
	})
}
