package bench

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/eval"
)

// Ensure that the file for the server has the last answer to an id twice if the id occurs twice, as
// the paper's script writes it and as the score counts it.
func TestSEEDRepeatedID(t *testing.T) {
	b, err := Open("seedbench", filepath.Join("testdata", "llava", "seed_bench"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	const repeated = "7182"
	answers, n := map[int]string{}, 0
	for q, err := range b.Questions() {
		if err != nil {
			t.Fatal(err)
		}
		answers[q.ID] = "A"
		if q.Doc.(seedTruth).id == repeated {
			answers[q.ID] = []string{"first", "last"}[n]
			n++
		}
	}
	_, all, err := eval.ScoreAll(t.Context(), b, eval.Selection{}, answers)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := b.Submission.Write(&out, all); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for in := json.NewDecoder(&out); in.More(); lines++ {
		var line struct {
			ID         string `json:"question_id"`
			Prediction string
		}
		if err := in.Decode(&line); err != nil {
			t.Fatal(err)
		}
		want := "A"
		if line.ID == repeated {
			want = "last"
			n--
		}
		if line.Prediction != want {
			t.Errorf("id %s: got %q, want %q", line.ID, line.Prediction, want)
		}
	}
	if n != 0 || lines != len(answers) {
		t.Errorf("%d lines, want %d, and two with id %s", lines, len(answers), repeated)
	}
}
