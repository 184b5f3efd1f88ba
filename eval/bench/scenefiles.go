package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/scene"
)

// maxScenesBytes is the most bytes of a file of questions.
const maxScenesBytes = 64 << 20

// SceneFolder reads dir/questions.json: an array of {"picture": file in dir/pictures, "questions":
// [{"task", "question", "answer"}, ...]}. It returns the questions about the first n pictures, all
// if n is 0, and the number of all pictures.
func SceneFolder(dir string, n int) (b *eval.Benchmark, pictures int, err error) {
	path := filepath.Join(dir, "questions.json")
	data, err := readScenes(path)
	if err != nil {
		return nil, 0, err
	}
	rows, err := parseScenes(data)
	if err != nil {
		return nil, 0, fmt.Errorf("eval: %s: %w", path, err)
	}
	pictures = len(rows)
	if n > 0 {
		rows = rows[:min(n, len(rows))]
	}
	return scenes(filepath.Base(dir), func(yield func(scenePicture) bool) {
		for _, r := range rows {
			image := inRoot(filepath.Join(dir, "pictures"), r.Picture)
			if !yield(scenePicture{image, r.Questions}) {
				return
			}
		}
	}), pictures, nil
}

// readScenes reads a text file of questions.
func readScenes(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("eval: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxScenesBytes+1))
	if err == nil && len(data) > maxScenesBytes {
		err = fmt.Errorf("more than %d bytes", maxScenesBytes)
	}
	if err == nil {
		data, err = files.Text(data)
	}
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", path, err)
	}
	return data, nil
}

// sceneRow is one entry of questions.json; fields not named here are ignored.
type sceneRow struct {
	Picture   string           `json:"picture"`
	Questions []scene.Question `json:"questions"`
}

// Names of totals in reports, which no task can have.
const (
	AllTasks = "all"     // figures over all questions
	VsFull   = "vs_full" // the mean over tasks of reduced / unreduced accuracy
)

func parseScenes(data []byte) ([]sceneRow, error) {
	var rows []sceneRow
	if err := json.Unmarshal(data, &rows); err != nil {
		return nil, fmt.Errorf("want an array of pictures with questions: %w", err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("holds no pictures")
	}
	for i, r := range rows {
		if !fs.ValidPath(r.Picture) || r.Picture == "." {
			return nil, fmt.Errorf("entry %d: picture %q, want a file name inside pictures/", i,
				r.Picture)
		}
		for j, q := range r.Questions {
			if q.Task == "" || q.Text == "" || q.Answer == "" {
				return nil, fmt.Errorf("entry %d (%s): question %d needs task, question and answer",
					i, r.Picture, j)
			}
			if q.Task == AllTasks || q.Task == VsFull {
				return nil, fmt.Errorf("entry %d (%s): task %q is the name of a total", i,
					r.Picture, q.Task)
			}
		}
	}
	return rows, nil
}

// inRoot returns a picture in a folder; a link in it cannot lead outside.
func inRoot(dir, name string) eval.Image {
	open := func() (io.ReadCloser, error) { return os.OpenInRoot(dir, name) }
	return eval.Image{Name: name, At: filepath.Join(dir, name), Open: open}
}

// maxSceneLine is the most bytes of a line of SceneLines.
const maxSceneLine = 1 << 20

// SceneLines reads the first n questions of a file without answers: lines {"image": file in the
// folder of path, "question": text}; "picture" and "text" mean the same, as in files of the LLaVA
// projects. It skips empty lines. Each question has its own picture.
func SceneLines(path string, n int) (*eval.Benchmark, error) {
	data, err := readScenes(path)
	if err != nil {
		return nil, err
	}
	rows, err := parseLines(data)
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", path, err)
	}
	return scenes(filepath.Base(path), func(yield func(scenePicture) bool) {
		for i, r := range rows[:min(n, len(rows))] {
			image := inRoot(filepath.Dir(path), r.Picture)
			image.Name = fmt.Sprintf("%s:%d", r.Picture, i)
			if !yield(scenePicture{image, []scene.Question{{Text: r.Question}}}) {
				return
			}
		}
	}), nil
}

// sceneLine is one question; members not named here are ignored.
type sceneLine struct {
	Image    string `json:"image"`
	Picture  string `json:"picture"`
	Question string `json:"question"`
	Text     string `json:"text"`
}

func parseLines(data []byte) ([]sceneLine, error) {
	var rows []sceneLine
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxSceneLine)
	n := 0
	for in.Scan() {
		n++
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var l sceneLine
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: want a JSON object: %w", n, err)
		}
		l.Picture, l.Question = cmp.Or(l.Picture, l.Image), cmp.Or(l.Question, l.Text)
		if !fs.ValidPath(l.Picture) || l.Picture == "." {
			return nil, fmt.Errorf("line %d: image %q, want a file name inside the folder", n,
				l.Picture)
		}
		if l.Question == "" {
			return nil, fmt.Errorf("line %d (%s): no question", n, l.Picture)
		}
		rows = append(rows, l)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", n+1, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("holds no questions")
	}
	return rows, nil
}
