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

// SEED-Bench (version 1): questions with four choices about pictures (nine types) and videos
// (three). Li et al. 2023, https://arxiv.org/abs/2307.16125.
//
//	paper   one middle frame of a video; the answer is a bare letter; an id that occurs
//	        twice has its last answer both times; a missing answer is wrong
//	lmms    several frames of a video; the first character counts, in either case
var seedbench = definition{
	name: "seedbench", title: "SEED-Bench", splits: []string{"test"},
	repos: []string{"lmms-lab/SEED-Bench", "lmms-lab-encoder/SEED-Bench"},
	open:  openSEED,
}

type seedTruth struct {
	answer string
	video  bool
	kind   string // image or video
	id     string
}

func openSEED(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{
		MaxTokens: 128, Score: scoreSEEDPaper, Metrics: metricsSEEDPaper, Optional: true,
		Submission: &eval.Submission{Ext: ".jsonl", Write: writeSEED},
	}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics = 1024, scoreSEEDLMMS, metricsSEEDLMMS
		b.Optional, b.Submission = false, nil
	}
	if file := s.question([]string{"seed_bench"}, "llava-seed-bench.jsonl"); file != "" {
		return b, seedLines(s, b, file)
	}
	need := []string{
		"question_id", "question", "choice_a", "choice_b", "choice_c", "choice_d", "image",
	}
	if !s.Prompts {
		need = append(need, "answer", "data_type")
	}
	return s.fromHub(b, "test", dataset.DefaultConfig, need, func(
		r *dataset.Row, q *eval.Question, at picture,
	) {
		q.Key, q.Text = r.Key("question_id"), seedText(r)
		n := pictures(r, "image")
		for i := range n {
			q.Images = append(q.Images, at(fmt.Sprintf("%s:%d", pictureAt(r), i), i))
		}
		if s.paper() && n > 1 {
			q.Images = q.Images[(n-1)/2 : (n+1)/2]
		}
		if !s.Prompts {
			q.Doc = seedAnswer(r)
			q.Category = q.Doc.(seedTruth).kind
		}
	})
}

func seedText(r *dataset.Row) string {
	return r.Text("question") + "\nA. " + r.Text("choice_a") + "\nB. " + r.Text("choice_b") +
		"\nC. " + r.Text("choice_c") + "\nD. " + r.Text("choice_d") + letterAnswer
}

func seedAnswer(r *dataset.Row) seedTruth {
	t := seedTruth{
		answer: r.Text("answer"),
		kind:   r.Text("data_type"),
		id:     fmt.Sprint(r.Key("question_id")),
	}
	if r.Err() == nil && t.kind != "image" && t.kind != "video" {
		r.Fail("data_type", "got %q, want image or video", t.kind)
	}
	t.video = t.kind == "video"
	return t
}

// seedLines reads LLaVA's question file and SEED-Bench.json. Ids are numbers in one and texts in
// the other.
func seedLines(s *source, b *eval.Benchmark, file string) error {
	truth := map[string][]*dataset.Row{}
	path, err := nextTo(file, "SEED-Bench.json")
	if err == nil {
		err = each(dataset.Array(path, "questions"), func(r *dataset.Row) {
			id := seedID(r)
			truth[id] = append(truth[id], r)
		})
		if err != nil {
			return err
		}
	} else if !s.Prompts || !s.paper() {
		return err
	}
	dir := s.folder(file, ".")
	var asked map[string]int // number of occurrences of each id; nil if the file has more
	b.Questions = func() iter.Seq2[*eval.Question, error] {
		times := map[string]int{}
		asked = nil
		rows := func(yield func(*dataset.Row, error) bool) {
			for r, err := range dataset.Lines(file) {
				if !yield(r, err) {
					return
				}
			}
			asked = times
		}
		return number(rows, func(r *dataset.Row, q *eval.Question) {
			q.Key, q.Text = r.Key("question_id"), r.Text("text")
			q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
			if r.Has("category") {
				q.Category = r.Text("category")
			}
			id := seedID(r)
			n := times[id]
			times[id]++
			if n >= len(truth[id]) {
				if path != "" {
					r.Fail("question_id", "got %v, which %s holds %d times", q.Key, path, n)
				}
				return
			}
			a := truth[id][n]
			if !s.paper() {
				q.Text = seedText(a)
			}
			if !s.Prompts {
				q.Doc = seedAnswer(a)
			}
			r.Take([]*dataset.Row{a})
		})()
	}
	if s.paper() && !s.Prompts {
		b.Metrics = func(ctx context.Context, all []*eval.Scored) (eval.Metrics, error) {
			return metricsSEEDWhole(ctx, all, truth, asked)
		}
	}
	return nil
}

// metricsSEEDWhole counts questions of SEED-Bench.json that the question file does not ask as
// wrong, if all of the file was asked. asked has the number of occurrences of each id in the file;
// it is nil if the file was not read to its end.
func metricsSEEDWhole(
	ctx context.Context, all []*eval.Scored, truth map[string][]*dataset.Row, asked map[string]int,
) (eval.Metrics, error) {
	n := 0
	for _, times := range asked {
		n += times
	}
	if n != len(all) {
		return metricsSEEDPaper(ctx, all)
	}
	for id, rows := range truth {
		for _, a := range rows[asked[id]:] {
			q := &eval.Question{Doc: seedAnswer(a)}
			if a.Err() != nil {
				return nil, a.Err()
			}
			all = append(all, &eval.Scored{Question: q})
		}
	}
	return metricsSEEDPaper(ctx, all)
}

// seedID returns a question's id as a text, also if it is a number.
func seedID(r *dataset.Row) string {
	id := fmt.Sprint(r.Key("question_id"))
	if n, err := strconv.ParseInt(id, 10, 64); err == nil {
		return strconv.FormatInt(n, 10)
	}
	return id
}

func scoreSEEDPaper(q *eval.Question, answer string) eval.Score {
	answer = pytext.Strip(answer)
	s := eval.Right(answer == q.Doc.(seedTruth).answer, answer)
	s.Failed = len(answer) != 1 || answer[0] < 'A' || answer[0] > 'D'
	return s
}

// metricsSEEDPaper gives questions with the same id the answer of the last one.
func metricsSEEDPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	last := lastAnswers(all)
	var right, n [2]float64
	for _, x := range all {
		t := x.Question.Doc.(seedTruth)
		kind := 0
		if t.video {
			kind = 1
		}
		if answer, ok := last[t.id]; ok {
			x.Score = scoreSEEDPaper(x.Question, answer)
		}
		n[kind]++
		right[kind] += x.Points
	}
	m := eval.Metrics{{Name: "total", Value: ratio(right[0]+right[1], n[0]+n[1]) * 100}}
	for kind, name := range []string{"image", "video"} {
		if n[kind] > 0 {
			m = append(m, eval.Metric{Name: name, Value: right[kind] / n[kind] * 100})
		}
	}
	return m, nil
}

// lastAnswers returns the last answer to each id.
func lastAnswers(all []*eval.Scored) map[string]string {
	last := map[string]string{}
	for _, x := range all {
		if x.Answered {
			last[x.Question.Doc.(seedTruth).id] = x.Answer
		}
	}
	return last
}

// writeSEED writes one line for each question.
func writeSEED(w io.Writer, all []*eval.Scored) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	last := lastAnswers(all)
	for _, x := range all {
		id := x.Question.Doc.(seedTruth).id
		if err := enc.Encode(map[string]string{"question_id": id,
			"prediction": pytext.Strip(last[id])}); err != nil {
			return err
		}
	}
	return nil
}

func scoreSEEDLMMS(q *eval.Question, answer string) eval.Score {
	runes := []rune(pytext.Strip(answer))
	answer = string(runes[:min(1, len(runes))])
	said, truth := pytext.Strip(pytext.Lower(answer)),
		pytext.Strip(pytext.Lower(q.Doc.(seedTruth).answer))
	s := eval.Right(said == truth, answer)
	s.Failed = said < "a" || said > "d"
	return s
}

func metricsSEEDLMMS(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	var kinds [2][]*eval.Scored
	for _, x := range all {
		kind := 0
		if x.Question.Doc.(seedTruth).video {
			kind = 1
		}
		kinds[kind] = append(kinds[kind], x)
	}
	var m eval.Metrics
	for kind, name := range []string{"seed_image", "seed_video"} {
		if len(kinds[kind]) > 0 {
			m = append(m, eval.Metric{Name: name, Value: eval.Mean(kinds[kind])})
		}
	}
	return append(m, eval.Metric{Name: "seed_all", Value: eval.Mean(all)}), nil
}
