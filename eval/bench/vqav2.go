package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// VQAv2: open questions about COCO pictures, with ten human answers each. Goyal et al. 2017,
// https://arxiv.org/abs/1612.00837. A server scores the paper's split, test-dev.
//
//	paper   the question and "…single word or phrase."; the official vqaEval.py: marks, articles
//	        and number words are removed on both sides unless all ten humans agree exactly;
//	        the upload goes through EvalAI's complete normaliser and has every id of test
//	lmms    the same prompt; both sides are always normalised, several commas count as one;
//	        the upload has the answers as given
var vqav2 = definition{
	name: "vqav2", title: "VQAv2", splits: []string{"testdev", "test", "validation"},
	repos: []string{"lmms-lab/VQAv2", "lmms-lab-encoder/VQAv2"},
	open:  openVQAv2,
}

func openVQAv2(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 128, Score: scoreVQAv2Paper, Metrics: metricsVQAv2Paper}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics = 16, scoreVQAv2LMMS, meanMatch
	}
	if s.Split != "validation" {
		b.Score = func(_ *eval.Question, answer string) eval.Score {
			return eval.Score{Parsed: pytext.Strip(answer)}
		}
		b.Submission = &eval.Submission{Ext: ".json", Only: true, Write: writeVQALMMS}
	}
	name := map[string]string{
		"testdev":    "llava_vqav2_mscoco_test-dev2015.jsonl",
		"test":       "llava_vqav2_mscoco_test2015.jsonl",
		"validation": "v2_OpenEnded_mscoco_val2014_questions.json",
	}[s.Split]
	file := s.question([]string{"vqav2"}, name)
	switch {
	case file == "":
		return b, vqaHub(s, b)
	case s.Split == "validation":
		return b, vqaValidation(s, b, file)
	}
	vqaQuestions(s, b, file)
	return b, nil
}

// vqaQuestions reads LLaVA's question file.
func vqaQuestions(s *source, b *eval.Benchmark, file string) {
	dir := s.folder(file, "test2015")
	b.Questions = func() iter.Seq2[*eval.Question, error] {
		return number(dataset.Lines(file), func(r *dataset.Row, q *eval.Question) {
			q.Key, q.Text = r.Int("question_id"), r.Text("text")
			q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
		})
	}
	if s.paper() {
		b.Submission.Write = func(w io.Writer, all []*eval.Scored) error {
			path, err := nextTo(file, "llava_vqav2_mscoco_test2015.jsonl")
			if err != nil {
				return err
			}
			return writeVQAPaper(w, all, questionIDs(dataset.Lines(path)))
		}
	}
}

// vqaHub reads the data set of the hub.
func vqaHub(s *source, b *eval.Benchmark) error {
	p, err := s.hub(s.Split)
	if err != nil {
		return err
	}
	b.Close = p.Close
	truth := s.Split == "validation" && !s.Prompts
	need := []string{"question_id", "image_id", "question"}
	if truth {
		need = append(need, "answers", "question_type", "answer_type")
	}
	b.Questions = func() iter.Seq2[*eval.Question, error] {
		return number(p.Scan(0, "", need...), func(r *dataset.Row, q *eval.Question) {
			q.Key, q.Text = r.Int("question_id"), r.Text("question")+shortAnswer
			name := strconv.FormatInt(r.Int("image_id"), 10)
			q.Images = []eval.Image{inParquet(p, name, "image", int64(q.ID), 0)}
			if truth {
				q.Category, _ = r.Optional("answer_type")
				q.Doc = vqaHumans(r)
			}
		})
	}
	if s.paper() && s.Split != "validation" {
		b.Submission.Write = func(w io.Writer, all []*eval.Scored) error {
			test, err := s.hub("test")
			if err != nil {
				return err
			}
			defer test.Close()
			return writeVQAPaper(w, all, questionIDs(test.Scan(0, "", "question_id")))
		}
	}
	return nil
}

// questionIDs are the ids of the questions in rows.
func questionIDs(rows iter.Seq2[*dataset.Row, error]) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for r, err := range rows {
			var id int64
			if err == nil {
				id, err = r.Int("question_id"), r.Err()
			}
			if !yield(id, err) {
				return
			}
		}
	}
}

// vqaValidation reads the official questions with their annotations.
func vqaValidation(s *source, b *eval.Benchmark, file string) error {
	type annotation struct {
		humans   []human
		category string
	}
	truth := map[int64]annotation{}
	if !s.Prompts {
		path, err := nextTo(file, "v2_mscoco_val2014_annotations.json")
		if err != nil {
			return err
		}
		for r, err := range dataset.Array(path, "annotations") {
			if err != nil {
				return err
			}
			a := annotation{humans: vqaHumans(r)}
			if r.Has("answer_type") {
				a.category = r.Text("answer_type")
			}
			id := r.Int("question_id")
			if r.Err() != nil {
				return r.Err()
			}
			truth[id] = a
		}
	}
	dir := s.folder(file, "val2014", "images")
	b.Questions = func() iter.Seq2[*eval.Question, error] {
		return number(dataset.Array(file, "questions"), func(r *dataset.Row, q *eval.Question) {
			id := r.Int("question_id")
			q.Key, q.Text = id, r.Text("question")+shortAnswer
			q.Images = []eval.Image{
				inFolder(dir, fmt.Sprintf("COCO_val2014_%012d.jpg", r.Int("image_id"))),
			}
			if !s.Prompts {
				a, ok := truth[id]
				if !ok {
					r.Fail("question_id", "got %d, which has no annotation", id)
				}
				q.Doc, q.Category = a.humans, a.category
			}
		})
	}
	return nil
}

// vqaHumans reads the column answers.
func vqaHumans(r *dataset.Row) []human {
	rows := r.List("answers")
	if len(rows) == 0 {
		r.Fail("answers", "got none, want ten")
	}
	out := make([]human, len(rows))
	for i, a := range rows {
		out[i] = human{answer: a.Text("answer"), rest: a.Rest("answer")}
	}
	r.Take(rows)
	return out
}

func scoreVQAv2Paper(q *eval.Question, answer string) eval.Score {
	humans := vqaLines(q.Doc.([]human))
	answer = oneLine(answer)
	agree := true
	for _, h := range humans {
		agree = agree && h.answer == humans[0].answer
	}
	if !agree {
		for i := range humans {
			humans[i].answer = words(punctuation(humans[i].answer, false))
		}
		answer = words(punctuation(answer, false))
	}
	return eval.Score{Parsed: answer, Points: sumMean(agreement(humans, answer))}
}

func scoreVQAv2LMMS(q *eval.Question, answer string) eval.Score {
	humans := vqaLines(q.Doc.([]human))
	for i := range humans {
		humans[i].answer = words(punctuation(humans[i].answer, true))
	}
	answer = words(punctuation(oneLine(answer), true))
	return eval.Score{Parsed: answer, Points: exactMean(agreement(humans, answer))}
}

func vqaLines(humans []human) []human {
	out := make([]human, len(humans))
	for i, h := range humans {
		out[i] = human{oneLine(h.answer), h.rest}
	}
	return out
}

// metricsVQAv2Paper rounds as the official script does.
func metricsVQAv2Paper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	points := make([]float64, len(all))
	sum := 0.0
	for i, x := range all {
		points[i] = x.Points
		sum += x.Points
	}
	if len(all) == 0 {
		return nil, errNoQuestions
	}
	mean := 100 * sum / float64(len(all))
	overall, err := strconv.ParseFloat(strconv.FormatFloat(mean, 'f', 2, 64), 64)
	return eval.Metrics{{Name: "overall", Value: overall}}, err
}

// upload is a line of the server's file.
type upload struct {
	ID     any    `json:"question_id"`
	Answer string `json:"answer"`
}

// writeVQALMMS writes the answers as given.
func writeVQALMMS(w io.Writer, all []*eval.Scored) error {
	out := make([]upload, len(all))
	for i, x := range all {
		out[i] = upload{x.Question.Key, pytext.Strip(x.Answer)}
	}
	return json.NewEncoder(w).Encode(out)
}

// writeVQAPaper writes an answer for every id of the split test, empty if it was not asked.
func writeVQAPaper(w io.Writer, all []*eval.Scored, ids iter.Seq2[int64, error]) error {
	answers := map[int64]string{}
	for _, x := range all {
		answers[x.Question.Key.(int64)] = x.Answer
	}
	out := []upload{}
	for id, err := range ids {
		if err != nil {
			return err
		}
		answer, ok := answers[id]
		if ok {
			answer = normalVQA(pytext.Strip(answer))
		}
		out = append(out, upload{id, answer})
	}
	return json.NewEncoder(w).Encode(out)
}
