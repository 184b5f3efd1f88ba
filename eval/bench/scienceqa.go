package bench

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// ScienceQA: school questions with two to five choices; about half have a picture. Lu et al. 2022,
// https://arxiv.org/abs/2209.09513. The paper's score counts questions with one.
//
//	paper   a single capital letter, "B. text", or one "The answer is B." counts; the rest fails
//	lmms    a letter of either case, or a capital with a full stop and anything after it
//
// The hub's set of questions with pictures is "test", the whole set "full". LLaVA's file holds the
// whole set: "test" and "full" are all of it, "img" the questions with a picture, which RESTORE's
// script asks.
var scienceqa = definition{
	name: "scienceqa", title: "ScienceQA-IMG", splits: []string{"test", "full", "img"},
	repos: []string{"lmms-lab/ScienceQA", "lmms-lab-encoder/ScienceQA"},
	open:  openScienceQA,
}

type sciTruth struct {
	answer  int // of choices
	choices int
	image   bool
}

func openScienceQA(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{
		MaxTokens: 1024, Score: scoreSciPaper, Metrics: metricsSciPaper, Optional: true,
	}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics, b.Optional = 16, scoreSciLMMS, meanMatch, false
	}
	if file := s.question([]string{"scienceqa"}, "llava_test_CQM-A.json"); file != "" {
		return b, sciLLaVA(s, b, file)
	}
	config := "ScienceQA-IMG"
	if s.Split == "full" {
		config = "ScienceQA-FULL"
	}
	need := []string{"image", "question", "choices", "hint"}
	if !s.Prompts {
		need = append(need, "answer")
	}
	return s.fromHub(b, "test", config, need, func(r *dataset.Row, q *eval.Question, at picture) {
		q.Key = int64(q.ID)
		choices := r.Texts("choices")
		hint, hasHint := r.Optional("hint")
		if s.paper() {
			q.Text = pytext.Strip(sciText(hint, r.Text("question"), choices))
		} else {
			if !hasHint { // the harness prints the null
				q.Text = "None"
			}
			q.Text += sciText(hint, r.Text("question"), choices)
		}
		q.Text += letterAnswer
		for i := range pictures(r, "image") {
			q.Images = append(q.Images, at(pictureAt(r), i))
		}
		if !s.Prompts {
			q.Doc = sciAnswer(r, r.Int("answer"), choices, len(q.Images) > 0)
		}
	})
}

func sciAnswer(r *dataset.Row, answer int64, choices []string, image bool) sciTruth {
	if r.Err() == nil && (answer < 0 || answer >= int64(len(choices)) || len(choices) > 26) {
		r.Fail("answer", "got %d, want one of %d choices", answer, len(choices))
	}
	return sciTruth{int(answer), len(choices), image}
}

// sciText lays out a question as both harnesses do.
func sciText(hint, question string, choices []string) string {
	var b strings.Builder
	if hint != "" {
		b.WriteString("Context: " + hint + "\n")
	}
	b.WriteString(question + "\n")
	for i, c := range choices {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%c. %s", 'A'+i, c)
	}
	return b.String()
}

// sciLLaVA reads LLaVA's conversations, and the choices and answers of the original files.
func sciLLaVA(s *source, b *eval.Benchmark, file string) error {
	problems := map[string]*dataset.Row{}
	if path, err := nextTo(file, "problems.json"); err == nil {
		err = each(dataset.Object(path), func(m dataset.Member) { problems[m.Name] = m.Row })
		if err != nil {
			return err
		}
	} else if !s.Prompts || !s.paper() {
		return err
	}
	dir := s.folder(file, "images/test", "images")
	rows := func(yield func(*dataset.Row, error) bool) {
		for r, err := range dataset.Array(file, "") {
			if err == nil && s.Split == "img" && !r.Has("image") {
				continue
			}
			if !yield(r, err) {
				return
			}
		}
	}
	b.Questions = number(rows, func(r *dataset.Row, q *eval.Question) {
		id := r.Key("id")
		q.Key = id
		turns := r.List("conversations")
		if len(turns) == 0 {
			r.Fail("conversations", "got none, want the question")
			return
		}
		text := strings.ReplaceAll(turns[0].Text("value"), "<image>", "")
		q.Text = pytext.Strip(text) + letterAnswer
		r.Take(turns[:1])
		if r.Has("image") {
			q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
		}
		p := problems[fmt.Sprint(id)]
		if p == nil {
			if !s.Prompts || !s.paper() {
				r.Fail("id", "got %q, which is not in problems.json", fmt.Sprint(id))
			}
			return
		}
		choices := p.Texts("choices")
		if !s.paper() {
			hint, _ := p.Optional("hint")
			q.Text = sciText(hint, p.Text("question"), choices) + letterAnswer
		}
		if !s.Prompts {
			q.Doc = sciAnswer(p, p.Int("answer"), choices, r.Has("image"))
		}
		r.Take([]*dataset.Row{p})
	})
	return nil
}

var sciPhrase = regexp.MustCompile(`The answer is ([A-Z])[^\n]`)

// scoreSciPaper accepts the letters A to E, whatever the number of choices.
func scoreSciPaper(q *eval.Question, answer string) eval.Score {
	answer = pytext.Strip(answer)
	letter := "FAILED"
	switch found := sciPhrase.FindAllStringSubmatch(answer, 2); {
	case len(answer) == 1 && answer[0] >= 'A' && answer[0] <= 'E':
		letter = answer
	case len(answer) > 3 && answer[0] >= 'A' && answer[0] <= 'E' && answer[1:3] == ". ":
		letter = answer[:1]
	case len(found) == 1:
		letter = found[0][1]
	}
	t := q.Doc.(sciTruth)
	i := strings.Index("ABCDE", letter)
	s := eval.Right(i == t.answer && i < t.choices, letter)
	s.Failed = letter == "FAILED"
	return s
}

// metricsSciPaper leaves questions without an answer out of the pictures' score and counts them as
// wrong in the whole score.
func metricsSciPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	if len(all) == 0 {
		return nil, errNoQuestions
	}
	right, rightImage, images := 0.0, 0.0, 0.0
	for _, x := range all {
		right += x.Points
		if x.Answered && x.Question.Doc.(sciTruth).image {
			images++
			rightImage += x.Points
		}
	}
	return eval.Metrics{{Name: "img_accuracy", Value: ratio(rightImage, images) * 100},
		{Name: "accuracy", Value: right / float64(len(all)) * 100}}, nil
}

func scoreSciLMMS(q *eval.Question, answer string) eval.Score {
	answer = pytext.Strip(answer)
	truth := string(rune('a' + q.Doc.(sciTruth).answer))
	if lower := pytext.Lower(answer); lower == truth {
		return eval.Right(true, lower)
	}
	first, n := utf8.DecodeRuneInString(answer)
	if n > 0 && pytext.IsUpper(first) && strings.HasPrefix(answer[n:], ".") {
		letter := pytext.Lower(string(first))
		return eval.Right(letter == truth, letter)
	}
	return eval.Score{Parsed: answer, Failed: utf8.RuneCountInString(answer) != 1}
}
