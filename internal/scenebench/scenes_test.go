package scenebench

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/reduce"
)

func openModel(t *testing.T) *engine.Engine {
	t.Helper()
	m, err := engine.Open(formats.Files{}, engine.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Ensure that the embedded model's answers equal, question by question, the reference
// implementation's: with all tokens, and with RESTORE over HoloV at n = 64. The reduced run may
// differ in a few answers, because a feature that differs in the last bit can move a token across
// the budget's edge.
func TestScenesAgreeWithReference(t *testing.T) {
	const (
		dir     = "testdata/scenes"
		handful = 3 // of 72 questions
	)
	var rows []struct {
		Questions []struct{ Right map[string]int }
	}
	data, err := os.ReadFile(dir + "/questions.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	m := openModel(t)
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	const name = "holov 64 RESTORE released anchors"
	o := methods.Options{
		Base: "holov", NVis: 64, Restore: true, Anchors: "released", AnchorPool: "rest",
	}
	r, err := Scenes(context.Background(), m, f.Items(f.Len()), f.Len(), o, RunOptions{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	at, reduced := 0, 0
	for _, row := range rows {
		for _, q := range row.Questions {
			got := r.Records[at]
			at++
			if got.FullRight != (q.Right["unreduced"] == 1) {
				t.Errorf("%s: %q: answered %q from all tokens; the reference was right: %v",
					got.Picture, got.Question, got.Full, !got.FullRight)
			}
			if got.ReducedRight != (q.Right[name] == 1) {
				reduced++
			}
		}
	}
	if at != len(r.Records) || reduced > handful {
		t.Errorf("%s: %d of %d answers differ from the reference, want at most %d", name, reduced,
			at, handful)
	}
	if len(r.Unparsable) > 0 {
		t.Errorf("unparsable answers: %v", r.Unparsable)
	}
}

// Ensure that drawn pictures are of the world that the model was trained on.
func TestScenesDrawn(t *testing.T) {
	m := openModel(t)
	const n = 3
	r, err := Scenes(context.Background(), m, drawn(n), n,
		methods.Options{Base: "grid", NVis: 576, Restore: true}, RunOptions{Distance: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Distance == nil || *r.Distance != 0 {
		t.Errorf("distance of a budget of all tokens: %v, want 0", r.Distance)
	}
	for task, least := range map[string]float64{
		"exist": 90, "attribute": 90, "where": 70, "count": 70,
	} {
		if r.Full[task] < least {
			t.Errorf("%s: %.1f %% of %d right, want at least %.0f", task, r.Full[task],
				r.Questions[task], least)
		}
	}
	// A budget of all tokens equals no reduction.
	for _, q := range r.Records {
		if q.Full != q.Reduced {
			t.Errorf("%s: %q: %q from all tokens, %q from all tokens under grid", q.Picture,
				q.Question, q.Full, q.Reduced)
		}
	}
	if r.Setup["model"] == "" || r.Setup["reduction"].(reduce.Resolved).NVis != 576 {
		t.Errorf("setup: %v", r.Setup)
	}
}

// Ensure that errors of the model and cancellation reach the caller.
func TestScenesErrors(t *testing.T) {
	m := openModel(t)
	if _, err := Scenes(context.Background(), m, drawn(1), 1,
		methods.Options{Base: "holov", NVis: 577}, RunOptions{}); err == nil {
		t.Error("a budget above the token count: no error")
	}
	if _, err := Scenes(context.Background(), m, drawn(1), 1,
		methods.Options{Base: "fastv", Schedule: "2:64"}, RunOptions{Distance: true}); err == nil ||
		!strings.Contains(err.Error(), "hausdorff: fastv reduces inside the decoder") {
		t.Errorf("distance inside the decoder: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := 0
	_, err := Scenes(ctx, m, drawn(3), 3, methods.Options{Base: "holov", NVis: 64}, RunOptions{
		Progress: func(int, int) { done++; cancel() },
	})
	if !errors.Is(err, context.Canceled) || done != 1 {
		t.Errorf("cancelled after a picture: %v after %d", err, done)
	}
}

// drawn are the first n pictures of evaluations.
func drawn(n int) iter.Seq2[Item, error] { return DrawnFrom(scene.EvalSeed, n) }
