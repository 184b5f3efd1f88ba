package methods

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// Ensure that every method says what it computes, where it departs, what it costs in words and in
// numbers, and under which licence.
func TestNotes(t *testing.T) {
	for _, m := range append(methods(), restoreMethod) {
		for what, text := range map[string]string{
			"title": m.Title, "cost": m.Cost, "equations": m.Notes.Equations, "licence": m.Licence(),
		} {
			if strings.TrimSpace(text) == "" {
				t.Errorf("%s: has no %s", m.Name, what)
			}
		}
		if m.Paper != "" && strings.TrimSpace(m.Notes.Departures) == "" {
			t.Errorf("%s: does not say where it departs from %s", m.Name, m.Paper)
		}
		if m.Paper != "" && !strings.HasPrefix(m.Paper, "https://arxiv.org/abs/") {
			t.Errorf("%s: paper %q, want an address at arXiv", m.Name, m.Paper)
		}
		if m.Site == reduce.InsideDecoder && !m.Text {
			t.Errorf("%s: acts inside the decoder and does not read the question", m.Name)
		}
		if m.Name != "restore" && m.ops == nil {
			t.Errorf("%s: its cost is not counted", m.Name)
		}
	}
}

// Ensure that operations are those worked out by hand: 10 tokens of width 4 to 6.
func TestOperations(t *testing.T) {
	d := Dims{C: 4, Cv: 3, KeyDim: 2, Text: 5}
	for _, c := range []struct {
		o    Options
		want float64
	}{
		{Options{Base: "grid", NVis: 6}, 0},
		{Options{Base: "grid", NVis: 6, Restore: true}, 10 * 10 * 4},
		{Options{Base: "grid", NVis: 10, Restore: true}, 0},
		{Options{Base: "divprune", NVis: 6}, 10 * 10 * 4},
		{Options{Base: "divprune", NVis: 6, Restore: true}, 10 * 10 * 4},
		{Options{Base: "holov", NVis: 6, Own: map[string]any{"holov-patches": 2}}, 2 * 5 * 5 * 4},
		{Options{Base: "vispruner", NVis: 8, Restore: true}, 10*10*3 + 10*10*4},
		{Options{Base: "visionzip", NVis: 6, Own: map[string]any{"visionzip-contextual": 2}}, (10 - 6) * 2 * 2},
		{Options{Base: "pool", NVis: 6, Restore: true}, 10 * 4},
		{Options{Base: "fastv", Schedule: "1:6"}, (10 + 5) * 4},
		{Options{Base: "fastv", Schedule: "1:6", Restore: true}, (10+5)*4 + 10*10*4},
	} {
		r, err := inLayers(c.o, 10, 3)
		if err != nil {
			t.Fatal(err)
		}
		if got, known := r.Operations(d); got != c.want || !known {
			t.Errorf("%+v: got %v, %v, want %v", c.o, got, known, c.want)
		}
	}
}
