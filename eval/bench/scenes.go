package bench

import (
	"bytes"
	"context"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/scene"
)

// ScenesName is the name of the benchmarks of scenes.
const ScenesName = "scenes"

// SceneTasks are the tasks of drawn scenes, which are their questions' categories.
var SceneTasks = []string{
	scene.Exist, scene.Attribute, scene.Where, scene.Relation, scene.Count, scene.Text,
}

// SceneSeed is the seed of the first drawn picture in the repository's own evaluations.
const SceneSeed = scene.EvalSeed

// SceneWorlds are the kinds of drawn pictures, "plain" first; docs/methods.md says how they differ.
var SceneWorlds = sceneWorlds()

func sceneWorlds() (names []string) {
	for _, w := range scene.Worlds() {
		names = append(names, string(w))
	}
	return names
}

// DrawnScenes returns the questions about n drawn pictures of one of [SceneWorlds], whose seeds are
// first and those that follow. Reading the questions of another world is an error.
func DrawnScenes(world string, first int64, n int) *eval.Benchmark {
	drawn := &drawings{files: map[int64][]byte{}}
	b := scenes("drawn", func(yield func(scenePicture) bool) {
		for seed := first; seed < first+int64(n); seed++ {
			s := scene.NewIn(scene.World(world), seed)
			p := scenePicture{Image: drawn.image(seed, s), questions: s.Questions()}
			p.questions = slices.DeleteFunc(p.questions, func(q scene.Question) bool {
				return q.Task == scene.Describe
			})
			if !yield(p) {
				return
			}
		}
	})
	if !slices.Contains(SceneWorlds, world) {
		b.Questions = func() iter.Seq2[*eval.Question, error] {
			return func(yield func(*eval.Question, error) bool) {
				yield(nil, &errs.OptionError{Name: "world", Got: strconv.Quote(world),
					Want: strings.Join(SceneWorlds, ", "), Fault: errs.Invalid})
			}
		}
	}
	return b
}

// drawings keeps the files of drawn pictures, up to drawingsMost: several answerers and runs ask
// about them, and drawing one takes as long as several answers of a small model.
type drawings struct {
	mu    sync.Mutex
	files map[int64][]byte // by seed
}

// drawingsMost files are about 60 MB.
const drawingsMost = 4096

// image is the picture of a scene.
func (d *drawings) image(seed int64, s *scene.Scene) eval.Image {
	return eval.Image{
		Name: "scene " + strconv.FormatInt(seed, 10),
		Open: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(d.file(seed, s))), nil
		},
	}
}

func (d *drawings) file(seed int64, s *scene.Scene) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if data := d.files[seed]; data != nil {
		return data
	}
	data := s.PNG()
	if len(d.files) < drawingsMost {
		d.files[seed] = data
	}
	return data
}

// scenePicture is a picture with its questions.
type scenePicture struct {
	eval.Image
	questions []scene.Question
}

// scenes is a benchmark of questions whose answers must equal the true ones. The category is the
// task.
func scenes(split string, pictures iter.Seq[scenePicture]) *eval.Benchmark {
	questions := func(yield func(*eval.Question, error) bool) {
		id := 0
		for p := range pictures {
			images := []eval.Image{p.Image}
			for _, q := range p.questions {
				out := &eval.Question{
					ID: id, Key: int64(id), Text: q.Text, Images: images, Category: q.Task,
					Doc: q.Answer, MaxTokens: enough(q.Answer),
				}
				if !yield(out, nil) {
					return
				}
				id++
			}
		}
	}
	return &eval.Benchmark{
		Name: ScenesName, Split: split, Whole: true, Score: scoreScene, Metrics: sceneMetrics,
		Questions: func() iter.Seq2[*eval.Question, error] { return questions },
	}
}

// enough is a number of tokens that the right answer fits into: a token is at least a byte, and the
// space ahead of the answer and the end are two more.
func enough(answer string) int { return len(answer) + 2 }

// scoreScene compares an answer with the true one. The space between "ASSISTANT:" and the answer
// belongs to the first token of some tokenizers.
func scoreScene(q *eval.Question, answer string) eval.Score {
	answer = strings.TrimPrefix(answer, " ")
	if !possible(q.Category, answer) {
		return eval.Score{Failed: true}
	}
	return eval.Right(answer == q.Doc.(string), answer)
}

// possible reports whether an answer could be one to a question of the task at all. Only the tasks
// of package scene are known; of others any answer that is not empty could be.
func possible(task, answer string) bool {
	switch task {
	case scene.Exist, scene.Relation:
		return answer == "yes" || answer == "no"
	case scene.Attribute:
		return slices.Contains(scene.Colours(), answer) || slices.Contains(scene.Shapes(), answer)
	case scene.Where:
		for _, y := range []float64{0, scene.Size / 2, scene.Size} {
			for _, x := range []float64{0, scene.Size / 2, scene.Size} {
				if answer == scene.Place(x, y) {
					return true
				}
			}
		}
		return false
	case scene.Count, scene.Text:
		n, err := strconv.Atoi(answer)
		return err == nil && n >= 0 && n < 10000 && strconv.Itoa(n) == answer
	}
	return answer != ""
}

// sceneMetrics are the accuracy over all questions, and for each task.
func sceneMetrics(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	m := eval.Metrics{{Name: "accuracy", Value: 100 * eval.Mean(all)}}
	tasks, of := slices.Clone(SceneTasks), map[string][]*eval.Scored{}
	for _, x := range all {
		task := x.Question.Category
		if of[task] = append(of[task], x); !slices.Contains(tasks, task) {
			tasks = append(tasks, task)
		}
	}
	for _, task := range tasks {
		if len(of[task]) > 0 {
			m = append(m, eval.Metric{Name: task, Value: 100 * eval.Mean(of[task])})
		}
	}
	return m, nil
}
