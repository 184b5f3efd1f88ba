package methods

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

// Ensure that budgets are divided as by hand, from the definition: a·K + b·(L−K) rows are at most
// L·n, and b is as close to a/2 as that allows.
func TestTwoStageBudgets(t *testing.T) {
	for _, c := range []struct {
		n, tokens, layers, second int
		first, rows, layer        int
		mean                      float64
	}{
		{16, 576, 6, 0, 24, 12, 2, 16}, // 2·24 + 4·12 = 96
		{32, 576, 6, 0, 48, 24, 2, 32}, // 2·48 + 4·24 = 192
		{17, 576, 6, 0, 25, 13, 2, 17}, // 2·25 + 4·13 = 102
		{32, 576, 6, 3, 43, 21, 3, 32}, // 3·43 + 3·21 = 192; 42 and 22 are further from a half
		{64, 576, 32, 0, 95, 47, 11, 63.5},
		{2, 576, 6, 0, 3, 1, 2, 10. / 6},
		{500, 576, 6, 0, 576, 462, 2, 500}, // all tokens, then the rest of the budget
	} {
		p, err := Resolve(Options{
			Base: "grid", NVis: c.n, Restore: true, TwoStages: true, SecondLayer: c.second,
		}, Facts{Tokens: c.tokens, Layers: c.layers})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(p.First.NVis, p.NVis, p.Stages[0].Layer, p.Mean)
		if want := fmt.Sprint(c.first, c.rows, c.layer, c.mean); got != want {
			t.Errorf("%d of %d in %d layers: got %s, want %s", c.n, c.tokens, c.layers, got, want)
		}
		enter, _ := p.LayerRows(c.layers)
		if enter[c.layer-1] != c.first || enter[c.layer] != c.rows ||
			p.RowsAt(c.layer) != c.first || p.RowsAt(c.layer+1) != c.rows {
			t.Errorf("%d of %d: rows by layer: %v", c.n, c.tokens, enter)
		}
	}
}

// Ensure that no budget is exceeded, and that it is missed by less than a row a layer.
func TestTwoStageBudgetsHold(t *testing.T) {
	from := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		tokens, layers := 1+from.IntN(900), 2+from.IntN(40)
		n, second := 1+from.IntN(tokens), from.IntN(layers)
		var bad *errs.OptionError
		p, err := Resolve(Options{
			Base: "grid", NVis: n, Restore: true, TwoStages: true, SecondLayer: second,
		}, Facts{Tokens: tokens, Layers: layers})
		if errors.As(err, &bad) && bad.Name == "second-layer" &&
			(n+1)*second+layers-second > n*layers {
			continue // one row more before it is too much
		}
		if err != nil {
			t.Fatal(tokens, layers, n, second, err)
		}
		if p.First == nil {
			if p.NVis != n || n > 1 && n < tokens {
				t.Fatalf("%d of %d tokens in %d layers: one stage of %d", n, tokens, layers, p.NVis)
			}
			continue
		}
		if p.Mean > float64(n) || p.Mean <= float64(n)-1 || p.First.NVis < p.NVis ||
			p.First.NVis > tokens || p.NVis < 1 {
			t.Fatalf("%d of %d tokens in %d layers, second %d: %d, then %d: a mean of %v", n,
				tokens, layers, second, p.First.NVis, p.NVis, p.Mean)
		}
	}
}

// Ensure that the first stage is the reduction of the same options with its number of rows, but
// that the mean chooses the rule for anchors, and that all tokens are no reduction.
func TestTwoStagesPlan(t *testing.T) {
	f := Facts{Tokens: 576, Layers: 6, GridH: 24, GridW: 24}
	p, err := Resolve(Options{Base: "holov", NVis: 48, Restore: true, TwoStages: true}, f)
	if err != nil {
		t.Fatal(err)
	}
	one, err := Resolve(Options{
		Base: "holov", NVis: 72, Restore: true, Anchors: "covered", Join: "all",
	}, f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(p.BeforeDecoder().Resolved), fmt.Sprint(one.Resolved); got != want {
		t.Errorf("first stage %s, want %s", got, want)
	}
	const text = "RESTORE over holov, two stages 0:72,2:36 (48 of 576 tokens a layer), " +
		"gamma 0.5, positions original, calibrate full, merge-position median, " +
		"first anchors covered, join all, then anchors released of rest"
	if p.String() != text {
		t.Errorf("got %s, want %s", p, text)
	}
	if p, err = Resolve(Options{
		Base: "holov", NVis: 576, Restore: true, TwoStages: true,
	}, f); err != nil || p.First != nil || len(p.Stages) > 0 {
		t.Errorf("all tokens: %v, %v", p, err)
	}
	if p, err = Resolve(Options{
		Base: "pool", NVis: 40, Restore: true, TwoStages: true,
	}, f); err != nil || p.First.NVis != 60 || p.NVis != 30 || p.MergePosition != "median" {
		t.Errorf("pool: %+v, %v", p, err) // 2·60 + 4·30 = 240
	}
	if p, err = Resolve(Options{
		Base: "downsample", NVis: 41, Restore: true, TwoStages: true,
	}, f); err != nil || p.First.NVis != 60 || p.NVis != 31 {
		t.Errorf("downsample: %v, %v", p, err) // 61 rows, a prime, are no grid
	}
	for _, c := range []struct {
		o        Options
		f        Facts
		name     string
		fault    errs.Fault
		contains string
	}{
		{Options{Base: "holov", NVis: 32, TwoStages: true}, f, "two-stages", errs.Useless, "restore=false"},
		{Options{Base: "fastv", NVis: 200, Restore: true, TwoStages: true}, f, "two-stages", errs.Conflict, "inside the decoder itself"},
		{Options{Base: "none", TwoStages: true, Restore: true}, f, "two-stages", errs.Useless, "without a base"},
		{Options{Base: "holov", NVis: 32, Restore: true, SecondLayer: 2}, f, "second-layer", errs.Useless, "one stage"},
		{Options{Base: "holov", NVis: 32, Restore: true, TwoStages: true, SecondLayer: 6}, f, "second-layer", errs.TooLarge, "6 layers"},
		{Options{Base: "holov", NVis: 32, Restore: true, TwoStages: true}, Facts{Tokens: 576}, "two-stages", errs.Conflict, "needs a model"},
		{Options{Base: "holov", NVis: 32, Restore: true, TwoStages: true}, Facts{Tokens: 576, Layers: 1}, "two-stages", errs.Conflict, "1 layer"},
		{Options{Base: "holov", Restore: true, TwoStages: true}, f, "n-vis", errs.Missing, ""},
		{
			Options{
				Base: "tome", Restore: true, TwoStages: true, Own: map[string]any{"tome-r": "8"},
			},
			Facts{Tokens: 576, Layers: 6, EncoderBlocks: 23, EncoderDepth: 24}, "tome-r",
			errs.Conflict, "divides a budget",
		},
	} {
		_, err := Resolve(c.o, c.f)
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Name != c.name || bad.Fault != c.fault ||
			!strings.Contains(err.Error(), c.contains) {
			t.Errorf("%+v: got %v, want %s refused: %s", c.o, err, c.name, c.contains)
		}
	}
	if err := Check(Options{Base: "holov", NVis: 32, Restore: true, TwoStages: true}); err != nil {
		t.Errorf("without a picture: %v", err)
	}
}
