package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/compare"
	"github.com/restore-vlm/restore/internal/golden"
)

// referenceScenes are pictures with the outcomes of the reference implementation.
const referenceScenes = benchData + "scenes"

// Ensure that the embedded model's answers equal, question by question, the reference
// implementation's: with all tokens, and with RESTORE over HoloV at n = 64. The reduced run may
// differ in a few answers, because a feature that differs in the last bit can move a token across
// the budget's edge.
func TestScenesAgreeWithReference(t *testing.T) {
	const (
		name    = "holov 64 RESTORE released anchors"
		handful = 3 // of 72 questions
	)
	var rows []struct {
		Questions []struct{ Right map[string]float64 }
	}
	golden.JSON(t, referenceScenes+"/questions.json", &rows)
	b, pictures, err := benchmarks.SceneFolder(referenceScenes, 0)
	if err != nil || pictures != len(rows) {
		t.Fatalf("%v: %d pictures, want %d", err, pictures, len(rows))
	}
	m, err := restore.Open(t.Context(), "", &restore.Options{Threads: 1, EncodedBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	records, err := eval.RunAll(t.Context(), b, []eval.Answerer{
		&eval.Service{Model: m},
		&eval.Service{Model: m, Reduction: &restore.Reduction{Base: "holov", NVis: 64,
			Options: map[string]any{"anchors": "released", "anchor-pool": "rest"}}},
	}, eval.RunOptions{Parallel: 2})
	if err != nil {
		t.Fatal(err)
	}
	at, reduced := 0, 0
	for _, row := range rows {
		for _, q := range row.Questions {
			full := records[0][at]
			if *full.Score != q.Right["unreduced"] {
				t.Errorf("%s: %q: answered %q from all tokens; the reference scored %v",
					full.Images, full.Prompt, full.Text, q.Right["unreduced"])
			}
			if full.Parsed == nil {
				t.Errorf("%s: %q: cannot be parsed", full.Prompt, full.Text)
			}
			if *records[1][at].Score != q.Right[name] {
				reduced++
			}
			at++
		}
	}
	if at != len(records[0]) || reduced > handful {
		t.Errorf("%s: %d of %d answers differ from the reference, want at most %d", name, reduced,
			at, handful)
	}
}

// scenes runs `restore-lab eval scenes --json`.
func scenes(t *testing.T, result any, args ...string) {
	t.Helper()
	r := commandLine(append([]string{"eval", "scenes", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(r.Out), result); err != nil || r.Code != cli.ExitOK {
		t.Fatalf("%v: exit %d, %v, stderr %q", args, r.Code, err, r.Err)
	}
}

// Ensure that drawn pictures are of the world that the model was trained on, and that a budget of
// all tokens equals no reduction.
func TestScenesDrawn(t *testing.T) {
	var r compare.Paired
	scenes(t, &r, "--n", "3", "--base", "grid", "--n-vis", "576", "--distance")
	if r.Distance == nil || *r.Distance != 0 || r.Change["all"].Lost+r.Change["all"].Gained != 0 {
		t.Errorf("all tokens: distance %v, %+v", r.Distance, r.Change)
	}
	for task, least := range map[string]float64{
		"exist": 90, "attribute": 90, "where": 70, "count": 70,
	} {
		if r.Full[task] < least {
			t.Errorf("%s: %.1f %% of %d right, want at least %.0f", task, r.Full[task],
				r.Questions[task], least)
		}
	}
	how := r.Setup["reduction"].(map[string]any)
	if r.Setup["model"] == "" || how["n_vis"] != 576.0 {
		t.Errorf("setup: %v", r.Setup)
	}
	bad := commandLine("eval", "scenes", "--n", "1", "--base", "fastv", "--n-vis", "192",
		"--distance")
	if bad.Code == cli.ExitOK || !strings.Contains(bad.Err,
		"scene 5000000: lab: hausdorff: fastv reduces inside the decoder") {
		t.Errorf("distance inside the decoder: %+v", bad)
	}
}

// Ensure that a table has the figures of runs of one method, and that the answers on record are not
// asked again, whatever the number of pictures at a time.
func TestScenesRecorded(t *testing.T) {
	dir := t.TempDir()
	all := []string{"--all", "--methods", "grid,holov", "--n-vis", "64", "--n", "2", "--distance",
		"--records", dir}
	var first, again compare.Table
	scenes(t, &first, append(all, "--workers", "2")...)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1+len(first.Rows) {
		t.Fatalf("%v: %d folders of %d rows", err, len(entries), len(first.Rows))
	}
	size := func() (sum int64) {
		for _, e := range entries {
			info, err := os.Stat(filepath.Join(dir, e.Name(), "records.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		return sum
	}
	before := size()
	scenes(t, &again, all...)
	if a, b := cli.MustJSON(first), cli.MustJSON(again); string(a) != string(b) ||
		size() != before {
		t.Errorf("from records: %s\nwant %s", b, a)
	}
	var one compare.Paired
	scenes(t, &one, "--base", "holov", "--n-vis", "64", "--anchors", "released", "--join", "rest",
		"--n", "2", "--distance")
	row := first.Find(compare.Setting{Base: "holov", Restore: true, NVis: 64})
	if row == nil || row.Keeps != one.Reduced["vs_full"] || !(*row.Distance > 0) ||
		*row.Distance != *one.Distance || row.Over["unreduced"] != one.Change["all"] {
		t.Errorf("alone %+v; in a table %+v", one, row)
	}
}

// planTolerance is how many points of accuracy a plan may lose or gain on a few pictures, where
// each question counts 1.4 points. Over 120 pictures, q8 and q4 change it by less than one.
const planTolerance = 9

// Ensure that the embedded model answers nearly as well with its weights in each type, that a plan
// of the stored type changes nothing, and that the comparison adds up.
func TestEvalPlans(t *testing.T) {
	args := []string{"eval", "quant", "--data", referenceScenes, "--base", "holov", "--n-vis", "64",
		"--plans", "f32+f32,q8+q8,q4", "--workers", "2"}
	res := commandLine(append(args, "--json")...)
	var r compare.WeightsTable
	if err := json.Unmarshal([]byte(res.Out), &r); err != nil || len(r.Rows) != 3 {
		t.Fatalf("%v: %+v", err, res)
	}
	if how := r.Setup["reduction"].(map[string]any); how["n_vis"] != 64.0 || r.Pictures != 6 {
		t.Errorf("%+v", r)
	}
	for i, row := range r.Rows {
		c, gain := row.Change, row.Accuracy-r.Stored.Accuracy
		if i == 0 && (c.Lost != 0 || c.Gained != 0 || gain != 0) {
			t.Errorf("%v: changed %+v", row.Weights, c)
		}
		want := 100 * float64(c.Gained-c.Lost) / float64(r.Questions)
		if !(max(gain-want, want-gain) <= 0.11) || !(max(gain, -gain) <= planTolerance) {
			t.Errorf("%v: %.1f points more right, %d gained and %d lost of %d", row.Weights, gain,
				c.Gained, c.Lost, r.Questions)
		}
	}
	if r.Rows[2].Resident >= r.Rows[1].Resident || r.Rows[1].Resident >= r.Stored.Resident ||
		r.Stored.Resident >= r.Rows[0].Resident {
		t.Errorf("sizes: %+v", r.Rows)
	}
}
