package bench

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

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

// Ensure that a question of POPE of a kind that is not among the three is an error by the paper's
// rules, whose score is a mean over kinds, and counts by lmms-eval's, which pool all.
func TestPOPEKind(t *testing.T) {
	type picture struct {
		Bytes []byte `parquet:"bytes"`
	}
	type row struct {
		ID       string  `parquet:"question_id"`
		Question string  `parquet:"question"`
		Answer   string  `parquet:"answer"`
		Source   string  `parquet:"image_source"`
		Category string  `parquet:"category"`
		Image    picture `parquet:"image"`
	}
	dir := t.TempDir()
	err := parquet.WriteFile(filepath.Join(dir, "test-00000-of-00001.parquet"), []row{
		{"1", "Is it?", "yes", "a", "random", picture{[]byte("a")}},
		{"2", "Is it?", "yes", "a", "Random", picture{[]byte("a")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for protocol, want := range map[string]string{
		Paper: `row 1, column "category": got "Random", want adversarial, popular, random`, LMMS: "",
	} {
		b, err := Open("pope", dir, Options{Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		answers := map[int]string{0: "yes", 1: "no"}
		_, _, err = eval.ScoreAll(t.Context(), b, eval.Selection{}, answers)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", protocol, err, want)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
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

// Ensure that a cell of MMBench's table may name the question that has the picture, as
// VLMEvalKit's tables do, and that the error for another short cell shows it.
func TestMMBenchPictureByIndex(t *testing.T) {
	picture := strings.Repeat("picture ", 10)
	in64 := base64.StdEncoding.EncodeToString([]byte(picture))
	file := filepath.Join(t.TempDir(), "MMBench_DEV_EN.tsv")
	table := "index\tquestion\tA\tB\tanswer\tcategory\timage\n" +
		"7\tRed?\tyes\tno\tA\tc\t" + in64 + "\n" +
		"8\tBlue?\tyes\tno\tA\tc\t7\n" +
		"9\tGreen?\tyes\tno\tA\tc\t6\n"
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Open("mmbench-en", file, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{picture, picture, ""}
	for q, err := range b.Questions() {
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Images[0].Bytes()
		if string(got) != want[q.ID] || (err == nil) != (q.ID < 2) {
			t.Errorf("question %d: got %q, %v, want %q", q.ID, got, err, want[q.ID])
		}
		if err != nil && !strings.Contains(err.Error(), `row 2 (line 4), column "image": got "6"`) {
			t.Errorf("question %d: %v", q.ID, err)
		}
	}
}
