package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/eval"
)

// Ensure that the log has what lmms-eval 0.7's from_log reads: args with limit, the task's name,
// the time as %m%d_%H%M, and for each doc_id a list of lists of answers.
func TestLMMSLog(t *testing.T) {
	dir := t.TempDir()
	b := &eval.Benchmark{Name: "pope", Split: "test", MaxTokens: 16}
	all := []*eval.Scored{
		{Question: &eval.Question{ID: 0, Category: "random", Doc: "yes"}, Answer: "Yes"},
		{Question: &eval.Question{ID: 7, Category: "random", Doc: "no"}, Answer: " no.\n"},
	}
	if err := WriteLMMS(dir, b, &eval.Result{Questions: 2}, all, false); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*_log_pope.json"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("got %v, %v, want one log", paths, err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	var log struct {
		Args    map[string]any
		Configs struct{ Task string } `json:"model_configs"`
		Time    string
		Logs    []struct {
			ID    int        `json:"doc_id"`
			Resps [][]string `json:"resps"`
		}
	}
	if err := json.Unmarshal(data, &log); err != nil {
		t.Fatal(err)
	}
	limit, given := log.Args["limit"]
	if !given || limit != nil || log.Args["model"] != "restore" || log.Configs.Task != "pope" ||
		len(log.Time) != len("1123_0000") || len(log.Logs) != 2 {
		t.Fatalf("got %s", data)
	}
	if l := log.Logs[1]; l.ID != 7 || len(l.Resps) != 1 || l.Resps[0][0] != " no.\n" {
		t.Errorf("got %+v, want the answer as it was given to row 7", l)
	}
}
