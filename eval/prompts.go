package eval

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/restore-vlm/restore/internal/files"
)

// prompt is a line of WritePrompts.
type prompt struct {
	ID     int      `json:"id"`
	Key    any      `json:"key"`
	Text   string   `json:"text"`
	Images []string `json:"images"`
}

// WritePrompts writes the prompts, one JSON object per line, and returns the number of questions.
// It opens no pictures.
func WritePrompts(w io.Writer, b *Benchmark, s Selection) (int, error) {
	questions, err := take(b, s)
	if err != nil {
		return 0, err
	}
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for _, q := range questions {
		p := prompt{q.ID, q.Key, q.Text, []string{}}
		for _, i := range q.Images {
			p.Images = append(p.Images, i.Name)
		}
		if err := enc.Encode(p); err != nil {
			return 0, err
		}
	}
	return len(questions), out.Flush()
}

// maxAnswerLine is the most bytes of a line of ReadAnswers.
const maxAnswerLine = 16 << 20

// ReadAnswers reads lines {"id": …, "answer": …}; name is their source in errors.
func ReadAnswers(r io.Reader, name string) (map[int]string, error) {
	answers := map[int]string{}
	in := files.NewLines(r, maxAnswerLine)
	line := 0
	for in.Scan() {
		line++
		if len(in.Bytes()) == 0 {
			continue
		}
		var a struct {
			ID     *int    `json:"id"`
			Answer *string `json:"answer"`
		}
		err := json.Unmarshal(in.Bytes(), &a)
		var other *json.UnmarshalTypeError
		switch {
		case errors.As(err, &other) && other.Field == "":
			err = fmt.Errorf("got %s, want an object", other.Value)
		case errors.As(err, &other):
			want := map[string]string{"id": "a whole number", "answer": "a text"}[other.Field]
			err = fmt.Errorf("%q: got %s, want %s", other.Field, other.Value, want)
		case err != nil:
		case a.ID == nil:
			err = errors.New(`no "id"`)
		case a.Answer == nil:
			err = errors.New(`no "answer"`)
		default:
			if _, twice := answers[*a.ID]; twice {
				err = fmt.Errorf("id %d is answered twice", *a.ID)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, line, err)
		}
		answers[*a.ID] = *a.Answer
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s: line %d: %w", name, line+1, err)
	}
	return answers, nil
}
