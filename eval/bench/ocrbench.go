package bench

import (
	"context"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// OCRBench: reading text in pictures. A thousand questions of ten types; an answer is right if it
// contains one of the true ones. Liu et al. 2023, https://arxiv.org/abs/2305.07895.
//
//	paper   the question and "…single word or phrase."; the number of right answers
//	lmms    only the question; full-width characters count as plain ones; the number of right
//	        answers over 1000, whatever the number of questions
var ocrbench = definition{
	name: "ocrbench", title: "OCRBench", splits: []string{"test"},
	repos: []string{"echo840/OCRBench"},
	open:  openOCR,
}

var ocrTypes = []string{
	"Regular Text Recognition",
	"Irregular Text Recognition",
	"Artistic Text Recognition",
	"Handwriting Recognition",
	"Digit String Recognition",
	"Non-Semantic Text Recognition",
	"Scene Text-centric VQA",
	"Doc-oriented VQA",
	"Key Information Extraction",
	"Handwritten Mathematical Expression Recognition",
}

type ocrTruth struct {
	answers []string
	formula bool // handwritten formula: spaces do not count, case does
}

func openOCR(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{
		MaxTokens: 128,
		Score:     scoreOCR(func(t string) string { return t }),
		Metrics:   metricsOCRPaper,
	}
	if !s.paper() {
		b.Score, b.Metrics = scoreOCR(plainWidth), metricsOCRLMMS
	}
	read := func(r *dataset.Row, q *eval.Question, set, kind, answers string) {
		q.Text = r.Text("question")
		if s.paper() {
			q.Text += shortAnswer
		} else {
			q.Text = pytext.Strip(q.Text)
		}
		q.Category = r.Text(kind)
		if s.Prompts {
			return
		}
		if r.Err() == nil && !slices.Contains(ocrTypes, q.Category) {
			r.Fail(kind, "got %q, want one of OCRBench's ten", q.Category)
		}
		t := ocrTruth{formula: r.Text(set) == "HME100k"}
		if one, ok := r.Value(answers).(string); ok {
			t.answers = []string{one}
		} else {
			t.answers = r.Texts(answers)
		}
		if len(t.answers) == 0 {
			r.Fail(answers, "got none, want at least one")
		}
		q.Doc = t
	}
	if file := s.question([]string{"ocrbench", "OCRBench"}, "OCRBench.json"); file != "" {
		dir := s.folder(file, "data", "OCRBench_Images", "images")
		b.Questions = number(dataset.Array(file, ""), func(r *dataset.Row, q *eval.Question) {
			q.Key = r.Key("id")
			q.Images = []eval.Image{inFolder(dir, r.Text("image_path"))}
			read(r, q, "dataset_name", "type", "answers")
		})
		return b, nil
	}
	need := []string{"dataset", "question", "question_type"}
	if !s.Prompts {
		need = append(need, "answer")
	}
	return s.fromHub(b, "test", dataset.DefaultConfig, need, func(
		r *dataset.Row, q *eval.Question, at picture,
	) {
		q.Key = int64(q.ID)
		q.Images = []eval.Image{at(pictureAt(r), 0)}
		read(r, q, "dataset", "question_type", "answer")
	})
}

// scoreOCR looks for a true answer in the model's answer. fold is applied to both if case does not
// count.
func scoreOCR(fold func(string) string) func(*eval.Question, string) eval.Score {
	return func(q *eval.Question, said string) eval.Score {
		t := q.Doc.(ocrTruth)
		plain := func(s string) string {
			return strings.ReplaceAll(pytext.Strip(pytext.Lower(fold(s))), "\n", " ")
		}
		if t.formula {
			plain = func(s string) string {
				return strings.ReplaceAll(strings.ReplaceAll(pytext.Strip(s), "\n", " "), " ", "")
			}
		}
		said = plain(pytext.Strip(said))
		right := slices.ContainsFunc(t.answers,
			func(a string) bool { return strings.Contains(said, plain(a)) })
		return eval.Right(right, said)
	}
}

// plainWidth converts full-width ASCII to plain characters and the ideographic space to a space.
func plainWidth(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 0xff01 && r <= 0xff5e:
			return r - 0xfee0
		case r == 0x3000:
			return ' '
		}
		return r
	}, s)
}

func metricsOCRPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	return eval.Metrics{{Name: "total", Value: total(all)}}, nil
}

func metricsOCRLMMS(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	m := eval.Metrics{{Name: "ocrbench_accuracy", Value: total(all) / 1000}}
	if len(all) > 1 {
		m = append(m, eval.Metric{Name: "ocrbench_accuracy_stderr_clt", Value: standardError(all)})
	}
	return m, nil
}
