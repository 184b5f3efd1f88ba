// Ownbench defines its own benchmark: questions in a file of JSON lines, and a rule for answers.
//
//	go run ./ownbench questions.jsonl
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
)

// plates reads one question per line: {"image": "a.png", "question": "…", "answer": "22"}.
func plates(file string) *eval.Benchmark {
	questions := func(yield func(*eval.Question, error) bool) {
		data, err := os.ReadFile(file)
		for id, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
			var x struct{ Image, Question, Answer string }
			err = cmp.Or(err, json.Unmarshal([]byte(line), &x))
			path := filepath.Join(filepath.Dir(file), x.Image)
			open := func() (io.ReadCloser, error) { return os.Open(path) }
			q := &eval.Question{ID: id, Key: int64(id), Text: x.Question, Images: []eval.Image{{
				Name: x.Image, At: fmt.Sprintf("%s:%d", file, id+1), Open: open}}, Doc: x.Answer}
			if !yield(q, err) || err != nil {
				return
			}
		}
	}
	return &eval.Benchmark{Name: "plates", MaxTokens: 16,
		Questions: func() iter.Seq2[*eval.Question, error] { return questions },
		Score: func(q *eval.Question, answer string) eval.Score {
			return eval.Right(strings.EqualFold(answer, q.Doc.(string)), answer)
		}}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: ownbench QUESTIONS.jsonl")
	}
	model, err := restore.Open(context.Background(), "", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	local := &eval.Service{Model: model, Reduction: &restore.Reduction{Base: "holov", NVis: 64}}
	result, _, err := eval.Run(context.Background(), plates(os.Args[1]), local, eval.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Metrics)
}
