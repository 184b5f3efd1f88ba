package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/pytext"
)

// MME: two yes-no questions for each picture, in 14 subtasks. Fu et al. 2023,
// https://arxiv.org/abs/2306.13394. A subtask's score is the percentage of right answers plus the
// percentage of pictures with two right answers, at most 200.
//
//	paper   LLaVA's question, MME's own parser: yes or no in the first four characters; the
//	        two questions of a picture are adjacent
//	lmms    the same, with one more space where the question had two; spaces and full stops are
//	        removed first, y and n count; questions of a picture have the same question_id
var mme = definition{
	name: "mme", title: "MME", splits: []string{"test"},
	repos: []string{"lmms-lab/MME", "lmms-lab-encoder/MME"},
	open:  openMME,
}

var (
	mmePerception = []string{
		"existence",
		"count",
		"position",
		"color",
		"posters",
		"celebrity",
		"scene",
		"landmark",
		"artwork",
		"OCR",
	}
	mmeCognition = []string{
		"commonsense_reasoning",
		"numerical_calculation",
		"text_translation",
		"code_reasoning",
	}
)

const (
	mmeSentence = "Please answer yes or no."
	mmeFolder   = "MME_Benchmark_release_version"
)

// mmeTruth is the truth of a question and the picture it is about.
type mmeTruth struct{ answer, picture string }

func openMME(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 128, Score: scoreMMEPaper, Metrics: metricsMMEPaper}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics = 16, scoreMMELMMS, metricsMMELMMS
	}
	b.Check = func(questions []*eval.Question) error { // that each has its second
		var all []*eval.Scored
		for _, q := range questions {
			all = append(all, &eval.Scored{Question: q})
		}
		_, err := b.Metrics(context.Background(), all)
		return err
	}
	if file := s.question([]string{"MME"}, "llava_mme.jsonl"); file != "" {
		return b, mmeLines(s, b, file)
	}
	need := []string{"question_id", "question", "category"}
	if !s.Prompts {
		need = append(need, "answer")
	}
	return s.fromHub(b, "test", dataset.DefaultConfig, need, func(
		r *dataset.Row, q *eval.Question, at picture,
	) {
		id := r.Text("question_id")
		q.Key, q.Category = id, r.Text("category")
		if s.paper() {
			q.Text = mmeQuestion(r.Text("question"))
		} else {
			q.Text = strings.ReplaceAll(pytext.Strip(r.Text("question")), " "+mmeSentence, "")
		}
		q.Text += shortAnswer
		q.Images = []eval.Image{at(id, 0)}
		checkMMECategory(r, q.Category)
		if !s.Prompts {
			truth := strings.ReplaceAll(pytext.Strip(pytext.Lower(r.Text("answer"))), ".", "")
			if r.Err() == nil && truth != "yes" && truth != "no" {
				r.Fail("answer", "got %q, want Yes or No", r.Text("answer"))
			}
			q.Doc = mmeTruth{truth, id}
		}
	})
}

func checkMMECategory(r *dataset.Row, category string) {
	if r.Err() == nil && !slices.Contains(mmePerception, category) &&
		!slices.Contains(mmeCognition, category) {
		r.Fail("category", "got %q, want one of MME's 14", category)
	}
}

// mmeQuestion returns a question without the sentence that asks for yes or no, and the spaces
// before it.
func mmeQuestion(text string) string {
	return pytext.Strip(strings.ReplaceAll(text, mmeSentence, ""))
}

// mmeLines reads LLaVA's question file and the truth from the folder of MME's release.
func mmeLines(s *source, b *eval.Benchmark, file string) error {
	truth := map[[3]string]string{} // by category, file without extension, question
	dir := s.folder(file, mmeFolder)
	if !s.Prompts {
		release, err := nextTo(file, mmeFolder)
		if err != nil {
			return err
		}
		if truth, err = mmeRelease(release); err != nil {
			return err
		}
	}
	b.Questions = number(dataset.Lines(file), func(r *dataset.Row, q *eval.Question) {
		id := r.Text("question_id")
		q.Key, q.Text = id, r.Text("text")
		q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
		q.Category, _, _ = strings.Cut(id, "/")
		checkMMECategory(r, q.Category)
		if s.Prompts {
			return
		}
		stem, _, _ := strings.Cut(path.Base(id), ".")
		question := mmeQuestion(strings.ReplaceAll(q.Text, strings.TrimPrefix(shortAnswer,
			"\n"), ""))
		answer, ok := truth[[3]string{q.Category, stem, question}]
		if !ok {
			r.Fail("text", "question %q is not in %s of %s", question, stem+".txt", dir)
		}
		q.Doc = mmeTruth{answer, id}
	})
	return nil
}

// maxMMEFile is the most bytes of a file with two questions.
const maxMMEFile = 1 << 20

// mmeRelease reads the question and answer files of MME's folder: CATEGORY/*.txt, or
// CATEGORY/questions_answers_YN/*.txt, with lines "question\tYes".
func mmeRelease(dir string) (map[[3]string]string, error) {
	truth := map[[3]string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".txt" {
			return err
		}
		category, _, _ := strings.Cut(name, "/")
		stem, _, _ := strings.Cut(path.Base(name), ".")
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer f.Close()
		in := files.NewLines(f, maxMMEFile)
		for line := 0; in.Scan(); line++ {
			question, answer, ok := strings.Cut(pytext.Strip(in.Text()), "\t")
			lower := pytext.Lower(answer)
			if !ok || lower != "yes" && lower != "no" {
				return fmt.Errorf("%s: row %d (line %d): want a question, a tab, and Yes or No",
					filepath.Join(dir, name), line, line+1)
			}
			truth[[3]string{category, stem, mmeQuestion(question)}] = lower
		}
		if err := in.Err(); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
		return nil
	})
	return truth, err
}

func scoreMMEPaper(q *eval.Question, answer string) eval.Score {
	return scoreMME(q, mmeWord(pytext.Lower(strings.NewReplacer("\n", " ", "\t", " ", "\r",
		" ").Replace(pytext.Strip(answer)))))
}

func scoreMMELMMS(q *eval.Question, answer string) eval.Score {
	answer = strings.ReplaceAll(pytext.Strip(pytext.Lower(pytext.Strip(answer))), ".", "")
	switch answer {
	case "y":
		answer = "yes"
	case "n":
		answer = "no"
	}
	return scoreMME(q, mmeWord(answer))
}

// mmeWord looks for yes, then for no, in the first four characters.
func mmeWord(s string) string {
	runes := []rune(s)
	s = string(runes[:min(4, len(runes))])
	switch {
	case strings.Contains(s, "yes"):
		return "yes"
	case strings.Contains(s, "no"):
		return "no"
	}
	return "other"
}

func scoreMME(q *eval.Question, said string) eval.Score {
	s := eval.Right(said == q.Doc.(mmeTruth).answer, said)
	s.Failed = said == "other"
	return s
}

// metricsMMEPaper pairs adjacent questions within each subtask.
func metricsMMEPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	tasks := map[string][]*eval.Scored{}
	for _, x := range all {
		tasks[x.Question.Category] = append(tasks[x.Question.Category], x)
	}
	total := func(names []string) (sum float64, err error) {
		for _, name := range names {
			task := tasks[name]
			if len(task)%2 != 0 {
				return 0, oddMME(name, len(task))
			}
			if len(task) == 0 {
				continue
			}
			right, both := 0.0, 0.0
			for i := 0; i < len(task); i += 2 {
				right += task[i].Points + task[i+1].Points
				both += task[i].Points * task[i+1].Points
			}
			n := float64(len(task))
			sum += right/n*100 + both/(n/2)*100
		}
		return sum, nil
	}
	perception, err := total(mmePerception)
	if err != nil {
		return nil, err
	}
	cognition, err := total(mmeCognition)
	return eval.Metrics{
		{Name: "perception", Value: perception},
		{Name: "cognition", Value: cognition},
		{Name: "total", Value: perception + cognition},
	}, err
}

func oddMME(category string, n int) error {
	return fmt.Errorf(
		"subtask %s has %d questions, want two for each picture: the score counts pairs", category,
		n)
}

// metricsMMELMMS pairs questions with the same id. A subtask's score is the mean over its pictures.
func metricsMMELMMS(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	var m eval.Metrics
	for _, kind := range []struct {
		name       string
		perception bool
	}{{"mme_perception_score", true}, {"mme_cognition_score", false}} {
		var order []string
		tasks := map[string]map[string][]*eval.Scored{}
		var of []*eval.Scored
		for _, x := range all {
			c := x.Question.Category
			if slices.Contains(mmePerception, c) != kind.perception {
				continue
			}
			if tasks[c] == nil {
				tasks[c] = map[string][]*eval.Scored{}
				order = append(order, c)
			}
			id := x.Question.Doc.(mmeTruth).picture
			tasks[c][id] = append(tasks[c][id], x)
			of = append(of, x)
		}
		sum := 0.0
		for _, c := range order {
			score := 0.0
			for _, pair := range tasks[c] {
				if len(pair) != 2 {
					return nil, oddMME(c, len(pair))
				}
				score += (pair[0].Points+pair[1].Points)/2*100 + 100*pair[0].Points*pair[1].Points
			}
			sum += score / float64(len(tasks[c]))
		}
		if len(of) > 0 {
			m = append(m, eval.Metric{Name: kind.name, Value: sum})
		}
		if len(of) > 1 {
			m = append(m, eval.Metric{Name: kind.name + "_stderr_clt", Value: standardError(of)})
		}
	}
	return m, nil
}
