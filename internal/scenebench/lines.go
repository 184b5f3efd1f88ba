package scenebench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/internal/scene"
)

// maxLine bounds one line of a file of questions.
const maxLine = 1 << 20

// Lines are questions on disk without answers: a JSON object a line, pictures next to the file.
type Lines struct {
	dir  string
	rows []line
}

// line is one question; members not named here are ignored. Files of questions in the LLaVA
// projects say "image" and "text".
type line struct {
	Image    string `json:"image"`
	Picture  string `json:"picture"`
	Question string `json:"question"`
	Text     string `json:"text"`
}

// OpenLines reads a file of lines {"image": file in the folder of path, "question": text};
// "picture" and "text" mean the same. Empty lines are passed over.
func OpenLines(path string) (*Lines, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("eval: %w", err)
	}
	defer f.Close()
	data, err := readText(f, maxQuestionsBytes)
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", path, err)
	}
	rows, err := parseLines(data)
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", path, err)
	}
	return &Lines{filepath.Dir(path), rows}, nil
}

func parseLines(data []byte) ([]line, error) {
	var rows []line
	in := bufio.NewScanner(bytes.NewReader(data))
	in.Buffer(nil, maxLine)
	n := 0
	for in.Scan() {
		n++
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: want a JSON object: %w", n, err)
		}
		if l.Picture == "" {
			l.Picture = l.Image
		}
		if l.Question == "" {
			l.Question = l.Text
		}
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

// Items yields the first n questions, each with its picture, read as they are needed. A picture
// that cannot be read or decoded ends it.
func (l *Lines) Items(n int) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		root, err := os.OpenRoot(l.dir)
		if err != nil {
			yield(Item{}, fmt.Errorf("eval: %w", err))
			return
		}
		defer root.Close()
		for _, r := range l.rows[:min(n, len(l.rows))] {
			item := Item{Name: r.Picture, Questions: []scene.Question{{Text: r.Question}}}
			if item.Picture, err = readPicture(root, r.Picture); err != nil {
				yield(Item{}, fmt.Errorf("eval: %w", err))
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}
