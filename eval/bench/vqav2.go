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
		b.Submission = &eval.Submission{Ext: ".json", Only: true, Write: uploads(saidOf)}
	}
	name := map[string]string{
		"testdev":    "llava_vqav2_mscoco_test-dev2015.jsonl",
		"test":       "llava_vqav2_mscoco_test2015.jsonl",
		"validation": "v2_OpenEnded_mscoco_val2014_questions.json",
	}[s.Split]
	file := s.question([]string{"vqav2"}, name)
	switch {
	case file == "":
		return vqaHub(s, b)
	case s.Split == "validation":
		return b, vqaValidation(s, b, file)
	}
	vqaQuestions(s, b, file)
	return b, nil
}

// vqaQuestions reads LLaVA's question file.
func vqaQuestions(s *source, b *eval.Benchmark, file string) {
	dir := s.folder(file, "test2015")
	b.Questions = number(dataset.Lines(file), func(r *dataset.Row, q *eval.Question) {
		q.Key, q.Text = r.Int("question_id"), r.Text("text")
		q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
	})
	if s.paper() {
		b.Submission.Write = func(w io.Writer, all []*eval.Scored) error {
			path, err := nextTo(file, "llava_vqav2_mscoco_test2015.jsonl")
			if err != nil {
				return err
			}
			return writeVQAPaper(w, all, dataset.Lines(path))
		}
	}
}

// vqaHub reads the data set of the hub.
func vqaHub(s *source, b *eval.Benchmark) (*eval.Benchmark, error) {
	truth := s.Split == "validation" && !s.Prompts
	need := []string{"question_id", "image_id", "question"}
	if truth {
		need = append(need, "answers", "question_type", "answer_type")
	}
	if s.paper() && s.Split != "validation" {
		b.Submission.Write = func(w io.Writer, all []*eval.Scored) error {
			test, err := s.hub("test", dataset.DefaultConfig)
			if err != nil {
				return err
			}
			defer test.Close()
			return writeVQAPaper(w, all, test.Scan("", "question_id"))
		}
	}
	return s.fromHub(b, s.Split, dataset.DefaultConfig, need, func(
		r *dataset.Row, q *eval.Question, at picture,
	) {
		q.Key, q.Text = r.Int("question_id"), r.Text("question")+shortAnswer
		q.Images = []eval.Image{at(strconv.FormatInt(r.Int("image_id"), 10), 0)}
		if truth {
			q.Category, _ = r.Optional("answer_type")
			q.Doc = vqaHumans(r)
		}
	})
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
		err = each(dataset.Array(path, "annotations"), func(r *dataset.Row) {
			a := annotation{humans: vqaHumans(r)}
			if r.Has("answer_type") {
				a.category = r.Text("answer_type")
			}
			truth[r.Int("question_id")] = a
		})
		if err != nil {
			return err
		}
	}
	dir := s.folder(file, "val2014", "images")
	b.Questions = number(dataset.Array(file, "questions"), func(r *dataset.Row, q *eval.Question) {
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
	if len(all) == 0 {
		return nil, errNoQuestions
	}
	mean := 100 * total(all) / float64(len(all))
	overall, err := strconv.ParseFloat(strconv.FormatFloat(mean, 'f', 2, 64), 64)
	return eval.Metrics{{Name: "overall", Value: overall}}, err
}

// upload is a line of the server's file.
type upload struct {
	ID     any    `json:"question_id"`
	Answer string `json:"answer"`
}

// uploads writes a text of each answer.
func uploads(text func(*eval.Scored) string) func(io.Writer, []*eval.Scored) error {
	return func(w io.Writer, all []*eval.Scored) error {
		out := make([]upload, len(all))
		for i, x := range all {
			out[i] = upload{x.Question.Key, text(x)}
		}
		return json.NewEncoder(w).Encode(out)
	}
}

// saidOf is the answer as given.
func saidOf(x *eval.Scored) string { return pytext.Strip(x.Answer) }

// writeVQAPaper writes an answer for every question of the split test, whose rows are given; it is
// empty if it was not asked.
func writeVQAPaper(
	w io.Writer, all []*eval.Scored, rows iter.Seq2[*dataset.Row, error],
) error {
	answers := map[int64]string{}
	for _, x := range all {
		answers[x.Question.Key.(int64)] = x.Answer
	}
	out := []upload{}
	err := each(rows, func(r *dataset.Row) {
		id := r.Int("question_id")
		answer, ok := answers[id]
		if ok {
			answer = normalVQA(pytext.Strip(answer))
		}
		out = append(out, upload{id, answer})
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(out)
}
