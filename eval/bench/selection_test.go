package bench

import (
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/eval"
)

// Ensure that right answers to a part of SEED-Bench's questions score 100: the questions that the
// part leaves out are no missing answers.
func TestSEEDPart(t *testing.T) {
	b, err := Open("seedbench", filepath.Join("testdata", "llava", "seed_bench"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	right := map[int]string{}
	for q, err := range b.Questions() {
		if err != nil {
			t.Fatal(err)
		}
		right[q.ID] = q.Doc.(seedTruth).answer
	}
	for _, part := range []eval.Selection{{Limit: 10}, {Shard: 2, Parts: 3}} {
		r, _, err := eval.ScoreAll(t.Context(), b, part, right)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range r.Metrics {
			if m.Value != 100 {
				t.Errorf("%+v: %s is %v, want 100", part, m.Name, m.Value)
			}
		}
	}
}

// Ensure that a question of MMBench that occurs twice is one group, which is wrong if one of its
// answers is.
func TestMMBenchTwice(t *testing.T) {
	row := &mmbRow{index: 7, answer: "A"}
	var all []*eval.Scored
	for _, points := range []float64{1, 0} {
		all = append(all, &eval.Scored{
			Question: &eval.Question{Doc: row}, Score: eval.Score{Parsed: "A", Points: points},
		})
	}
	m, err := metricsMMBPaper(t.Context(), all)
	if err != nil || m[0].Value != 0 {
		t.Errorf("got %v, %v, want 0", m, err)
	}
}
