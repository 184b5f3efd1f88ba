package paper

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/scene"
)

// Source is the data of the measurements: drawn scenes, or the benchmarks in a folder.
type Source struct {
	Name   string // for titles
	Scenes bool
	// Limit is how many questions of each benchmark to ask; 0 means all.
	Limit int

	open      map[string]*eval.Benchmark
	missing   map[string]string
	sizes     map[string]size
	path      string
	options   bench.Options
	published bool // placeholder for missing data
}

// Tasks are the columns for scenes instead of benchmarks.
var Tasks = []string{
	scene.Exist, scene.Attribute, scene.Where, scene.Relation, scene.Count, scene.Text,
}

// Folder is the benchmarks in a folder: each in a subfolder with its name, or where package bench
// finds it. limit is how many questions of each to ask; 0 means all.
func Folder(path string, o bench.Options, limit int) *Source {
	return &Source{
		Name: path, Limit: limit, path: path, options: o,
		open: map[string]*eval.Benchmark{}, missing: map[string]string{},
	}
}

// Drawn is n drawn scenes with their questions.
func Drawn(n int) *Source {
	b := Scenes(n)
	return &Source{
		Name: fmt.Sprintf("%d drawn scenes", n), Scenes: true,
		open: map[string]*eval.Benchmark{b.Name: b},
	}
}

// scenesName is the benchmark of drawn scenes.
const scenesName = "scenes"

// Benchmark returns a benchmark, or why there is none.
func (s *Source) Benchmark(name string) (b *eval.Benchmark, why string) {
	if b = s.open[name]; b != nil {
		return b, ""
	}
	if why = s.missing[name]; why != "" {
		return nil, why
	}
	if s.Scenes || s.published {
		return nil, s.Name + " have no " + name + " to ask"
	}
	path := s.path
	if own := filepath.Join(path, name); isFolder(own) {
		path = own
	}
	b, err := bench.Open(name, path, s.options)
	if err != nil {
		s.missing[name] = err.Error()
		return nil, err.Error()
	}
	s.open[name] = b
	return b, ""
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Close closes the opened benchmarks.
func (s *Source) Close() {
	for _, b := range s.open {
		if b.Close != nil {
			_ = b.Close() // only read from
		}
	}
}

// Scenes is a benchmark over n drawn scenes. An answer must equal the true one; the category is the
// task.
func Scenes(n int) *eval.Benchmark {
	questions := func() iter.Seq2[*eval.Question, error] {
		return func(yield func(*eval.Question, error) bool) {
			id := 0
			for seed := int64(scene.EvalSeed); seed < scene.EvalSeed+int64(n); seed++ {
				s := scene.New(seed)
				images := []eval.Image{drawing(seed, s)}
				for _, q := range s.Questions() {
					if q.Task == scene.Describe {
						continue
					}
					out := &eval.Question{
						ID:       id,
						Key:      int64(id),
						Text:     q.Text,
						Images:   images,
						Category: q.Task,
						Doc:      q.Answer,
					}
					if !yield(out, nil) {
						return
					}
					id++
				}
			}
		}
	}
	return &eval.Benchmark{
		Name: scenesName, Split: "drawn", MaxTokens: sceneTokens, Questions: questions,
		Score: func(q *eval.Question, answer string) eval.Score {
			if len(answer) > 0 && answer[0] == ' ' { // the space after "ASSISTANT:"
				answer = answer[1:]
			}
			return eval.Right(answer == q.Doc.(string), answer)
		},
		Metrics: sceneMetrics,
	}
}

// drawing is the picture of a scene.
func drawing(seed int64, s *scene.Scene) eval.Image {
	open := func() (io.ReadCloser, error) {
		var b bytes.Buffer
		err := png.Encode(&b, s.Image())
		return io.NopCloser(&b), err
	}
	return eval.Image{Name: "scene " + strconv.FormatInt(seed, 10), Open: open}
}

// sceneTokens is the most tokens of an answer about a scene: enough for "bottom center" and the
// like, and to see that a longer answer is wrong.
const sceneTokens = 24

// sceneMetrics are the accuracy over all questions, and for each task.
func sceneMetrics(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	m := eval.Metrics{{Name: "accuracy", Value: 100 * eval.Mean(all)}}
	for _, task := range Tasks {
		var some []*eval.Scored
		for _, x := range all {
			if x.Question.Category == task {
				some = append(some, x)
			}
		}
		if len(some) > 0 {
			m = append(m, eval.Metric{Name: task, Value: 100 * eval.Mean(some)})
		}
	}
	return m, nil
}
