package bench

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// POPE: is an object in the picture? Li et al. 2023, https://arxiv.org/abs/2305.10355. Objects are
// drawn at random, from the popular ones, or from those that often occur together with the
// picture's objects.
//
//	paper   everything is a yes unless its first sentence has the word No, no or not; the mean
//	        of the three kinds' F1, in percent
//	lmms    the whole answer is yes or no, or counts as neither; one F1 over all questions
var pope = definition{
	name: "pope", title: "POPE", splits: []string{"test", "adversarial", "popular", "random"},
	repos: []string{"lmms-lab/POPE", "lmms-lab-encoder/POPE"},
	open:  openPOPE,
}

var popeKinds = []string{"adversarial", "popular", "random"}

func openPOPE(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 128, Score: scorePOPEPaper, Metrics: metricsPOPEPaper}
	if !s.paper() {
		b.Score, b.Metrics = scorePOPELMMS, metricsPOPELMMS
	}
	if file := s.question([]string{"pope"}, "llava_pope_test.jsonl"); file != "" {
		return b, popeLines(s, b, file)
	}
	config := dataset.DefaultConfig
	if s.Split != "test" {
		config = "Full"
	}
	need := []string{"question_id", "question", "category", "image_source"}
	if !s.Prompts {
		need = append(need, "answer")
	}
	return s.fromHub(b, s.Split, config, need, func(r *dataset.Row, q *eval.Question, at picture) {
		q.Key, q.Text = r.Key("question_id"), r.Text("question")
		if !s.paper() {
			q.Text = pytext.Strip(q.Text)
		}
		q.Text += shortAnswer
		q.Images = []eval.Image{at(r.Text("image_source"), 0)}
		q.Category = r.Text("category")
		if s.Prompts {
			return
		}
		if q.Doc = yesNo(r, "answer"); s.paper() {
			checkPOPEKind(r, q.Category)
		}
	})
}

func checkPOPEKind(r *dataset.Row, kind string) {
	if r.Err() == nil && !slices.Contains(popeKinds, kind) {
		r.Fail("category", "got %q, want %s", kind, strings.Join(popeKinds, ", "))
	}
}

// popeLabel is the label of a question in POPE's own files, which have those of each kind in order.
type popeLabel struct{ image, label string }

// popeLabels reads the labels of all kinds, from files next to LLaVA's question file.
func popeLabels(file string) (map[string][]popeLabel, error) {
	labels := map[string][]popeLabel{}
	for _, kind := range popeKinds {
		name := "coco_pope_" + kind + ".json"
		path, err := nextTo(file, "coco/"+name, name, "output/coco/"+name)
		if err != nil {
			return nil, err
		}
		err = each(dataset.Lines(path), func(r *dataset.Row) {
			l := popeLabel{label: "yes"}
			if r.Text("label") == "no" {
				l.label = "no"
			}
			if r.Has("image") {
				l.image = r.Text("image")
			}
			labels[kind] = append(labels[kind], l)
		})
		if err != nil {
			return nil, err
		}
	}
	return labels, nil
}

// popeLines reads LLaVA's question file.
func popeLines(s *source, b *eval.Benchmark, file string) (err error) {
	var labels map[string][]popeLabel
	if !s.Prompts {
		if labels, err = popeLabels(file); err != nil {
			return err
		}
	}
	dir := s.folder(file, "val2014", "images")
	b.Questions = func() iter.Seq2[*eval.Question, error] {
		seen := map[string]int{}
		rows := func(yield func(*dataset.Row, error) bool) {
			for r, err := range dataset.Lines(file) {
				if err != nil || s.Split == "test" || r.Value("category") == s.Split {
					if !yield(r, err) {
						return
					}
				}
			}
			for kind, n := range seen {
				if n != len(labels[kind]) {
					yield(nil, fmt.Errorf("%s: %d questions of kind %q, and %d labels: want "+
						"POPE's labels of commit e3e39262", file, n, kind, len(labels[kind])))
					return
				}
			}
		}
		return number(rows, func(r *dataset.Row, q *eval.Question) {
			q.Key, q.Text, q.Category = r.Key("question_id"), r.Text("text"), r.Text("category")
			image := r.Text("image")
			q.Images = []eval.Image{inFolder(dir, image)}
			if s.Prompts {
				return
			}
			if checkPOPEKind(r, q.Category); r.Err() != nil {
				return
			}
			n := seen[q.Category]
			seen[q.Category]++
			if n >= len(labels[q.Category]) {
				r.Fail("category", "more questions of kind %q than its %d labels", q.Category, n)
				return
			}
			l := labels[q.Category][n]
			if l.image != "" && l.image != image {
				r.Fail("image", "got %q, label %d of its kind is about %q: want POPE's labels of "+
					"commit e3e39262", image, n, l.image)
			}
			q.Doc = l.label
		})()
	}
	return nil
}

// yesNo reads a column that holds yes or no.
func yesNo(r *dataset.Row, column string) string {
	got := pytext.Strip(pytext.Lower(r.Text(column)))
	if r.Err() == nil && got != "yes" && got != "no" {
		r.Fail(column, "got %q, want yes or no", r.Text(column))
	}
	return got
}

func scorePOPEPaper(q *eval.Question, answer string) eval.Score {
	first, _, _ := strings.Cut(pytext.Strip(answer), ".")
	said := "yes"
	for _, w := range strings.Split(strings.ReplaceAll(first, ",", ""), " ") {
		if w == "No" || w == "not" || w == "no" {
			said = "no"
		}
	}
	return eval.Right(said == q.Doc.(string), said)
}

func scorePOPELMMS(q *eval.Question, answer string) eval.Score {
	answer = pytext.Strip(pytext.Lower(pytext.Strip(answer)))
	s := eval.Right(answer == q.Doc.(string), answer)
	s.Failed = answer != "yes" && answer != "no"
	return s
}

// confusion counts answers by prediction and truth. Answers that are neither yes nor no are not
// counted.
type confusion struct{ tp, fp, tn, fn float64 }

func (c *confusion) add(x *eval.Scored) {
	truth := x.Question.Doc.(string)
	switch {
	case x.Parsed == "yes" && truth == "yes":
		c.tp++
	case x.Parsed == "yes":
		c.fp++
	case x.Parsed == "no" && truth == "yes":
		c.fn++
	case x.Parsed == "no":
		c.tn++
	}
}

func (c confusion) precision() float64 { return ratio(c.tp, c.tp+c.fp) }
func (c confusion) recall() float64    { return ratio(c.tp, c.tp+c.fn) }

// ratio is a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// metricsPOPEPaper is 0 if no answer is a yes; the script then divides by zero.
func metricsPOPEPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	kinds := map[string]*confusion{}
	for _, x := range all {
		if kinds[x.Question.Category] == nil {
			kinds[x.Question.Category] = new(confusion)
		}
		kinds[x.Question.Category].add(x)
	}
	var m eval.Metrics
	sum := 0.0
	for _, kind := range popeKinds {
		if c := kinds[kind]; c != nil {
			p, r := c.precision(), c.recall()
			f1 := ratio(2*p*r, p+r)
			sum += f1
			m = append(m, eval.Metric{Name: "f1_" + kind, Value: 100 * f1})
		}
	}
	if len(m) == 0 {
		return nil, errNoQuestions
	}
	return append(eval.Metrics{{Name: "f1", Value: 100 * (sum / float64(len(m)))}}, m...), nil
}

func metricsPOPELMMS(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	var c confusion
	yes := 0.0
	for _, x := range all {
		c.add(x)
		if x.Question.Doc.(string) == "yes" {
			yes++
		}
	}
	p, r := c.precision(), c.recall()
	m := eval.Metrics{
		{
			Name:  "pope_accuracy",
			Value: eval.Mean(all),
		}, {Name: "pope_precision", Value: p}, {Name: "pope_recall", Value: r},
		{
			Name:  "pope_f1_score",
			Value: ratio(2*(p*r), p+r),
		}, {Name: "pope_yes_ratio", Value: ratio(yes, float64(len(all)))},
	}
	if len(all) > 1 {
		for _, x := range m[:5] {
			m = append(m, eval.Metric{Name: x.Name + "_stderr_clt", Value: standardError(all)})
		}
	}
	return m, nil
}
