package scenebench

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// planTolerance is how many points of accuracy a plan may lose or gain on a few pictures, where
// each question counts 1.4 points. Over 120 pictures, q8 and q4 change it by less than one.
const planTolerance = 9

// Ensure that the embedded model answers nearly as well with its weights in each type, that a plan
// of the stored type changes nothing, and that the comparison adds up.
func TestPlans(t *testing.T) {
	f, err := OpenFolder("testdata/scenes")
	if err != nil {
		t.Fatal(err)
	}
	open := func(p Plan) (*engine.Engine, error) {
		return engine.Open(formats.Files{}, engine.Options{
			Threads: 1, Quant: p.Quant, EncoderQuant: p.EncoderQuant,
		})
	}
	items := f.Items(f.Len())
	plans := []Plan{{"f32", "f32"}, {"q8", "q8"}, {"q4", ""}}
	done := 0
	r, err := Plans(context.Background(), open, plans, items, f.Len(),
		methods.Options{Base: "holov", NVis: 64, Restore: true},
		RunOptions{Workers: 2, Progress: func(d, n int) {
			if n != len(plans)*f.Len() {
				t.Fatalf("progress over %d", n)
			}
			done = d
		}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Pictures != f.Len() || done != len(plans)*f.Len() || len(r.Rows) != len(plans) ||
		r.Setup["reduction"].(reduce.Resolved).NVis != 64 {
		t.Errorf("%+v, %d pictures done", r, done)
	}
	for i, row := range r.Rows {
		t.Logf("%+v", row)
		c := row.Change
		if i == 0 && (c.Lost != 0 || c.Gained != 0 || row.Accuracy != r.Stored.Accuracy) {
			t.Errorf("%v: changed %+v", row.Plan, c)
		}
		if got, want := row.Accuracy-r.Stored.Accuracy,
			100*float64(c.Gained-c.Lost)/float64(r.Questions); !(abs(got-want) <= 0.11) ||
			!(abs(got) <= planTolerance) {
			t.Errorf("%v: %.1f points more right, %d gained and %d lost of %d", row.Plan, got,
				c.Gained, c.Lost, r.Questions)
		}
	}
	if r.Rows[2].Resident >= r.Rows[1].Resident || r.Rows[1].Resident >= r.Stored.Resident ||
		r.Stored.Resident >= r.Rows[0].Resident {
		t.Errorf("sizes: %+v", r.Rows)
	}
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil || strings.Count(b.String(), "\n") != len(plans)+3 {
		t.Errorf("%v:\n%s", err, b.String())
	}
	broken := errors.New("no such model")
	if _, err := Plans(context.Background(), func(Plan) (*engine.Engine, error) {
		return nil, broken
	}, plans, items, 1, methods.Options{}, RunOptions{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func abs(x float64) float64 { return max(x, -x) }
