// Ownbench is a benchmark of your own: questions from a file of JSON lines, a rule for answers.
//
//	go run ./ownbench questions.jsonl
package main

import (
	"bufio"
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

// plates reads one question a line: {"image": "a.png", "question": "…", "answer": "22"}.
func plates(file string) *eval.Benchmark {
	questions := func(yield func(*eval.Question, error) bool) {
		f, err := os.Open(file)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		for id, lines := 0, bufio.NewScanner(f); lines.Scan(); id++ {
			var x struct{ Image, Question, Answer string }
			err := json.Unmarshal(lines.Bytes(), &x)
			path := filepath.Join(filepath.Dir(file), x.Image)
			open := func() (io.ReadCloser, error) { return os.Open(path) }
			image := eval.Image{Name: x.Image, At: fmt.Sprintf("%s:%d", file, id+1), Open: open}
			q := &eval.Question{ID: id, Key: int64(id), Text: x.Question, Doc: x.Answer,
				Images: []eval.Image{image}}
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
	ctx := context.Background()
	model, err := restore.Open(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	local := &eval.Local{Model: model, Reduction: &restore.Reduction{Base: "holov", NVis: 64}}
	result, _, err := eval.Run(ctx, plates(os.Args[1]), local, eval.RunOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result)
}
