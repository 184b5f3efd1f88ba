package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// GQA: open and yes-no questions about scene graphs; the answer is one of a list of words. Hudson
// and Manning 2019, https://arxiv.org/abs/1902.09506.
//
//	paper   the question and "…single word or phrase."; trailing full stops removed, lower case;
//	        must equal the truth; mean over balanced questions
//	lmms    the same prompt; lower case, all ASCII punctuation removed; mean over all questions
var gqa = definition{
	name: "gqa", title: "GQA", splits: []string{"testdev"},
	repos: []string{"lmms-lab/GQA", "lmms-lab-encoder/GQA"},
	open:  openGQA,
}

type gqaTruth struct {
	answer   string
	balanced bool
}

func openGQA(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 128, Score: scoreGQAPaper, Metrics: metricsGQAPaper}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics = 16, scoreGQALMMS, meanMatch
	}
	if file := s.question([]string{"gqa"}, "llava_gqa_testdev_balanced.jsonl"); file != "" {
		truth, err := gqaAnnotations(s, file)
		if err != nil {
			return nil, err
		}
		dir := s.folder(file, "data/images", "images")
		b.Questions = number(dataset.Lines(file), func(r *dataset.Row, q *eval.Question) {
			q.Key, q.Text = r.Text("question_id"), r.Text("text")
			q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
			if truth != nil {
				t, ok := truth[q.Key.(string)]
				if !ok {
					r.Fail("question_id", "got %q, which has no annotation", q.Key)
				}
				q.Doc, q.Category = t.gqaTruth, t.category
			}
		})
		return b, nil
	}
	p, err := s.hub("testdev", "testdev_balanced_instructions")
	if err != nil {
		return nil, err
	}
	pictures := &gqaPictures{source: s}
	b.Close = func() error { pictures.close(); return p.Close() }
	rows := p.Scan("", "id", "imageId", "question", "answer", "isBalanced", "types")
	b.Questions = number(rows, func(r *dataset.Row, q *eval.Question) {
		q.Key, q.Text = r.Text("id"), r.Text("question")+shortAnswer
		q.Images = []eval.Image{pictures.image(r.Text("imageId"))}
		q.Doc = gqaTruth{r.Text("answer"), r.Bool("isBalanced")}
		if types, ok := r.Value("types").(map[string]any); ok {
			q.Category, _ = types["structural"].(string)
		}
	})
	return b, nil
}

type gqaAnnotation struct {
	gqaTruth
	category string
}

// gqaAnnotations reads the truth next to LLaVA's question file; nil if only prompts are needed.
func gqaAnnotations(s *source, file string) (map[string]gqaAnnotation, error) {
	if s.Prompts {
		return nil, nil
	}
	const name = "testdev_balanced_questions.json"
	path, err := nextTo(file, name, "data/"+name, "data/questions/"+name)
	if err != nil {
		return nil, err
	}
	truth := map[string]gqaAnnotation{}
	return truth, each(dataset.Object(path), func(m dataset.Member) {
		t := gqaAnnotation{gqaTruth: gqaTruth{m.Text("answer"), m.Bool("isBalanced")}}
		if m.Has("types") {
			if types, ok := m.Value("types").(map[string]any); ok {
				t.category, _ = types["structural"].(string)
			}
		}
		truth[m.Name] = t
	})
}

func scoreGQAPaper(q *eval.Question, answer string) eval.Score {
	answer = pytext.Lower(strings.TrimRight(pytext.Strip(answer), "."))
	return eval.Right(answer == q.Doc.(gqaTruth).answer, answer)
}

func metricsGQAPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	var balanced []*eval.Scored
	for _, x := range all {
		if x.Question.Doc.(gqaTruth).balanced {
			balanced = append(balanced, x)
		}
	}
	return eval.Metrics{{Name: "accuracy", Value: eval.Mean(balanced) * 100}}, nil
}

func scoreGQALMMS(q *eval.Question, answer string) eval.Score {
	answer = bare(pytext.Strip(answer))
	return eval.Right(answer == bare(q.Doc.(gqaTruth).answer), answer)
}

// bare converts a text to lower case as numpy does and deletes ASCII punctuation, but no spaces.
func bare(s string) string {
	s = pytext.LowerEach(strings.TrimRight(s, "\x00"))
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", r) {
			return -1
		}
		return r
	}, s)
}

// gqaPictures finds pictures by id in the configuration that holds them. It is opened when the
// first picture is.
type gqaPictures struct {
	*source
	once sync.Once
	err  error
	p    *dataset.Parquet
	rows map[string]int64
}

func (g *gqaPictures) image(id string) eval.Image {
	at := fmt.Sprintf("%s: picture %q", g.path, id)
	return eval.Image{Name: id, At: at, Open: func() (io.ReadCloser, error) {
		if g.once.Do(g.open); g.err != nil {
			return nil, fmt.Errorf("picture %q: %w", id, g.err)
		}
		row, ok := g.rows[id]
		if !ok {
			return nil, fmt.Errorf("picture %q: not in testdev_balanced_images", id)
		}
		return inParquet(g.p, id, row, 0).Open()
	}}
}

func (g *gqaPictures) open() {
	if g.p, g.err = g.hub("testdev", "testdev_balanced_images"); g.err != nil {
		return
	}
	g.rows = map[string]int64{}
	n := int64(0)
	g.err = each(g.p.Scan("", "id"), func(r *dataset.Row) {
		g.rows[r.Text("id")] = n
		n++
	})
}

func (g *gqaPictures) close() {
	if g.p != nil {
		g.p.Close()
	}
}
