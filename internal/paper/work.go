package paper

import (
	"context"
	"time"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

// Work is the work of a table or a figure.
type Work struct {
	Runs    int           // number of runs that it shows
	Done    int           // of these, recorded
	Left    time.Duration // predicted from this machine's rates
	Missing []string      // why runs are not possible, each reason once

	encoded bool // an earlier run encodes the pictures, which are cached
}

// Work returns the runs that an item needs.
func (mk *Maker) Work(ctx context.Context, i Item, src *Source) (*Work, error) {
	r, err := mk.measureRates(ctx, src.Scenes)
	if err != nil {
		return nil, err
	}
	planner := *mk
	planner.done, planner.work, planner.rates = nil, new(Work), r
	_, err = planner.Make(ctx, i, src)
	return planner.work, err
}

// add counts a run; left is the time of its unanswered questions.
func (w *Work) add(left time.Duration) {
	w.Runs++
	if left == 0 {
		w.Done++
	}
	w.Left += left
}

func (w *Work) miss(why string) {
	for _, m := range w.Missing {
		if m == why {
			return
		}
	}
	w.Missing = append(w.Missing, why)
}

// countRun counts a run of a benchmark.
func (mk *Maker) countRun(src *Source, name string, m eval.Answerer, how methods.Options) error {
	size, why := src.size(name)
	if why != "" {
		mk.work.miss(why)
		return nil
	}
	answered := 0
	if b, _ := src.Benchmark(name); b != nil {
		dir, err := mk.folder(b, m)
		if err != nil {
			return err
		}
		if r, err := eval.ReadRecords(dir); err == nil {
			answered = min(len(r.List), size.questions)
		}
	}
	left := float64(size.questions-answered) / float64(max(1, size.questions))
	seconds := left * mk.rates.run(size, how)
	if mk.work.encoded && src.Scenes {
		seconds -= left * float64(size.pictures) * mk.rates.Encode
	}
	mk.work.encoded = true
	mk.work.add(time.Duration(seconds * float64(time.Second)))
	return nil
}

// size is the number of a benchmark's questions and pictures.
type size struct{ questions, pictures int }

// published are the sizes of the benchmarks in the paper's tables, without VQAv2, whose answers are
// not public.
var published = map[string]size{
	"gqa": {12578, 398}, "mmbench-en": {4377, 1176}, "mme": {2374, 1187}, "pope": {8910, 500},
	"scienceqa": {4241, 2017}, "textvqa": {5000, 3166}, "seedbench": {19242, 19242},
	"ocrbench": {1000, 1000},
}

// Published stands for the paper's benchmarks when their data are missing; it has no questions.
func Published() *Source { return &Source{Name: "the paper's benchmarks", published: true} }

// size counts the questions and pictures of a benchmark, or returns why there are none.
func (s *Source) size(name string) (size, string) {
	if n, ok := published[name]; s.published {
		if !ok {
			return n, name + ": not counted"
		}
		return n, ""
	}
	if n, ok := s.sizes[name]; ok {
		return n, ""
	}
	b, why := s.Benchmark(name)
	if b == nil {
		return size{}, why
	}
	var n size
	seen := map[string]bool{}
	for q, err := range b.Questions() {
		if err != nil {
			return size{}, err.Error()
		}
		if s.Limit > 0 && n.questions == s.Limit {
			break
		}
		n.questions++
		for _, i := range q.Images {
			seen[i.Name] = true
		}
	}
	n.pictures = len(seen)
	if s.sizes == nil {
		s.sizes = map[string]size{}
	}
	s.sizes[name] = n
	return n, ""
}

// rates are the times of operations with a model on this machine, in seconds.
type rates struct {
	Encode float64 // one picture
	// Full and Reduced are one question with all tokens of a picture, and with a share of them.
	Full, Reduced float64
	Tokens, Kept  int
	Text          float64 // one question without a picture
}

// run predicts the time of a benchmark. The first question about a picture reads the picture; the
// next ones read only their text, unless the picture is reduced for each question.
func (r *rates) run(n size, o methods.Options) float64 {
	first, next := r.question(o), r.Text
	if o.ReadsText() {
		next = first
	}
	pictures := min(n.pictures, n.questions)
	return float64(n.pictures)*r.Encode + float64(pictures)*first +
		float64(n.questions-pictures)*next
}

// question predicts a question whose picture is encoded.
func (r *rates) question(o methods.Options) float64 {
	kept := float64(r.Tokens)
	switch {
	case o.Base == "" || o.Base == "none":
	case o.NVis > 0:
		kept = float64(o.NVis)
	case o.KeepRatio > 0:
		kept *= o.KeepRatio
	}
	if r.Tokens == r.Kept {
		return r.Full
	}
	slope := max(0, (r.Full-r.Reduced)/float64(r.Tokens-r.Kept))
	return max(0, r.Full-slope*(float64(r.Tokens)-kept))
}

// The questions with which rates are measured.
const (
	rateText  = 60     // tokens of text
	nextText  = 30     // of a further question about the same picture
	nextScene = 8      // of a further question about a drawn scene
	rateSteps = 2      // tokens of an answer after the first
	rateShare = 1. / 9 // of the visual tokens
	// rateFor is how long each is repeated.
	rateFor = 300 * time.Millisecond
)

// measureRates measures a few questions of random words. It records the rates.
func (mk *Maker) measureRates(ctx context.Context, scenes bool) (*rates, error) {
	next := nextText
	if scenes {
		next = nextScene
	}
	r := new(rates)
	err := mk.kept("rates", []any{mk.machine(), next}, 0, r, func() error {
		drawn, err := pictures(drawnScenes(1), 1, 0)
		if err != nil {
			return err
		}
		drew, err := drawn[0].Images[0].Picture()
		if err != nil {
			return err
		}
		pic, err := seam.Image(drew).Pixels()
		if err != nil {
			return err
		}
		ask := func(n int, p *imageproc.Picture, o methods.Options) (*lab.Measurement, error) {
			return lab.Measure(ctx, mk.engine(), lab.MeasureRequest{
				Image: p, Reduce: o, Text: n, Steps: rateSteps,
			})
		}
		few := methods.Options{Base: "holov", KeepRatio: rateShare, Restore: true}
		times := 0
		for start := time.Now(); times == 0 || time.Since(start) < rateFor; times++ {
			full, err := ask(rateText, pic, methods.Options{})
			if err != nil {
				return err
			}
			reduced, err := ask(rateText, pic, few)
			if err != nil {
				return err
			}
			text, err := ask(next, nil, methods.Options{})
			if err != nil {
				return err
			}
			r.Text += (text.Prefill + text.Decode).Seconds()
			r.Encode += (full.Prepare + full.Encode).Seconds()
			r.Full += (full.Prefill + full.Decode).Seconds()
			r.Reduced += (reduced.Select + reduced.Merge + reduced.Prefill +
				reduced.Decode).Seconds()
			r.Tokens, r.Kept = full.Before, reduced.Kept+reduced.Merged
		}
		for _, v := range []*float64{&r.Encode, &r.Full, &r.Reduced, &r.Text} {
			*v /= float64(times)
		}
		return nil
	})
	return r, err
}
